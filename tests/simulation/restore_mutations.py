"""One rule about starts from an older checkpoint broken at a time; see
`tests.simulation.mutations`."""

from collections.abc import Callable, Generator, Iterator, Mapping
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
from sluice.runtime.model.checkpoint_record import CheckpointRecord


def restore_again_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A run carries out a requested restore once. A restart keeps the checkpoints of the restored
    run."""
    patch.setattr(recovery, "is_already_restored", lambda history, *, restore_from: False)


def forget_a_restore_that_crashed(patch: pytest.MonkeyPatch) -> None:
    """A fencing record names the checkpoint that its run starts from, even if that run has decided
    nothing."""
    resume_point = recovery.resume_point

    def broken(history: History, *, restore_from: int | None) -> int:
        decided = [place.checkpoint_id for place in history.slots if place.is_decided]
        return (
            decided[0] if restore_from is None else resume_point(history, restore_from=restore_from)
        )

    patch.setattr(recovery, "resume_point", broken)


def forget_whose_restore_it_is(patch: pytest.MonkeyPatch) -> None:
    """A run that repeats the restore of a run which decided nothing executes it: a restart of the
    other program keeps the decisions of this run."""
    patch.setattr(recovery, "recorded_wish", lambda history, restore_from: restore_from)


def restore_before_older_commits_are_done(patch: pytest.MonkeyPatch) -> None:
    """A start commits every decided checkpoint, even one that a restore discards."""
    fencing_record = StartSequence._fence  # noqa: SLF001 - broken on purpose

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        history, found = yield from fencing_record(self, restore_from)
        places = tuple(
            replace(place, is_committed=place.is_committed or is_left)
            for place in history.slots
            for is_left in (place.checkpoint_id > found.restored_from,)
        )
        return replace(history, slots=places), found

    patch.setattr(StartSequence, "_fence", broken)


def mark_no_checkpoint_as_superseded(patch: pytest.MonkeyPatch) -> None:
    """A start from an older checkpoint marks the newer ones as superseded. Operators and retention
    need the mark."""
    patch.setattr(recovery, "superseded_by_restore", lambda history, resume_id: [])


def restore_with_the_newest_offsets(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a restored run starts with the offsets of the checkpoint that it
    restores."""

    def broken(self: Any, history: History, checkpoint_id: int) -> CheckpointRecord:
        decided = [place.record for place in history.slots if place.is_decided]
        return replace(decided[0], checkpoint_id=checkpoint_id)

    patch.setattr(StartSequence, "_record_at", broken)


def retire_the_restored_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Rule `retire-after-commit`: an older run that still retires checkpoints keeps the record that
    a newer run started from."""
    indispensable = retention.indispensable

    def without(places: Any) -> frozenset[int]:
        return indispensable(replace(place, restored_from=None) for place in places)

    def broken(self: Any, action: Retire) -> Iterator[str]:
        self._store.retire(self._store.retirable(retain=action.retained))
        yield "before-state-files"

    patch.setattr(retention, "indispensable", without)
    patch.setattr(IoExecutor, "_retire", broken)


def keep_files_of_the_newest_record_only(patch: pytest.MonkeyPatch) -> None:
    """Rule `retire-after-commit`: a file is not an orphan while a record that a run can start from
    holds it."""
    note = KeptStates.note

    def broken(self: Any, record: CheckpointRecord) -> None:
        self.forget(list(self._by_id))
        note(self, record)

    patch.setattr(KeptStates, "note", broken)


def return_after_a_newer_restore(patch: pytest.MonkeyPatch) -> None:
    """Rule `callback-after-commit`: Spark logs a batch whose callback returns. After a newer run
    has restored an older checkpoint, that batch number belongs to another batch."""
    init = IoExecutor.__init__

    def broken(self: Any, **given: Any) -> None:
        init(self, **given)
        self._keeps_state = False

    patch.setattr(IoExecutor, "__init__", broken)


_STATE = "a region's state is of another place than its offsets"
_RESTORES: Mapping[str, Any] = {"restore": 0.1, "kill": 0.03, "start": 0.1, "processes": 12}
_WOKEN_WITH_STATE: Mapping[str, Any] = {
    "stateful": True,
    "restore": 0.05,
    "pause": 0.05,
    "resume": 0.1,
    "kill": 0.0,
    "start": 0.0,
    "fail_region": 0.0,
    "refused": 0.0,
    "unreached": 0.0,
    "regions": 1,
    "partitions": 1,
    "steps": 200,
    "processes": 10,
}

RESTORE_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "restore again after a restart": (
        restore_again_after_a_restart,
        _RESTORES,
        "a restore is done twice",
    ),
    "forget a restore that crashed": (
        forget_a_restore_that_crashed,
        _RESTORES,
        "a start continues elsewhere",
    ),
    "forget whose restore it is": (
        forget_whose_restore_it_is,
        {**_RESTORES, "start": 0.3, "pause": 0.15, "resume": 0.15, "processes": 24, "steps": 250},
        "a restore is done twice",
    ),
    "restore before older commits are done": (
        restore_before_older_commits_are_done,
        _RESTORES,
        "a decided transaction is aborted",
    ),
    "mark no checkpoint as superseded": (
        mark_no_checkpoint_as_superseded,
        _RESTORES,
        "a decision that was left is not marked",
    ),
    "restore with the newest offsets": (
        restore_with_the_newest_offsets,
        _RESTORES,
        "a decided range does not continue",
    ),
    "retire the restored checkpoint": (
        retire_the_restored_checkpoint,
        {**_RESTORES, "pause": 0.05, "short": True},
        "what a run continues from is deleted",
    ),
    "return after a newer restore": (return_after_a_newer_restore, _WOKEN_WITH_STATE, _STATE),
    "keep files of the newest record only": (
        keep_files_of_the_newest_record_only,
        {**_RESTORES, "files": True, "only_files": True, "roll": True},
        "a run goes back to files that are gone",
    ),
}
