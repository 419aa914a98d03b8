"""The embedded broker keeps its promises: real, restartable, secured, and never left."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException

from sluice.connectors.kafka.tools.broker.broker_archive import prepare_broker
from sluice.connectors.kafka.tools.broker.embedded_kafka import (
    QUICK_START,
    EmbeddedKafka,
    broker_classes,
    kafka_jars,
)
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import ConfigError, MissingRequirementError
from tests.kit.kafka.kafka_fixture import BrokerByLevel, SecureKafka, TopicFactory
from tests.kit.kafka.kafka_records import (
    abandon_transaction,
    admin,
    await_stable,
    create_topic,
    produce,
    produce_transaction,
    values,
)
from tests.kit.kafka.secure_broker import BrokerSecurity, SecureBroker
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


def test_committed_and_aborted_transactions_are_reported_apart(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    produce_transaction(kafka.bootstrap, name, [b"1", b"2"])
    produce_transaction(kafka.bootstrap, name, [b"3"], commit=False)
    await_stable(kafka.bootstrap, name)
    assert values(kafka.bootstrap, name) == [b"1", b"2"]
    assert values(kafka.bootstrap, name, committed=False) == [b"1", b"2", b"3"]


def test_open_transaction_is_invisible_until_it_ends(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Other tests rely on it: an open transaction hides what follows it."""
    name = topic()
    producer = abandon_transaction(kafka.bootstrap, name, [b"1"])
    produce(kafka.bootstrap, name, [b"2"])
    assert values(kafka.bootstrap, name) == []
    producer.commit_transaction(PATIENCE_S)
    await_stable(kafka.bootstrap, name)
    assert values(kafka.bootstrap, name) == [b"1", b"2"]


def test_transactions_work_at_every_feature_level(leveled_kafka: EmbeddedKafka) -> None:
    """Brokers formatted with transaction.version 0, 1 and 2 all commit."""
    name = create_topic(leveled_kafka.bootstrap)
    produce_transaction(leveled_kafka.bootstrap, name, [b"x"])
    await_stable(leveled_kafka.bootstrap, name)
    assert values(leveled_kafka.bootstrap, name) == [b"x"]


@pytest.mark.extended
def test_killed_broker_comes_back_with_its_ports_and_records(tmp_path: Path) -> None:
    """`kill` and `start` is the crash of a broker, not a new one."""
    with EmbeddedKafka(data_dir=tmp_path / "broker") as broker:
        bootstrap, first = broker.bootstrap, broker.pid
        name = create_topic(bootstrap)
        produce(bootstrap, name, [b"kept"])
        broker.kill()
        assert not broker.is_running()
        broker.start()
        assert broker.bootstrap == bootstrap
        assert broker.pid != first
        assert values(bootstrap, name) == [b"kept"]
    assert (tmp_path / "broker").exists()


def test_occupied_port_is_one_sentence() -> None:
    """A port that something listens on is named, before anything is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match=f"port {port} is occupied"):
            EmbeddedKafka(port=port).start()


def test_broker_that_cannot_start_reports_its_last_lines(tmp_path: Path) -> None:
    """A wrong server property ends in an error with the broker's own words, and no process."""
    broker = EmbeddedKafka(data_dir=tmp_path, properties={"num.network.threads": "none"})
    with pytest.raises(MissingRequirementError, match=r"num\.network\.threads"):
        broker.start()
    assert not broker.is_running()


def test_node_that_is_only_a_controller_starts(tmp_path: Path) -> None:
    """It answers no client; a cluster of several nodes has such a one."""
    (port,) = free_ports(1)
    place = f"CONTROLLER://127.0.0.1:{port}"
    properties = {
        "process.roles": "controller",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "listeners": place,
        "advertised.listeners": place,
    }
    with EmbeddedKafka(data_dir=tmp_path, properties=properties) as node:
        assert node.is_running()


def test_unknown_feature_level_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"transaction\.version"):
        EmbeddedKafka(transaction_version=3)


_ORPHAN = """
import sys
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
broker = EmbeddedKafka().start()
print(broker.pid, broker.log_path.parent, flush=True)
sys.stdin.read()
"""


def test_broker_dies_with_a_killed_parent() -> None:
    """SIGKILL of the process that started it leaves neither the broker nor its scratch data."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not _runs(int(pid)), what="the broker ended")
    wait_for(lambda: not Path(directory).exists(), what="its data is deleted")


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_each_mechanism_logs_in_over_tls(secure_kafka: SecureKafka, mechanism: str) -> None:
    """One listener serves all mechanisms, and its certificate is verified by host name."""
    options = secure_kafka.librdkafka(mechanism)
    name = create_topic(secure_kafka.plain_bootstrap)
    produce_transaction(secure_kafka.bootstrap, name, [b"s"], options=options)
    await_stable(secure_kafka.plain_bootstrap, name)
    assert values(secure_kafka.bootstrap, name, options=options) == [b"s"]


def test_wrong_password_is_refused_by_the_broker(secure_kafka: SecureKafka) -> None:
    told: list[str] = []
    options = secure_kafka.librdkafka("PLAIN") | {
        "sasl.password": "wrong",
        "error_cb": lambda error: told.append(error.name()),
    }
    client = admin(secure_kafka.bootstrap, options)
    wait_for(lambda: client.poll(0.1) >= 0 and "_AUTHENTICATION" in told, what="the refusal")
    with pytest.raises(KafkaException, match="Failed to get metadata"):
        client.list_topics(timeout=3)


def test_sasl_without_tls(tmp_path: Path) -> None:
    security = BrokerSecurity(has_tls=False, users={"bob": "pw"}, mechanisms=("PLAIN",))
    with SecureBroker(security, data_dir=tmp_path) as broker:
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "bob",
            "sasl.password": "pw",
        }
        assert admin(broker.secure_bootstrap, options).list_topics(timeout=120).brokers


def _from_archive(directory: Path) -> list[float]:
    shares = []
    for log in directory.glob("loaded-*"):
        lines = log.read_text("utf-8").splitlines()
        others = [line for line in lines if not line.endswith("shared objects file")]
        shares.append(sum(line.endswith("(top)") for line in others) / len(others))
    return shares


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(QUICK_START, id="ours"),
        pytest.param(("-Xmx512m", "-XX:+UseG1GC"), id="g1", marks=pytest.mark.extended),
    ],
)
def test_broker_takes_its_classes_from_the_archive(tmp_path: Path, options: Sequence[str]) -> None:
    prepare_broker()
    logged = (*options, f"-Xlog:class+load:file={tmp_path}/loaded-%p")
    with EmbeddedKafka(data_dir=tmp_path / "broker", jvm_options=logged):
        shares = _from_archive(tmp_path)
    assert len(shares) == 2
    assert min(shares) > 0.7


@pytest.mark.extended
def test_broken_archive_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything may lie in a cache: Java loads its classes as ever, and says nothing."""
    jars = kafka_jars()
    content = b"no classes at all\n" * 10_000
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    name = broker_classes(find_java().executable, jars).archive_name(len(content))
    (tmp_path / name).write_bytes(content)
    logged = (*QUICK_START, f"-Xlog:class+load:file={tmp_path}/loaded-%p")
    with EmbeddedKafka(data_dir=tmp_path / "broker", jars=jars, jvm_options=logged) as broker:
        assert _from_archive(tmp_path) == [0.0, 0.0]
        assert "[cds" not in broker.log_path.read_text("utf-8")


def test_a_level_is_started_once(kafka_by_level: BrokerByLevel, kafka: EmbeddedKafka) -> None:
    """The session's broker is the level-2 broker."""
    assert kafka_by_level(2) is kafka
