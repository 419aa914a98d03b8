"""Whether the owner records are still this job's: from the first claim to the last call."""

import logging
import threading
from collections.abc import Callable, Mapping

from runtime.contracts import Clock, SinkCoordinator
from runtime.errors import FencedError, StreamError

__all__ = ["OwnerWatch"]

log = logging.getLogger(__name__)

_FRESH_INTERVALS = 2
"""A look is good for so long: who wants the name watches for three."""


class OwnerWatch:
    """Renews the owner records, and knows whether they are still ours (rule 22). Thread-safe.

    In a thread of its own: a start that repairs, a sweep that waits for a broker and a commit that
    is not answered must not let another job take this one for dead.

    Args:
        sinks: by operator id; one that has not claimed anything yet has nothing to renew.
        interval_s: between two renewals.
        clock: monotonic seconds.
    """

    def __init__(
        self, sinks: Mapping[str, SinkCoordinator], *, interval_s: float, clock: Clock
    ) -> None:
        self._sinks = sinks
        self._interval_s = interval_s
        self._clock = clock
        self._looking = threading.Lock()
        self._looked_s = clock()  # when the last look that has ended began
        self._lost: FencedError | None = None
        self._tell: Callable[[FencedError], None] = lambda _: None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluice-owner", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def tell(self, fenced: Callable[[FencedError], None]) -> None:
        """Call ``fenced`` when a record names another session; at once when one has."""
        with self._looking:
            self._tell = fenced
            lost = self._lost
        if lost is not None:
            fenced(lost)

    def stop(self, *, timeout_s: float) -> None:
        """End the thread. Repeatable."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def require(self) -> None:
        """Before a decision: a record not looked at for too long is looked at first.

        A process that was paused finds out here that another one has taken over. One that goes on
        never waits: the thread looks in time.

        Raises:
            FencedError: another session is found in a record, now or before.
        """
        if self._is_due():
            with self._looking:
                if self._is_due():  # a look that was under way may have begun before the pause
                    self._look()
        if self._lost is not None:
            raise self._lost

    def _is_due(self) -> bool:
        return self._clock() - self._looked_s > _FRESH_INTERVALS * self._interval_s

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            with self._looking:
                self._look()
                lost, tell = self._lost, self._tell
            if lost is not None:
                tell(lost)
                return

    def _look(self) -> None:
        """Renew every record; an unanswered renewal fences nobody."""
        began_s = self._clock()
        for name, sink in self._sinks.items():
            try:
                sink.renew()
            except FencedError as err:
                self._lost = err
            except StreamError as err:
                log.warning("owner record was not renewed: sink=%s error=%s", name, err)
            except Exception:  # a client's own bug must not end renewing for the rest of the run
                log.exception("owner record was not renewed; tried again: sink=%s", name)
        self._looked_s = began_s
