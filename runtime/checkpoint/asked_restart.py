"""A region's next life, as whoever asked for it sees it: not granted yet, or where it begins."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from runtime.checkpoint.plan import RestartedRegion
from runtime.contracts import Clock

__all__ = ["AskedRestart"]


class AskedRestart:
    """Granted once the old life is settled (rule 12) and what it left open is swept (rule 17).

    Polled by one thread, which may do other things meanwhile: what is waited for may be another
    region's epoch. It ends with the job, at the latest.

    Args:
        answer: of the coordinator's core.
        sweep: begins a sweep without waiting; the event is set once that was tried.
        sweep_limit_s: so long a sweep is waited for; the next one comes in any case.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        answer: Future[RestartedRegion],
        *,
        sweep: Callable[[], threading.Event],
        sweep_limit_s: float,
        clock: Clock,
    ) -> None:
        self._answer = answer
        self._sweep = sweep
        self._sweep_limit_s = sweep_limit_s
        self._clock = clock
        self._swept: threading.Event | None = None
        self._until_s = 0.0
        answer.add_done_callback(self._answered)

    def _answered(self, answer: Future[RestartedRegion]) -> None:
        """In the thread that answers: nobody has to come by for the sweep to begin."""
        if answer.exception() is None:
            self._until_s = self._clock() + self._sweep_limit_s
            self._swept = self._sweep()

    def poll(self) -> RestartedRegion | None:
        """The new life's generation and where it begins; None: not yet. Never blocks.

        Raises:
            StreamError: the job has ended.
        """
        if not self._answer.done():
            return None
        restarted = self._answer.result()
        if self._swept is None:
            return None  # answered in this moment
        is_swept = self._swept.is_set() or self._clock() >= self._until_s
        return restarted if is_swept else None
