"""Lives of a region as a driver sees them, and its tasks' way to it; see `tests.threaded_runs`."""

from typing import TYPE_CHECKING, Any

from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.errors import FencedError, UnreachableError, WaitedTooLongError
from tests.threaded_tasks import Life, PlayedLink

if TYPE_CHECKING:
    from tests.threaded_runs import Run

__all__ = ["Link", "RunningLife"]

_CANCELLED_S = 60.0


class RunningLife:
    """Implements `RunningLife`, as `ContinuousLife`."""

    def __init__(self, run: "Run", life: Life) -> None:
        self._run = run
        self._life = life

    @property
    def is_active(self) -> bool:
        """Whether it still runs, as far as its driver knows."""
        return not self._life.is_told

    def registration(self) -> RegionRegistration:
        """See `RegionHandle.register`."""
        return self._life.book.registration()

    def prepare_stop(self) -> None:
        """Its task is told."""
        self._life.book.stop()

    def stop(self) -> None:
        """Wait for its task's end, or have it cancelled."""
        life, switched = self._life, self._run.switched
        life.book.stop()
        is_over = switched.block(lambda: life.has_ended, 10.0, at="its good end")
        if is_over or life.worker.is_killed:
            return
        how = self._run.faults.choose(4)
        if how < 2:
            life.worker.is_killed = True  # cancelled
        elif how == 2 and not switched.block(lambda: life.has_ended, _CANCELLED_S, at="its end"):
            raise WaitedTooLongError("a region's task did not end", {}, "")
        # Else Spark has lost its executor, which lives.

    def require_writable(self) -> None:
        """A life writes no files."""

    def failure(self) -> BaseException | None:
        """Why it ended."""
        return self._life.error


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
        if leader.generation is not None and leader.generation > started.generation:
            raise FencedError("another coordinator leads the job now", {}, "")
