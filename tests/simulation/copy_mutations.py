"""One rule about savepoints and stops broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core import alignment, post_commit, requested_checkpoint
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import CopyFiles


def copy_what_is_only_decided(patch: pytest.MonkeyPatch) -> None:
    """Rule `copy-protected`: a savepoint names committed work only."""
    note_decided = requested_checkpoint.note_decided

    def broken(state: Any, checkpoint: Any) -> None:
        note_decided(state, checkpoint)
        request = state.request
        if request is None or request.checkpoint_id != checkpoint.checkpoint_id:
            return
        request.is_copying = True
        suspended = (n for n, why in checkpoint.skipped.items() if why is FailureReason.SUSPENDED)
        state.out.append(
            CopyFiles(checkpoint_id=checkpoint.checkpoint_id, suspended=tuple(suspended))
        )

    patch.setattr(post_commit, "note_decided", broken)
    patch.setattr(post_commit, "note_marked", lambda state, checkpoint: False)


def keep_rows_at_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    """A savepoint names no file outside: sinks publish what they keep."""
    patch.setattr(alignment, "PUBLISHES_ALL", frozenset())


def drain_nothing(patch: pytest.MonkeyPatch) -> None:
    """A drain reads to the end offsets first."""
    patch.setattr(requested_checkpoint, "_has_drained", lambda region, drain_to: True)


def continue_during_the_last_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """No checkpoint begins after the last one of a stop."""
    patch.setattr(
        CoordinatorState,
        "is_held",
        property(lambda self: self.request is not None and self.request.is_copying),
    )


_STOPS: Mapping[str, Any] = {"asked": 0.1, "kill": 0.0, "steps": 200}
_HELD: Mapping[str, Any] = {"files": True, "only_files": True, "roll": True, **_STOPS}

COPY_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "copy what is only decided": (
        copy_what_is_only_decided,
        {**_STOPS, "unreached": 0.3},
        "a savepoint before its marker",
    ),
    "keep rows at a savepoint": (
        keep_rows_at_a_savepoint,
        _HELD,
        "a savepoint names files outside",
    ),
    "continue during the last checkpoint": (
        continue_during_the_last_checkpoint,
        {"asked": 0.05, "max_concurrent": 2, "continuous": True, "kill": 0.0, "steps": 200},
        "a stop leaves a decision open",
    ),
    "drain nothing": (drain_nothing, _STOPS, "a drained job has left records unread"),
}
