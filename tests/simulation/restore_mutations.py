"""Starts from an older checkpoint, broken one rule at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.checkpoint import retention
from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.coordinator.core.events import Retire
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start import recovery
from sluice.runtime.coordinator.start.recovery import History
from sluice.runtime.coordinator.start.startup import StartSequence
from sluice.runtime.model.model import CheckpointRecord

__all__ = ["RESTORE_MUTATIONS"]


def restore_again_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A wish is carried out once: what the restored run has written stands."""
    patch.setattr(recovery, "is_carried_out", lambda history, *, restore_from: False)


def forget_a_restore_that_crashed(patch: pytest.MonkeyPatch) -> None:
    """A seal says where its run begins, also where that run has decided nothing."""
    resume_point = recovery.resume_point

    def broken(history: History, *, restore_from: int | None) -> int:
        decided = [place.checkpoint_id for place in history.places if place.is_decided]
        return (
            decided[0] if restore_from is None else resume_point(history, restore_from=restore_from)
        )

    patch.setattr(recovery, "resume_point", broken)


def leave_behind_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Section 4: what is decided is committed, also where a start leaves it behind."""
    fencing_record = StartSequence._fence  # noqa: SLF001 - broken on purpose

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        history, found = yield from fencing_record(self, restore_from)
        places = tuple(
            replace(place, is_committed=place.is_committed or is_left)
            for place in history.places
            for is_left in (place.checkpoint_id > found.restored_from,)
        )
        return replace(history, places=places), found

    patch.setattr(StartSequence, "_fence", broken)


def mark_nothing_as_left_behind(patch: pytest.MonkeyPatch) -> None:
    """People and retention know by a mark what a start from an older checkpoint has left behind."""
    patch.setattr(recovery, "superseded_by_restore", lambda history, resume_id: [])


def go_back_with_the_newest_positions(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: where a run begins is what the decision says that it goes on
    from."""

    def broken(self: Any, history: History, checkpoint_id: int) -> CheckpointRecord:
        decided = [place.record for place in history.places if place.is_decided]
        return replace(decided[0], checkpoint_id=checkpoint_id)

    patch.setattr(StartSequence, "_record_at", broken)


def retire_what_a_run_goes_on_from(patch: pytest.MonkeyPatch) -> None:
    """Rule `retire-after-commit`: an older run that still retires leaves the record alone that a
    newer one began with."""
    indispensable = retention.indispensable

    def without(places: Any) -> frozenset[int]:
        return indispensable(replace(place, restored_from=None) for place in places)

    def broken(self: Any, action: Retire) -> None:
        self._store.retire(self._store.retirable(retain=action.retained))

    patch.setattr(retention, "indispensable", without)
    patch.setattr(IoExecutor, "_retire", broken)


def keep_what_the_newest_holds(patch: pytest.MonkeyPatch) -> None:
    """Rule `retire-after-commit`: what any record holds that can be started from is nobody's
    orphan."""
    note = KeptStates.note

    def broken(self: Any, record: CheckpointRecord) -> None:
        self.forget(list(self._by_id))
        note(self, record)

    patch.setattr(KeptStates, "note", broken)


def return_behind_a_run_that_went_back(patch: pytest.MonkeyPatch) -> None:
    """Rule `callback-after-commit`: a batch that returns is logged, and where a newer run has gone
    back, its number is another batch's."""
    init = IoExecutor.__init__

    def broken(self: Any, **given: Any) -> None:
        init(self, **given)
        self._keeps_state = False

    patch.setattr(IoExecutor, "__init__", broken)


_STATE = "a region's state is of another place than its offsets"
_RESTORES: Mapping[str, Any] = {"restore": 0.1, "kill": 0.03, "start": 0.1, "processes": 12}
_WOKEN_WITH_STATE: Mapping[str, Any] = {
    "stateful": True,
    "restore": 0.1,
    "pause": 0.15,
    "resume": 0.1,
    "kill": 0.0,
    "start": 0.0,
    "fail_region": 0.0,
    "regions": 1,
    "partitions": 1,
    "steps": 120,
    "processes": 30,
    "short": True,
    "unanswered": 0.2,
}

RESTORE_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "restore again in a restart": (
        restore_again_in_a_restart,
        _RESTORES,
        "a restore is carried out twice",
    ),
    "forget a restore that crashed": (
        forget_a_restore_that_crashed,
        _RESTORES,
        "a start goes on elsewhere",
    ),
    "leave behind what is not committed": (
        leave_behind_what_is_not_committed,
        _RESTORES,
        "a decided transaction is aborted",
    ),
    "mark nothing as left behind": (
        mark_nothing_as_left_behind,
        _RESTORES,
        "a decision that was left behind is not marked",
    ),
    "go back with the newest positions": (
        go_back_with_the_newest_positions,
        _RESTORES,
        "a decided range does not go on",
    ),
    "retire what a run goes on from": (
        retire_what_a_run_goes_on_from,
        {**_RESTORES, "pause": 0.05, "short": True},
        "what a run goes on from is deleted",
    ),
    "return behind a run that went back": (
        return_behind_a_run_that_went_back,
        _WOKEN_WITH_STATE,
        _STATE,
    ),
    "keep what the newest holds": (
        keep_what_the_newest_holds,
        {**_RESTORES, "files": True, "only_files": True, "roll": True},
        "a run goes back to files that are gone",
    ),
}
