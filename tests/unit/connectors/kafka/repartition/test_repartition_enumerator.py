"""The driver's side of a repartition topic, on a cluster in memory."""

from dataclasses import replace

import pytest
from confluent_kafka import Uuid

from sluice.connectors.kafka.repartition.repartition_source import RepartitionEnumerator
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.source.subscription import Topics
from sluice.runtime.errors import SourceChangedError
from tests.kit.source.fake_source_cluster import FakeClock, FakeLog, FakeSourceCluster

S = 5.0


class Bed:
    def __init__(self) -> None:
        self.cluster, self.clock = FakeSourceCluster(), FakeClock()
        self.source = self.enumerator()

    def enumerator(self) -> RepartitionEnumerator:
        given = SourceOptions.of(
            {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"},
            bounded=False,
            stream=True,
        )
        inner = KafkaSplitEnumerator(
            replace(given, subscription=Topics(names=("t",))),
            self.cluster,
            source_id="s",
            group_id="g",
            clock=self.clock,
            wall_clock=self.clock,
            pause=self.clock.pass_time,
        )
        return RepartitionEnumerator(
            inner, self.cluster, source_id="s", topic="t", count=lambda _: 2
        )

    def create(self, *, partitions: int = 2, topic_id: str = "id") -> None:
        self.cluster.create("t", *(FakeLog() for _ in range(partitions)), topic_id=topic_id)


def test_splits_begin_before_the_topic_exists_and_are_read_after_it_was_made() -> None:
    bed = Bed()
    splits = bed.source.resolve_start(timeout_s=S)
    assert [(s.partition, s.end_offset, s.topic_id) for s in splits] == [(0, 0, ""), (1, 0, "")]
    assert all(s.is_empty for s in bed.source.cut(splits, max_records=None, timeout_s=S))
    assert bed.source.discover(timeout_s=S) == ()
    assert bed.source.measure(splits, timeout_s=S) == {}
    bed.create()
    bed.cluster.log("t", 1).latest = 7
    cut = bed.source.cut(splits, max_records=None, timeout_s=S)
    assert [(s.topic_id, s.end_offset) for s in cut] == [("id", 0), ("id", 7)]


def test_a_restored_reader_goes_on_and_names_a_topic_that_was_made_again() -> None:
    bed = Bed()
    bed.create()
    bed.cluster.log("t", 0).latest = 9
    positions = bed.source.cut(bed.source.resolve_start(timeout_s=S), max_records=4, timeout_s=S)
    again = bed.enumerator()
    again.restore(positions, timeout_s=S)
    assert [s.end_offset for s in again.cut(positions, max_records=None, timeout_s=S)] == [9, 0]
    bed.create(topic_id="another")
    with pytest.raises(SourceChangedError, match="recreated"):
        bed.enumerator().restore(positions, timeout_s=S)


def test_brokers_without_topic_ids_serve_it_too() -> None:
    bed = Bed()
    splits = bed.source.resolve_start(timeout_s=S)
    bed.create(topic_id=str(Uuid(0, 0)))
    bed.cluster.log("t", 0).latest = 9
    positions = bed.source.cut(splits, max_records=4, timeout_s=S)
    bed.create(topic_id="id")
    bed.cluster.log("t", 0).latest = 9
    again = bed.enumerator()
    again.restore(positions, timeout_s=S)
    cut = again.cut(positions, max_records=None, timeout_s=S)
    assert [(split.topic_id, split.end_offset) for split in cut] == [("id", 9), ("id", 0)]


def test_another_number_of_partitions_is_refused_with_both_numbers() -> None:
    bed = Bed()
    splits = bed.source.resolve_start(timeout_s=S)
    bed.create()
    positions = bed.source.cut(splits, max_records=None, timeout_s=S)
    bed.create(partitions=3)
    with pytest.raises(SourceChangedError, match="before=2 now=3"):
        bed.source.discover(timeout_s=S)
    with pytest.raises(SourceChangedError, match="before=2 now=3"):
        bed.enumerator().restore(positions, timeout_s=S)


def test_the_end_is_that_of_the_log_not_of_the_readable_rows() -> None:
    """Markers of a commit may not be written yet: rows after them are hidden."""
    bed = Bed()
    bed.create()
    log = bed.cluster.log("t", 0)
    log.latest, log.end = 3, 8
    cut = bed.source.cut(bed.source.resolve_start(timeout_s=S), max_records=None, timeout_s=S)
    assert not bed.source.is_finished(cut)
    log.latest, log.end = 8, None
    cut = bed.source.cut(cut, max_records=None, timeout_s=S)
    assert bed.source.is_finished(cut)
    bed.cluster.is_reachable = False
    assert not bed.source.is_finished(cut), "nothing is known"


def test_a_restore_into_another_job_begins_at_the_copied_rows() -> None:
    bed = Bed()
    old = [replace(s, topic="t", topic_id="old", start_offset=5, end_offset=5)
           for s in bed.source.resolve_start(timeout_s=S)]  # fmt: skip
    adopted = bed.source.adopt(old, timeout_s=S)
    assert [(s.end_offset, s.topic_id) for s in adopted] == [(0, ""), (0, "")]
