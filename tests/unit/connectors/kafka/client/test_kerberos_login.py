"""Logins by Kerberos: what both clients get, and what a wheel without it is told."""

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sluice.connectors.kafka.client import confluent, wire_client
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    MissingRequirementError,
    UnreachableError,
)
from tests.kit.kafka.kafka_options import connection_with

_KEYTAB = {
    "sasl_kerberos_service_name": "kafka",
    "sasl_kerberos_principal": "orders@EXAMPLE.COM",
    "sasl_kerberos_keytab": "/etc/orders.keytab",
}
_IS_WHEEL = "confluent_kafka.libs" in str(confluent.librdkafka_path())
_JAAS = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
    'keyTab="/etc/orders.keytab" principal="orders@EXAMPLE.COM" serviceName="kafka";'
)


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of the keytab; the process has none, and has none after the test."""
    name = "KRB5_CLIENT_KTNAME"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    return name


def _kerberos(**options: str) -> KafkaConnection:
    return connection_with(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI", **options)


@pytest.mark.parametrize("options", [_KEYTAB, {"sasl_jaas_config": _JAAS}], ids=["kafka", "java"])
def test_a_keytab_is_given_to_both_clients(options: dict[str, str]) -> None:
    """By Kafka's names, and by those of Java's login module."""
    connection = _kerberos(**options)
    config = connection.librdkafka(Role.ADMIN)
    assert {name: config[name] for name in config if name.startswith("sasl.")} == {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "orders@EXAMPLE.COM",
        "sasl.kerberos.keytab": "/etc/orders.keytab",
    }
    settings = connection.wire()
    assert settings["sasl_mechanism"] == "GSSAPI"
    assert settings["sasl_kerberos_service_name"] == "kafka"
    assert settings["sasl_kerberos_keytab"] == "/etc/orders.keytab"


def test_a_ticket_cache_is_not_renewed_by_librdkafka() -> None:
    """Its kinit needs a keytab."""
    config = _kerberos(sasl_kerberos_service_name="kafka").librdkafka(Role.ADMIN)
    assert config["sasl.kerberos.min.time.before.relogin"] == "0"
    assert "sasl.kerberos.keytab" not in config


@pytest.mark.parametrize("missing", ["service_name", "principal", "keytab"])
def test_an_incomplete_login_is_refused(missing: str) -> None:
    options = {name: value for name, value in _KEYTAB.items() if not name.endswith(missing)}
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.kerberos"):
        _kerberos(**options)


@pytest.mark.skipif(not _IS_WHEEL, reason="this confluent-kafka was built from its source")
def test_a_client_without_gssapi_says_which_package_to_replace() -> None:
    """The wheel of confluent-kafka lacks it."""
    with pytest.raises(ConfigError, match="--no-binary confluent-kafka") as caught:
        confluent.make_admin(_kerberos(**_KEYTAB).librdkafka(Role.ADMIN))
    assert confluent.CLIENT_VERSION in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Cannot contact any KDC for realm 'EXAMPLE.COM'", UnreachableError),
        ("Client 'orders@EXAMPLE.COM' not found in Kerberos database", AuthenticationError),
    ],
)
def test_a_refusal_of_kerberos_has_a_type(text: str, kind: type[Exception]) -> None:
    """gssapi has errors of its own, which no caller knows."""
    foreign = type("GSSError", (Exception,), {"__module__": "gssapi.raw.exceptions"})
    noted = SimpleNamespace(refused=None, failed=None)
    wire_client._Manager._note(noted, foreign(text))  # type: ignore[arg-type]  # noqa: SLF001
    assert type(noted.refused or noted.failed) is kind
    assert (noted.refused is None) is (kind is UnreachableError)


def test_the_second_client_needs_a_package(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """With it, the keytab is that of Kerberos' own library."""
    settings = _kerberos(**_KEYTAB).wire()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingRequirementError, match=r"sluice\[kerberos\]"):
        wire_client.WireClient.connect(settings, 0.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert "sasl_kerberos_keytab" not in wire_client.with_tickets(settings)
    assert os.environ[variable] == "/etc/orders.keytab"
