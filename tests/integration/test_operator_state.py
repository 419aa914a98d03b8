"""Operator state and output are valid together: in both engines, moved between them, and after
kills."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.topics import created_topics
from sluice.testing import kill_and_restart
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.stateful_program import number_and_copy, numbering_job
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

KILLS = ("pre-commit", "pre-commit", "decision", "commit")


def numbered(bootstrap: str, sink: str) -> list[str]:
    return sorted(r.value.decode() for r in read(bootstrap, sink) if r.value is not None)


def expected(of_each: int) -> list[str]:
    return sorted(f"{partition}-{n}" for partition in range(2) for n in range(of_each))


def test_a_job_that_changes_the_engine_keeps_its_operator_state(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=2), topic(partitions=2)
    for run, engine in enumerate(("micro-batch", "continuous", "micro-batch")):
        given = [Record(value=b"%d" % n, partition=n % 2) for n in range(100)]
        produce(kafka.bootstrap, source, given)
        numbering_job(spark, kafka.bootstrap, source, sink, tmp_path, engine).run()
        assert numbered(kafka.bootstrap, sink) == expected(50 * (run + 1))


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_operator_state_is_exact_after_kills(
    kafka: EmbeddedKafka, tmp_path: Path, engine: str
) -> None:
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        source, sink = create("orders", partitions=2), create("copies", partitions=2)
        given = [Record(value=b"%d" % n, partition=n % 2) for n in range(6_000)]
        produce(kafka.bootstrap, source.name, given)
        report = kill_and_restart(
            number_and_copy,
            [source.bootstrap, source.name, sink.name, tmp_path, engine],
            at=KILLS,
            timeout=PATIENCE_S,
        )
        assert len(report.kills) == len(KILLS)
        assert numbered(kafka.bootstrap, sink.name) == expected(3_000)
