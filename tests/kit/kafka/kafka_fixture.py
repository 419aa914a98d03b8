"""Real brokers for tests: each kind is started once per test process, when first asked for.

They are JVM processes of this machine and end with the test run, also when that is killed.
Under pytest-xdist every worker has brokers of its own.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from sluice.connectors.kafka.native.library import built_file
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_records import create_topic
from tests.kit.kafka.kafka_releases import chosen_kafka_jars, highest_level, older_kafka_jars
from tests.kit.kafka.secure_broker import BrokerSecurity, SecureBroker

_PROPERTIES = {
    # Some tests wait for the abort of timed-out transactions (10 s), some for compaction (15 s).
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    # Others compare all that is in Kafka, where empty groups would vanish every 10 minutes.
    "offsets.retention.check.interval.ms": "86400000",
    # A dozen of them stand by for most of a run: 1.4 % of a core each, and not 2.0 %.
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
}


class TopicFactory(Protocol):
    """Makes a topic on the session's broker."""

    def __call__(self, *, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        """The new topic's name, which no other test uses."""
        ...


class BrokerByLevel(Protocol):
    """Finds a broker by its finalised ``transaction.version``."""

    def __call__(self, transaction_version: int) -> EmbeddedKafka:
        """The running broker of that level, started by the first call."""
        ...


@pytest.fixture(scope="session")
def kafka_by_level() -> Iterator[BrokerByLevel]:
    """A function from ``transaction.version`` (0, 1 or 2) to a broker formatted with it."""
    brokers: dict[int, EmbeddedKafka] = {}

    def broker(transaction_version: int) -> EmbeddedKafka:
        if transaction_version > highest_level():
            pytest.skip(f"this Kafka has no transaction.version {transaction_version}")
        if transaction_version not in brokers:
            made = EmbeddedKafka(
                transaction_version=transaction_version,
                properties=_PROPERTIES,
                jars=chosen_kafka_jars(),
            )
            brokers[transaction_version] = made.start()
        return brokers[transaction_version]

    yield broker
    for made in brokers.values():
        made.close()


@pytest.fixture(scope="session")
def kafka(kafka_by_level: BrokerByLevel) -> EmbeddedKafka:
    """The session's broker, of its release's highest ``transaction.version``; tests must not stop or
    reconfigure it."""
    return kafka_by_level(highest_level())


@pytest.fixture(scope="session")
def older_kafka() -> Iterator[EmbeddedKafka]:
    """A broker of the older release that is tried, too; it has ``transaction.version`` 0."""
    with EmbeddedKafka(
        transaction_version=0, properties=_PROPERTIES, jars=older_kafka_jars()
    ) as broker:
        yield broker


@pytest.fixture(
    params=[0, pytest.param(1, marks=pytest.mark.extended), 2],
    ids=lambda level: f"transaction.version={level}",
)
def leveled_kafka(request: pytest.FixtureRequest, kafka_by_level: BrokerByLevel) -> EmbeddedKafka:
    """A broker of each feature level in turn; one parameter of the test."""
    return kafka_by_level(request.param)


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> TopicFactory:
    """A function that makes a topic with a unique name on the session's broker."""

    def make(*, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        return create_topic(kafka.bootstrap, partitions=partitions, config=config)

    return make


@pytest.fixture(params=["native", "plain"])
def hot_path(request: pytest.FixtureRequest) -> str:
    """Both ways of moving records in turn; one parameter of the test."""
    path: str = request.param
    if path == "native":
        require_native()
    return path


def require_native() -> None:
    """Skip where the compiled code could not be built; elsewhere its absence is a failure."""
    if shutil.which("cc") is None and not built_file():
        pytest.skip("no C compiler: the native hot path is not built")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureKafka:
    """A broker with a SASL_SSL listener, and what a client needs to log in there.

    Attributes:
        bootstrap: of the listener where clients log in.
        plain_bootstrap: of the open listener of the same broker, for a test's own bookkeeping.
    """

    broker: EmbeddedKafka
    bootstrap: str
    plain_bootstrap: str
    ca_file: Path
    username: str
    password: str

    def librdkafka(self, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Options of a confluent-kafka client that logs in by ``mechanism``."""
        options: dict[str, Any] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": mechanism,
            "ssl.ca.location": str(self.ca_file),
        }
        if mechanism == "OAUTHBEARER":
            return options | {
                "enable.sasl.oauthbearer.unsecure.jwt": True,
                "sasl.oauthbearer.config": f"principal={self.username}",
            }
        return options | {"sasl.username": self.username, "sasl.password": self.password}


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[SecureKafka]:
    """A broker that offers PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER over TLS."""
    username, password = "alice", "wonder-land-7741"
    security = BrokerSecurity(users={username: password})
    with SecureBroker(security, properties=_PROPERTIES, jars=chosen_kafka_jars()) as broker:
        yield SecureKafka(
            broker=broker,
            bootstrap=broker.secure_bootstrap,
            plain_bootstrap=broker.bootstrap,
            ca_file=broker.ca_file,
            username=username,
            password=password,
        )
