"""What a running job does now and then, and at once where readers wait: sweep orphans."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from runtime.contracts import Clock
from runtime.errors import StreamError

__all__ = ["Housekeeper"]

log = logging.getLogger(__name__)


class Housekeeper:
    """A thread that sweeps until it is stopped.

    Args:
        sweep: one sweep; must not raise for an unreachable remote.
        interval_s: between two sweeps that nobody asked for.
        clock: monotonic seconds.
    """

    def __init__(self, *, sweep: Callable[[], object], interval_s: float, clock: Clock) -> None:
        self._sweep = sweep
        self._interval_s = interval_s
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._asked: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="sluice-housekeeper", daemon=True)

    def start(self) -> None:
        """Begin; the first sweep was part of the job's start."""
        self._thread.start()

    def sweep_soon(self, then: Callable[[], None]) -> None:
        """Do not wait for the interval: a region was stopped, its readers shall not wait.

        ``then`` is called, in this thread, once that sweep or the thread itself is over.
        """
        self._asked.append(then)
        self._wake.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._keep_house()
        finally:
            self._answer(len(self._asked))

    def _keep_house(self) -> None:
        sweep_s = self._clock() + self._interval_s
        while not self._stopping:
            self._wake.wait(max(sweep_s - self._clock(), 0.0))
            self._wake.clear()
            asked = len(self._asked)
            if not self._stopping and (asked or self._clock() >= sweep_s):
                sweep_s = self._clock() + self._interval_s
                self._sweep_once()
                self._answer(asked)

    def _answer(self, count: int) -> None:
        for _ in range(count):
            self._asked.popleft()()

    def _sweep_once(self) -> None:
        try:
            self._sweep()
        except StreamError as err:  # the next sweep comes in any case
            log.warning("sweep failed: error=%s", err)
        except Exception:  # a client's own bug must not end sweeping for the rest of the run
            log.exception("sweep failed; the next one tries again")
