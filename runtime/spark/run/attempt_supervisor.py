"""The attempts of a job's regions: starts, watches, restarts and stops them."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from py4j.protocol import Py4JNetworkError

from sluice.runtime.contracts import AttemptState, AttemptStatus, Clock, RegionAttempt, RegionHandle
from sluice.runtime.coordinator.policy.checkpoint_plan import RestartedRegion
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.restart_waits import RequestedRestart
from sluice.runtime.errors import (
    FencedError,
    RegionUnansweredError,
    StorageUnreachableError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.process.failed_tasks import in_short, task_failed
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock
from sluice.runtime.spark.run.outages import Outages

__all__ = ["RegionAttempts"]

log = logging.getLogger(__name__)

_LONGEST_STOP_S = 90.0  # at a job's end; a region that still runs after it ends with its process
_LONGEST_START_S = 90.0
_CALL_S = 10.0
_RESTARTING_S = 5.0
_ENDED = (AttemptState.ENDED, AttemptState.STOPPING, AttemptState.STOPPED)


@dataclass(slots=True)
class _Watched:
    """A region and its newest attempt, until the next one has begun.

    Attributes:
        handle: of the region.
        attempt: the newest one.
        is_begun: False: its start is not confirmed yet.
        cause: of its end; None while it runs.
        restart: requested from the coordinator, once the attempt is stopped.
        unanswered_s: clock since when its host does not answer.
    """

    handle: RegionHandle
    attempt: RegionAttempt
    is_begun: bool = False
    cause: BaseException | None = None
    restart: RequestedRestart | None = None
    unanswered_s: float | None = None


class RegionAttempts:
    """Keeps one attempt of each region running. Used by the thread that runs the job.

    It reports an attempt that failed, or whose checkpoint expired, to the coordinator. The
    coordinator stops the job if there were too many failures
    (`CheckpointSettings.tolerable_failures`, or its ``restart_strategy``) or if the error would
    occur again. Otherwise the attempt is stopped, its open work is aborted, and a new attempt
    resumes at the last decision (`restore-by-attempt` and `callback-after-commit`). A region that
    the coordinator has suspended stays stopped until an operator resumes it.

    No region waits for another one. Attempts are stopped in the background. A new attempt may have
    to wait for an open epoch of other regions, an outage, or an answer: each call of `watch` polls
    for that once. After a lost answer the call is repeated, which every call of a handle allows.

    Args:
        coordinator: of the job, started.
        handles: of its regions, by name.
        outage_limit_s: if a file system or a region's host is away for longer, the job ends.
        clock: monotonic seconds; between two calls, no more than the longest call counts.
    """

    def __init__(
        self,
        coordinator: BarrierCoordinator,
        handles: Mapping[str, RegionHandle],
        *,
        outage_limit_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._handles = handles
        self._regions: dict[str, _Watched] = {}
        # While a driver is paused it makes no call, so that time is no outage.
        self._clock = PauseTolerantClock(clock, longest_step_s=_LONGEST_START_S + _CALL_S)
        self._outages = Outages(limit_s=outage_limit_s, clock=self._clock)
        self._outage_limit_s = outage_limit_s
        self._restarting_until_s = self._clock() + _RESTARTING_S

    def begin(self, attempt: RegionAttempt) -> None:
        """Begin a region's first attempt in this run; raises as `RegionHandle.start`, except if an
        answer is lost."""
        watched = _Watched(handle=self._handles[attempt.region], attempt=attempt)
        self._regions[attempt.region] = watched
        self._take_step(watched, self._start)

    def add(self, attempt: RegionAttempt, *, is_begun: bool) -> None:
        """Watch a region's first attempt in this run: an earlier coordinator has begun it, or
        `watch` begins it, and counts an error as a failure of the attempt."""
        watched = _Watched(self._handles[attempt.region], attempt, is_begun=is_begun)
        self._regions[attempt.region] = watched
        if is_begun:
            self._take_step(watched, self._register)

    @property
    def is_restarting(self) -> bool:
        """Whether a region is in the first seconds of a restart: then `watch` should be called more
        often, because each call takes one step. A longer restart waits for something else."""
        return self._clock() < self._restarting_until_s and any(
            not watched.is_begun
            or (watched.cause is not None and not self._coordinator.is_suspended(region))
            for region, watched in self._regions.items()
        )

    def watch(self) -> None:
        """Check every attempt; take the next step to restart those that have ended.

        Raises:
            StreamError: an attempt was stopped from outside, or cannot be restarted.
        """
        for watched in list(self._regions.values()):
            if self._coordinator.is_over:
                return  # the caller gets the reason from the coordinator
            self._take_step(watched, self._advance)

    def _take_step(self, watched: _Watched, step: Callable[[_Watched], None]) -> None:
        """Take a step; after a lost answer the next call of `watch` repeats it."""
        try:
            step(watched)
        except RegionUnansweredError as err:
            now_s = self._clock()
            if watched.unanswered_s is None:
                watched.unanswered_s = now_s
                log.warning("region's host does not answer: %s", err)
            if now_s - watched.unanswered_s >= self._outage_limit_s:
                raise
        else:
            watched.unanswered_s = None

    def _advance(self, watched: _Watched) -> None:
        if not watched.is_begun:
            self._try_start(watched)
        elif watched.cause is None:
            self._check(watched)
        elif watched.handle.stop(watched.attempt.attempt_id, timeout_s=0.0):
            self._restart(watched)

    def _start(self, watched: _Watched) -> None:
        watched.handle.start(watched.attempt, timeout_s=_LONGEST_START_S)
        watched.is_begun = True
        self._register(watched)

    def _register(self, watched: _Watched) -> None:
        """Register the attempt and its open work with the coordinator."""
        attempt = watched.attempt
        try:
            registration = watched.handle.register(attempt.attempt_id, timeout_s=_CALL_S)
            self._coordinator.register_region(registration)
        except FencedError as err:  # its end is known; the sweep aborts its open work
            log.debug("registration refused: region=%s error=%s", attempt.region, err)

    def _check(self, watched: _Watched) -> None:
        attempt = watched.attempt
        if not self._coordinator.is_live(attempt.region, attempt.attempt_id):
            watched.cause = self._coordinator.why_ended(attempt.region)
        else:
            status = watched.handle.status(timeout_s=_CALL_S)
            if status.attempt_id == attempt.attempt_id and status.state not in _ENDED:
                return
            watched.cause = error = _failure_of(status, attempt)
            self._coordinator.fail(attempt.region, attempt.attempt_id, error)
        self._restarting_until_s = self._clock() + _RESTARTING_S
        watched.handle.stop(attempt.attempt_id, timeout_s=0.0)

    def _restart(self, watched: _Watched) -> None:
        """The attempt is stopped: request a restart; begin the new attempt when it is granted."""
        region = watched.attempt.region
        try:
            if watched.restart is None:
                if self._coordinator.is_suspended(region) or self._is_too_early(watched):
                    return
                self._register(watched)
                watched.restart = self._coordinator.request_restart(region)
            restarted = watched.restart.poll()
        except RegionUnansweredError:
            raise
        except StreamError:
            if self._coordinator.is_over:
                return
            raise
        if restarted is not None:
            self._begin_restarted(watched, restarted)

    def _begin_restarted(self, watched: _Watched, restarted: RestartedRegion) -> None:
        assert watched.cause is not None  # it has ended
        log.warning(
            "region restarted: region=%s attempt_id=%d cause=%s",
            watched.attempt.region,
            restarted.attempt_id,
            in_short(watched.cause),  # the traceback was logged at the failure
        )
        attempt = RegionAttempt(
            attempt_id=restarted.attempt_id,
            restored=restarted.restored,
            after=self._coordinator.last_committed,
        )
        next_watched = _Watched(handle=watched.handle, attempt=attempt)
        self._regions[attempt.region] = next_watched
        self._try_start(next_watched)

    def _try_start(self, watched: _Watched) -> None:
        """Start the attempt. An error of the start counts as a failure of the attempt: for example
        if Spark refuses its plan, or a source, a sink or a file system does not answer."""
        attempt = watched.attempt
        try:
            self._start(watched)
        except (RegionUnansweredError, FencedError):
            raise
        except Exception as err:  # noqa: BLE001 - the coordinator reports and counts it
            error = err if isinstance(err, StreamError) else _not_started(err, attempt)
            watched.is_begun, watched.cause = True, error
            self._coordinator.fail(attempt.region, attempt.attempt_id, error)

    def _is_too_early(self, watched: _Watched) -> bool:
        """Whether the file system that ended this attempt is still away."""
        handle = watched.handle
        status = handle.status(timeout_s=_CALL_S)
        # After a failed start the handle still has the status of the attempt before.
        error = status.error if status.attempt_id == watched.attempt.attempt_id else None
        if not any(isinstance(found, StorageUnreachableError) for found in (error, watched.cause)):
            return False

        def probe() -> None:
            hindrance = handle.status(check_storage=True, timeout_s=_CALL_S).hindrance
            if hindrance is not None:
                raise hindrance

        return not self._outages.may_begin(
            watched.attempt.region, committed=self._coordinator.last_committed, probe=probe
        )

    def stop(self) -> None:
        """Wake the callbacks, then stop every attempt (`callback-after-commit`)."""
        regions = list(self._regions.values())
        for watched in regions:
            with contextlib.suppress(Exception):  # raised again below
                watched.handle.stop(watched.attempt.attempt_id, timeout_s=0.0)
        self._coordinator.cancel()
        for watched in regions:
            attempt = watched.attempt
            try:
                if not watched.handle.stop(attempt.attempt_id, timeout_s=_LONGEST_STOP_S):
                    log.warning("a region has not stopped yet: region=%s", attempt.region)
            except (OSError, Py4JNetworkError) as err:
                # For example after a signal to all processes: expected, so stop the other regions.
                log.warning(
                    "a region was not stopped in order, because Spark's JVM does not answer: "
                    "region=%s error=%s",
                    attempt.region,
                    err,
                )
            except Exception:
                log.exception("a region was not stopped in order: region=%s", attempt.region)


def _not_started(error: Exception, attempt: RegionAttempt) -> StreamError:
    what = "a region's query could not be started"
    return task_failed(what, error, region=attempt.region, attempt_id=attempt.attempt_id)


def _failure_of(status: AttemptStatus, attempt: RegionAttempt) -> BaseException:
    """Why an attempt ended that the job has not stopped."""
    if status.attempt_id != attempt.attempt_id:
        return UnreachableError(
            "the region's host does not know the attempt",
            {
                "region": attempt.region,
                "attempt_id": attempt.attempt_id,
                "found": status.attempt_id,
            },
            "Check the host: it was restarted, or another coordinator has taken the region over.",
        )
    if status.error is None:
        raise StreamError(
            "a region's query ended without an error",
            {"region": attempt.region},
            "Start the job again; the query was probably stopped from outside the job.",
        )
    return status.error
