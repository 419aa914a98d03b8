"""Partitions that are followed, on a real broker: what comes, in order, and where it ends."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from sluice.connectors.kafka.source.reader.streaming_reader import KafkaRecordStream
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import DataLostError
from sluice.runtime.model.splits import SplitKey, SplitRange
from tests.integration.test_kafka_source_changes import delete_records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    abandon_transaction,
    add_partitions,
    produce,
    produce_transaction,
)
from tests.kit.source.kafka_source_reading import cut, source, start
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


@contextmanager
def _following(
    made: Any, splits: Sequence[SplitRange], ends: Mapping[SplitKey, int] | None = None
) -> Iterator[KafkaRecordStream]:
    reader = pickle.loads(pickle.dumps(made.streaming_reader()))
    follower = reader.follow(splits, ends)
    try:
        yield follower
    finally:
        follower.close()


def _read(follower: KafkaRecordStream, rows: int, into: list[tuple[int, int, bytes]]) -> None:
    """Follow until there are so many rows in all."""

    def enough() -> bool:
        batch = follower.poll()
        if batch is not None:
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
            into.extend(zip(*columns, strict=True))
        return len(into) >= rows

    wait_for(enough, what=f"{rows} rows", poll_s=0.0)


def test_what_comes_later_is_read_where_the_last_records_ended(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Positions are those behind the rows that were given, whatever was fetched ahead."""
    name = topic(partitions=2)
    produce(kafka.bootstrap, name, [Record(value=v, partition=0) for v in (b"a0", b"a1", b"a2")])
    made = source(kafka, name)
    _, positions = start(made)
    found: list[tuple[int, int, bytes]] = []
    with _following(made, positions) as follower:
        _read(follower, 3, found)
        produce(kafka.bootstrap, name, [Record(value=b"b0", partition=1)])
        produce(kafka.bootstrap, name, [Record(value=b"a3", partition=0)])
        _read(follower, 5, found)
        at = {key[2]: offset for key, offset in follower.positions().items()}
    assert [value for p, _, value in found if p == 0] == [b"a0", b"a1", b"a2", b"a3"]
    assert at == {0: 4, 1: 1}


def test_read_committed_end_open_and_aborted_transactions_give_nothing_and_markers_are_passed(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """The position moves on behind a marker at the end, where no record will tell it; how far
    records came is known beside it, also when splits are dealt anew."""
    name = topic()
    produce_transaction(kafka.bootstrap, name, [b"x"], commit=False)
    produce_transaction(kafka.bootstrap, name, [b"y"])
    made = source(kafka, name)
    enumerator, positions = start(made)
    (whole,) = cut(enumerator, positions)
    found: list[tuple[int, int, bytes]] = []
    with _following(made, positions) as follower:
        _read(follower, 1, found)
        wait_for(
            lambda: follower.poll() or follower.positions()[whole.key] == whole.end_offset,
            what="the position behind the last marker",
        )
        held_open = abandon_transaction(kafka.bootstrap, name, [b"z"])
        assert follower.poll() is None
        held_open.abort_transaction(PATIENCE_S)
        read = {whole.key: (whole.end_offset - 1, whole.leader_epoch, whole.leader_epoch)}
        assert follower.records_read() == read
        follower.restart_at([whole.at_end()])
        assert follower.records_read() == read
        follower.restart_at([whole])
        assert follower.records_read() == {}
    assert [value for _, _, value in found] == [b"y"]


def test_a_bounded_source_gives_nothing_behind_its_ends(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Nor does a position lie behind one: a later run reads from there."""
    name = topic()
    produce(kafka.bootstrap, name, [b"0", b"1", b"2", b"3", b"4"])
    made = source(kafka, name)
    _, positions = start(made)
    found: list[tuple[int, int, bytes]] = []
    with _following(made, positions, {positions[0].key: 3}) as follower:
        _read(follower, 3, found)
        assert follower.poll() is None
        assert follower.positions()[positions[0].key] == 3
    assert [value for _, _, value in found] == [b"0", b"1", b"2"]


def test_other_splits_are_followed_from_where_they_begin(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """One more, and the old one again from an earlier place: nothing of the old queue is left."""
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(100)])
    made = source(kafka, name)
    enumerator, positions = start(made)
    found: list[tuple[int, int, bytes]] = []
    with _following(made, positions) as follower:
        _read(follower, 1, found)
        add_partitions(kafka.bootstrap, name, total=2)
        produce(kafka.bootstrap, name, [Record(value=b"new", partition=1)])
        new = wait_for(lambda: enumerator.discover(timeout_s=30.0), what="the new partition")
        follower.restart_at([*positions, *new])
        again: list[tuple[int, int, bytes]] = []
        _read(follower, 101, again)
    assert [offset for p, offset, _ in again if p == 0] == list(range(100))
    assert [value for p, _, value in again if p == 1] == [b"new"]


def test_records_that_are_gone_stop_the_task_by_name(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Retention was faster: what is lost is said exactly."""
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(10)])
    made = source(kafka, name)
    _, positions = start(made)
    delete_records(kafka, name, 4)
    with _following(made, positions) as follower, pytest.raises(DataLostError, match="4"):
        _read(follower, 10, [])


@pytest.mark.parametrize("hot_path", ["native", "plain"])
def test_a_paused_split_gives_nothing_and_then_goes_on_where_it_was(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Also if all are paused, and whatever the client had fetched ahead by then."""
    name, rows = topic(partitions=2), 3_000
    values = [b"%d" % n for n in range(rows)]
    for partition in (0, 1):
        produce(kafka.bootstrap, name, [Record(value=v, partition=partition) for v in values])
    made = source(kafka, name, hot_path=hot_path)
    _, positions = start(made)
    first, second = (split.key for split in positions)
    found: list[tuple[int, int, bytes]] = []
    with _following(made, positions) as follower:
        _read(follower, 1, found)
        follower.pause([first])
        paused_at = follower.positions()[first]
        _read(follower, paused_at + rows, found)
        assert follower.positions() == {first: paused_at, second: rows}
        follower.pause([first, second])
        assert follower.poll() is None
        assert follower.positions() == {first: paused_at, second: rows}
        produce(kafka.bootstrap, name, [Record(value=b"last", partition=1)])
        follower.pause([second])
        _read(follower, 2 * rows, found)
        assert follower.positions() == {first: rows, second: rows}
        follower.pause([])
        _read(follower, 2 * rows + 1, found)
    for partition, expected in ((0, values), (1, [*values, b"last"])):
        mine = [(offset, value) for number, offset, value in found if number == partition]
        assert mine == list(enumerate(expected))
