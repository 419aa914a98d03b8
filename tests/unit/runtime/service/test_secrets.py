"""No text that is made of an option, a setting or an error shows a secret."""

import dataclasses
import importlib
import logging
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluice
from sluice import HdfsSink, KafkaSink, KafkaSource, PartitionCommit, Webhook
from sluice.connectors.hdfs.writing.spark_saver import SparkFrameSaver
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import (
    ClientCredentials,
    OAuthToken,
    without_credentials,
)
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.tools.connection_options import read_options
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.service.drop_in_client import DropInClient, DropInMessage, QueryRun
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.spark.tasks.region_tasks import RegionTasks
from tests.kit.coordinator.coordinated_service import started_service

CANARY = "c4n4ry"
_SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
_OAUTH = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
_SECRET_OPTIONS: Mapping[str, str] = {
    "kafka.sasl.jaas.config": (
        f'org.x.PlainLoginModule required username="u" password="{CANARY}";'
    ),
    "kafka.sasl.oauthbearer.client.secret": CANARY,
    "kafka.sasl.oauthbearer.client.credentials.client.secret": CANARY,
    "kafka.sasl.oauthbearer.config": f"principal={CANARY}",
    "kafka.sasl.oauthbearer.extensions": f"a={CANARY}",
    "kafka.sasl.oauthbearer.token.endpoint.url": f"https://u:{CANARY}@issuer/t?key={CANARY}",
    "kafka.sasl.password": CANARY,
    "kafka.ssl.key.password": CANARY,
    "kafka.ssl.key.pem": CANARY,
    "kafka.ssl.keystore.key": CANARY,
    "kafka.ssl.keystore.password": CANARY,
    "kafka.ssl.truststore.password": CANARY,
}
_ADDRESS = CoordinatorAddress(
    address="http://h:1", token=CANARY, leader_session_id="s", job_uid="u"
)


def _connection() -> KafkaConnection:
    return KafkaConnection(bootstrap_servers="b:1", options={**_SASL, **_SECRET_OPTIONS})


def _source() -> KafkaSource:
    return KafkaSource(bootstrap_servers="b:1", topics=["in"], options={**_SASL, **_SECRET_OPTIONS})


def _sink() -> KafkaSink:
    return KafkaSink(
        bootstrap_servers="b:1",
        topic="out",
        transactional_id_prefix="p",
        options={**_SASL, **_SECRET_OPTIONS},
    )


def _files() -> HdfsSink:
    webhook = Webhook(url=f"https://u:{CANARY}@h/p?k={CANARY}", headers={"Authorization": CANARY})
    return HdfsSink(
        "file:///data/out",
        partition_by=["day"],
        options={"parquet.encryption.footer.key": CANARY, "fs.s3a.secret": CANARY},
        partition_commit=PartitionCommit(policies=(webhook,)),
    )


def _objects() -> Iterator[object]:
    yield _connection()
    yield _source()
    yield _source().reader()
    yield _sink()
    yield _sink().writer_factory()
    yield _files()
    yield _files().frame_writer()
    options = {"parquet.encryption.footer.key": CANARY}
    yield SparkFrameSaver(format_name="parquet", partition_by=(), columns=None, options=options)
    yield ClientCredentials(
        token_url=f"https://u:{CANARY}@issuer/t", client_id="me", client_secret=CANARY
    )
    yield SchemaRegistry(
        url="http://here",
        bearer_auth_token=CANARY,
        ssl_key_password=CANARY,
        proxy=f"http://u:{CANARY}@there",
        options={"bearer.auth.client.secret": CANARY},
    )
    yield OAuthToken(value=CANARY, expires_at_s=1.0, extensions={"a": CANARY})
    yield _ADDRESS
    yield CoordinatorClient(_ADDRESS)
    yield DropInClient(address=_ADDRESS)
    yield DropInMessage(location="l", options=_SECRET_OPTIONS)
    yield QueryRun(
        run_id="r",
        job_uid="u",
        attempt_id=1,
        operator_id="o",
        committed_through=0,
        address=_ADDRESS,
        writer_factory=CANARY.encode(),
    )
    yield RegionTasks(
        address=_ADDRESS,
        job_uid="u",
        region="main",
        attempt_id=1,
        factories={"o": _sink().writer_factory()},
    )


@pytest.mark.parametrize("found", list(_objects()), ids=lambda found: type(found).__name__)
def test_no_text_of_a_public_object_holds_a_secret(found: Any) -> None:
    """As it comes into logs, errors and notebooks; nor do its settings, which are on record."""
    said = [repr(found), str(found), f"{[found]}", f"{ {'x': found} }"]
    if hasattr(found, "settings") and callable(found.settings):
        said.append(str(found.settings()))
    assert [text for text in said if CANARY in text] == []


@pytest.mark.parametrize("role", Role)
def test_what_clients_are_configured_with_hides_its_secrets_from_a_repr(role: Role) -> None:
    """Libraries log their whole configuration at DEBUG."""
    assert CANARY not in repr(_connection().librdkafka(role))
    assert CANARY not in repr(_connection().wire())
    assert _connection().librdkafka(role)["ssl.key.password"] == CANARY, "and they are reported it"


# --- whatever class comes next --------------------------------------------------------------------

_NAMED = re.compile(r"(^|_)(token|password|passphrase|secret|credentials?)($|_(?!url|file))")
_REGISTRY = "sluice.connectors.kafka.records.registry.schema_registry.SchemaRegistry"
_NONE = frozenset(
    {
        "sluice.runtime.service.service_client.CoordinatorAddress.token",
        f"{_REGISTRY}.bearer_auth_token",
        f"{_REGISTRY}.ssl_key_password",
    }
)
"""Their class has a ``repr`` of its own, which is tried above."""


def _modules() -> Iterator[ModuleType]:
    for package in (sluice,):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith("sluice.connectors.kafka.native._"):  # compiled
                yield importlib.import_module(found.name)


def test_a_field_named_as_a_secret_is_in_no_repr() -> None:
    shown = {
        f"{module.__name__}.{name}.{field.name}"
        for module in _modules()
        for name, kind in vars(module).items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        if kind.__module__ == module.__name__
        for field in dataclasses.fields(kind)
        if field.repr and _NAMED.search(field.name) and "Callable" not in str(field.type)
    }
    assert shown - _NONE == set()


# --- errors ---------------------------------------------------------------------------------------

_TEXT = st.text(max_size=20).map(lambda text: f"{text}{CANARY}")
_NAMES = st.sampled_from(
    [*_SECRET_OPTIONS, "kafka.sasl.pasword", "kafka.ssl.key.pasword", "kafka.sasl.jaas.configs"]
)


@given(
    name=_NAMES,
    value=_TEXT | _TEXT.map(lambda text: f'org.x.PlainLoginModule required password="{text}'),
    base=st.sampled_from([{}, _SASL, _OAUTH, {**_SASL, "kafka.sasl.mechanism": "GSSAPI"}]),
)
def test_no_error_of_an_option_holds_its_secret(
    name: str, value: str, base: Mapping[str, str]
) -> None:
    """Misspelt, incomplete or of another form: its name is reported, never its value."""
    options = {**base, name: value}
    for make in (
        lambda: KafkaConnection(bootstrap_servers="b:1", options=options),
        lambda: KafkaSource(bootstrap_servers="b:1", topics=["in"], options=options),
        lambda: KafkaSink(
            bootstrap_servers="b:1", topic="o", transactional_id_prefix="p", options=options
        ),
    ):
        try:
            text = repr(make())
        except StreamError as error:
            text = f"{error} {error!r} {error.__cause__!r}"
        if not (name.endswith(".url") and without_credentials(value) == value):
            assert CANARY not in text


def test_a_line_that_is_no_option_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"kafka.security.protocol=SSL\n{CANARY}\n")
    with pytest.raises(ConfigError, match="line=2") as raised:
        read_options(None, file)
    assert CANARY not in str(raised.value)
    with pytest.raises(ConfigError, match=r"begins_with=kafka\.acks"):
        read_options(["kafka.acks all"], None)


def test_no_log_line_of_a_request_holds_its_token(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), started_service() as service:
        address = service.coordinator_address
        with CoordinatorClient(address) as client:
            client.status()
        with (
            CoordinatorClient(dataclasses.replace(address, token=CANARY)) as client,
            pytest.raises(StreamError),
        ):
            client.status()
    assert caplog.records
    for secret in (address.token, service.command_address.token, CANARY):
        assert secret not in caplog.text
