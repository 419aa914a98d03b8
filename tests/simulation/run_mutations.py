"""One rule about the decisions of a run broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.checkpoint import retention
from sluice.runtime.contracts import PublishOutcome, SweepView
from sluice.runtime.coordinator.core import post_commit
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.coordinator.shell import io_executor as steps
from sluice.runtime.coordinator.start.startup import StartSequence
from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.timestamps import is_past

_USERS_OF_IS_PAST = ("core.coordinator_state", "shell.io_executor")

_ANSWERED: Mapping[str, Any] = {"unreached": 0.0, "unanswered": 0.0, "late": 0.0}


def decide_epochs_of_any_age(patch: pytest.MonkeyPatch) -> None:
    """Rule `transaction-timeout`: the coordinator decides an epoch only while its oldest
    transaction is far from its timeout."""
    for module in _USERS_OF_IS_PAST:
        patch.setattr(f"sluice.runtime.coordinator.{module}.is_past", lambda moment_s, now_s: False)


def age_by_the_pause_tolerant_clock(patch: pytest.MonkeyPatch) -> None:
    """Rule `transaction-timeout`: an open transaction ages while the host sleeps, as it does on the
    brokers."""

    def broken(state: CoordinatorState, decide_by_s: float | None, now_s: float) -> bool:
        return is_past(decide_by_s, now_s)

    patch.setattr(CoordinatorState, "is_too_old", broken)
    patch.setattr(
        "sluice.runtime.coordinator.shell.io_executor.is_past", lambda moment_s, now_s: False
    )


def fence_a_later_leader(patch: pytest.MonkeyPatch) -> None:
    """Rule `fence-first`: a start checks its election between its last look at the slots and its
    fencing record. Otherwise a leader that was paused there fences its successor."""
    fence = StartSequence._fence  # noqa: SLF001 - broken on purpose

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        self.require_elected = lambda: None
        return (yield from fence(self, restore_from))

    patch.setattr(StartSequence, "_fence", broken)


def skip_without_a_sweep(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-before-skip`: the open transactions of a failed region are aborted before a
    decision skips the region. Otherwise readers of other regions' records wait for these
    transactions."""
    start_deciding = post_commit._start_deciding  # noqa: SLF001 - broken on purpose

    def broken(state: Any, checkpoint: Any, now_s: float) -> None:
        checkpoint.must_sweep = False
        for name in checkpoint.skipped:
            state.regions[name].needs_sweep = False
        start_deciding(state, checkpoint, now_s)

    patch.setattr(post_commit, "_start_deciding", broken)


def leave_new_splits_out_of_the_record(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: the next decision records the start offset of a new split, even if
    its region has not read it, because retention may move the earliest offset."""

    def broken(self: Any, record: Any, standing: Any = ()) -> Any:
        known = {split.key for split in record.splits}
        others = tuple(split for split in standing if split.key not in known)
        return replace(record, splits=record.splits + others)

    patch.setattr(RegionState, "_with_new_splits", broken)


def forget_new_splits_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a source reports a new split once. Its region remembers the split
    over its restarts."""
    settle = RegionState.settle

    def broken(self: Any) -> None:
        settle(self)
        self.discovered.clear()

    patch.setattr(RegionState, "settle", broken)


def forget_when_to_retry(patch: pytest.MonkeyPatch) -> None:
    """Only time makes the core retry an unanswered call: no event triggers the retry."""
    next_step_s = post_commit.next_step_s

    def broken(state: Any) -> float | None:
        known = {at: found.retry_at_s for at, found in state.pending.items()}
        for found in state.pending.values():
            found.retry_at_s = 0.0
        due_s = next_step_s(state)
        for at, found in state.pending.items():
            found.retry_at_s = known[at]
        return due_s

    patch.setattr(post_commit, "next_step_s", broken)


def sweep_present_regions_only(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: a sweep also aborts the open transactions of regions that the
    present run does not have."""
    is_attempt_over = SweepView.is_attempt_over

    def broken(self: SweepView, region: str, attempt_id: int) -> bool:
        return region in self.attempt_ids and is_attempt_over(self, region, attempt_id)

    patch.setattr(SweepView, "is_attempt_over", broken)


def retire_fencing_records(patch: pytest.MonkeyPatch) -> None:
    """Rule `fence-first`: fencing records stay forever. Otherwise a run that was paused finds an
    empty slot to decide in."""
    patch.setattr(retention, "fencing_records", lambda places: frozenset())


def skip_in_any_kind_of_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was requested by its kind covers every region."""
    may_carry = RegionalCheckpointHandler._may_skip  # noqa: SLF001 - broken on purpose

    def broken(self: Any, alignment: Any, skipped: frozenset[str]) -> bool:
        return may_carry(self, replace(alignment, kind=CheckpointKind.CHECKPOINT), skipped)

    patch.setattr(RegionalCheckpointHandler, "_may_skip", broken)


def skip_a_region_forever(patch: pytest.MonkeyPatch) -> None:
    """A limited number of decisions in a row may skip a region."""
    may_carry = RegionalCheckpointHandler._may_skip  # noqa: SLF001 - broken on purpose

    def broken(self: Any, alignment: Any, skipped: frozenset[str]) -> bool:
        return may_carry(self, replace(alignment, skipped={}), skipped)

    patch.setattr(RegionalCheckpointHandler, "_may_skip", broken)


def trust_a_failed_read(patch: pytest.MonkeyPatch) -> None:
    """Rule `publish-whole`: the coordinator reads a slot to learn which record is in it. If the
    read fails, the outcome is unknown."""
    publish_record = steps.publish_record

    def broken(store: Any, record: Any, *, timeout_s: float) -> PublishOutcome:
        try:
            if store.publish(record, timeout_s=timeout_s) is PublishOutcome.TAKEN:
                store.read(record.checkpoint_id)
        except StorageError as err:
            if err.args[1].get("call") == "read":
                return PublishOutcome.OURS
        return publish_record(store, record, timeout_s=timeout_s)

    patch.setattr(steps, "publish_record", broken)


RUN_MUTATIONS: Mapping[str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]] = {
    "fence a later leader": (
        fence_a_later_leader,
        {"led": True, "pause": 0.06, "start": 0.1},
        "a leader is fenced by one that was elected before it",
    ),
    "decide epochs of any age": (
        decide_epochs_of_any_age,
        {"old": 0.4},
        "a decision is tried that has grown old",
    ),
    "age by the pause-tolerant clock": (
        age_by_the_pause_tolerant_clock,
        {"old": 0.5, "sleeps": 0.1},
        "a decision is tried that has grown old",
    ),
    "skip without a sweep": (
        skip_without_a_sweep,
        {**_ANSWERED, "regions": 3, "regional": True, "fail_region": 0.03},
        "a skipped region's open transaction is left",
    ),
    "trust a failed read": (
        trust_a_failed_read,
        {"unread": 0.1, "pause": 0.05, "start": 0.1, "processes": 12},
        "visible before its decision",
    ),
    "skip in any kind of checkpoint": (
        skip_in_any_kind_of_checkpoint,
        {"asked": 0.02, "regions": 3, "regional": True, "fail_region": 0.03},
        "a region is skipped in a checkpoint that is for all",
    ),
    "skip a region forever": (
        skip_a_region_forever,
        {
            **dict.fromkeys(("kill", "pause", "start"), 0.0),
            "regions": 3,
            "regional": True,
            "fail_region": 0.15,
            "delayed": True,
            "steps": 240,
        },
        "a region is skipped too often",
    ),
    "retire fencing records": (
        retire_fencing_records,
        {"short": True, "disk": True, "kill": 0.03, "start": 0.1},
        "a seal is deleted",
    ),
    "sweep present regions only": (
        sweep_present_regions_only,
        {"rescale": 4, "partitions": 5, "kill": 0.03, "start": 0.1},
        "the job is started again and again, and is not whole",
    ),
    "forget when to retry": (
        forget_when_to_retry,
        {"lost_answer": 0.5, "refused": 0.5, "kill": 0.0},
        "not everything is visible in the end",
    ),
    "leave new splits out of the record": (
        leave_new_splits_out_of_the_record,
        {"regions": 3, "regional": True, "fail_region": 0.03, "add": 0.1},
        "a split that was found is not on record",
    ),
    "forget new splits in a restart": (
        forget_new_splits_in_a_restart,
        {"regions": 3, "fail_region": 0.05, "add": 0.1},
        "a split that was found is not on record",
    ),
}
