"""A broker with a listener where clients log in by Kerberos."""

from collections.abc import Mapping
from typing import Any

from sluice.connectors.kafka.tools.broker.broker_properties import BrokerPorts
from sluice.connectors.kafka.tools.broker.embedded_kafka import QUICK_START
from sluice.runtime.embedded.ports import HOST
from tests.kit.kafka.secure_broker import BrokerSecurity, SecureBroker
from tests.kit.kerberos.kdc import REALM, Kdc

__all__ = ["KerberosBroker"]

_SERVICE = f"kafka/localhost@{REALM}"


class KerberosBroker(SecureBroker):
    """As `SecureBroker`, without TLS.

    Args:
        kdc: of the realm; it runs.
    """

    def __init__(self, kdc: Kdc, **options: Any) -> None:
        security = BrokerSecurity(has_tls=False, mechanisms=("GSSAPI",))
        super().__init__(security, jvm_options=(*QUICK_START, kdc.java_option), **options)
        self._keytab = kdc.keytab("kafka", _SERVICE)

    @property
    def secure_bootstrap(self) -> str:
        """By the host's name, which is part of the service's principal."""
        return super().secure_bootstrap.replace(HOST, "localhost")

    def login(self, principal: str, keytab: object) -> Mapping[str, str]:
        """A client's options."""
        return {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "GSSAPI",
            "kafka.sasl.kerberos.service.name": "kafka",
            "kafka.sasl.kerberos.principal": f"{principal}@{REALM}",
            "kafka.sasl.kerberos.keytab": str(keytab),
        }

    def _server_properties(self, directory: Any, ports: BrokerPorts) -> dict[str, str]:
        properties = super()._server_properties(directory, ports)
        name = "advertised.listeners"
        secure = super().secure_bootstrap
        properties[name] = properties[name].replace(secure, self.secure_bootstrap)
        properties["listener.name.secure.sasl.kerberos.service.name"] = "kafka"
        return properties

    def _jaas(self, mechanism: str) -> str:
        del mechanism
        return (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            f'keyTab="{self._keytab}" principal="{_SERVICE}";'
        )
