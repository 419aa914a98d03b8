"""Regions that failed for good: suspended, so that the others go on, until somebody asks. Pure."""

from collections.abc import Collection, Iterable

from sluice.runtime.coordinator.core.checkpoint_states import Event, State
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    CommandAccepted,
    RegionSuspended,
    RestartCommanded,
)
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.checkpoint_plan import OnRegionFailure
from sluice.runtime.coordinator.region.region_state import region_of
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    RegionsSuspendedError,
    RestartCommandedError,
    UnreadSplitsLostError,
)
from sluice.runtime.model.model import CheckpointKind, SplitRange

__all__ = [
    "end_or_suspend",
    "fence",
    "is_the_end",
    "may_suspend",
    "restart_commanded",
    "suspended_at_the_end",
]


def may_suspend(book: CoordinatorState, names: Collection[str]) -> bool:
    """Whether the job goes on without these regions: it has not ended, it wants to, and another one
    is left."""
    is_wanted = book.settings.on_region_failure is OnRegionFailure.SUSPEND and not book.is_over
    return is_wanted and bool(names) and bool(book.standing().keys() - set(names))


def end_or_suspend(
    book: CoordinatorState, names: Collection[str], error: BaseException, now_s: float
) -> None:
    """These regions have failed for good: the job ends with the error, or goes on without them.

    What is gone that no region reads yet is not theirs: each that looked would be suspended in
    turn.
    """
    if isinstance(error, UnreadSplitsLostError) or not may_suspend(book, names):
        book.end(error, now_s)
        return
    for name in names:
        _suspend(book, name, error, now_s)


def _suspend(book: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    """Its life ends, if it has not; what it has acknowledged is decided with the others."""
    region = book.regions[name]
    if region.suspended is not None:
        return
    book.close_region(name, error, now_s, fence=None)
    book.cancel_waiting(name, error)
    region.suspend(error, now_s)
    book.restless.setdefault(name)
    book.out.append(RegionSuspended(region=name, cause=error, positions=region.record.splits))


def fence(book: CoordinatorState, name: str, now_s: float, *, reason: str) -> None:
    """The place whose aborted record ends the region's life; an idle one would wait for ever, for
    the others may have nothing to cut."""
    idle = next((p for p in book.pending.values() if p.state is State.ARMED), None)
    place = idle or book.create(CheckpointKind.CHECKPOINT, "restart", forced=False)
    place.reason = f"region {name} {reason}"
    book.move(place, Event.REGION_FAILED, now_s)
    book.regions[name].fence = place.checkpoint_id


# --- by command -----------------------------------------------------------------------------------


def restart_commanded(book: CoordinatorState, event: RestartCommanded, now_s: float) -> None:
    """Regions begin new lives because somebody says so: suspended ones, ones that wait for their
    restart strategy, and ones that run. None of it counts as a failure, and each has all its
    attempts again."""
    if book.is_over:
        raise book.error or FencedError("the job has ended", {}, "Start it again for more.")
    for name in event.regions:
        # All are known before one is touched.
        region_of(book.regions, name, remedy="Choose one of these.")
    suspended = tuple(name for name, region in book.regions.items() if region.suspended is not None)
    names = tuple(dict.fromkeys(event.regions)) or suspended
    if not names:
        raise ConfigError(
            "no region of the job is suspended",
            {"regions": ",".join(book.regions)},
            "Name a region to restart it while it runs.",
        )
    for name in names:
        _restart(book, name, now_s)
    book.out.append(CommandAccepted(regions=names))


def _restart(book: CoordinatorState, name: str, now_s: float) -> None:
    region = book.regions[name]
    if region.is_open:
        error = RestartCommandedError(
            "the region is restarted by command", {"region": name}, "Its open range is read again."
        )
        book.close_region(name, error, now_s, fence=None)
        book.cancel_waiting(name, error)
    was_suspended = region.suspended is not None
    region.resume()
    book.restless.setdefault(name)  # somebody may have asked for its next life already
    if not was_suspended:
        return
    # What is under way began without it. What is idle would begin without it, and wait for it.
    for checkpoint in book.pending.values():
        if checkpoint.state is State.ALIGNING:
            checkpoint.excused.add(name)
    fence(book, name, now_s, reason="is restarted by command")


# --- the end of a bounded job ---------------------------------------------------------------------


def is_the_end(book: CoordinatorState, checkpoint: PendingCheckpoint) -> bool:
    """Whether nothing is left to read behind a final checkpoint, but by regions that are suspended:
    one that was restarted meanwhile has only begun."""
    return book.standing().keys() <= checkpoint.finished


def suspended_at_the_end(book: CoordinatorState) -> RegionsSuspendedError | None:
    """Why a job that has read all the others is not done; None: it is, for what the suspended ones
    were to read is decided, if long ago."""
    suspended = {
        name: found
        for name, found in book.regions.items()
        if found.suspended is not None and not found.is_written
    }
    if not suspended:
        return None
    causes = {
        name: f"{type(found.suspended.cause).__name__}: {found.suspended.cause}"
        for name, found in suspended.items()
        if found.suspended is not None
    }
    error = RegionsSuspendedError(
        "the job has read everything but the splits of regions that it had suspended",
        {
            "regions": ",".join(suspended),
            "not_written_from": _named(
                s for found in suspended.values() for s in found.record.splits
            ),
            "causes": "; ".join(f"{name}: {cause}" for name, cause in causes.items()),
        },
        "What the others read is committed. Remove the causes and start the job again: it goes on "
        "with what is missing.",
    )
    error.__cause__ = next(
        iter(found.suspended for found in suspended.values() if found.suspended)
    ).cause
    return error


def _named(splits: Iterable[SplitRange]) -> str:
    return " ".join(f"{split.name}:{split.end_offset}" for split in splits)
