"""A Job whose splits change their region with every checkpoint while regions fail."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Balancer, Choice, RegionLoad
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import Assignment
from tests.integration.test_regions import failing
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = [pytest.mark.integration, pytest.mark.extended]

PARTITIONS = 4
RECORDS = 48


class Restless:
    """The region with the most splits gives its first one to the one with the fewest, or, when
    they are even, to the next one."""

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        by_size = sorted(offered, key=lambda name: (len(offered[name].records), name))
        source_region, target_region = by_size[-1], by_size[0]
        split = min(offered[source_region].records)
        return Choice(
            moves=(Move(split=split, source_region=source_region, target_region=target_region),)
        )


def _assignments(directory: Path) -> list[Assignment]:
    store = open_store(str(directory))
    records = [store.read(place) for place in store.slots()]
    return [found.assignment for found in records if found is not None and found.assignment]


def test_restore_by_attempt_splits_move_and_regions_fail_and_every_record_is_written_once(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """In order in each partition; and the next run continues with the regions that had them last."""
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    turns, directory = tmp_path / "turns", tmp_path / "checkpoint"
    turns.mkdir()
    prefix = unique("moves")

    def run(balancer: Balancer | None) -> None:
        job = Job(
            "moves",
            spark,
            engine="micro-batch",
            checkpoint_dir=str(directory),
            interval_s=0.1,
            regions=2,
            retained=100,
            checkpoint_handler=RegionalCheckpointHandler(),
            load_balancer=balancer,
        )
        (
            job.source(
                KafkaSource(
                    bootstrap_servers=kafka.bootstrap,
                    topics=[source],
                    bounded=True,
                    options={"maxOffsetsPerTrigger": "4"},
                )
            )
            .map_batches(failing(turns, times=2))
            .sink(
                KafkaSink(
                    bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=prefix
                )
            )
        )
        job.run()

    def written() -> list[tuple[int | None, int]]:
        return [(r.partition, int(r.value or b"")) for r in read(kafka.bootstrap, sink)]

    def put(first: int) -> None:
        numbers = range(first, first + RECORDS)
        new = [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in numbers]
        produce(kafka.bootstrap, source, new)

    put(0)
    run(Restless())
    assert sorted(written()) == sorted((n % PARTITIONS, n) for n in range(RECORDS))
    moved = _assignments(directory)
    assert moved[-1].version > 1
    put(RECORDS)
    run(None)
    everything = written()
    for partition in range(PARTITIONS):
        mine = [number for at, number in everything if at == partition]
        assert mine == list(range(partition, 2 * RECORDS, PARTITIONS))
    assert _assignments(directory)[-1] == moved[-1]
