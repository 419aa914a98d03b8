"""The cost of a failure: nothing, a restart, the regions or the job. Pure.

Values in, decisions out: the core finds the regions that a failure is attributed to
(`core.failures`), and carries out what this policy decides.
"""

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnRegionFailure
from sluice.runtime.coordinator.policy.failure_errors import region_given_up, too_many_failures
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    DataLostError,
    DeliveryError,
    IllegalTransitionError,
    LateRecordsError,
    PoisonRecordsError,
    SourceChangedError,
    StorageUnreachableError,
    TransactionLostError,
    TransactionUnknownError,
    UnreadSplitsLostError,
    UnsupportedFormatError,
    WrongJobError,
)
from sluice.runtime.failover.restart_strategies import Restarts, RestartStrategy

__all__ = [
    "PERMANENT_ERRORS",
    "Failure",
    "FailureDecision",
    "FailureOutcome",
    "FailureView",
    "RegionView",
    "decide_failure",
]


PERMANENT_ERRORS = (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    DataLostError,
    DeliveryError,
    IllegalTransitionError,
    LateRecordsError,
    PoisonRecordsError,
    SourceChangedError,
    TransactionLostError,
    TransactionUnknownError,
    UnsupportedFormatError,
    WrongJobError,
)
"""After any other error (a lost executor, a bug in user code, a slow broker) the region restarts,
as often as the job's restart strategy allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure, and the regions that it is attributed to.

    Attributes:
        error: the cause.
        regions: that caused it; with a restart strategy each of them uses up a restart.
        is_permanent: a repetition cannot help.
        is_shared: the regions have caused it no more than others: none of them is suspended for it
            by a restart strategy.
    """

    error: BaseException
    regions: tuple[str, ...]
    is_permanent: bool = False
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """The policy's view of a region: its ended attempts, and the memory of its restart strategy."""

    attempts: int = 0
    restarts: Restarts = field(default_factory=Restarts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """The policy's view of the job.

    Attributes:
        regions: those that the failure is attributed to, by name.
        in_service: regions that are not suspended.
        failures: in a row so far.
        is_over: the job has ended.
    """

    regions: Mapping[str, RegionView]
    in_service: Collection[str]
    failures: int = 0
    is_over: bool = False


class FailureOutcome(enum.Enum):
    """The cost of a failure."""

    COUNT = "count"  # one more failure in a row, which the job tolerates.
    RESTART = "restart"  # the region restarts when its restart strategy lets it.
    SUSPEND = "suspend"  # the job continues without the regions.
    END = "end"  # the job ends with the error


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDecision:
    """One consequence of a failure; ``restarts``: of the region, for RESTART."""

    outcome: FailureOutcome
    error: BaseException
    regions: tuple[str, ...] = ()
    restarts: Restarts | None = None


def decide_failure(
    failure: Failure,
    view: FailureView,
    settings: CheckpointSettings,
    *,
    now_s: float,
    draw: Callable[[], float],
) -> tuple[FailureDecision, ...]:
    """The decisions about a failure; empty: it costs nothing.

    Args:
        draw: a random number in [0, 1), for strategies that spread their restarts.
    """
    if view.is_over:
        return ()
    if failure.is_permanent:
        return (_for_good(failure.regions, failure.error, view, settings),)
    if isinstance(failure.error, StorageUnreachableError):
        return ()  # an outage: the engine waits for its end, and limits that time
    if settings.restart_strategy is None:
        return (_by_count(failure, view, settings),)
    return tuple(_by_strategy(failure, view, settings, settings.restart_strategy, now_s, draw))


def _by_count(failure: Failure, view: FailureView, settings: CheckpointSettings) -> FailureDecision:
    failures, tolerable = view.failures + 1, settings.tolerable_failures
    if failures <= tolerable:
        return FailureDecision(outcome=FailureOutcome.COUNT, error=failure.error)
    error = failure.error
    if not _may_suspend(failure.regions, view, settings):
        error = too_many_failures(failures, tolerable, failure.regions, error)
    return _for_good(failure.regions, error, view, settings)


def _by_strategy(
    failure: Failure,
    view: FailureView,
    settings: CheckpointSettings,
    strategy: RestartStrategy,
    now_s: float,
    draw: Callable[[], float],
) -> Iterator[FailureDecision]:
    for name in failure.regions:
        region = view.regions[name]
        restarts = strategy.after_failure(region.restarts, now_s, draw=draw())
        if restarts is not None:
            yield FailureDecision(
                outcome=FailureOutcome.RESTART,
                error=failure.error,
                regions=(name,),
                restarts=restarts,
            )
            continue
        error = region_given_up(name, region.attempts, strategy, failure.error)
        decision = _for_good(() if failure.is_shared else (name,), error, view, settings)
        yield decision
        if decision.outcome is FailureOutcome.END:
            return
        view = replace(view, in_service=set(view.in_service) - {name})


def _for_good(
    regions: tuple[str, ...],
    error: BaseException,
    view: FailureView,
    settings: CheckpointSettings,
) -> FailureDecision:
    """The regions have failed for good: the job ends with the error, or continues without them.

    Lost records that no region reads yet belong to none: each region that finds them would be
    suspended in turn.
    """
    is_of_a_region = not isinstance(error, UnreadSplitsLostError)
    if is_of_a_region and _may_suspend(regions, view, settings):
        return FailureDecision(outcome=FailureOutcome.SUSPEND, error=error, regions=regions)
    return FailureDecision(outcome=FailureOutcome.END, error=error)


def _may_suspend(regions: Collection[str], view: FailureView, settings: CheckpointSettings) -> bool:
    """Whether the job wants to continue without these regions, and another one is left."""
    is_wanted = settings.on_region_failure is OnRegionFailure.SUSPEND
    return is_wanted and bool(regions) and bool(set(view.in_service) - set(regions))
