"""An embedded broker with a second listener, where clients log in."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.connectors.kafka.client.connection import MECHANISMS
from sluice.connectors.kafka.tools.broker.broker_properties import BrokerPorts
from sluice.connectors.kafka.tools.broker.embedded_kafka import QUICK_START, EmbeddedKafka
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.kafka.certificates import Certificate, make_certificate
from tests.kit.kafka.token_server import AUDIENCE, TokenServer

__all__ = ["BrokerSecurity", "SecureBroker"]

_SECURE = "SECURE"
_MODULES = "org.apache.kafka.common.security"
_VALIDATOR = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"  # since Kafka 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """How clients log in.

    Attributes:
        has_tls: SASL_SSL, else SASL_PLAINTEXT.
        users: password by name; valid for PLAIN and both SCRAM mechanisms. OAUTHBEARER accepts
            unsecured tokens of any subject, unless there is an issuer.
        mechanisms: of the listener.
        issuer: of the tokens that OAUTHBEARER accepts, for `AUDIENCE`. A connection ends with its
            token, unless the client logs in again.
    """

    has_tls: bool = True
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    mechanisms: tuple[str, ...] = MECHANISMS
    issuer: TokenServer | None = None


class SecureBroker(EmbeddedKafka):
    """As `EmbeddedKafka`; the open listener stays, for the test's own bookkeeping."""

    def __init__(self, security: BrokerSecurity, **options: Any) -> None:
        if security.issuer is not None:
            allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={security.issuer.keys_url}"
            options["jvm_options"] = (*options.get("jvm_options", QUICK_START), allowed)
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
        if self._security.issuer is not None:
            oauth = f"{prefix}.oauthbearer"
            properties |= {
                f"{oauth}.sasl.server.callback.handler.class": _VALIDATOR,
                f"{oauth}.sasl.oauthbearer.jwks.endpoint.url": self._security.issuer.keys_url,
                f"{oauth}.sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{oauth}.connections.max.reauth.ms": "3600000",
            }
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
            if self._security.issuer is not None:
                return f"{module} required;"
            return f'{module} required unsecuredLoginStringClaim_sub="broker";'
        return f"{_MODULES}.scram.ScramLoginModule required;"
