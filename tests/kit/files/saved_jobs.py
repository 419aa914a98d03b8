"""A job's directory with a decided checkpoint of a stateful region, and what a savepoint holds."""

import hashlib
from typing import Any

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState, StatePart
from sluice.runtime.savepoint.savepoint import references_of
from sluice.runtime.storage.file_copies import wrong_files
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.coordinator.checkpoint_records import committable, record
from tests.kit.files.fake_file_system import Fault, SimulatedCrashError
from tests.kit.files.spark_state import SparkState, load_state

__all__ = ["Crashing", "decide", "keyed_region", "saved_record", "state_in"]


def saved_record(checkpoint_id: int, *regions: RegionRecord, **changes: Any) -> CheckpointRecord:
    """A decision about these regions, and a stateless one that has something to commit."""
    stateless = RegionRecord(region="r9", attempt_id=0, batch_id=7, committables=(committable(),))
    of_savepoint = {"kind": CheckpointKind.SAVEPOINT, "regions": (*regions, stateless)}
    return record(checkpoint_id, **{**of_savepoint, **changes})


def decide(
    fs: FileSystem, checkpoint_id: int, spark: SparkState, **changes: Any
) -> CheckpointRecord:
    """Run a batch, decide and commit it. A second region has keyed state, each of whose files is
    named by three checkpoints in a row."""
    keyed = keyed_region(fs, checkpoint_id)
    decided = saved_record(checkpoint_id, spark.record(spark.run_batch()), keyed, **changes)
    store = CheckpointStore(fs)
    assert store.publish(decided, timeout_s=60) is PublishOutcome.OURS
    store.mark_committed(checkpoint_id)
    return decided


def keyed_region(fs: FileSystem, checkpoint_id: int) -> RegionRecord:
    """A region with the changes of the last three checkpoints, in files that are there."""
    files = []
    for each in range(max(checkpoint_id - 2, 0), checkpoint_id + 1):
        path, content = f"state/r1/0-{each}-{each:08x}.changes", b"changes %d" % each
        if not fs.exists(path):
            fs.write_temporary(path, content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(FileReference(path=path, length_bytes=len(content), sha256=digest))
    split = SplitState(
        source_id="source",
        topic="orders",
        partition=0,
        parts=tuple(
            StatePart(file=at, offset=0, length=file.length_bytes) for at, file in enumerate(files)
        ),
    )
    state = KeyedState(partitions=1, files=tuple(files), splits=(split,))
    return RegionRecord(region="r1", attempt_id=0, batch_id=7, keyed_state=state)


def state_in(fs: FileSystem, made: CheckpointRecord, root: str) -> object:
    """The state that a copy holds, with nothing but its files; AssertionError if it is damaged."""
    prefixed = _Below(fs, root)
    assert wrong_files(prefixed, references_of(made)) == []  # type: ignore[arg-type]
    assert made.committables == ()
    region = made.regions[0]
    assert region.state is not None
    assert region.batch_id is not None
    return load_state(_Named(prefixed, references_of(made)), region.batch_id)  # type: ignore[arg-type]


class Crashing:
    """For `FakeFileSystem`: the process dies at one step that writes, and does nothing after it."""

    def __init__(self, step: int, fault: Fault) -> None:
        self.steps = 0
        self._step = step
        self._fault = fault

    def __call__(self, name: str) -> Fault:
        """The fault of the next step."""
        self.steps += 1
        if self.steps - 1 == self._step:
            return self._fault
        if self.steps - 1 > self._step:
            raise SimulatedCrashError(name)
        return Fault.NONE


class _Below:
    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def digest(self, path: str) -> object:
        return self._fs.digest(f"{self._root}/{path}")

    def read(self, path: str) -> bytes | None:
        return self._fs.read(f"{self._root}/{path}")


class _Named:
    """Only the files that a record names, by their paths in a checkpoint directory."""

    def __init__(self, fs: _Below, references: list[Any]) -> None:
        self._fs = fs
        paths = (each.path for each in references if "spark/" in each.path)
        self._paths = {path[path.index("spark/") :]: path for path in paths}

    def read(self, path: str) -> bytes | None:
        return self._fs.read(self._paths[path]) if path in self._paths else None

    def exists(self, path: str) -> bool:
        return path in self._paths
