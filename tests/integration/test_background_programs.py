"""Programs that run a job in the background: however they end, nothing is left open, and the next one
resumes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce, values
from tests.kit.spark_fixture import quick_python
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(2400)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from sluice import Job, KafkaSink, KafkaSource, fast_start

servers, source, sink, directory, engine = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config(map=fast_start("local[2]"))
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
job = Job("background", spark, checkpoint_dir=directory, interval_s=0.2, engine=engine, regions=1)
job.source(KafkaSource(bootstrap_servers=servers, topics=[source])).map_batches(lambda b: b).sink(
    KafkaSink(bootstrap_servers=servers, topic=sink, transactional_id_prefix="background-" + sink)
)
handle = job.start()
"""

ENDS = [
    ("handle.wait()", signal.SIGINT, -signal.SIGINT),
    ("handle.wait()", signal.SIGTERM, 143),
    ("sys.stdin.readline()", None, 0),
    ("sys.stdin.readline(); raise ValueError", None, 1),
    ("sys.stdin.readline(); sys.exit(7)", None, 7),
]


def open_transactions(kafka: EmbeddedKafka, sink: str) -> list[str]:
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    with contextlib.closing(wire):
        found = wire.list_transactions(
            f"background-{sink}/", timeout_s=120.0, states=(TransactionState.ONGOING,)
        )
    return [row.transactional_id for row in found.transactions]


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_the_end_of_a_program_stops_its_job_in_order(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    source, sink, directory = topic(), topic(), tmp_path / "checkpoint"
    given: list[bytes] = []

    def produce_more() -> None:
        more = [b"%06d" % (len(given) + n) for n in range(500)]
        produce(kafka.bootstrap, source, more)
        given.extend(more)

    for number, (then, sent, code) in enumerate(ENDS):
        produce_more()
        log = tmp_path / f"{number}.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [
                    *(sys.executable, "-c", f"{PROGRAM}\n{then}\n"),
                    *(kafka.bootstrap, source, sink, str(directory), engine),
                ],
                env={**os.environ, "PYTHONPATH": quick_python()},
                stdin=subprocess.PIPE,
                stderr=errors,
            ) as program,
        ):
            assert program.stdin is not None
            wait_for(lambda: len(values(kafka.bootstrap, sink)) >= len(given), poll_s=0.5)
            produce_more()
            if sent is None:
                program.stdin.close()
            else:
                program.send_signal(sent)
            program.wait(PATIENCE_S)
        text = log.read_text("utf-8")
        assert program.returncode == code, text
        assert "was not stopped in order" not in text
        assert "Exception ignored" not in text
        assert open_transactions(kafka, sink) == [], text
        found = values(kafka.bootstrap, sink)
        assert found == given[: len(found)]
