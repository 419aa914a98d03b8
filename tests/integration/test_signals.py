"""A Job in the foreground, ended by Ctrl-C, started again, and ended by SIGTERM: to the program alone,
and to the program and Spark, as Airflow and other process managers send it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce, values
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
RUN_S = 600.0


def copying(
    kafka: EmbeddedKafka, source: str, sink: str, location: Path, errors: BinaryIO
) -> subprocess.Popen[bytes]:
    """`examples/kafka_to_kafka.py`, as a user starts it; its log goes to a file, never full."""
    return subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "examples" / "kafka_to_kafka.py")),
            *("--bootstrap", kafka.bootstrap, "--input", source, "--output", sink),
            *("--checkpoint", str(location), "--interval", "0.2"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=errors,
        start_new_session=True,
    )


def open_transactions(kafka: EmbeddedKafka, sink: str) -> list[str]:
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    try:
        found = wire.list_transactions(
            f"kafka-to-kafka-{sink}/", timeout_s=120.0, states=(TransactionState.ONGOING,)
        )
        return [row.transactional_id for row in found.transactions]
    finally:
        wire.close()


def await_count(kafka: EmbeddedKafka, sink: str, count: int) -> None:
    wait_for(
        lambda: len(values(kafka.bootstrap, sink)) >= count, poll_s=0.5, what=f"{count} records"
    )


def test_a_signal_ends_a_job_in_order(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The shell's exit code, no transaction left open, and nothing lost by it; no traceback, unless
    Spark ends first."""
    source, sink = topic(), topic()
    given = [f"{n:06d}".encode() for n in range(3000)]
    ends = (os.kill, signal.SIGINT), (os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM)
    for end, (send, number) in zip((1000, 2000, 3000), ends, strict=True):
        produce(kafka.bootstrap, source, given[end - 1000 : end - 500])
        log = tmp_path / f"{end}.log"
        with log.open("wb") as errors, copying(kafka, source, sink, tmp_path, errors) as job:
            await_count(kafka, sink, end - 500)
            produce(kafka.bootstrap, source, given[end - 500 : end])
            send(job.pid, number)
            job.wait(RUN_S)
        assert job.returncode == 128 + number
        assert send is os.killpg or "Traceback" not in log.read_text("utf-8")
        wait_for(lambda: not open_transactions(kafka, sink), what="none is open")
    found = values(kafka.bootstrap, sink)
    assert found == [value + b"!" for value in given[: len(found)]]
