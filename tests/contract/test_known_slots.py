"""What a start finds in a directory of very many runs, on every file system."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord, Verdict
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.coordinator.checkpoint_records import record

_TIMEOUT_S = 120.0


def test_names_are_found_among_many_and_only_whole_ones(fs: FileSystem) -> None:
    """A place is reported by its name alone, in a directory that may hold very many."""
    for path in ("chk-01/file", "chk-02", "xchk-03", "chk-04, chk-05", "a, b/chk-06", "chk-7"):
        fs.replace(path, b"x")
    assert sorted(fs.names("", re.compile(r"chk-\d{2}"))) in (
        ["chk-01", "chk-02"],
        ["chk-01", "chk-02", "chk-04"],  # Hadoop's: a name with a comma is looked up, and is none
    )
    assert fs.names("a, b", re.compile(r"chk-\d{2}")) == ["chk-06"]
    assert fs.names("nothing", re.compile(r"chk-\d{2}")) == []


def test_a_start_reads_no_fencing_record_below_the_newest_one(fs: FileSystem) -> None:
    """A directory keeps one of each run for ever; a start may not take longer for each of them."""
    CheckpointStore(fs).publish(record(0), timeout_s=_TIMEOUT_S)
    for slot in range(1, 40):
        CheckpointStore(fs).publish(_fencing(slot), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(40, others="0"), timeout_s=_TIMEOUT_S)

    again, asked = CheckpointStore(fs), list[str]()
    with (
        patch.object(type(fs), "read", _noted(type(fs).read, asked)),
        patch.object(type(fs), "exists", _noted(type(fs).exists, asked)),
    ):
        assert again.slots() == list(range(41))
        assert again.known_fencing_records() == frozenset(range(1, 41))
        facts = again.facts()
    assert {path.partition("/")[0] for path in asked} == {slot_name(0), slot_name(40)}
    assert [each.is_fencing_record for each in facts] == [True] * 41
    assert facts[-1].restored_from == 0  # it keeps what the newest run started from


def test_what_the_newest_fencing_record_does_not_name_is_believed_until_it_is_read(
    fs: FileSystem,
) -> None:
    """A person may put a checkpoint back, or delete one."""
    CheckpointStore(fs).publish(record(0), timeout_s=_TIMEOUT_S)
    for slot in (1, 2):
        CheckpointStore(fs).publish(_fencing(slot), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(3, others="0"), timeout_s=_TIMEOUT_S)
    fs.delete(slot_name(1))
    fs.replace(f"{slot_name(1)}/.half-made", b"")  # by a start that died
    fs.replace(f"{slot_name(2)}/_metadata", encode(record(2)))
    store = CheckpointStore(fs)
    assert store.slots() == [0, 1, 2, 3]
    assert store.read(1) is None
    assert store.read(2) == record(2)
    assert store.slots() == [0, 2, 3]
    assert store.known_fencing_records() == {3}


def test_without_a_fencing_record_that_can_be_read_the_next_one_below_it_counts(
    fs: FileSystem,
) -> None:
    """A start continues past a damaged record where nothing needs it."""
    CheckpointStore(fs).publish(record(0), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(1), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(2, others="0"), timeout_s=_TIMEOUT_S)
    fs.replace(f"{slot_name(3)}/_metadata", b"damaged")
    store = CheckpointStore(fs)
    assert store.slots() == [0, 1, 2, 3]
    assert store.known_fencing_records() == {1, 2}
    assert [each.checkpoint_id for each in store.facts()] == [0, 1, 2]


def _fencing(slot: int, *, others: str | None = None) -> CheckpointRecord:
    return replace(
        record(slot),
        verdict=Verdict.ABORTED,
        requested_by=FENCING,
        restored_from=0,
        regions=(),
        settings={} if others is None else {"other_records": others},
    )


def _noted(call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noting(self: FileSystem, path: str) -> Any:
        asked.append(path)
        return call(self, path)

    return noting
