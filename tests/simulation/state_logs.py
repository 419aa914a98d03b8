"""Spark's logs of regions that keep state, and that state: what production code rewinds, and what
a query of Spark writes there and reads. They lie where every run of the job has them."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from sluice.runtime.errors import StorageError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionRecord
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.spark.microbatch.region_start import location_of, make_ready, require_rewindable
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

if TYPE_CHECKING:
    from tests.simulation.world import World

_LOST = 0.2
_MADE = "metadata"


def _region(name: str) -> Region:
    """Nothing else of it is asked for."""
    pipeline = cast(Pipeline, None)
    return Region(name=name, pipeline=pipeline, source_id="source", sinks={}, stateful=True)


def require_way_back(world: "World", names: Iterable[str], record: CheckpointRecord) -> None:
    """As a start asks it of a checkpoint that somebody wants to go back to."""
    fs = FakeFileSystem(world.spark_disk)
    require_rewindable(fs, [_region(name) for name in names], record)


class StateLog:
    """One attempt's query, as Spark has its logs. The state after a batch is how far the input is in
    it; it is found by the commit of its batch, as with state checkpoint format 2.

    Attributes:
        first: batch that the query begins with: the last decided one, if Spark has not logged its
            commit, and has lost the state after it.
    """

    def __init__(
        self, world: "World", restored: RegionRecord, attempt_id: int, *, is_newest: bool
    ) -> None:
        self._disk: Disk = world.spark_disk
        self._world = world
        self._region = _region(restored.region)
        self.location = location_of(self._region, restored, attempt_id=attempt_id)
        fs = FakeFileSystem(self._disk)
        make_ready(fs, self._region, self.location, restored, attempt_id=attempt_id)
        self._disk.write(f"{self.location}/{_MADE}", b"{}")
        last = restored.batch_id
        if last is not None and world.random.random() < _LOST and is_newest:
            self._disk.remove(self._path("commits", last))
        is_logged = last is not None and self._path("commits", last) in self._disk.files
        self.first = 1 if last is None else last + is_logged
        self._state = self._behind(self.first - 1)
        self._logged = self._disk.files.get(self._path("offsets", self.first), b"").decode()
        world.note(f"a query of {restored.region} begins with batch {self.first}: {self._state}")

    def _path(self, log: str, batch_id: int) -> str:
        return f"{self.location}/{log}/{batch_id}"

    def _behind(self, batch_id: int) -> dict[int, int]:
        data = self._disk.files.get(self._path("commits", batch_id), b"{}")
        return {int(partition): end for partition, end in json.loads(data).items()}

    def plan(self, batch_id: int, barrier: Barrier) -> None:
        """The query logs an offset before it runs the batch; StorageError where another one has."""
        offset = json.dumps(offsets.encode(barrier))
        text = f"v2\n{{}}\n{self._region.source_name}:{offset}"
        self._add(self._path("offsets", batch_id), text.encode())

    def replay(self, *, is_ours: bool) -> None:
        """A decided batch runs once more, into nothing, so that its state can be committed."""
        logged = offsets.decode(json.loads(self._logged.partition("source_source:")[2]))
        self.run(logged.splits, is_ours=is_ours)

    def run(self, splits: Iterable[SplitRange], *, is_ours: bool) -> None:
        """The frame takes the rows of these ranges into its state.

        ``is_ours``: nobody else has the job meanwhile, and may have written there.
        """
        for split in splits:
            known = self._state.get(split.partition, 0)
            is_behind = known == split.start_offset or not is_ours
            if not is_behind:
                what = "a region's state is of another place than its offsets"
                self._world.require(False, f"{what}: {split}, of {known}")
            self._state[split.partition] = split.end_offset

    def returns(self, batch_id: int) -> None:
        """The batch's callback returns, and the query logs that it is over."""
        self._add(self._path("commits", batch_id), json.dumps(self._state).encode())

    def _add(self, path: str, data: bytes) -> None:
        is_there = f"{self.location}/{_MADE}" in self._disk.files  # or it has been deleted
        if path in self._disk.files or not is_there:
            raise StorageError("another query writes there", {"path": path}, "Spark ends it.")
        self._disk.write(path, data)
