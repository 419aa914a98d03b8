"""The checker itself, on good histories and on ones broken on purpose: caught, exactly counted."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.checker import History, HistoryVerdict, Identity, Payload, Record, origin_of
from sluice.runtime.errors import ConfigError
from tests.kit.key_counts import check_key_counts
from tests.kit.memory_checker import check, check_prefix, expect, history_of
from tests.kit.window_counts import check_windows

PARTITIONS = 3
PAYLOAD = Payload(topic="in", run="r", partitions=PARTITIONS)
FEW = st.integers(min_value=1, max_value=5)
SEEDS = st.integers(min_value=0, max_value=2**32)


def mark(record: Record) -> list[Record]:
    """The job under test: appends ``!``, keeps everything else."""
    value = None if record.value is None else record.value + b"!"
    return [record._replace(topic="out", value=value)]


def inputs(count: int) -> list[Record]:
    return list(PAYLOAD.records(count))


def output(records: Sequence[Record]) -> list[list[Record]]:
    lanes: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    for record in records:
        lanes[record.partition].extend(mark(record))
    return lanes


def judge(records: Sequence[Record], lanes: Sequence[Sequence[Record]]) -> HistoryVerdict:
    """The verdict once the lanes lie in Kafka with offsets of their own."""
    found = [record._replace(offset=offset) for lane in lanes for offset, record in enumerate(lane)]
    return check(expect(records, mark), history_of(found))


def faults(verdict: HistoryVerdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.duplicated, verdict.unexpected, verdict.reordered


@given(count=st.integers(min_value=1, max_value=200))
def test_a_correct_history_is_clean(count: int) -> None:
    records = inputs(count)
    verdict = judge(records, output(records))
    assert verdict.is_clean
    assert (verdict.expected, verdict.found, verdict.unordered) == (count, count, 0)


def test_where_nothing_was_compared_no_verdict_is_clean() -> None:
    """An empty output, or a reader that never began, must not pass for a good run."""
    verdict = check(History(), History())
    assert verdict.is_empty
    assert not verdict.is_clean
    assert "nothing was compared" in str(verdict)
    counts = check_key_counts([], [])
    assert not counts.is_clean
    assert "nothing was compared" in str(counts)
    for times in ([], [5, 1500, 2500]):
        windows = check_windows(times, [], window_ms=1000)
        assert not windows.is_clean
        assert "nothing was compared" in str(windows)
    prefix = check_prefix(History(), history_of(PAYLOAD.records(3)))
    assert not prefix.is_clean
    assert "nothing was compared" in str(prefix)


@given(count=st.integers(min_value=20, max_value=200), loss=FEW, seed=SEEDS)
def test_each_lost_record_is_counted_and_named(count: int, loss: int, seed: int) -> None:
    records, rng = inputs(count), random.Random(seed)
    gone = set(rng.sample([(r.partition, r.offset) for r in records], loss))
    lanes = [
        [record for record in lane if (record.partition, record.offset) not in gone]
        for lane in output(records)
    ]
    verdict = judge(records, lanes)
    assert faults(verdict) == (loss, 0, 0, 0)
    assert {(place.partition, place.offset) for place in verdict.examples.lost} == gone
    assert {place.topic for place in verdict.examples.lost} == {"in"}


@given(count=st.integers(min_value=20, max_value=200), extra=FEW, seed=SEEDS)
def test_each_duplicate_is_counted_wherever_it_lies_after_the_first(
    count: int, extra: int, seed: int
) -> None:
    records, rng = inputs(count), random.Random(seed)
    lanes = output(records)
    for _ in range(extra):
        lane = rng.choice(lanes)
        at = rng.randrange(len(lane))
        lane.insert(rng.randint(at + 1, len(lane)), lane[at])
    assert faults(judge(records, lanes)) == (0, extra, 0, 0)


@given(count=st.integers(min_value=40, max_value=200), seed=SEEDS)
def test_a_replayed_epoch_is_all_duplicates_and_no_disorder(count: int, seed: int) -> None:
    records, rng = inputs(count), random.Random(seed)
    lanes = output(records)
    lane = rng.choice(lanes)
    start = rng.randrange(len(lane) - 3)
    epoch = lane[start : start + 3]
    lane[start + 3 : start + 3] = epoch
    assert faults(judge(records, lanes)) == (0, 3, 0, 0)


@given(count=st.integers(min_value=20, max_value=200), foreign=FEW, seed=SEEDS)
def test_each_foreign_record_is_counted(count: int, foreign: int, seed: int) -> None:
    records, rng = inputs(count), random.Random(seed)
    lanes = output(records)
    for number in range(foreign):
        lane = rng.choice(lanes)
        stray = Record("out", lane[0].partition, 0, b"k", f"stray {number}".encode())
        lane.insert(rng.randint(0, len(lane)), stray)
    assert faults(judge(records, lanes)) == (0, 0, foreign, 0)


@given(count=st.integers(min_value=40, max_value=200), seed=SEEDS)
def test_two_neighbours_swapped_are_one_record_out_of_order(count: int, seed: int) -> None:
    records, rng = inputs(count), random.Random(seed)
    lanes = output(records)
    lane = rng.choice(lanes)
    at = rng.randrange(len(lane) - 1)
    lane[at], lane[at + 1] = lane[at + 1], lane[at]
    assert faults(judge(records, lanes)) == (0, 0, 0, 1)


@given(count=st.integers(min_value=60, max_value=200), seed=SEEDS, length=st.integers(1, 6))
def test_a_block_moved_back_is_as_many_records_out_of_order(
    count: int, seed: int, length: int
) -> None:
    records, rng = inputs(count), random.Random(seed)
    lanes = output(records)
    lane = rng.choice(lanes)
    start = rng.randrange(len(lane) - 2 * length)
    block = lane[start : start + length]
    del lane[start : start + length]
    to = rng.randint(start + length, len(lane))
    lane[to:to] = block
    assert faults(judge(records, lanes)) == (0, 0, 0, length)


@given(count=st.integers(min_value=60, max_value=200), loss=FEW, extra=FEW, foreign=FEW, seed=SEEDS)
def test_mixed_faults_are_reported_apart(
    count: int, loss: int, extra: int, foreign: int, seed: int
) -> None:
    records, rng = inputs(count), random.Random(seed)
    lanes = output(records)
    for lane in (rng.choice(lanes) for _ in range(loss)):
        del lane[rng.randrange(len(lane))]
    for lane in (rng.choice(lanes) for _ in range(extra)):
        at = rng.randrange(len(lane))
        lane.insert(rng.randint(at + 1, len(lane)), lane[at])
    for number in range(foreign):
        rng.choice(lanes).append(Record("out", 0, 0, None, b"stray %d" % number))
    assert faults(judge(records, lanes)) == (loss, extra, foreign, 0)


@given(
    field=st.sampled_from(["key", "value", "headers", "partition", "topic"]),
    victim=st.integers(min_value=0, max_value=59),
)
def test_a_record_that_differs_in_one_field_is_lost_and_foreign(field: str, victim: int) -> None:
    records = inputs(60)
    changes: dict[str, Any] = {
        "key": b"other",
        "value": b"other",
        "headers": (("other", b""),),
        "partition": PARTITIONS,
        "topic": "elsewhere",
    }
    found = [record for source in records for record in mark(source)]
    found[victim] = found[victim]._replace(**{field: changes[field]})
    verdict = check(expect(records, mark), history_of(found))
    assert faults(verdict) == (1, 0, 1, 0)


def test_null_and_empty_are_different_and_header_boundaries_count() -> None:
    """Byte for byte: null is not empty, and two headers do not run into one another."""
    plain = Record("out", 0, 0, None, None)
    variants = [
        plain,
        plain._replace(key=b""),
        plain._replace(value=b""),
        plain._replace(headers=(("a", b"b"),)),
        plain._replace(headers=(("ab", b""),)),
        plain._replace(headers=(("a", None),)),
        plain._replace(headers=(("a", b"b"), ("a", b"b"))),
    ]
    assert len({Identity().fingerprint(variant) for variant in variants}) == len(variants)


def test_equal_contents_are_counted_as_often_as_expected() -> None:
    records = [Record("in", 0, offset, None, b"same") for offset in range(5)]
    verdict = judge(records, [[mark(records[0])[0]] * 4])
    assert faults(verdict) == (1, 0, 0, 0)
    assert verdict.unordered == 0


def test_equal_contents_of_two_partitions_are_not_judged_for_order() -> None:
    """A verdict says what it could not see instead of guessing."""
    identity = Identity(partition=False)
    records = [Record("in", partition, 0, None, b"same") for partition in range(2)]
    found = history_of([Record("out", 0, offset, None, b"same!") for offset in range(2)], identity)
    verdict = check(expect(records, mark, identity), found)
    assert verdict.is_clean
    assert verdict.unordered == 2


@pytest.mark.parametrize("fault", ["lost", "duplicated"])
def test_nor_are_those_of_which_one_is_lost_or_there_twice(fault: str) -> None:
    identity = Identity(partition=False)
    same = [Record("in", partition, 0, None, b"same") for partition in range(2)]
    other = Record("in", 0, 1, None, b"other")
    if fault == "lost":  # of partition 0 or 1
        records, contents = [*same, other], [(0, b"other!"), (0, b"same!")]
    else:  # in partition 0 or 1
        records, contents = [same[0], other], [(0, b"other!"), (0, b"same!"), (1, b"same!")]
    found = [
        Record("out", partition, offset, None, value)
        for offset, (partition, value) in enumerate(contents)
    ]
    verdict = check(expect(records, mark, identity), history_of(found, identity))
    assert faults(verdict) == (int(fault == "lost"), int(fault == "duplicated"), 0, 0)
    assert verdict.unordered == 1


def test_order_is_judged_from_each_input_to_each_output_partition() -> None:
    """Two inputs may interleave in one output; each of them must keep its order there."""
    identity = Identity(partition=False)
    records = inputs(9)
    mixed = [record for lane in output(records) for record in lane]
    found = [record._replace(partition=0) for record in mixed]
    assert check(expect(records, mark, identity), history_of(found, identity)).is_clean
    found[0], found[1] = found[1], found[0]
    assert check(expect(records, mark, identity), history_of(found, identity)).reordered == 1


def test_different_identities_are_refused() -> None:
    with pytest.raises(ConfigError):
        check(History(), History(Identity(partition=False)))
    with pytest.raises(ConfigError):
        check_prefix(History(), History(Identity(partition=False)))


@given(count=st.integers(min_value=0, max_value=100), seen=st.integers(min_value=0, max_value=100))
def test_what_a_reader_saw_so_far_is_a_prefix(count: int, seen: int) -> None:
    final = history_of(PAYLOAD.records(count))
    verdict = check_prefix(history_of(PAYLOAD.records(min(seen, count))), final)
    assert not verdict.broken
    assert verdict.is_clean == (seen > 0 or count == 0)
    assert (verdict.seen, verdict.final) == (min(seen, count), count)


@given(
    count=st.integers(min_value=12, max_value=90),
    fault=st.sampled_from(["vanished", "inserted before", "replaced", "one more"]),
    seed=SEEDS,
)
def test_a_broken_prefix_is_named_where_it_breaks(count: int, fault: str, seed: int) -> None:
    records = list(PAYLOAD.records(count))
    mine = [record for record in records if record.partition == 1]
    at = random.Random(seed).randrange(len(mine) - 1)
    seen, final = list(mine), list(mine)
    if fault == "vanished":
        del final[at]
    elif fault == "inserted before":
        del seen[at]
    elif fault == "replaced":
        final[at] = final[at]._replace(value=b"other")
    else:
        at = len(final) - 1
        del final[at]
    broken = check_prefix(history_of(seen), history_of(final)).broken
    # Where a record was not seen, the break is at the next one that was.
    assert [(p.partition, p.offset) for p in broken] == [(1, at + (fault == "inserted before"))]


def emissions(keys: Sequence[bytes], epoch_records: int) -> list[Record]:
    found: list[Record] = []
    totals: dict[bytes, int] = {}
    for start in range(0, len(keys), epoch_records):
        changed: dict[bytes, None] = {}
        for key in keys[start : start + epoch_records]:
            totals[key] = totals.get(key, 0) + 1
            changed[key] = None
        for key in changed:
            found.append(Record("out", 0, len(found), key, str(totals[key]).encode()))
    return found


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b""]), min_size=1, max_size=80)


@given(keys=KEYS, epoch_records=st.integers(min_value=1, max_value=20))
def test_correct_counts_are_clean(keys: list[bytes], epoch_records: int) -> None:
    assert check_key_counts(keys, emissions(keys, epoch_records)).is_clean


@given(keys=KEYS, epoch_records=st.integers(min_value=1, max_value=20), seed=SEEDS)
def test_an_epoch_emitted_twice_is_caught(keys: list[bytes], epoch_records: int, seed: int) -> None:
    found = emissions(keys, epoch_records)
    at = random.Random(seed).randrange(len(found))
    found.insert(at + 1, found[at])
    verdict = check_key_counts(keys, found)
    assert (verdict.repeated, verdict.regressed, verdict.wrong) == (1, 0, 0)


@given(keys=KEYS, seed=SEEDS)
def test_a_record_that_state_forgot_is_caught(keys: list[bytes], seed: int) -> None:
    forgotten = random.Random(seed).randrange(len(keys))
    rest = keys[:forgotten] + keys[forgotten + 1 :]
    verdict = check_key_counts(keys, emissions(rest, 7))
    assert verdict.wrong + verdict.missing == 1


def test_state_from_an_older_checkpoint_regresses() -> None:
    found = [Record("out", 0, n, b"a", text) for n, text in enumerate([b"1", b"5", b"3", b"6"])]
    verdict = check_key_counts([b"a"] * 6, found)
    assert (verdict.regressed, verdict.wrong) == (1, 0)
    assert not verdict.is_clean


@pytest.mark.parametrize("value", [None, b"", b"0", b"-1", b"x", b"1.0", b"1" * 5_000])
def test_an_emission_that_is_no_count_is_unexpected(value: bytes | None) -> None:
    verdict = check_key_counts([b"a"], [Record("out", 0, 0, b"a", value)])
    assert verdict.unexpected == 1


def test_an_unknown_key_is_unexpected() -> None:
    verdict = check_key_counts([b"a"], emissions([b"a", b"z"], 2))
    assert (verdict.unexpected, verdict.wrong) == (1, 0)


@given(number=st.integers(min_value=0, max_value=10_000))
def test_a_generated_record_says_where_it_comes_from(number: int) -> None:
    (record,) = PAYLOAD.records(1, first=number)
    origin = origin_of(record)
    assert (origin.run, origin.partition, origin.sequence) == ("r", *reversed(divmod(number, 3)))


def test_a_load_holds_every_odd_kind_of_record_and_no_two_alike() -> None:
    records = inputs(2_000)
    assert {type(record.value) for record in records} == {bytes, type(None)}
    assert any(record.value == b"" for record in records)
    assert any(
        len(record.headers) > len({name for name, _ in record.headers}) for record in records
    )
    assert any(value is None for record in records for _, value in record.headers)
    assert len({Identity().fingerprint(record) for record in records}) == len(records)


TIMES = st.lists(st.integers(min_value=0, max_value=8_000), min_size=1, max_size=60)


def closed(timestamps_ms: Sequence[int], *, before_ms: int) -> list[Record]:
    counts: dict[int, int] = {}
    for at in timestamps_ms:
        counts[at - at % 1000] = counts.get(at - at % 1000, 0) + 1
    return [
        Record("out", 0, offset, b"%d" % window, b"%d" % count)
        for offset, (window, count) in enumerate(sorted(counts.items()))
        if window + 1000 <= before_ms
    ]


@given(times=TIMES, watermark_ms=st.integers(min_value=0, max_value=10_000))
def test_closed_windows_are_clean_and_open_ones_are_not_missed(
    times: list[int], watermark_ms: int
) -> None:
    emitted = closed(times, before_ms=watermark_ms)
    verdict = check_windows(times, emitted, window_ms=1000)
    found = (verdict.lost, verdict.duplicated, verdict.wrong, verdict.unexpected)
    assert found == (0, 0, 0, 0), verdict
    assert verdict.is_clean == bool(emitted)


@given(times=TIMES, seed=SEEDS, fault=st.sampled_from(["lost", "duplicated", "wrong"]))
def test_a_broken_window_is_caught(times: list[int], seed: int, fault: str) -> None:
    found = closed([*times, 9_500], before_ms=20_000)
    at = random.Random(seed).randrange(len(found) - 1)
    if fault == "lost":
        del found[at]
    elif fault == "duplicated":
        found.append(found[at])
    else:
        found[at] = found[at]._replace(value=b"99")
    verdict = check_windows([*times, 9_500], found, window_ms=1000)
    assert getattr(verdict, fault) == 1
    assert not verdict.is_clean
    assert check_windows(times, [Record("out", 0, 0, b"77", b"1")], window_ms=1000).unexpected == 1


def test_no_number_is_too_long_to_be_unexpected() -> None:
    found = [Record("out", 0, 0, b"1" * 5_000, b"1"), Record("out", 0, 1, b"0", b"1" * 5_000)]
    verdict = check_windows([5], found, window_ms=1000)
    assert verdict.unexpected == len(found)


@given(times=TIMES)
def test_of_a_run_that_has_ended_every_window_before_the_watermark_is_asked_for(
    times: list[int],
) -> None:
    closed_ms = max(times) - 500
    whole = closed(times, before_ms=closed_ms)
    verdict = check_windows(times, whole, window_ms=1000, delay_ms=500)
    assert (verdict.lost, verdict.is_clean) == (0, bool(whole)), verdict
    if whole:
        assert check_windows(times, whole[:-1], window_ms=1000, delay_ms=500).lost == 1
        assert check_windows(times, [], window_ms=1000, delay_ms=500).lost == len(whole)
