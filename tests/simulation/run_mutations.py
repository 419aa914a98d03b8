"""What a run decides, and when, broken one rule at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.checkpoint import retention
from sluice.runtime.contracts import PublishOutcome, SweepView
from sluice.runtime.coordinator.core import post_commit as settling
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.coordinator.shell import io_executor as steps
from sluice.runtime.errors import StorageError
from sluice.runtime.model.model import CheckpointKind
from sluice.runtime.model.timestamps import is_past

__all__ = ["RUN_MUTATIONS"]

_USERS_OF_IS_PAST = ("blame", "book", "steps")

_ANSWERED: Mapping[str, Any] = {"unreached": 0.0, "unanswered": 0.0, "late": 0.0}


def decide_whatever_its_age(patch: pytest.MonkeyPatch) -> None:
    """Rule `transaction-timeout`: an epoch is decided only while its oldest transaction is far
    from being aborted."""
    for module in _USERS_OF_IS_PAST:
        patch.setattr(f"sluice.runtime.checkpoint.{module}.is_past", lambda moment_s, now_s: False)


def age_by_the_clock_of_waits(patch: pytest.MonkeyPatch) -> None:
    """Rule `transaction-timeout`: what is open grows old while the host sleeps, as it does for the
    brokers."""

    def broken(book: CoordinatorState, decide_by_s: float | None, now_s: float) -> bool:
        return is_past(decide_by_s, now_s)

    patch.setattr(CoordinatorState, "is_too_old", broken)
    patch.setattr(
        "sluice.runtime.coordinator.shell.io_executor.is_past", lambda moment_s, now_s: False
    )


def carry_without_a_sweep(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-before-skip`: what a failed region left open is aborted before a decision
    without it, or readers of the others' records wait behind it."""
    start_deciding = settling._start_deciding  # noqa: SLF001 - broken on purpose

    def broken(book: Any, checkpoint: Any, now_s: float) -> None:
        checkpoint.must_sweep = False
        for name in checkpoint.skipped:
            book.regions[name].needs_sweep = False
        start_deciding(book, checkpoint, now_s)

    patch.setattr(settling, "_start_deciding", broken)


def keep_new_splits_off_the_record(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: where a new split begins is on record with the next decision,
    also of a region that has not read it, for retention may move that place."""

    def broken(self: Any, record: Any, standing: Any = ()) -> Any:
        known = {split.key for split in record.splits}
        others = tuple(split for split in standing if split.key not in known)
        return replace(record, splits=record.splits + others)

    patch.setattr(RegionState, "_with_new_splits", broken)


def forget_new_splits_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a source tells once of a new split; its region knows it over its
    lives."""
    fence_off = RegionState.fence_off

    def broken(self: Any) -> None:
        fence_off(self)
        self.discovered.clear()

    patch.setattr(RegionState, "fence_off", broken)


def forget_when_to_try_again(patch: pytest.MonkeyPatch) -> None:
    """What was not answered is tried again by time alone: nobody else tells the core anything."""
    next_step_s = settling.next_step_s

    def broken(book: Any) -> float | None:
        known = {at: found.retry_at_s for at, found in book.pending.items()}
        for found in book.pending.values():
            found.retry_at_s = 0.0
        due_s = next_step_s(book)
        for at, found in book.pending.items():
            found.retry_at_s = known[at]
        return due_s

    patch.setattr(settling, "next_step_s", broken)


def sweep_present_regions_alone(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: what a run with other regions left open is nobody's any more, and
    is swept, too."""
    is_left_behind = SweepView.is_left_behind

    def broken(self: SweepView, region: str, attempt_id: int) -> bool:
        return region in self.attempt_ids and is_left_behind(self, region, attempt_id)

    patch.setattr(SweepView, "is_left_behind", broken)


def retire_seals(patch: pytest.MonkeyPatch) -> None:
    """Rule `fence-first`: seals stay for ever, or a run that was paused finds an empty place to
    decide in."""
    patch.setattr(retention, "seals", lambda places: frozenset())


def carry_in_any_kind(patch: pytest.MonkeyPatch) -> None:
    """Section 5: a checkpoint that somebody asked for by its kind is of every region."""
    may_carry = RegionalCheckpointHandler._may_skip  # noqa: SLF001 - broken on purpose

    def broken(self: Any, alignment: Any, skipped: frozenset[str]) -> bool:
        return may_carry(self, replace(alignment, kind=CheckpointKind.CHECKPOINT), skipped)

    patch.setattr(RegionalCheckpointHandler, "_may_skip", broken)


def carry_a_region_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Section 5: so many decisions in a row may leave a region out, and no more."""
    may_carry = RegionalCheckpointHandler._may_skip  # noqa: SLF001 - broken on purpose

    def broken(self: Any, alignment: Any, skipped: frozenset[str]) -> bool:
        return may_carry(self, replace(alignment, skipped={}), skipped)

    patch.setattr(RegionalCheckpointHandler, "_may_skip", broken)


def believe_a_look_that_failed(patch: pytest.MonkeyPatch) -> None:
    """Rule `publish-whole`: whose record holds a place is known by reading it, and not known where
    that fails."""
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
    "decide whatever its age": (
        decide_whatever_its_age,
        {"old": 0.4},
        "a decision is tried that has grown old",
    ),
    "age by the clock of waits": (
        age_by_the_clock_of_waits,
        {"old": 0.5, "sleeps": 0.1},
        "a decision is tried that has grown old",
    ),
    "carry without a sweep": (
        carry_without_a_sweep,
        {**_ANSWERED, "regions": 3, "regional": True, "fail_region": 0.03},
        "a carried region's open transaction is left",
    ),
    "believe a look that failed": (
        believe_a_look_that_failed,
        {"unread": 0.1, "pause": 0.05, "start": 0.1, "processes": 12},
        "visible before its decision",
    ),
    "carry in any kind": (
        carry_in_any_kind,
        {"asked": 0.02, "regions": 3, "regional": True, "fail_region": 0.03},
        "a region is carried in a checkpoint that is for all",
    ),
    "carry a region for ever": (
        carry_a_region_for_ever,
        {
            **dict.fromkeys(("kill", "pause", "start"), 0.0),
            "regions": 3,
            "regional": True,
            "fail_region": 0.15,
            "delayed": True,
            "steps": 240,
        },
        "a region is carried too often",
    ),
    "retire seals": (
        retire_seals,
        {"short": True, "disk": True, "kill": 0.03, "start": 0.1},
        "a seal is deleted",
    ),
    "sweep present regions alone": (
        sweep_present_regions_alone,
        {"rescale": 4, "partitions": 5, "kill": 0.03, "start": 0.1},
        "the job is started again and again, and is not whole",
    ),
    "forget when to try again": (
        forget_when_to_try_again,
        {"lost_answer": 0.5, "refused": 0.5, "kill": 0.0},
        "not everything is visible in the end",
    ),
    "keep new splits off the record": (
        keep_new_splits_off_the_record,
        {"regions": 3, "regional": True, "fail_region": 0.03, "add": 0.1},
        "a split that was found is not on record",
    ),
    "forget new splits in a restart": (
        forget_new_splits_in_a_restart,
        {"regions": 3, "fail_region": 0.05, "add": 0.1},
        "a split that was found is not on record",
    ),
}
