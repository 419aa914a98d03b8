"""An embedded broker with a second listener, where clients log in."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.connectors.kafka.client.connection import MECHANISMS
from sluice.connectors.kafka.tools.broker.broker_properties import BrokerPorts
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.kafka.certificates import Certificate, make_certificate

__all__ = ["BrokerSecurity", "SecureBroker"]

_SECURE = "SECURE"
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """How clients log in.

    Attributes:
        has_tls: SASL_SSL, else SASL_PLAINTEXT.
        users: password by name; valid for PLAIN and both SCRAM mechanisms. OAUTHBEARER accepts
            unsecured tokens of any subject.
        mechanisms: of the listener.
    """

    has_tls: bool = True
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    mechanisms: tuple[str, ...] = MECHANISMS


class SecureBroker(EmbeddedKafka):
    """As `EmbeddedKafka`; the open listener stays, for the test's own bookkeeping."""

    def __init__(self, security: BrokerSecurity, **options: Any) -> None:
        super().__init__(**options)
        self._security = security
        (self._secure_port,) = free_ports(1)
        self.certificate: Certificate | None = None

    @property
    def secure_bootstrap(self) -> str:
        """``host:port`` of the listener where clients log in."""
        return f"{HOST}:{self._secure_port}"

    @property
    def ca_file(self) -> Path:
        """PEM file that clients of a listener with TLS must trust."""
        assert self.certificate is not None
        return self.certificate.ca_file

    def _server_properties(self, directory: Path, ports: BrokerPorts) -> dict[str, str]:
        properties = super()._server_properties(directory, ports)
        added = f",{_SECURE}://{HOST}:{self._secure_port}"
        properties["listeners"] += added
        properties["advertised.listeners"] += added
        protocol = "SASL_SSL" if self._security.has_tls else "SASL_PLAINTEXT"
        properties["listener.security.protocol.map"] += f",{_SECURE}:{protocol}"
        prefix = f"listener.name.{_SECURE.lower()}"
        properties[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(self._security.mechanisms)
        for mechanism in self._security.mechanisms:
            properties[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = self._jaas(mechanism)
        if self._security.has_tls:
            if self.certificate is None:
                password = secrets.token_hex(16)
                made = make_certificate(directory / "tls", find_java(), password=password)
                self.certificate = made
            properties |= {
                f"{prefix}.ssl.keystore.location": str(self.certificate.keystore),
                f"{prefix}.ssl.keystore.password": self.certificate.password,
                f"{prefix}.ssl.keystore.type": "PKCS12",
            }
        return properties

    def _format_arguments(self, properties_file: Path) -> list[str]:
        """Only the format sets SCRAM users."""
        arguments = super()._format_arguments(properties_file)
        for mechanism in self._security.mechanisms:
            if mechanism.startswith("SCRAM"):
                for name, password in self._security.users.items():
                    arguments += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        return arguments

    def _jaas(self, mechanism: str) -> str:
        if mechanism == "PLAIN":
            users = self._security.users.items()
            entries = " ".join(f'user_{name}="{password}"' for name, password in users)
            return f"{_MODULES}.plain.PlainLoginModule required {entries};"
        if mechanism == "OAUTHBEARER":
            module = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
            return f'{module} required unsecuredLoginStringClaim_sub="broker";'
        return f"{_MODULES}.scram.ScramLoginModule required;"
