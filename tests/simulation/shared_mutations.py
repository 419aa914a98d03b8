"""One rule about what regions share broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sluice.runtime.coordinator.core import alignment
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.coordinator.start import recovery, rescaling
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.model.state.batch_lineage import BatchLineage, Rewind
from sluice.runtime.model.state.broadcast_version import BroadcastVersion


def forget_a_rewind(patch: pytest.MonkeyPatch) -> None:
    """A reader leaves out the messages of the batches that a rewind has left."""

    def broken(record: CheckpointRecord, *_: Any, attempt_id: int) -> BatchLineage:
        del record, attempt_id
        return BatchLineage()

    patch.setattr(recovery, "lineage_of", broken)


def rewind_before_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """The last batch of a checkpoint belongs to its past."""
    keeps = Rewind.keeps

    def broken(self: Rewind, region: str, attempt_id: int, batch_id: int) -> bool:
        is_last = self.batches.get(region) == (attempt_id, batch_id)
        return not is_last and keeps(self, region, attempt_id, batch_id)

    patch.setattr(Rewind, "keeps", broken)


def give_each_region_the_newest_version(patch: pytest.MonkeyPatch) -> None:
    """The first barrier of a checkpoint fixes the versions for all regions."""

    def broken(
        state: CoordinatorState, checkpoint: PendingCheckpoint, region: RegionState, **_: Any
    ) -> tuple[tuple[BroadcastVersion, ...], tuple[BroadcastVersion, ...]]:
        del checkpoint
        found = state.decided_broadcasts() if region.plan.reads else ()
        return found, found

    patch.setattr(alignment, "broadcasts_in", broken)


def drop_lists_of_regions_that_left(patch: pytest.MonkeyPatch) -> None:
    """Another number of regions gets the lists of all regions before."""
    dealt = rescaling.dealt

    def broken(lists: Sequence[pa.Table], mode: Any, regions: int) -> list[pa.Table]:
        return dealt(lists[:regions], mode, regions)

    patch.setattr(rescaling, "dealt", broken)


def skip_a_region_with_its_new_list(patch: pytest.MonkeyPatch) -> None:
    """A skipped region keeps the list of its last snapshot, also if its batch comes late."""
    skipped_record, require_new = RegionState.skipped_record, RegionState.require_new_ranges
    late: dict[int, tuple[RegionState, Any]] = {}

    def acknowledged(self: RegionState, ack: Any) -> None:
        late[id(self)] = self, ack.region.operator_states
        require_new(self, ack)

    def broken(self: RegionState) -> Any:
        record = skipped_record(self)
        _, states = late.get(id(self), (self, None))
        return replace(record, operator_states=states or record.operator_states)

    patch.setattr(RegionState, "require_new_ranges", acknowledged)
    patch.setattr(RegionState, "skipped_record", broken)


_SHARED: Mapping[str, Any] = {"keyed": True, "disk": True, "add": 0.0, "shared": True, "regions": 3}
_GOES_BACK: Mapping[str, Any] = {**_SHARED, "restore": 0.1, "kill": 0.03, "start": 0.1}
_LIST = "an operator list lacks an epoch, or has it twice"

SHARED_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "forget a rewind": (forget_a_rewind, _GOES_BACK, "a row in flight is doubled"),
    "rewind before the checkpoint": (
        rewind_before_the_checkpoint,
        _GOES_BACK,
        "a row in flight is lost",
    ),
    "give each region the newest version": (
        give_each_region_the_newest_version,
        {**_SHARED, "max_concurrent": 5, "partitions": 6, "steps": 300, "kill": 0.0},
        "an epoch has two versions of a broadcast stream",
    ),
    "drop lists of regions that left": (
        drop_lists_of_regions_that_left,
        {**_SHARED, "rescale": 4, "partitions": 4, "kill": 0.03, "start": 0.1},
        _LIST,
    ),
    "skip a region with its new list": (
        skip_a_region_with_its_new_list,
        {**_SHARED, "regional": True, "fail_region": 0.03, "fail_task": 0.1},
        _LIST,
    ),
}
"""Each with a profile of failures that shows it, and the promise that it breaks."""
