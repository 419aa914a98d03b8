"""JKS and PKCS12 stores as Spark users have them: both clients use what they hold, on each host."""

import pickle
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_admin
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.java_stores import without_java_stores
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.tools.broker.broker_properties import BrokerPorts
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.errors import ConfigError

pytestmark = pytest.mark.integration

PASSWORD = "store-secret-1"
KEY_PASSWORD = "key-secret-22"


def keytool(*arguments: str) -> None:
    tool = find_java().executable.with_name("keytool")
    subprocess.run([tool, *arguments], check=True, capture_output=True, timeout=120)


def make_store(
    path: Path, kind: str, *, key_password: str = PASSWORD, start: str = "-1d", days: int = 30
) -> Path:
    """A private key and its certificate."""
    keytool(
        *("-genkeypair", "-alias", "own", "-keyalg", "EC", "-groupname", "secp256r1"),
        *("-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1"),
        *("-startdate", start, "-validity", str(days)),
        *("-keystore", str(path), "-storetype", kind, "-storepass", PASSWORD),
        *("-keypass", key_password),
    )
    return path


def make_trust_store(path: Path, kind: str, of: Path) -> Path:
    """Trusts the certificate of another store."""
    certificate = path.with_suffix(".pem")
    keytool(
        *("-exportcert", "-rfc", "-alias", "own", "-file", str(certificate)),
        *("-keystore", str(of), "-storepass", PASSWORD),
    )
    keytool(
        *("-importcert", "-noprompt", "-alias", "trusted", "-file", str(certificate)),
        *("-keystore", str(path), "-storetype", kind, "-storepass", PASSWORD),
    )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Files by kind; JKS's key has a password of its own."""

    key: Mapping[str, Path]
    trust: Mapping[str, Path]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    directory: Path = tmp_path_factory.mktemp("stores")
    key = {
        "JKS": make_store(directory / "own.jks", "JKS", key_password=KEY_PASSWORD),
        "PKCS12": make_store(directory / "own.p12", "PKCS12"),
    }
    server = make_store(directory / "server.p12", "PKCS12")
    trust = {kind: make_trust_store(directory / f"trust{kind}", kind, of=server) for kind in key}
    return Stores(key=key, trust=trust)


class MutualTlsBroker(EmbeddedKafka):
    """With a listener where clients show certificates."""

    def __init__(self, stores: Stores, trusted: Path) -> None:
        super().__init__()
        self._stores, self._trusted = stores, trusted
        (self._port_of_tls,) = free_ports(1)

    @property
    def tls_bootstrap(self) -> str:
        return f"{HOST}:{self._port_of_tls}"

    def _server_properties(self, directory: Path, ports: BrokerPorts) -> dict[str, str]:
        properties = super()._server_properties(directory, ports)
        listener = f",TLS://{HOST}:{self._port_of_tls}"
        properties["listeners"] += listener
        properties["advertised.listeners"] += listener
        properties["listener.security.protocol.map"] += ",TLS:SSL"
        server = self._stores.key["PKCS12"].with_name("server.p12")
        ssl = {
            "keystore.location": str(server),
            "keystore.password": PASSWORD,
            "keystore.type": "PKCS12",
            "truststore.location": str(self._trusted),
            "truststore.password": PASSWORD,
            "truststore.type": "PKCS12",
            "client.auth": "required",
        }
        return properties | {f"listener.name.tls.ssl.{name}": value for name, value in ssl.items()}


@pytest.fixture(scope="module")
def broker(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutualTlsBroker]:
    trusted = tmp_path_factory.mktemp("broker") / "clients.p12"
    make_trust_store(trusted, "PKCS12", of=stores.key["PKCS12"])
    certificate = trusted.with_name("jks.pem")
    keytool(
        *("-exportcert", "-rfc", "-alias", "own", "-file", str(certificate)),
        *("-keystore", str(stores.key["JKS"]), "-storepass", PASSWORD),
    )
    keytool(
        *("-importcert", "-noprompt", "-alias", "jks", "-file", str(certificate)),
        *("-keystore", str(trusted), "-storepass", PASSWORD),
    )
    with MutualTlsBroker(stores, trusted) as made:
        yield made


def options_of(stores: Stores, kind: str, *, named: bool) -> dict[str, str]:
    options = {
        "ssl.truststore.location": str(stores.trust[kind]),
        "ssl.truststore.password": PASSWORD,
        "ssl.keystore.location": str(stores.key[kind]),
        "ssl.keystore.password": PASSWORD,
    }
    if kind == "JKS":
        options["ssl.key.password"] = KEY_PASSWORD
    types = {"ssl.truststore.type": kind, "ssl.keystore.type": kind}
    return options | (types if named else {})


@pytest.mark.parametrize(
    ("kind", "named"),
    [("JKS", True), pytest.param("PKCS12", False, marks=pytest.mark.extended)],
)
def test_both_clients_log_in_with_the_content_of_javas_stores(
    stores: Stores, broker: MutualTlsBroker, kind: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors get the connection by pickle, and need no file."""
    options = options_of(stores, kind, named=named) | {"security.protocol": "SSL"}
    made = KafkaConnection(bootstrap_servers=broker.tls_bootstrap, options=options)
    connection: KafkaConnection = pickle.loads(pickle.dumps(made))
    monkeypatch.setattr("sluice.connectors.kafka.client.java_stores.find_java", None)

    admin = make_admin(connection.librdkafka(Role.ADMIN))
    cluster = admin.list_topics(timeout=60).cluster_id
    wire = TransactionWire(connection)
    assert wire.cluster(timeout_s=60).cluster_id == cluster
    wire.close()
    shown = f"{connection!r} {connection.redacted()}"
    assert "PRIVATE KEY" not in shown
    assert PASSWORD not in shown


def test_a_trust_store_opens_without_its_password_as_in_java(stores: Stores) -> None:
    options = {"ssl.truststore.location": str(stores.trust["JKS"]), "ssl.truststore.type": "JKS"}
    found = without_java_stores(options)
    assert list(found) == ["ssl.ca.pem"]
    assert found["ssl.ca.pem"].count("BEGIN CERTIFICATE") == 1


def test_pem_files_and_other_options_stay_as_they_are(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    for options in (
        {"ssl.truststore.location": str(pem)},
        {"ssl.truststore.location": str(pem), "ssl.truststore.type": "PEM", "client.id": "a"},
        {"ssl.truststore.location": "/on/executors/only.pem"},
    ):
        assert without_java_stores(options) == options


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
@pytest.mark.parametrize("part", ["truststore", "keystore"])
def test_a_wrong_password_names_the_store_and_shows_nothing(
    stores: Stores, kind: str, part: str
) -> None:
    options = options_of(stores, kind, named=True) | {f"ssl.{part}.password": "wrong-one"}
    with pytest.raises(ConfigError, match="wrong password") as caught:
        without_java_stores(options)
    assert f"kafka.ssl.{part}.location" in str(caught.value)
    assert "wrong-one" not in str(caught.value)


def test_a_missing_file_and_a_type_without_a_file_are_named(tmp_path: Path) -> None:
    missing = {"ssl.truststore.location": str(tmp_path / "none.jks")}
    with pytest.raises(ConfigError, match=r"none\.jks"):
        without_java_stores(missing)
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.type"):
        without_java_stores({"ssl.keystore.type": "JKS"})
    with pytest.raises(ConfigError, match="BKS"):
        without_java_stores({**missing, "ssl.truststore.type": "BKS"})


def test_an_expired_client_certificate_is_refused_with_its_date(tmp_path: Path) -> None:
    store = make_store(tmp_path / "past.p12", "PKCS12", start="-20d", days=1)
    options = {"ssl.keystore.location": str(store), "ssl.keystore.password": PASSWORD}
    with pytest.raises(ConfigError, match="has expired") as caught:
        without_java_stores(options)
    assert "expired=20" in str(caught.value)


def test_a_key_store_without_a_private_key_is_refused(stores: Stores) -> None:
    options = {
        "ssl.keystore.location": str(stores.trust["PKCS12"]),
        "ssl.keystore.password": PASSWORD,
    }
    with pytest.raises(ConfigError, match="no private key"):
        without_java_stores(options)
