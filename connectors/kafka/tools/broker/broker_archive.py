"""Makes the archive of the embedded broker's classes, by running and using a broker once."""

import subprocess
from pathlib import Path

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import KafkaException, make_producer, translate
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
from sluice.connectors.kafka.tools.broker.embedded_kafka import (
    QUICK_START,
    EmbeddedKafka,
    broker_classes,
    kafka_jars,
)
from sluice.connectors.kafka.tools.verify.topic_history import await_readable, read_records
from sluice.runtime.embedded.ivy import report_to_stderr
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.shared_classes import Prepared, reading_options, writing_options
from sluice.runtime.embedded.start_timeout import LONGEST_S
from sluice.runtime.errors import MissingRequirementError

__all__ = ["prepare_broker"]

_TOPIC = "classes"
_STOP_S = 600.0  # Java writes the archive before it ends
_CHECK_S = 300.0


def prepare_broker() -> Prepared:
    """Make the archive if it is missing: some 10 s, 55 MB in the user's cache.

    Raises:
        StreamError: the jars cannot be downloaded, a broker does not start or answer here, or this
            Java writes no archive.
    """
    java, jars = find_java().executable, kafka_jars()

    def run(archive: Path) -> None:
        report_to_stderr(
            "Archiving the broker's classes, once per user and Java, so that it starts faster"
        )
        _run_broker(archive, jars)
        _require_whole(archive, java, jars)

    return broker_classes(java, jars).prepare(run, timeout_s=2 * LONGEST_S)


def _run_broker(archive: Path, jars: Path) -> None:
    # With the flags of later starts: Java shares most with the same flags. The format writes an
    # archive, too; the broker's archive replaces it.
    broker = EmbeddedKafka(
        data_dir=archive.with_name("broker"),
        jvm_options=(*QUICK_START, *writing_options(archive)),
        jars=jars,
    )
    with broker:
        _use(KafkaConnection(bootstrap_servers=broker.bootstrap))
        broker.stop(timeout_s=_STOP_S)


def _use(connection: KafkaConnection) -> None:
    """The usual work of a program with a broker: a topic, a transaction, a reader."""
    create_topics(connection, [NewTopic(_TOPIC, num_partitions=2)])
    producer = make_producer({**connection.librdkafka(Role.PRODUCER), "transactional.id": _TOPIC})
    try:
        producer.init_transactions(LONGEST_S)
        producer.begin_transaction()
        producer.produce(_TOPIC, value=b"record", key=b"key")
        producer.commit_transaction(LONGEST_S)
    except KafkaException as err:
        raise translate(err, {"servers": connection.bootstrap_servers}) from err
    await_readable(connection, _TOPIC, timeout_s=LONGEST_S)
    for _ in read_records(connection, _TOPIC):
        pass


def _require_whole(archive: Path, java: Path, jars: Path) -> None:
    """A killed broker leaves an incomplete archive."""
    options = (*QUICK_START, *reading_options(archive), "-Xshare:on")
    answer = subprocess.run(
        [java, *options, "-cp", f"{jars}/*", "-version"],
        cwd=archive.parent,  # path of Java's crash report
        capture_output=True,
        text=True,
        timeout=_CHECK_S,
        check=False,
    )
    if answer.returncode:
        raise MissingRequirementError(
            "this Java does not accept the archive that it wrote",
            {"java": java, "answer": answer.stdout + answer.stderr},
            "Use a JDK with its own class archive; without one, only starts are slower.",
        )
