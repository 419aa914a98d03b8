"""One rule about continuous tasks broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.sink.producers import producer_slots as slots
from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.native_commits import NativeCommits
from sluice.runtime.continuous.task_loop import TaskLoop
from sluice.runtime.coordinator.core import lost_transactions as lost_slices
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.model.model import StateEntry

__all__ = ["CONTINUOUS_MUTATIONS"]


def believe_tasks_that_do_not_answer(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: what no task says was acknowledged is settled by the verdict."""
    await_answers = NativeCommits.await_reports

    def broken(
        self: Any, attempts: Mapping[str, int], *, timeout_s: float
    ) -> frozenset[StateEntry]:
        heard = await_answers(self, attempts, timeout_s=timeout_s)
        told = [
            entries for attempt in self._running(attempts) for entries in attempt.epochs.values()
        ]
        return heard.union(*told)

    patch.setattr(NativeCommits, "await_reports", broken)


def commit_what_is_told(patch: pytest.MonkeyPatch) -> None:
    """Section 4: a task commits what is decided, and not what it has told."""
    end_epoch = CheckpointClient._acknowledge_epoch  # noqa: SLF001 - broken on purpose

    def broken(self: Any) -> bool:
        goes_on = end_epoch(self)
        for batch_id in list(self._pre_committed):
            self._commit(batch_id)
        return goes_on

    patch.setattr(CheckpointClient, "_acknowledge_epoch", broken)


def go_on_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: where an epoch begins, and with which splits, is what its barrier
    says."""

    def broken(self: Any, barrier: Any) -> Any:
        at = self._stream.positions()
        missing = [split for split in barrier.splits if split.key not in at]
        if missing:
            self._stream.restart_at([*barrier.splits])
        self._epoch.starts = {split.key: split.start_offset for split in barrier.splits}
        return barrier

    patch.setattr(TaskLoop, "_adopt", broken)


def free_ids_that_are_undecided(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: an id is initialised again only when its epoch is committed on
    record."""
    patch.setattr(slots, "_is_over", lambda slot, scope: True)


def go_on_behind_an_epoch_that_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """Rule `continuous-order`: an abort ends the region's life, with all that it has written
    since."""

    def broken(self: Any, checkpoint: Any, event: Any, error: Any, now_s: float) -> None:
        self.move(checkpoint, event, now_s)
        checkpoint.discarded.extend(checkpoint.acknowledged())
        for name in [name for name in self.regions if checkpoint.touches(name)]:
            self.regions[name].cuts.pop(checkpoint.checkpoint_id, None)

    patch.setattr(CoordinatorState, "abort", broken)


def go_on_behind_a_repair(patch: pytest.MonkeyPatch) -> None:
    """Rule `continuous-order`: what was written since lies before what is written again."""
    patch.setattr(lost_slices, "_abort_later", lambda book, checkpoint, lost, now_s: None)


_TASKS: Mapping[str, Any] = {"continuous": True}

CONTINUOUS_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "believe tasks that do not answer": (
        believe_tasks_that_do_not_answer,
        {**_TASKS, "unanswered": 0.2, "kill": 0.03},
        "marked before it is committed",
    ),
    "commit what is told": (commit_what_is_told, _TASKS, "visible before its decision"),
    "go on where it was": (
        go_on_where_it_was,
        {**_TASKS, "regions": 3, "partitions": 5, "move": 0.6},
        "doubled",
    ),
    "free ids that are undecided": (
        free_ids_that_are_undecided,
        {**_TASKS, "max_concurrent": 2, "unreached": 0.4, "refused": 0.4, "lost_answer": 0.2},
        "an id is used again before the committed mark",
    ),
    "go on behind an epoch that is given up": (
        go_on_behind_an_epoch_that_is_given_up,
        {**_TASKS, "old": 0.4, "lost_answer": 0.3, "refused": 0.3, "max_concurrent": 2},
        "a decided range does not go on",
    ),
    "go on behind a repair": (
        go_on_behind_a_repair,
        {**_TASKS, "expire": 0.1, "unreached": 0.2},
        "lost or reordered",
    ),
}
"""Each broken rule, with a world rough enough in the right way, and the promise that it breaks."""
