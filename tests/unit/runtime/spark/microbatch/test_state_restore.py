"""Spark's files of a region, copied for a restored job: names change, all other bytes stay."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.runtime.coordinator.start.restoring import RestoredState
from sluice.runtime.coordinator.start.translation import TakenState
from sluice.runtime.errors import DamagedCheckpointError, StreamError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import RegionRecord, StateSnapshot
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.savepoint import Savepoint
from sluice.runtime.spark.microbatch.query_logs import newest_attempt_id
from sluice.runtime.spark.microbatch.region_start import (
    batches_to_retain,
    location_of,
    make_ready,
    replayed,
)
from sluice.runtime.spark.microbatch.state_restore import copy_states
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import record
from tests.unit.runtime.job.test_job_pieces import StubSource

OLD, NEW = "spark/orders/state-4", "spark/eu/restored-s1"
LINES = 'v2\n{"batchWatermarkMs":5,"conf":{"a":"b"}}\n'
OTHER = 'source_other:{"x": 1}'


def read(end: int, *, topic: str = "orders", source: str = "a", topic_id: str = "1") -> SplitRange:
    return SplitRange(
        source_id=source,
        topic=topic,
        topic_id=topic_id,
        partition=0,
        start_offset=end - 5,
        end_offset=end,
        leader_epoch=3,
    )


def logged(end: int) -> str:
    barrier = Barrier(checkpoint_id=9, region="orders", attempt_id=57, splits=(read(end),))
    return f"{LINES}source_a:{json.dumps(offsets.encode(barrier))}\n{OTHER}"


FILES = {
    "metadata": '{"id":"old"}',
    ".metadata.crc": "sum",
    "offsets/6": logged(5),
    "offsets/7": logged(10),
    "offsets/.7.crc": "sum",
    "commits/7": "v1\n{}",
    "state/0/0/8_x.changelog": "bytes",
    "state/0/_metadata/v2/0": 'v2\n{"stateStoreInfo":[{"stateSchemaFilePaths":'
    f'["file:/old/{OLD}/state/0/_stateSchema/default/0_7c9c"]}}]}}',
}


def state(location: str) -> StateSnapshot:
    return StateSnapshot(
        provider="rocksdb",
        checkpoint_format_version=2,
        state_version=8,
        state_partitions=1,
        operators=((0, "stateStoreSave"),),
        location=f"{location}/state",
    )


def restored(savepoint_dir: Path, **contents: str) -> tuple[Savepoint, RestoredState]:
    fs = LocalFileSystem(savepoint_dir)
    references = []
    for name, text in FILES.items():
        fs.write_temporary(f"{OLD}/{name}", contents.get(name, text).encode())
        references.append(
            FileReference(
                path=f"{OLD}/{name}",
                length_bytes=len(text),
                sha256=hashlib.sha256(text.encode()).hexdigest(),
            )
        )
    before = RegionRecord(
        region="orders",
        attempt_id=57,
        batch_id=7,
        splits=(read(10),),
        state=replace(state(OLD), files=tuple(references)),
    )
    now = RegionRecord(
        region="eu",
        attempt_id=0,
        query_id="new",
        batch_id=7,
        splits=(
            replace(read(10, topic="eu", source="b", topic_id="2").at_end(), leader_epoch=None),
        ),
        state=state(NEW),
    )
    taken = TakenState(before=before, region="eu", sources={"a": "b"}, topics={"orders": "eu"})
    savepoint = Savepoint(uri=fs.uri, fs=fs, record=record(9, regions=(before,)))
    return savepoint, RestoredState(taken=taken, now=now)


def test_names_change_and_all_other_bytes_stay(tmp_path: Path) -> None:
    savepoint, wanted = restored(tmp_path / "savepoint")
    target = LocalFileSystem(tmp_path / "job")
    assert len(list(copy_states(savepoint, [wanted], target))) == 6, "yields between files"
    found = {
        path.relative_to(tmp_path / "job" / NEW).as_posix(): path.read_text()
        for path in (tmp_path / "job").rglob("*")
        if path.is_file()
    }
    assert found.keys() == {name for name in FILES if not name.endswith(".crc")}
    assert json.loads(found["metadata"]) == {"id": "new"}
    for name in ("commits/7", "state/0/0/8_x.changelog"):
        assert found[name] == FILES[name]
    schema = f"{target.uri}/{NEW}/state/0/_stateSchema/default/0_7c9c"
    assert schema in found["state/0/_metadata/v2/0"], "Spark reads it by its absolute path"
    head, source, other = found["offsets/7"].rsplit("\n", 2)
    assert (f"{head}\n", other) == (LINES, OTHER)
    barrier = offsets.decode(json.loads(source.removeprefix("source_b:")))
    assert barrier.splits == (
        replace(read(10, topic="eu", source="b", topic_id="2"), leader_epoch=None),
    )
    assert (barrier.region, barrier.attempt_id) == ("eu", 0)
    assert newest_attempt_id(target, NEW) == 0, "a later one would fence the first run"


@pytest.mark.parametrize(
    "name", ["commits/7", "state/0/0/8_x.changelog", "offsets/7", "state/0/_metadata/v2/0"]
)
def test_a_file_that_changed_after_the_check_is_refused(tmp_path: Path, name: str) -> None:
    savepoint, wanted = restored(tmp_path / "savepoint", **{name: FILES[name] + " "})
    with pytest.raises(DamagedCheckpointError, match=f"has other content.*{name}"):
        list(copy_states(savepoint, [wanted], LocalFileSystem(tmp_path / "job")))


def test_a_file_that_vanished_is_refused(tmp_path: Path) -> None:
    savepoint, wanted = restored(tmp_path / "savepoint")
    (tmp_path / "savepoint" / OLD / "commits/7").unlink()
    with pytest.raises(StreamError, match="commits/7"):
        list(copy_states(savepoint, [wanted], LocalFileSystem(tmp_path / "job")))


def test_a_log_that_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    savepoint, wanted = restored(tmp_path / "savepoint")
    other = replace(wanted.now.splits[0], start_offset=11, end_offset=11)
    wanted = replace(wanted, now=replace(wanted.now, splits=(other,)))
    with pytest.raises(DamagedCheckpointError, match=r"logged_end=10 decided_end=11"):
        list(copy_states(savepoint, [wanted], LocalFileSystem(tmp_path / "job")))


def test_copies_of_starts_that_lost_are_deleted_when_the_region_starts(tmp_path: Path) -> None:
    """They were killed in the copy, or another start published its checkpoint 0 first."""
    savepoint, wanted = restored(tmp_path / "savepoint")
    target = LocalFileSystem(tmp_path / "job")
    list(copy_states(savepoint, [wanted], target))
    for name in ("restored-lost/state/0", "state-2/offsets"):
        target.write_temporary(f"spark/eu/{name}/x", b"")
    region = Region(
        name="eu", pipeline=Pipeline(StubSource()), source_id="b", sinks={}, stateful=True
    )
    assert location_of(region, wanted.now, attempt_id=0) == NEW
    make_ready(target, region, NEW, wanted.now, attempt_id=3)
    assert [e.name for e in target.entries("spark/eu")] == ["restored-s1", "state-2"]
    assert replayed(target, region, NEW, wanted.now) is None, "its batch is committed"


def test_checkpoint_0_does_not_make_spark_keep_every_batch() -> None:
    """It is kept for ever, and names the batch that was restored; the savepoint still has it."""
    region = RegionRecord(region="eu", attempt_id=0, batch_id=7, splits=(), state=state(NEW))
    later = replace(region, attempt_id=0, batch_id=100_000)
    store = FakeStore(records={0: record(0, regions=(region,)), 9: record(9, regions=(later,))})
    assert batches_to_retain(store, retained=3) == 100
