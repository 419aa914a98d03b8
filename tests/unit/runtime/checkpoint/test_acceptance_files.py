"""What lies beside a decision that lost something: files of every version, and of none."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.checkpoint.acceptance import (
    accepted_as,
    decode_accepted,
    decode_unsettled,
    encode_accepted,
    encode_unsettled,
    in_effect,
)
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store, slot_name
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import AcceptedAs, AcceptedWork, CommitOutcome, UnsettledWork
from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError
from tests.kit.coordinator.checkpoint_records import committable, record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError

_DATA = Path(__file__).parents[3] / "data"
_LOST = "3d1b7e51a0c5a6e5f2f0c8f2b2f7a3ad5b4ad3c2b8b6f2dd0d7c6b1f8f4b9a10"
_UNKNOWN = "9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"
_UNSETTLED_1 = (
    UnsettledWork(
        digest=_LOST,
        outcome=CommitOutcome.ABORTED,
        region="main",
        ranges=("orders-0:[10,20)", "orders-3:[7,9)"),
        detail="CompleteAbort with producer 5 epoch 1",
    ),
    UnsettledWork(
        digest=_UNKNOWN,
        outcome=CommitOutcome.UNKNOWN,
        region="side",
        ranges=("orders-1:[0,4)",),
        detail="the coordinator does not know this id any more",
    ),
)
_ACCEPTED_1 = (
    AcceptedWork(
        digest=_LOST,
        accepted_as=AcceptedAs.LOST,
        region="main",
        ranges=("orders-0:[10,20)", "orders-3:[7,9)"),
    ),
    AcceptedWork(
        digest=_UNKNOWN, accepted_as=AcceptedAs.COMMITTED, region="side", ranges=("orders-1:[0,4)",)
    ),
)
_READERS: dict[str, Callable[..., object]] = {
    "unsettled-v1.json": decode_unsettled,
    "accepted-v1.json": decode_accepted,
}
_EACH = pytest.mark.parametrize("name", _READERS)


def test_version_1_of_what_is_unsettled_is_read_and_written() -> None:
    """Every version is read for ever; this one is written, too."""
    data = (_DATA / "unsettled-v1.json").read_bytes()
    assert decode_unsettled(data, 42, where={}) == _UNSETTLED_1
    assert json.loads(encode_unsettled(42, _UNSETTLED_1)) == json.loads(data)


def test_version_1_of_what_is_accepted_is_read_and_written() -> None:
    data = (_DATA / "accepted-v1.json").read_bytes()
    assert decode_accepted(data, 42, where={}) == {work.digest: work for work in _ACCEPTED_1}
    assert json.loads(encode_accepted(42, _ACCEPTED_1)) == json.loads(data)


@_EACH
def test_a_later_version_is_refused_by_its_number(name: str) -> None:
    """It may say something that this Sluice would pass over."""
    found = json.loads((_DATA / name).read_bytes())
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        _READERS[name](json.dumps({**found, "format_version": 2}).encode(), 42, where={})


@_EACH
@pytest.mark.parametrize(
    "change",
    [{"format_version": 0}, {"checkpoint_id": 41}, {"entries": None}, {"entries": [{}]}],
    ids=str,
)
def test_anything_else_is_damage(name: str, change: dict[str, Any]) -> None:
    found = json.loads((_DATA / name).read_bytes())
    with pytest.raises(DamagedCheckpointError, match="is damaged"):
        _READERS[name](json.dumps({**found, **change}).encode(), 42, where={})


def test_a_mark_without_names_accepts_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.publish(record(1), timeout_s=60)
    mark = {"format_version": 1, "checkpoint_id": 1}
    (tmp_path / slot_name(1) / "_loss-accepted").write_text(json.dumps(mark))
    assert store.accepted(1) == {}


def test_what_was_repaired_since_is_not_in_effect_any_more() -> None:
    """Another Sluice may have written it again meanwhile."""
    works = tuple(
        UnsettledWork(digest=digest_of(each), outcome=CommitOutcome.ABORTED, region="r", ranges=())
        for each in (committable(b"a"), committable(b"b"))
    )
    assert in_effect(works, [committable(b"a again"), committable(b"b")]) == works[1:]


def test_what_nobody_can_tell_is_nothing_without_a_word() -> None:
    lost, unknown = _UNSETTLED_1
    assert accepted_as(unknown, None) is None
    for word in (None, *AcceptedAs):
        assert accepted_as(lost, word) == _ACCEPTED_1[0]
    assert accepted_as(unknown, AcceptedAs.COMMITTED) == _ACCEPTED_1[1]


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER])
@pytest.mark.parametrize("step", ["write", "place", "replace"])
def test_killed_while_it_is_accepted_all_is_accepted_or_nothing(fault: Fault, step: str) -> None:
    disk = Disk()
    lost = [committable(name) for name in (b"a", b"b", b"c")]
    (region,) = record(42).regions
    standing = record(42, regions=(replace(region, committables=tuple(lost)),))
    first, *rest = (replace(_ACCEPTED_1[0], digest=digest_of(each)) for each in lost)
    before = CheckpointStore(FakeFileSystem(disk))
    before.publish(standing, timeout_s=1)
    before.accept(42, [first])
    dying = CheckpointStore(
        FakeFileSystem(disk, fault=lambda name: fault if name == step else Fault.NONE)
    )
    with pytest.raises(SimulatedCrashError):
        dying.accept(42, rest)
    store = CheckpointStore(FakeFileSystem(disk))
    assert tuple(store.accepted(42).values()) in ((first,), (first, *rest))
    store.accept(42, rest)
    assert tuple(store.accepted(42).values()) == (first, *rest)
    assert store.effective_committables(standing) == tuple(lost)
