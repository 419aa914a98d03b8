"""Whether the owner records are still this job's: from the first claim to the last call."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

from runtime.contracts import Clock, SinkCoordinator
from runtime.errors import FencedError, StreamError

__all__ = ["OwnerWatch"]

log = logging.getLogger(__name__)

_FRESH_INTERVALS = 2
"""A look is good for so long: who wants the name watches for three."""
_PATIENCE_S = 10.0
"""So long a decision waits for a look that is under way, and then for its own; a renewal that took
long looks once more within that."""


class OwnerWatch:
    """Renews the owner records, and knows whether they are still ours (rule 22). Thread-safe.

    In a thread for each: a start that repairs, a sweep that waits for a broker, a commit that is
    not answered and another sink's cluster must not let another job take this one for dead.

    Args:
        sinks: by operator id; one that has not claimed anything yet has nothing to renew.
        interval_s: between two renewals.
        age_clock: seconds, on while the host sleeps: others watch a record meanwhile.
    """

    def __init__(
        self, sinks: Mapping[str, SinkCoordinator], *, interval_s: float, age_clock: Clock
    ) -> None:
        self._telling = threading.Lock()
        self._lost: FencedError | None = None
        self._tell: Callable[[FencedError], None] = lambda _: None
        self._stopping = threading.Event()
        self._records = [
            _Record(name, sink, interval_s=interval_s, age_clock=age_clock)
            for name, sink in sinks.items()
        ]
        self._threads = [
            threading.Thread(target=self._run, args=[one], name=f"sluice-owner-{at}", daemon=True)
            for at, one in enumerate(self._records)
        ]

    def start(self) -> None:
        """Begin to renew."""
        for thread in self._threads:
            thread.start()

    def tell(self, fenced: Callable[[FencedError], None]) -> None:
        """Call ``fenced``, once, when a record names another session; at once when one has."""
        with self._telling:
            self._tell = fenced
            lost = self._lost
        if lost is not None:
            fenced(lost)

    def stop(self, *, timeout_s: float) -> None:
        """End the threads. Repeatable."""
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def require(self) -> None:
        """Before a decision, or a sweep: a record not looked at for too long is looked at first.

        A process that was paused finds out here that another one has taken over. One that goes on
        never waits, but for its first decision: the threads look in time. One that hangs is waited
        for for a few seconds, and then what is known counts.

        Raises:
            FencedError: another session is found in a record, now or before.
        """
        for record in self._records:
            if self._lost is not None:
                break
            lost = record.look_if_due()
            if lost is not None:
                self._lose(lost)
        if self._lost is not None:
            raise self._lost

    def look_next(self) -> None:
        """The next `require` looks, however young the last look is: another start may have read
        the record before ours was in it, and written its own since."""
        for record in self._records:
            record.looked_s = -math.inf

    def _run(self, record: "_Record") -> None:
        while not self._stopping.wait(record.interval_s):
            lost = record.look()
            if lost is not None:
                self._lose(lost)
                return

    def _lose(self, lost: FencedError) -> None:
        with self._telling:
            if self._lost is not None:
                return
            self._lost, tell = lost, self._tell
        tell(lost)


class _Record:
    """One sink's: one look at a time, and when the last one that has ended began (``looked_s``)."""

    def __init__(
        self, name: str, sink: SinkCoordinator, *, interval_s: float, age_clock: Clock
    ) -> None:
        self.interval_s = interval_s
        self._name = name
        self._sink = sink
        self._age_clock = age_clock
        self._looking = threading.Lock()
        self.looked_s = -math.inf
        self._lost: FencedError | None = None

    def look_if_due(self) -> FencedError | None:
        """See `OwnerWatch.require`."""
        if not self._is_due():
            return self._lost
        if not (self._looking.acquire(timeout=_PATIENCE_S) and self._has_looked()):
            # It hangs, as on a mount that is away: one that is not answered fences nobody.
            log.warning("owner record was not looked at, a renewal hangs: sink=%s", self._name)
        return self._lost

    def _has_looked(self) -> bool:
        """Whether it is known in time; the lock, which the caller has taken, is given back once it
        is. In a thread of its own, for one that hangs cannot be ended."""
        if not self._is_due():  # a look that was under way may have begun before the pause
            self._looking.release()
            return True
        look = threading.Thread(target=self._look_held, name="sluice-owner-look", daemon=True)
        try:
            look.start()
        except BaseException:  # no thread is left on this host: nobody else would give it back
            self._looking.release()
            raise
        look.join(_PATIENCE_S)
        return not look.is_alive()

    def _look_held(self) -> None:
        try:
            self._renew()
        finally:
            self._looking.release()

    def look(self) -> FencedError | None:
        """Renew it; who has it where another session does."""
        with self._looking:
            self._renew()
        return self._lost

    def _is_due(self) -> bool:
        return self._age_clock() - self.looked_s > _FRESH_INTERVALS * self.interval_s

    def _renew(self) -> None:
        """An unanswered renewal fences nobody."""
        began_s = self._age_clock()
        try:
            self._sink.renew()
        except FencedError as err:
            self._lost = err
        except StreamError as err:
            log.warning("owner record was not renewed: sink=%s error=%s", self._name, err)
        except Exception:  # a client's own bug must not end renewing for the rest of the run
            log.exception("owner record was not renewed; tried again: sink=%s", self._name)
        self.looked_s = began_s
