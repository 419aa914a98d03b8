"""A broadcast stream: every epoch sees one version in all tasks, also after kills and restores."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.testing import kill_and_restart
from tests.kit.broadcast_program import apply_rules, rules_job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

PARTITIONS = 2
KILLS = ("pre-commit", "decision", "commit")


class Feed:
    """Sends records, and between them a new version of the one rule."""

    def __init__(self, bootstrap: str, rules: str, source: str) -> None:
        self.bootstrap, self.rules, self.source = bootstrap, rules, source
        self.versions = self.records = 0

    def send(self) -> None:
        self.versions += 1
        produce(self.bootstrap, self.rules, [Record(key=b"rule", value=b"%d" % self.versions)])
        given = [Record(value=b"x", partition=p) for p in range(PARTITIONS) for _ in range(20)]
        produce(self.bootstrap, self.source, given)
        self.records += len(given)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sends until the end of the block."""
        over = threading.Event()

        def loop() -> None:
            while not over.wait(0.05):
                self.send()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def versions_of(bootstrap: str, sink: str) -> dict[tuple[int, int], str]:
    """The version of each record that was written, by partition and offset; each once."""
    found = [r.value.decode().split("-") for r in read(bootstrap, sink) if r.value is not None]
    rows = {(int(partition), int(offset)): version for partition, offset, version in found}
    assert len(rows) == len(found), "a record was written twice"
    return rows


def require_one_version_an_epoch(bootstrap: str, sink: str, directory: Path) -> list[str]:
    """All records of a checkpoint have one version, and versions never go back; those versions."""
    rows = versions_of(bootstrap, sink)
    store, left = open_store(str(directory / "checkpoint")), dict(rows)
    used: list[str] = []
    for slot in store.slots():
        record = store.read(slot)
        if record is None or record.verdict is not Verdict.DECIDED:
            continue
        mine = {
            left.pop((split.partition, offset))
            for region in record.regions
            if not region.region.startswith("rules")
            for split in region.splits
            for offset in range(split.start_offset, split.end_offset)
            if (split.partition, offset) in left
        }
        assert len(mine) <= 1, f"checkpoint {slot} has versions {mine}"
        used += mine
    assert not left, "each record belongs to a checkpoint"
    assert used == sorted(used, key=int)
    return used


@pytest.mark.parametrize(
    ("engine", "regions"),
    [pytest.param("micro-batch", 2, marks=pytest.mark.extended), ("continuous", 1)],
)
def test_all_regions_see_one_decided_version_for_a_whole_epoch(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    engine: str,
    regions: int,
) -> None:
    topics = (topic(), topic(partitions=PARTITIONS), topic())
    feed = Feed(kafka.bootstrap, *topics[:2])
    job = rules_job(spark, kafka.bootstrap, topics, tmp_path, engine, regions=regions)
    handle = job.start()
    try:
        with feed.running():
            wait_for(lambda: len(set(versions_of(kafka.bootstrap, topics[2]).values())) > 3)
        wait_for(lambda: len(versions_of(kafka.bootstrap, topics[2])) == feed.records)
    finally:
        handle.stop()
    assert len(require_one_version_an_epoch(kafka.bootstrap, topics[2], tmp_path)) > 3


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_an_epoch_keeps_its_version_after_kills(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    topics = (topic(), topic(partitions=PARTITIONS), topic())
    feed = Feed(kafka.bootstrap, *topics[:2])
    with feed.running():
        report = kill_and_restart(
            apply_rules,
            [kafka.bootstrap, topics, tmp_path, engine],
            at=KILLS,
            until=lambda: len(set(versions_of(kafka.bootstrap, topics[2]).values())) > 4,
            timeout=PATIENCE_S,
        )
    assert len(report.kills) == len(KILLS)
    assert len(require_one_version_an_epoch(kafka.bootstrap, topics[2], tmp_path)) > 3
