"""A prefix on disk: the verdict of `check_prefix`, in memory that does not grow."""

import itertools
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.runtime.checker import Identity, Payload, Record, SpilledPrefix
from sluice.runtime.errors import StorageError
from tests.kit.memory_checker import check_prefix, history_of

PARTITIONS = 3
PAYLOAD = Payload(topic="in", run="r", partitions=PARTITIONS)
BUFFERED = 7
"""Less than a partition's records, so that most are compared in several parts."""

_serial = itertools.count()


def spoil(records: list[Record], faults: int, rng: random.Random) -> list[Record]:
    """Some are replaced, some vanish, some come in front."""
    spoiled = list(records)
    for _ in range(min(faults, len(spoiled))):
        at = rng.randrange(len(spoiled))
        match rng.randrange(3):
            case 0:
                spoiled[at] = spoiled[at]._replace(value=b"other")
            case 1:
                del spoiled[at]
            case _:
                spoiled.insert(at, spoiled[at])
    return spoiled


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(min_value=0, max_value=90),
    unseen=st.integers(min_value=0, max_value=90),
    faults=st.integers(min_value=0, max_value=3),
    seed=st.integers(min_value=0, max_value=2**32),
)
def test_the_verdict_is_that_of_the_check_in_memory(
    tmp_path: Path, count: int, unseen: int, faults: int, seed: int
) -> None:
    final = list(PAYLOAD.records(count))
    seen = spoil(final[: max(count - unseen, 0)], faults, random.Random(seed))
    directory = tmp_path / str(next(_serial))
    with SpilledPrefix(directory, buffered_records=BUFFERED) as spilled:
        for record in seen:
            spilled.append(record)
        assert len(spilled) == len(seen)
        verdict = spilled.check(final)
    assert verdict == check_prefix(history_of(seen), history_of(final))
    assert not directory.exists()


def test_what_was_seen_in_a_partition_that_holds_nothing_is_broken_at_its_first_record(
    tmp_path: Path,
) -> None:
    with SpilledPrefix(tmp_path / "seen") as spilled:
        for record in PAYLOAD.records(PARTITIONS):
            spilled.append(record)
        verdict = spilled.check(r for r in PAYLOAD.records(PARTITIONS) if r.partition != 1)
    assert str(verdict) == "seen 3 of 2, broken at in-1@0"


def test_a_copy_may_ignore_what_its_identity_does(tmp_path: Path) -> None:
    records = list(PAYLOAD.records(9))
    with SpilledPrefix(tmp_path / "seen", Identity(headers=False)) as spilled:
        for record in records:
            spilled.append(record)
        assert spilled.check(record._replace(headers=()) for record in records).is_clean


def test_a_directory_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("a file in the way")
    with pytest.raises(StorageError):
        SpilledPrefix(tmp_path / "seen")


@pytest.mark.extended
def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    assert peak_bytes(tmp_path, 400_000) < 1.5 * peak_bytes(tmp_path, 100_000)


def peak_bytes(directory: Path, count: int) -> int:
    """The most that Python and numpy held at once."""

    with SpilledPrefix(directory / str(next(_serial)), buffered_records=10_000) as spilled:
        tracemalloc.start()
        try:
            for record in PAYLOAD.records(count):
                spilled.append(record)
            assert spilled.check(PAYLOAD.records(count)).is_clean
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
