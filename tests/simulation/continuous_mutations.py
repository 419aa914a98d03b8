"""One rule about continuous tasks broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.sink.producers import producer_slots as slots
from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.native_commits import NativeCommits
from sluice.runtime.continuous.task_loop import TaskLoop
from sluice.runtime.coordinator.core import failed_steps
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.model.checkpoint_record import StateEntry


def trust_tasks_that_do_not_answer(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: if no task reports an acknowledged commit, the coordinator asks
    the broker for the outcome."""
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


def commit_reported_transactions(patch: pytest.MonkeyPatch) -> None:
    """A task commits a transaction after its decision, not after it has reported the
    transaction."""
    end_epoch = CheckpointClient._acknowledge_epoch  # noqa: SLF001 - broken on purpose

    def broken(self: Any) -> bool:
        goes_on = end_epoch(self)
        for batch_id in list(self._pre_committed):
            self._commit(batch_id)
        return goes_on

    patch.setattr(CheckpointClient, "_acknowledge_epoch", broken)


def resume_at_the_own_offsets(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: an epoch has the splits and start offsets of its barrier."""

    def broken(self: Any, barrier: Any) -> Any:
        at = self._stream.positions()
        missing = [split for split in barrier.splits if split.key not in at]
        if missing:
            self._stream.restart_at([*barrier.splits])
        self._epoch.starts = {split.key: split.start_offset for split in barrier.splits}
        return barrier

    patch.setattr(TaskLoop, "_adopt", broken)


def free_undecided_ids(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: a task initialises an id again only after its epoch is recorded
    as committed."""
    patch.setattr(slots, "_is_over", lambda slot, scope: True)


def continue_after_an_aborted_epoch(patch: pytest.MonkeyPatch) -> None:
    """Rule `continuous-order`: an abort ends the region's attempt, with everything that it has
    written since."""

    def broken(self: Any, checkpoint: Any, event: Any, error: Any, now_s: float) -> None:
        self.move(checkpoint, event, now_s)
        checkpoint.discarded.extend(checkpoint.acknowledged())
        for name in [name for name in self.regions if checkpoint.touches(name)]:
            self.regions[name].open_ranges.pop(checkpoint.checkpoint_id, None)

    patch.setattr(CoordinatorState, "abort", broken)


def continue_after_a_repair(patch: pytest.MonkeyPatch) -> None:
    """Rule `continuous-order`: records written since the loss come before the repaired records, so
    the attempt must end."""
    patch.setattr(failed_steps, "_abort_later", lambda state, checkpoint, lost, now_s: None)


_TASKS: Mapping[str, Any] = {"continuous": True}

CONTINUOUS_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "trust tasks that do not answer": (
        trust_tasks_that_do_not_answer,
        {**_TASKS, "unanswered": 0.2, "kill": 0.03},
        "marked before it is committed",
    ),
    "commit reported transactions": (
        commit_reported_transactions,
        _TASKS,
        "visible before its decision",
    ),
    "resume at the own offsets": (
        resume_at_the_own_offsets,
        {**_TASKS, "regions": 3, "partitions": 5, "move": 0.6},
        "doubled",
    ),
    "free undecided ids": (
        free_undecided_ids,
        {**_TASKS, "max_concurrent": 2, "unreached": 0.4, "refused": 0.4, "lost_answer": 0.2},
        "an id is used again before the committed mark",
    ),
    "continue after an aborted epoch": (
        continue_after_an_aborted_epoch,
        {**_TASKS, "old": 0.4, "lost_answer": 0.3, "refused": 0.3, "max_concurrent": 2},
        "a decided range does not continue",
    ),
    "continue after a repair": (
        continue_after_a_repair,
        {**_TASKS, "expire": 0.1, "unreached": 0.2},
        "lost or reordered",
    ),
}
"""Each broken rule, with a profile of failures that shows it, and the promise that it breaks."""
