"""`sluice state recompute`: each entry goes to the split of its key's new group, byte for byte."""

import json
import re
import struct
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.format.metadata import decode, encode
from sluice.runtime.contracts import TopicStart
from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord, RegionRecord
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.key_groups import key_group
from sluice.runtime.model.state.keyed_state import StateTableInfo
from sluice.runtime.savepoint import state_redistribution
from sluice.runtime.savepoint.keyed_recompute import IN_FLIGHT, Recompute
from sluice.runtime.savepoint.keyed_rows import local_state, rows_of_split
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.spark.state.state_cli import app
from sluice.runtime.state.state_parts import placed_parts
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.keyed_files import Row, written_state

_COUNTS, _TIMERS, _MEMORY = 3, 4, 9
_TABLES = [
    StateTableInfo(number=_COUNTS, operator_id="counts", name="counts", kind="aggregate"),
    StateTableInfo(number=_TIMERS, operator_id="counts", name="timers", kind="timers"),
    StateTableInfo(number=_MEMORY, operator_id="counts", name="memory", kind="memory"),
]
_FLAG = b"windows have marks"
_TIME = struct.Struct(">qq")
_PARTITIONS, _GROUPS = 4, 16


def _partition(key: bytes, groups: int, partitions: int) -> int:
    return key_group(key, groups) * partitions // groups


def _key(partition: int) -> SplitKey:
    return "topic", "sluice-counts", partition


class Old:
    """A savepoint of two regions that read a repartition topic, and one that writes it."""

    def __init__(
        self, root: Path, *, keys: int = 300, seed: int = 1, flagged: Collection[int] = ()
    ) -> None:
        self.root = root
        random = Random(seed)
        self.entries: dict[tuple[int, int | None, bytes], bytes] = {}
        parts: list[dict[SplitKey, list[Row]]] = [{}, {}]
        for number in range(keys):
            key = b"\x01key-%d" % number
            split = _key(_partition(key, _GROUPS, _PARTITIONS))
            places: list[tuple[int, int | None]] = [(_COUNTS, None), (_TIMERS, number * 7)]
            for table, time in places[: 1 + number % 2]:
                first, second = random.randbytes(random.randint(0, 40)), random.randbytes(9)
                parts[0].setdefault(split, []).append((table, time, key, first))
                self.entries[table, time, key] = first
                change = random.random()
                if change < 0.3:
                    parts[1].setdefault(split, []).append((table, time, key, second))
                    self.entries[table, time, key] = second
                elif change < 0.5:
                    parts[1].setdefault(split, []).append((table, time, key, None))
                    del self.entries[table, time, key]
        for partition in range(_PARTITIONS):
            seen = _TIME.pack(100 + partition, -(1 << 63))
            memory: list[Row] = [
                (_MEMORY, None, b"schemas of rows", b"[]"),
                (_MEMORY, None, b"time", seen),
            ]
            if partition in flagged:
                memory.append((_MEMORY, None, _FLAG, b""))
            parts[0].setdefault(_key(partition), []).extend(memory)
        state = written_state(
            root, parts, tables=_TABLES, max_parallelism=_GROUPS, partitions=_PARTITIONS
        )
        other = written_state(
            root, [{("orders", "orders", 0): [(0, None, b"\x01a", b"1")]}], region="upstream"
        )
        self.record = record(
            7,
            kind=CheckpointKind.SAVEPOINT,
            regions=(
                RegionRecord(
                    region="orders",
                    attempt_id=0,
                    batch_id=5,
                    splits=(_range("orders", "orders", 0, 900),),
                    keyed_state=other,
                ),
                *(
                    RegionRecord(
                        region=f"counts-{at}",
                        attempt_id=0,
                        batch_id=5,
                        splits=tuple(_range(*_key(p), 10 + p) for p in mine),
                        keyed_state=state.of({_key(p) for p in mine}),
                    )
                    for at, mine in enumerate(((0, 2), (1, 3)))
                ),
            ),
        )
        self.write(*self.record.regions)

    def write(self, *regions: RegionRecord) -> None:
        """Let the savepoint have these regions."""
        self.record = replace(self.record, regions=regions)
        (self.root / "_metadata").write_bytes(encode(self.record))

    def recompute(self, to: Path, **numbers: Any) -> CheckpointRecord:
        """Write the new savepoint ``to/new``."""
        made = Recompute(
            savepoint=open_savepoint(str(self.root)),
            parent=LocalFileSystem(to),
            name="new",
            **{"partitions": None, **numbers},
        )
        return made.run().record


def _range(source_id: str, topic: str, partition: int, end: int) -> SplitRange:
    return SplitRange(
        source_id=source_id,
        topic=topic,
        topic_id="id",
        partition=partition,
        start_offset=end - 1,
        end_offset=end,
        watermark_ms=1_000 + partition,
        barrier_watermark_ms=500 + partition,
    )


def _stored(uri: Path, regions: Iterable[RegionRecord]) -> dict[int, dict[Any, bytes]]:
    """What a restore reads, by partition of the topic."""
    savepoint = open_savepoint(str(uri))
    found: dict[int, dict[Any, bytes]] = {}
    for region in regions:
        if region.region.startswith("counts") and region.keyed_state is not None:
            with local_state(savepoint, region.keyed_state.files) as store:
                for (_, _, partition), parts in placed_parts(region.keyed_state).items():
                    rows = [r for b in rows_of_split(store, parts) for r in b.to_pylist()]
                    found[partition] = {
                        (row["table"], row["time"], row["key"]): row["value"] for row in rows
                    }
    return found


@pytest.mark.parametrize(
    ("groups", "partitions", "buffer_bytes"),
    [(64, None, 1 << 20), (64, 9, 500), (_GROUPS, 8, 2_000), (_GROUPS, 2, 1), (7, 1, 1 << 20)],
)
def test_every_entry_is_in_the_split_of_its_key_and_unchanged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: int,
    partitions: int | None,
    buffer_bytes: int,
) -> None:
    """However little memory there is."""
    monkeypatch.setattr(state_redistribution, "_BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(state_redistribution, "_PIECES_BYTES", buffer_bytes)
    monkeypatch.setattr(state_redistribution, "_LEAST_PIECE_BYTES", 1)
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    made = old.recompute(tmp_path, max_parallelism=groups, partitions=partitions)
    count = partitions or _PARTITIONS
    stored = _stored(tmp_path / "new", made.regions)
    assert stored.keys() == set(range(count))
    found: dict[Any, bytes] = {}
    for partition, entries in stored.items():
        for place, value in entries.items():
            if place[0] != _MEMORY:
                assert _partition(place[2], groups, count) == partition
                found[place] = value
        assert entries[_MEMORY, None, b"time"] == _TIME.pack(103, -(1 << 63))
        assert entries[_MEMORY, None, b"schemas of rows"] == b"[]"
    assert found == old.entries


def test_the_new_savepoint_is_whole_and_begins_new_topics(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    made = old.recompute(tmp_path, max_parallelism=64, partitions=6)
    verify(open_savepoint(str(tmp_path / "new")))
    (tmp_path / "old").rename(tmp_path / "gone")
    verify(open_savepoint(str(tmp_path / "new")))
    assert decode((tmp_path / "new/_metadata").read_bytes()) == made
    orders, *readers = made.regions
    assert orders == old.record.regions[0]
    splits = sorted((split for region in readers for split in region.splits), key=lambda s: s.key)
    assert [split.partition for split in splits] == [*range(6)]
    assert {(s.start_offset, s.end_offset, s.topic_id) for s in splits} == {(0, 0, "")}
    assert {(s.watermark_ms, s.barrier_watermark_ms) for s in splits} == {(1_000, 503)}
    for region in readers:
        state = region.keyed_state
        assert state is not None
        assert (state.max_parallelism, state.partitions) == (64, 6)
        assert {split.key for split in state.splits} == {split.key for split in region.splits}
        assert all(part.is_base for split in state.splits for part in split.parts)
    assert made.assignment is not None
    assert json.loads(made.settings[IN_FLIGHT]) == {
        "topic": {"topic_id": "id", "offsets": {str(p): 10 + p for p in range(4)}}
    }


def test_a_second_recompute_keeps_the_positions_of_the_old_topic(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    first = Old(tmp_path / "old").recompute(tmp_path, max_parallelism=64, partitions=6)
    again = Recompute(
        savepoint=open_savepoint(str(tmp_path / "new")),
        max_parallelism=128,
        partitions=None,
        parent=LocalFileSystem(tmp_path),
        name="again",
    ).run()
    assert again.record.settings[IN_FLIGHT] == first.settings[IN_FLIGHT]
    before, after = (
        {
            place: v
            for part in _stored(tmp_path / name, made.regions).values()
            for place, v in part.items()
        }
        for name, made in (("new", first), ("again", again.record))
    )
    assert before == after


def test_another_store_gets_the_same_files(tmp_path: Path) -> None:
    """They are written on this host first."""
    (tmp_path / "old").mkdir()
    Old(tmp_path / "old", keys=20)
    disk = Disk()
    fs = FakeFileSystem(disk)
    written = Recompute(
        savepoint=open_savepoint(str(tmp_path / "old")),
        max_parallelism=64,
        partitions=None,
        parent=fs,
        name="new",
    ).run()
    named = {f"new/{file.path}" for file in written.record.keyed_files}
    assert named == {path for path in disk.files if "/state/" in path}


def test_a_file_that_is_damaged_leaves_no_savepoint(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    path = tmp_path / "old/state/r0/0-1-00000001.changes"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(DamagedCheckpointError, match="0-1-00000001"):
        old.recompute(tmp_path, max_parallelism=64)
    assert not (tmp_path / "new").exists()


def test_entries_that_differ_afterwards_leave_no_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    monkeypatch.setattr(
        state_redistribution._Spill,  # noqa: SLF001 - the place of the fault
        "has",
        lambda self, partition: partition != 1 and partition in self._pieces,
    )
    with pytest.raises(DamagedCheckpointError, match="other entries than before"):
        old.recompute(tmp_path, max_parallelism=64)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("flagged", [(0, 1, 2, 3), (), (1,)])
def test_a_flag_of_some_splits_alone_is_refused(tmp_path: Path, flagged: tuple[int, ...]) -> None:
    """A region was suspended when the settings of its windows changed: its windows have no marks.
    With the flag of another split they would never come out."""
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old", keys=20, flagged=flagged)
    if len(flagged) in (0, _PARTITIONS):
        made = old.recompute(tmp_path, max_parallelism=64)
        for entries in _stored(tmp_path / "new", made.regions).values():
            assert ((_MEMORY, None, _FLAG) in entries) is bool(flagged)
        return
    with pytest.raises(ConfigError, match=r"other settings.*windows have marks"):
        old.recompute(tmp_path, max_parallelism=64)
    assert not (tmp_path / "new").exists()


def test_a_reader_that_has_had_no_row_keeps_its_part_of_the_topic(tmp_path: Path) -> None:
    """It has no state yet, but positions: rows in flight are copied from there."""
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    orders, first, second = old.record.regions
    assert first.keyed_state is not None
    assert second.keyed_state is not None
    waiting = replace(second, batch_id=None, keyed_state=None)
    old.write(orders, first, waiting)
    made = old.recompute(tmp_path, max_parallelism=64)
    verify(open_savepoint(str(tmp_path / "new")))
    _, *readers = made.regions
    splits = [split.partition for region in readers for split in region.splits]
    assert sorted(splits) == [*range(_PARTITIONS)]
    assert json.loads(made.settings[IN_FLIGHT])["topic"]["offsets"].keys() == {*"0123"}
    assert TopicStart(readers=readers, is_first=False).max_parallelism == 64
    stored = _stored(tmp_path / "new", made.regions)
    found = {place for entries in stored.values() for place in entries if place[0] != _MEMORY}
    assert found == {
        place for place in old.entries if _partition(place[2], _GROUPS, _PARTITIONS) in (0, 2)
    }


def test_a_reader_without_splits_has_the_new_number_of_key_groups(tmp_path: Path) -> None:
    """There are more regions than partitions."""
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    state = old.record.regions[1].keyed_state
    assert state is not None
    idle = RegionRecord(region="counts-2", attempt_id=0, keyed_state=state.of(()))
    old.write(*old.record.regions, idle)
    *readers, last = old.recompute(tmp_path, max_parallelism=8).regions
    assert last.keyed_state is not None
    assert last.keyed_state.max_parallelism == 8
    assert TopicStart(readers=[*readers[1:], last], is_first=False).max_parallelism == 8


def test_readers_with_other_numbers_of_key_groups_are_damage(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old")
    orders, first, second = old.record.regions
    assert second.keyed_state is not None
    other = replace(second, keyed_state=replace(second.keyed_state, max_parallelism=32))
    old.write(orders, first, other)
    with pytest.raises(DamagedCheckpointError, match="key groups name=16,32"):
        old.recompute(tmp_path, max_parallelism=64)


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"max_parallelism": _GROUPS}, "has these numbers already"),
        ({"max_parallelism": _GROUPS, "partitions": _PARTITIONS}, "has these numbers already"),
        ({"max_parallelism": 3}, "partitions=4"),
        ({"max_parallelism": 8, "partitions": 9}, "partitions=9"),
        ({"max_parallelism": 40_000}, "32768"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    tmp_path: Path, numbers: dict[str, int], problem: str
) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(ConfigError, match=problem):
        Old(tmp_path / "old", keys=3).recompute(tmp_path, **numbers)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("has_state", "problem"),
    [(True, "belongs to the partitions of its input"), (False, "has no keyed state")],
)
def test_state_that_follows_partitions_is_refused(
    tmp_path: Path, has_state: bool, problem: str
) -> None:
    (tmp_path / "old").mkdir()
    old = Old(tmp_path / "old", keys=3)
    region = old.record.regions[0]
    region = region if has_state else replace(region, keyed_state=None)
    old.write(region)
    with pytest.raises(ConfigError, match=problem):
        old.recompute(tmp_path, max_parallelism=64)


def test_the_command_prints_the_path_of_the_new_savepoint(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    Old(tmp_path / "old")
    arguments = ["recompute", str(tmp_path / "old"), "--max-parallelism", "64", "--partitions", "5"]
    shown = CliRunner().invoke(app, [*arguments, "--to", str(tmp_path)], catch_exceptions=False)
    uri = shown.output.strip().splitlines()[-1]
    assert re.fullmatch(rf"file://{tmp_path}/savepoint-6f9619ff-7-[0-9a-f]{{6}}", uri)
    verify(open_savepoint(uri))
    shown = CliRunner().invoke(app, [*arguments, "--to", str(tmp_path), "--json"])
    assert json.loads(shown.output)["source"] == f"file://{tmp_path}/old"
