"""Attempts of a region as a driver sees them, and its tasks' way to it; see `tests.kit.threads.threaded_runs`."""

from typing import TYPE_CHECKING, Any

from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.errors import FencedError, UnreachableError, WaitedTooLongError
from tests.kit.threads.threaded_tasks import Life, PlayedLink

if TYPE_CHECKING:
    from tests.kit.threads.threaded_runs import Run

_CANCELLED_S = 60.0


class RunningAttempt:
    """Implements `RunningAttempt`, as `ContinuousAttempt`."""

    def __init__(self, run: "Run", attempt: Life) -> None:
        self._run = run
        self._attempt = attempt

    @property
    def is_active(self) -> bool:
        """Whether it still runs, as far as its driver knows."""
        return not self._attempt.is_told

    def registration(self) -> RegionRegistration:
        """See `RegionHandle.register`."""
        return self._attempt.book.registration()

    def prepare_stop(self) -> None:
        """Its task is reported."""
        self._attempt.book.stop()

    def stop(self) -> None:
        """Wait for its task's end, or have it cancelled."""
        attempt, switched = self._attempt, self._run.switched
        attempt.book.stop()
        is_over = switched.block(lambda: attempt.has_ended, 10.0, at="its good end")
        if is_over or attempt.worker.is_killed:
            return
        how = self._run.faults.choose(4)
        if how < 2:
            attempt.worker.is_killed = True  # cancelled
        elif how == 2 and not switched.block(lambda: attempt.has_ended, _CANCELLED_S, at="its end"):
            raise WaitedTooLongError("a region's task did not end", {}, "")
        # Else Spark has lost its executor, which lives.

    def require_writable(self) -> None:
        """An attempt writes no files."""

    def failure(self) -> BaseException | None:
        """Why it ended."""
        return self._attempt.error


class Link(PlayedLink):
    """Where nobody answers it looks who leads, as `sluice.runtime.service.service_client` does."""

    def __init__(self, run: "Run") -> None:
        super().__init__(run)
        self._run = run

    def _asked(self, work: Any) -> Any:
        try:
            return super()._asked(work)
        except UnreachableError:
            self.require_leadership()
            raise

    def require_leadership(self) -> None:
        """Raise where a later run has announced itself."""
        self._run.switched.point("who leads")
        leader, started = self._run.world.directory.leader, self._run.started
        if leader is None or started is None or not self._run.world.leader_is_seen:
            return
        if leader.attempt_id is not None and leader.attempt_id > started.attempt_id:
            raise FencedError("another coordinator leads the job now", {}, "")
