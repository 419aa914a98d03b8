"""One rule about keyed state broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.coordinator.policy import assignment
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start import rescaling
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState


def leave_state_behind(patch: pytest.MonkeyPatch) -> None:
    """A split moves with its state."""

    def broken(regions: Iterable[RegionRecord], own: Collection[SplitKey]) -> KeyedState | None:
        del regions, own
        return None

    patch.setattr(assignment, "keyed_state_of", broken)
    patch.setattr(rescaling, "keyed_state_of", broken, raising=False)


def restore_without_state(patch: pytest.MonkeyPatch) -> None:
    """A batch begins with the state of the decision that its offsets come from."""

    def broken(self: RegionState, splits: Sequence[SplitRange]) -> KeyedState | None:
        return KeyedState().covering([s.key for s in splits]) if self.plan.keyed else None

    patch.setattr(RegionState, "state_for", broken)


def name_a_late_state(patch: pytest.MonkeyPatch) -> None:
    """A skipped region keeps the state of its last snapshot, also if its batch comes late."""
    skipped_record, require_new = RegionState.skipped_record, RegionState.require_new_ranges
    late: dict[int, tuple[RegionState, KeyedState | None]] = {}

    def acknowledged(self: RegionState, ack: Acknowledgement) -> None:
        late[id(self)] = self, ack.region.keyed_state
        require_new(self, ack)

    def broken(self: RegionState) -> RegionRecord:
        record = skipped_record(self)
        _, state = late.get(id(self), (self, None))
        return replace(record, keyed_state=state or record.keyed_state)

    patch.setattr(RegionState, "require_new_ranges", acknowledged)
    patch.setattr(RegionState, "skipped_record", broken)


def delete_files_of_retired_records(patch: pytest.MonkeyPatch) -> None:
    """A file leaves with the last record that names it."""

    def broken(self: Any, action: Any) -> Any:
        kept, found = self._kept, self._store.retirable(retain=action.retained)
        files = set().union(*(kept._files.get(at, ()) for at in found))  # noqa: SLF001
        self._store.retire(found)
        yield "before-state-files"
        kept.forget(found)
        self._store.delete_files(sorted(files))
        yield "after-state-files"

    patch.setattr(IoExecutor, "_retire", broken)


def sweep_named_files(patch: pytest.MonkeyPatch) -> None:
    """A start deletes no file that a record names."""
    patch.setattr(KeptStates, "is_named", lambda self, path: False)


_PLACE = "a task's state is of another place than its records"
_DELETED = "a state file is deleted that a record names"
_DISK: Mapping[str, Any] = {"keyed": True, "disk": True, "add": 0.0}

STATE_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "leave state behind": (
        leave_state_behind,
        {**_DISK, "regions": 3, "partitions": 5, "move": 0.5},
        _PLACE,
    ),
    "leave state behind at a start with other regions": (
        leave_state_behind,
        {**_DISK, "rescale": 4, "partitions": 5, "kill": 0.03, "start": 0.1},
        _PLACE,
    ),
    "restore without state": (restore_without_state, {**_DISK, "kill": 0.03}, _PLACE),
    "name a late state": (
        name_a_late_state,
        {**_DISK, "regional": True, "regions": 3, "fail_region": 0.03, "fail_task": 0.1},
        "a decision names state of no decision",
    ),
    "delete files of retired records": (
        delete_files_of_retired_records,
        {**_DISK, "short": True},
        _DELETED,
    ),
    "sweep named files": (sweep_named_files, {**_DISK, "kill": 0.03, "start": 0.1}, _DELETED),
}
"""Each with a profile of failures that shows it, and the promise that it breaks."""
