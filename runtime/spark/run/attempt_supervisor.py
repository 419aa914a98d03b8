"""The lives of a job's regions: begun, watched, begun again after a failure, ended."""

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
from sluice.runtime.process.boot_clock import PauseTolerantClock
from sluice.runtime.process.failed_tasks import in_short, task_failed
from sluice.runtime.spark.run.outages import Outages

__all__ = ["RegionAttempts"]

log = logging.getLogger(__name__)

_LONGEST_STOP_S = 90.0  # at the end of a job: what still runs then ends with its process
_LONGEST_START_S = 90.0
_CALL_S = 10.0
_RESTLESS_S = 5.0
_ENDED = (AttemptState.ENDED, AttemptState.STOPPING, AttemptState.STOPPED)


@dataclass(slots=True)
class _Watched:
    """A region and its newest life, until the successor of that has begun.

    Attributes:
        handle: of the region.
        life: as it was asked for.
        is_begun: False: nobody knows whether it was.
        why: it ended; None while it goes on.
        asked: the successor, once the life is stopped.
        unanswered_s: clock since when its host does not answer.
    """

    handle: RegionHandle
    attempt: RegionAttempt
    is_begun: bool = False
    why: BaseException | None = None
    asked: RequestedRestart | None = None
    unanswered_s: float | None = None


class RegionAttempts:
    """One life for each region, replaced when it fails. Used by the thread that runs the job.

    A life that failed, or whose checkpoint expired, is told to the coordinator, which stops the job
    when it were too many (`CheckpointSettings.tolerable_failures`, or its ``restart_strategy``) or
    the error would come again. Otherwise the life is stopped, its open work aborted, and one of a
    new attempt goes on at the last decision (`restore-by-attempt` and `callback-after-commit`).
    A region that the coordinator has suspended stays stopped until somebody asks for it.

    No region waits for another one: a life is stopped in the background, and what a new one has to
    wait for (the others' open epoch, an outage, an answer) is only looked at, when `watch` comes
    by. An answer that is lost is settled by asking again: every call of a handle may be repeated.

    Args:
        coordinator: of the job, started.
        handles: of its regions, by name.
        outage_limit_s: a file system, or a region's host, that is away for longer ends the job.
        clock: monotonic seconds; no longer than the longest call counts from one look to the next.
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
        # A driver that was paused has asked nobody meanwhile, and nobody was away for it.
        self._clock = PauseTolerantClock(clock, longest_step_s=_LONGEST_START_S + _CALL_S)
        self._outages = Outages(limit_s=outage_limit_s, clock=self._clock)
        self._outage_limit_s = outage_limit_s
        self._restless_until_s = self._clock() + _RESTLESS_S

    def begin(self, attempt: RegionAttempt) -> None:
        """Begin a region's first life in this run; raises as `RegionHandle.start`, but for an
        answer that is lost."""
        watched = _Watched(handle=self._handles[attempt.region], attempt=attempt)
        self._regions[attempt.region] = watched
        self._settled(watched, self._start)

    @property
    def is_restless(self) -> bool:
        """Whether a life has just ended whose successor is wanted and has not begun: each step of
        that way is taken when `watch` comes by. What takes longer waits for something else."""
        return self._clock() < self._restless_until_s and any(
            not watched.is_begun
            or (watched.why is not None and not self._coordinator.is_suspended(region))
            for region, watched in self._regions.items()
        )

    def watch(self) -> None:
        """Look at every life; bring back those that have ended as far as that is possible now.

        Raises:
            StreamError: a life was stopped from outside, or cannot go on.
        """
        for watched in list(self._regions.values()):
            if self._coordinator.is_over:
                return  # whoever waits for the coordinator learns why
            self._settled(watched, self._look_after)

    def _settled(self, watched: _Watched, step: Callable[[_Watched], None]) -> None:
        """Take a step; one whose answer is lost is taken again when `watch` comes by."""
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

    def _look_after(self, watched: _Watched) -> None:
        if not watched.is_begun:
            self._try_start(watched)
        elif watched.why is None:
            self._look(watched)
        elif watched.handle.stop(watched.attempt.attempt_id, timeout_s=0.0):
            self._bring_back(watched)

    def _start(self, watched: _Watched) -> None:
        watched.handle.start(watched.attempt, timeout_s=_LONGEST_START_S)
        watched.is_begun = True
        self._register(watched)

    def _register(self, watched: _Watched) -> None:
        """Have the life tell the coordinator who it is, and what it has open."""
        attempt = watched.attempt
        try:
            told = watched.handle.register(attempt.attempt_id, timeout_s=_CALL_S)
            self._coordinator.register_region(told)
        except FencedError as err:  # its end is known; what it left is swept with its attempt
            log.debug("registration refused: region=%s error=%s", attempt.region, err)

    def _look(self, watched: _Watched) -> None:
        attempt = watched.attempt
        if not self._coordinator.is_live(attempt.region, attempt.attempt_id):
            watched.why = self._coordinator.why_ended(attempt.region)
        else:
            status = watched.handle.status(timeout_s=_CALL_S)
            if status.attempt_id == attempt.attempt_id and status.state not in _ENDED:
                return
            watched.why = error = _failure_of(status, attempt)
            self._coordinator.fail(attempt.region, attempt.attempt_id, error)
        self._restless_until_s = self._clock() + _RESTLESS_S
        watched.handle.stop(attempt.attempt_id, timeout_s=0.0)

    def _bring_back(self, watched: _Watched) -> None:
        """The life is stopped: ask for the next one, and begin it once it is granted."""
        region = watched.attempt.region
        try:
            if watched.asked is None:
                if self._coordinator.is_suspended(region) or self._is_too_early(watched):
                    return
                self._register(watched)
                watched.asked = self._coordinator.ask_restart(region)
            restarted = watched.asked.poll()
        except RegionUnansweredError:
            raise
        except StreamError:
            if self._coordinator.is_over:
                return
            raise
        if restarted is not None:
            self._begin_again(watched, restarted)

    def _begin_again(self, watched: _Watched, restarted: RestartedRegion) -> None:
        assert watched.why is not None  # it has ended
        log.warning(
            "region restarted: region=%s attempt_id=%d why=%s",
            watched.attempt.region,
            restarted.attempt_id,
            in_short(watched.why),  # the traceback was told when it failed
        )
        attempt = RegionAttempt(
            attempt_id=restarted.attempt_id,
            restored=restarted.restored,
            after=self._coordinator.last_committed,
        )
        successor = _Watched(handle=watched.handle, attempt=attempt)
        self._regions[attempt.region] = successor
        self._try_start(successor)

    def _try_start(self, watched: _Watched) -> None:
        """What hinders a life before it began ends it, as what fails it later does: Spark refuses
        its plan, say, or a source, a sink or a file system does not answer."""
        attempt = watched.attempt
        try:
            self._start(watched)
        except (RegionUnansweredError, FencedError):
            raise
        except Exception as err:  # noqa: BLE001 - told by the coordinator, which counts it
            error = err if isinstance(err, StreamError) else _not_started(err, attempt)
            watched.is_begun, watched.why = True, error
            self._coordinator.fail(attempt.region, attempt.attempt_id, error)

    def _is_too_early(self, watched: _Watched) -> bool:
        """Whether the file system that ended this life is still away."""
        handle = watched.handle
        status = handle.status(timeout_s=_CALL_S)
        # Of a life whose start has failed nobody knows there: what is told is of the one before.
        told = status.error if status.attempt_id == watched.attempt.attempt_id else None
        if not any(isinstance(found, StorageUnreachableError) for found in (told, watched.why)):
            return False

        def look() -> None:
            hindrance = handle.status(looks=True, timeout_s=_CALL_S).hindrance
            if hindrance is not None:
                raise hindrance

        return not self._outages.may_begin(
            watched.attempt.region, committed=self._coordinator.last_committed, look=look
        )

    def stop(self) -> None:
        """Wake the callbacks, then stop every life (`callback-after-commit`)."""
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
                # As behind a signal to all processes: that is no news, and the rest goes on.
                log.warning(
                    "a region was not stopped in order, for Spark's JVM does not answer any more: "
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
    """Why a life ended that nobody here has stopped."""
    if status.attempt_id != attempt.attempt_id:
        return UnreachableError(
            "whoever ran the region has forgotten its life",
            {
                "region": attempt.region,
                "attempt_id": attempt.attempt_id,
                "found": status.attempt_id,
            },
            "Its host was started again, or another coordinator has taken the region over.",
        )
    if status.error is None:
        raise StreamError(
            "a region's query ended without an error",
            {"region": attempt.region},
            "Was it stopped from outside the job? Start the job again.",
        )
    return status.error
