"""What a start finds in a directory of very many runs, on every file system."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.model.model import FENCING, Verdict
from sluice.runtime.storage.file_system import FileSystem
from tests.checkpoint_records import record

_TIMEOUT_S = 120.0


def test_names_are_found_among_many_and_only_whole_ones(fs: FileSystem) -> None:
    """A place is told by its name alone, in a directory that may hold very many."""
    for path in ("chk-01/file", "chk-02", "xchk-03", "chk-04, chk-05", "a, b/chk-06", "chk-7"):
        fs.replace(path, b"x")
    assert sorted(fs.names("", re.compile(r"chk-\d{2}"))) in (
        ["chk-01", "chk-02"],
        ["chk-01", "chk-02", "chk-04"],  # Hadoop's: a name with a comma is looked up, and is none
    )
    assert fs.names("a, b", re.compile(r"chk-\d{2}")) == ["chk-06"]
    assert fs.names("nothing", re.compile(r"chk-\d{2}")) == []


def test_seals_are_on_record_and_not_read_again(fs: FileSystem) -> None:
    """A directory keeps one of each run for ever; a start may not take longer for each of them."""
    fencing_record = replace(
        record(0), verdict=Verdict.ABORTED, requested_by=FENCING, restored_from=0, regions=()
    )
    first = CheckpointStore(fs)
    first.publish(record(0), timeout_s=_TIMEOUT_S)
    for place in range(1, 40):
        CheckpointStore(fs).publish(
            replace(fencing_record, checkpoint_id=place), timeout_s=_TIMEOUT_S
        )
    reader = CheckpointStore(fs)
    assert [reader.read(place) is not None for place in range(40)] == [True] * 40
    reader.publish(replace(fencing_record, checkpoint_id=40), timeout_s=_TIMEOUT_S)
    reader.remember_fencing_records()

    again, asked = CheckpointStore(fs), list[str]()
    with (
        patch.object(type(fs), "read", _noted(type(fs).read, asked)),
        patch.object(type(fs), "exists", _noted(type(fs).exists, asked)),
    ):
        assert again.places() == list(range(41))
        assert again.known_fencing_records() == dict.fromkeys(range(1, 41), 0)
        facts = again.facts()
    # One of them is looked at: it tells whose list it is.
    assert {path.partition("/")[0] for path in asked} == {
        "_fencing_records",
        slot_name(0),
        slot_name(40),
    }
    assert facts == CheckpointStore(fs).facts()
    whole = fs.read("_fencing_records") or b""
    fs.replace("_fencing_records", b"damaged")
    assert CheckpointStore(fs).known_fencing_records() == {}

    # Parts of the directory were deleted, or put back; and then other runs went on.
    fs.replace("_fencing_records", whole)
    fs.delete(slot_name(7))
    fs.replace(f"{slot_name(7)}/.half-made", b"")  # by a start that died
    looking = CheckpointStore(fs)
    assert 7 in looking.places()
    assert looking.read(7) is None
    assert 7 not in looking.places()
    fs.replace("_fencing_records", whole)
    fs.replace(f"{slot_name(8)}/_metadata", encode(record(8)))
    looking = CheckpointStore(fs)
    assert looking.read(8) == record(8)
    assert looking.known_fencing_records() == {}
    fs.delete(slot_name(40))
    assert CheckpointStore(fs).known_fencing_records() == {}
    fs.replace(f"{slot_name(40)}/_metadata", b"damaged")  # nothing starts from it, so it hurts none
    looking = CheckpointStore(fs)
    assert looking.places()[-1] == 40
    assert looking.known_fencing_records() == {}
    assert [facts.checkpoint_id for facts in looking.facts()][-1] == 39


def _noted(call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noting(self: FileSystem, path: str) -> Any:
        asked.append(path)
        return call(self, path)

    return noting
