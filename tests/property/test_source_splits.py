"""Decisions about splits and the progress of a read, for any offsets."""

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.connectors.kafka.source.reader.ranges import RangeProgress, in_rounds
from sluice.connectors.kafka.source.splits import (
    TopicFacts,
    backlog_records,
    limit_ends,
    lost_to_retention,
    new_partitions,
    split_evenly,
    vanished,
)
from sluice.runtime.model.splits import SplitRange

OFFSETS = st.integers(0, 1 << 62)
KEYS = st.tuples(st.sampled_from(["a", "b", "a-b"]), st.integers(0, 5))


def split(key: tuple[str, int], start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=key[0],
        topic_id=f"id-{key[0]}",
        partition=key[1],
        start_offset=start,
        end_offset=end,
    )


RANGES = st.builds(
    lambda key, start, size: split(key, start, start + size), KEYS, OFFSETS, st.integers(0, 10_000)
)


@given(st.dictionaries(KEYS, st.tuples(OFFSETS, OFFSETS), min_size=1), st.integers(1, 1 << 40))
def test_limited_ends_move_forward_within_what_is_there(
    logs: dict[tuple[str, int], tuple[int, int]], limit: int
) -> None:
    """Every partition with a backlog moves; together at most the limit, or one each."""
    starts = {key: start for key, (start, _) in logs.items()}
    ends = {key: end for key, (_, end) in logs.items()}
    limited = limit_ends(starts, ends, max_records=limit)
    assert limited.keys() == starts.keys()
    for key, start in starts.items():
        assert start <= limited[key] <= max(start, ends[key])
        assert (limited[key] > start) == (ends[key] > start)
    assert backlog_records(starts, limited) <= limit + len(starts)
    assert limit_ends(starts, ends, max_records=None) == {
        key: max(start, ends[key]) for key, start in starts.items()
    }


@example([split(("a", 0), 0, 90), split(("a", 1), 0, 10)], 2, None)
@given(
    st.lists(RANGES, max_size=6), st.none() | st.integers(1, 40), st.none() | st.integers(1, 5_000)
)
def test_more_tasks_read_the_same_offsets_once(
    ranges: list[SplitRange], min_partitions: int | None, max_records: int | None
) -> None:
    cut = split_evenly(ranges, min_partitions=min_partitions, max_records=max_records)
    assert all(not part.is_empty for part in cut)
    by_range = [
        [p for p in cut if p.name == r.name and r.start_offset <= p.start_offset < r.end_offset]
        for r in ranges
        if not r.is_empty
    ]
    for whole, parts in zip([r for r in ranges if not r.is_empty], by_range, strict=True):
        if sum(1 for r in ranges if r.name == whole.name) > 1:
            continue  # overlapping ranges of one partition are not what an enumerator cuts
        assert parts[0].start_offset == whole.start_offset
        assert parts[-1].end_offset == whole.end_offset
        assert all(a.end_offset == b.start_offset for a, b in itertools.pairwise(parts))
    sizes = [p.end_offset - p.start_offset for p in cut]
    if max_records is not None:
        assert all(size <= max_records for size in sizes)
    records = sum(r.end_offset - r.start_offset for r in ranges)
    if min_partitions is not None and records >= min_partitions * len(ranges):
        # As in Spark, about as many: the number for each range is rounded.
        assert 3 * len(cut) >= 2 * min(min_partitions, records)
    as_few_as_allowed = split_evenly(ranges, max_records=max_records)
    if min_partitions is None or min_partitions <= len(as_few_as_allowed):
        assert cut == as_few_as_allowed, "what is cut without need is out of order for nothing"


@given(st.lists(RANGES, max_size=10))
def test_rounds_never_hold_a_partition_twice_and_keep_order(ranges: list[SplitRange]) -> None:
    rounds = in_rounds(ranges)
    for together in rounds:
        names = [part.name for part in together]
        assert len(names) == len(set(names))
    flat = [part for together in rounds for part in together]
    for name in {r.name for r in ranges}:
        assert [p for p in flat if p.name == name] == [
            r for r in ranges if r.name == name and not r.is_empty
        ]


@given(st.lists(RANGES, max_size=6), st.dictionaries(KEYS, OFFSETS))
def test_lost_ranges_begin_at_the_position_and_end_at_the_first_record(
    ranges: list[SplitRange], earliest: dict[tuple[str, int], int]
) -> None:
    for lost in lost_to_retention(ranges, earliest):
        assert lost.start_offset < lost.end_offset == earliest[lost.topic, lost.partition]
    kept = [r for r in ranges if r.end_offset >= earliest.get((r.topic, r.partition), 0)]
    assert lost_to_retention(kept, earliest) == ()


@given(st.sets(KEYS), st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sets(st.integers(0, 5))))
def test_a_partition_is_new_vanished_or_known(
    known: set[tuple[str, int]], existing: dict[str, set[int]]
) -> None:
    found = {
        name: TopicFacts(topic_id=f"id-{name}", partitions=frozenset(numbers))
        for name, numbers in existing.items()
    }
    new = set(new_partitions(known, found))
    gone = {(s.topic, s.partition) for s in vanished([split(key, 0, 0) for key in known], found)}
    there = {(name, number) for name, numbers in existing.items() for number in numbers}
    assert new == there - known
    assert gone == known - there


@st.composite
def reads(draw: st.DrawFn) -> tuple[SplitRange, list[int], list[list[tuple[str, int]]]]:
    """A range, the offsets that hold records, and what a consumer delivers, in chunks.

    Records may lie beyond the end; the partition's end is reported after its last record or
    after the markers that follow it; chunks are cut anywhere.
    """
    start = draw(st.integers(0, 50))
    size = draw(st.integers(1, 40))
    present = sorted(draw(st.sets(st.integers(start, start + size + 20))))
    log_end = max([start + size, *[offset + 1 for offset in present]]) + draw(st.integers(0, 3))
    events = [("record", offset) for offset in present] + [("end", log_end)]
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=5)))
    chunks = [events[a:b] for a, b in itertools.pairwise([0, *cuts, len(events)])]
    return split(("t", 0), start, start + size), present, chunks


@given(reads())
def test_a_range_yields_its_records_once_and_ends_in_any_gap(
    read: tuple[SplitRange, list[int], list[list[tuple[str, int]]]],
) -> None:
    """Rule `read-committed-end`: markers, aborted records and compaction leave gaps, also at the
    range's end."""
    whole, present, chunks = read
    progress = RangeProgress([whole])
    got: list[int] = []
    for chunk in chunks:
        offsets = np.array([offset for kind, offset in chunk if kind == "record"], np.int64)
        if len(offsets):
            wanted = progress.accept(np.zeros(len(offsets), np.int64), offsets)
            got += (offsets if wanted is None else offsets[wanted]).tolist()
        for kind, offset in chunk:
            if kind == "end":
                progress.move_to(0, offset)
    assert got == [o for o in present if whole.start_offset <= o < whole.end_offset]
    assert progress.finished() == [0]
    assert progress.finished() == []
    assert progress.remaining == 0


@given(reads())
def test_an_end_that_comes_before_its_records_turns_none_away(
    read: tuple[SplitRange, list[int], list[list[tuple[str, int]]]],
) -> None:
    whole, present, _ = read
    progress = RangeProgress([whole])
    progress.move_to(0, whole.end_offset)
    if not present:
        return
    offsets = np.array(present, np.int64)
    wanted = progress.accept(np.zeros(len(offsets), np.int64), offsets)
    got = (offsets if wanted is None else offsets[wanted]).tolist()
    assert got == [o for o in present if whole.start_offset <= o < whole.end_offset]


def test_progress_keeps_slots_apart_and_refuses_repeats() -> None:
    progress = RangeProgress([split(("t", 0), 0, 3), split(("t", 1), 5, 9)])
    assert progress.accept(np.array([0, 1, 0]), np.array([0, 5, 1])) is None
    wanted = progress.accept(np.array([0, 1]), np.array([1, 6]))
    assert wanted.tolist() == [False, True]
    assert (progress.position(0), progress.position(1)) == (2, 7)
    assert progress.remaining == 3
    assert progress.finished() == []
