"""The checker on disk: the verdict of the one in memory, within the memory it is allowed."""

import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.runtime.checker import (
    Finding,
    HistoryVerdict,
    Identity,
    Kind,
    Location,
    Payload,
    Record,
    SpilledHistory,
    TransactionRange,
    Transactions,
    check_spilled,
    origin_of,
)
from sluice.runtime.checker.records.history import Columns
from sluice.runtime.checker.row_files import ROW
from sluice.runtime.checker.spilled import LEAST_MEMORY_BYTES
from sluice.runtime.errors import ConfigError, StorageError
from tests.kit.effort import examples
from tests.kit.memory_checker import check, expect, history_of, wanted_of

PARTITIONS = 3
PAYLOAD = Payload(topic="in", run="r", partitions=PARTITIONS)
SEEDS = st.integers(min_value=0, max_value=2**32)
ROWS = (30, 200, 2_000)
"""Rows in memory, for a history of hundreds: everything is assigned again, some things, nothing."""

_serial = itertools.count()


def named(record: Record) -> bytes | None:
    origin = origin_of(record)
    return None if origin is None else origin.encode()


NAMED = Identity(name_of=named)
EPOCH = 10


def epochs(count: int) -> list[TransactionRange]:
    """Ten records of each partition are one transaction."""
    return [
        TransactionRange(
            transaction=f"t{start // EPOCH}",
            topic="in",
            partition=partition,
            start_offset=start,
            end_offset=start + EPOCH,
        )
        for start in range(0, count, EPOCH)
        for partition in range(PARTITIONS)
    ]


def mark(record: Record) -> list[Record]:
    """The job under test: appends ``!``, keeps everything else."""
    value = None if record.value is None else record.value + b"!"
    return [record._replace(topic="out", value=value)]


def output(count: int) -> list[Record]:
    lanes = sorted(PAYLOAD.records(count), key=lambda record: record.partition)
    return [wanted for record in lanes for wanted in mark(record)]


def placed(records: Iterable[Record]) -> list[Record]:
    """Offsets as Kafka gives them, by partition."""
    counters = [itertools.count() for _ in range(PARTITIONS)]
    return [record._replace(offset=next(counters[record.partition])) for record in records]


def spilled(
    directory: Path,
    inputs: Iterable[Record],
    found: Iterable[Record],
    *,
    rows: int,
    identity: Identity = NAMED,
    transactions: Transactions | None = None,
    sink: Callable[[Finding], None] | None = None,
) -> HistoryVerdict:
    """The verdict by way of files, with so many rows in memory."""
    location = directory / str(next(_serial))
    with (
        SpilledHistory(location / "want", identity, memory_bytes=LEAST_MEMORY_BYTES) as want,
        SpilledHistory(location / "have", identity, memory_bytes=LEAST_MEMORY_BYTES) as have,
    ):
        want.rows_in_memory = have.rows_in_memory = rows
        for wanted, source in wanted_of(inputs, mark):
            want.append(wanted, read_from=source)
        for record in found:
            have.append(record)
        return check_spilled(want, have, transactions=transactions, sink=sink)


def loses(lane: list[Record], rng: random.Random) -> None:
    del lane[rng.randrange(len(lane))]


def doubles(lane: list[Record], rng: random.Random) -> None:
    at = rng.randrange(len(lane))
    lane.insert(rng.randint(at + 1, len(lane)), lane[at])


def invents(lane: list[Record], rng: random.Random) -> None:
    stray = Record("out", lane[0].partition, 0, b"k", b"stray %d" % rng.randrange(10**9))
    lane.insert(rng.randint(0, len(lane)), stray)


def swaps(lane: list[Record], rng: random.Random) -> None:
    at = rng.randrange(len(lane) - 1)
    lane[at], lane[at + 1] = lane[at + 1], lane[at]


def moves(lane: list[Record], rng: random.Random) -> None:
    at = rng.randrange(len(lane))
    lane.insert(rng.randrange(len(lane)), lane.pop(at))


def corrupts(lane: list[Record], rng: random.Random) -> None:
    at = rng.randrange(len(lane))
    lane[at] = lane[at]._replace(key=b"another key %d" % rng.randrange(10**9))


def delays(lane: list[Record], rng: random.Random) -> None:
    del rng
    lane.append(lane.pop(0))


FAULTS = [loses, doubles, invents, swaps, moves, delays, corrupts]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
@given(
    count=st.integers(min_value=30, max_value=200),
    faults=st.lists(st.sampled_from(FAULTS), max_size=8),
    rows=st.sampled_from(ROWS),
    seed=SEEDS,
)
@example(count=200, faults=[delays], rows=30, seed=0)
@example(count=30, faults=[loses, loses, delays, *5 * [loses]], rows=30, seed=30)
def test_the_verdict_on_disk_is_the_one_in_memory(
    tmp_path: Path,
    count: int,
    faults: Sequence[Callable[[list[Record], random.Random], None]],
    rows: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    lanes = [[r for r in output(count) if r.partition == number] for number in range(PARTITIONS)]
    for fault in faults:
        fault(rng.choice(lanes), rng)
    found = placed(record for lane in lanes for record in lane)
    in_memory: list[Finding] = []
    on_disk: list[Finding] = []
    wanted = check(
        expect(PAYLOAD.records(count), mark, NAMED),
        history_of(found, NAMED),
        transactions=Transactions(epochs(count)),
        sink=in_memory.append,
    )
    verdict = spilled(
        tmp_path,
        PAYLOAD.records(count),
        found,
        rows=rows,
        transactions=Transactions(epochs(count)),
        sink=on_disk.append,
    )
    if verdict.is_reordered_exact:
        assert verdict == wanted
        assert sorted(map(str, on_disk)) == sorted(map(str, in_memory))
    else:
        assert rows // 4 < len(found), "a quarter of the memory is for what is in disorder"
        assert verdict.reordered >= wanted.reordered > 0
        assert (verdict.lost, verdict.torn) == (wanted.lost, wanted.torn)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
@given(
    wanted=st.integers(min_value=0, max_value=60),
    found=st.integers(min_value=0, max_value=60),
    rows=st.sampled_from(ROWS),
)
def test_one_content_over_and_over_is_counted_piece_by_piece(
    tmp_path: Path, wanted: int, found: int, rows: int
) -> None:
    inputs = [Record("in", 0, offset, None, b"same") for offset in range(wanted)]
    have = [Record("out", 0, offset, None, b"same!") for offset in range(found)]
    verdict = spilled(tmp_path, inputs, have, rows=rows)
    surplus = max(found - wanted, 0)
    assert verdict.lost == max(wanted - found, 0)
    assert (verdict.duplicated, verdict.unexpected) == ((surplus, 0) if wanted else (0, surplus))
    assert (verdict.reordered, verdict.unordered) == (0, 0)


def test_one_content_of_several_partitions_is_not_judged_for_order(tmp_path: Path) -> None:
    identity = Identity(partition=False)
    inputs = [Record("in", number % 2, number, None, b"same") for number in range(40)]
    have = [Record("out", 0, offset, None, b"same!") for offset in range(40)]
    verdict = spilled(tmp_path, inputs, have, rows=4, identity=identity)
    assert verdict.is_clean
    assert verdict.unordered == 40


def test_disorder_beyond_memory_is_caught_and_its_count_is_called_a_bound(tmp_path: Path) -> None:
    """The first record comes last: one record moved, and many that overtook it."""
    found = [record for record in output(300) if record.partition == 0]
    found.append(found.pop(0))
    inputs = [record for record in PAYLOAD.records(300) if record.partition == 0]
    roomy = spilled(tmp_path, inputs, placed(found), rows=2_000)
    assert (roomy.reordered, roomy.is_reordered_exact) == (1, True)
    tight = spilled(tmp_path, inputs, placed(found), rows=8)
    assert not tight.is_clean
    assert not tight.is_reordered_exact
    assert "reordered at most" in str(tight)


@pytest.mark.parametrize("moved", [1, 5, 40])
def test_the_bound_is_not_below_what_is_out_of_order(tmp_path: Path, moved: int) -> None:
    """As a repair leaves it: records of the front, one after the other, at the end."""
    found = [record for record in output(300) if record.partition == 0]
    found = [*found[moved:], *found[:moved]]
    inputs = [record for record in PAYLOAD.records(300) if record.partition == 0]
    assert spilled(tmp_path, inputs, placed(found), rows=2_000).reordered == moved
    tight = spilled(tmp_path, inputs, placed(found), rows=8)
    assert tight.reordered >= moved
    assert not tight.is_reordered_exact


def test_a_corrupted_record_is_named_with_its_source(tmp_path: Path) -> None:
    found = output(60)
    found[7] = found[7]._replace(value=(found[7].value or b"") + b"?")
    findings: list[Finding] = []
    transactions = Transactions(epochs(60))
    verdict = spilled(
        tmp_path,
        PAYLOAD.records(60),
        placed(found),
        rows=2_000,
        transactions=transactions,
        sink=findings.append,
    )
    assert findings == [Finding(Kind.CORRUPTED, Location("out", 0, 7), "of in-0@7")]
    assert (verdict.corrupted, verdict.lost, verdict.unexpected, verdict.torn) == (1, 0, 0, 0)


def test_without_names_a_corrupted_record_is_lost_and_unexpected(tmp_path: Path) -> None:
    found = output(60)
    found[7] = found[7]._replace(value=b"other")
    verdict = spilled(tmp_path, PAYLOAD.records(60), placed(found), rows=2_000, identity=Identity())
    assert (verdict.corrupted, verdict.lost, verdict.unexpected) == (0, 1, 1)


def test_many_records_of_one_name_are_compared_piece_by_piece(tmp_path: Path) -> None:
    """A name that all bear, in less memory than they take."""
    identity = Identity(name_of=lambda _: b"all")
    inputs = [Record("in", 0, n, None, b"%d" % n) for n in range(40)]
    found = [Record("out", 0, n, None, b"broken %d" % n) for n in range(50)]
    verdict = spilled(tmp_path, inputs, found, rows=8, identity=identity)
    assert (verdict.corrupted, verdict.lost, verdict.unexpected) == (40, 0, 10)


def test_part_of_a_transaction_is_torn_and_a_whole_one_missing_is_not(tmp_path: Path) -> None:
    """One partition of the first transaction is missing, and all of the second."""
    gone = {(1, offset) for offset in range(EPOCH)}
    gone |= {(p, EPOCH + offset) for p in range(PARTITIONS) for offset in range(EPOCH)}
    found = [record for record in output(120) if (record.partition, record.offset) not in gone]
    findings: list[Finding] = []
    verdict = spilled(
        tmp_path,
        PAYLOAD.records(120),
        placed(found),
        rows=30,
        transactions=Transactions(epochs(120)),
        sink=findings.append,
    )
    assert (verdict.lost, verdict.torn) == (len(gone), 1)
    assert verdict.examples.torn == (Location("in", 0, 0),)
    (torn,) = (finding for finding in findings if finding.kind is Kind.TORN)
    assert str(torn) == "torn in-0@0 (t0: 20 of 30 records)"


def test_transactions_that_share_records_are_refused() -> None:
    ranges = epochs(30)
    with pytest.raises(ConfigError, match="same input records"):
        Transactions([*ranges, ranges[0]])


def test_records_outside_all_transactions_tear_none(tmp_path: Path) -> None:
    found = output(60)[1:]
    some = Transactions(one for one in epochs(60) if one.start_offset >= EPOCH)
    verdict = spilled(tmp_path, PAYLOAD.records(60), placed(found), rows=30, transactions=some)
    assert (verdict.lost, verdict.torn) == (1, 0)


def generated(count: int, *, from_row: int = 0) -> Columns:
    """Rows of two partitions, as `History.columns` gives them, made without any record."""
    positions = np.arange(from_row, from_row + count, dtype=np.int64)
    return Columns(
        # An odd factor: no two alike, and all over the range.
        fingerprints=positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        lanes=(positions % 2).astype(np.int32),
        offsets=positions // 2,
        positions=positions,
        names=np.zeros(count, dtype=np.uint64),
    )


def peak_bytes(directory: Path, count: int, memory_bytes: int) -> int:
    """The most that Python and numpy held at once, for a run of so many records."""
    chunk = 10_000
    location = directory / str(next(_serial))
    with (
        SpilledHistory(location / "want", memory_bytes=memory_bytes) as want,
        SpilledHistory(location / "have", memory_bytes=memory_bytes) as have,
    ):
        tracemalloc.start()
        try:
            for history in (want, have):
                for partition in range(2):
                    history.lanes.number(f"topic {partition}", partition)
                for at in range(0, count, chunk):
                    history.append_columns(generated(chunk, from_row=at))
            verdict = check_spilled(want, have)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert verdict.is_clean
            assert verdict.found == count


@pytest.mark.extended
def test_memory_is_bounded_whatever_the_records(tmp_path: Path) -> None:
    """The rows alone would take six times the limit, and to sort them several times that."""
    limit, count = 8 << 20, 700_000
    assert 2 * count * ROW.itemsize > 6 * limit
    with get_context("spawn").Pool(1) as alone:  # other tests of this process have threads
        assert alone.apply(peak_bytes, (tmp_path, count, limit)) < limit


def test_files_are_deleted(tmp_path: Path) -> None:
    spilled(tmp_path, PAYLOAD.records(60), placed(output(60)), rows=4)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match="another directory"):
        SpilledHistory(file / "want", memory_bytes=LEAST_MEMORY_BYTES)


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too little memory"):
        SpilledHistory(tmp_path / "want", memory_bytes=LEAST_MEMORY_BYTES - 1)


def test_histories_of_different_identities_are_refused(tmp_path: Path) -> None:
    with (
        SpilledHistory(tmp_path / "want", memory_bytes=LEAST_MEMORY_BYTES) as want,
        SpilledHistory(tmp_path / "have", NAMED, memory_bytes=LEAST_MEMORY_BYTES) as have,
        pytest.raises(ConfigError, match="different identities"),
    ):
        check_spilled(want, have)
