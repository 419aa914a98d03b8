"""Whether the owner records are still this job's: from the first claim to the last call."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

from sluice.runtime.contracts import Clock, SinkCoordinator
from sluice.runtime.errors import FencedError, StreamError

__all__ = ["LeaseWatch"]

log = logging.getLogger(__name__)

_FRESH_INTERVALS = 2
"""A look is good for so long: who wants the name watches for three."""
_RETRY_FOR_S = 15.0
"""So long a decision waits for looks, at all records. Behind a pause a renewal may be under way
that looks once more, 6 s later, and so does the one behind it."""
_STEP_S = 1.0
_PAUSE_S = 2.0
"""Nobody is kept from a core for so long, but with the whole process, or its host."""
_MOST_PAUSES = 4
"""Of a host that stalls all the time no look is to be had."""


class LeaseWatch:
    """Renews the owner records, and knows whether they are still ours (`lease-guards-outputs`).
    Thread-safe.

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
        self._age_clock = age_clock
        self._changed = threading.Condition()
        self._telling = threading.Lock()
        self._lost: FencedError | None = None
        self._tell: Callable[[FencedError], None] = lambda _: None
        self._records = [
            _Record(
                name,
                sink,
                interval_s=interval_s,
                age_clock=age_clock,
                changed=self._changed,
                lose=self._lose,
            )
            for name, sink in sinks.items()
        ]

    def start(self) -> None:
        """Begin to renew."""
        for record in self._records:
            record.start()

    def tell(self, fenced: Callable[[FencedError], None]) -> None:
        """Call ``fenced``, once, when a record names another session; at once when one has."""
        with self._telling:
            self._tell = fenced
            lost = self._lost
        if lost is not None:
            fenced(lost)

    def stop(self, *, timeout_s: float) -> None:
        """End the threads. Repeatable."""
        for record in self._records:
            record.end()
        deadline_s = time.monotonic() + timeout_s
        for record in self._records:
            record.join(max(0.0, deadline_s - time.monotonic()))

    def require(self) -> None:
        """Before a decision, or a sweep: records not looked at for too long are looked at first.

        A process that was paused finds out here that another one has taken over. One that goes on
        never waits, but for its first decision: the threads look in time. All are known at one
        moment, for it may be paused while it waits for the last. One that hangs is waited for for a
        few seconds, and then what is known counts.

        Raises:
            FencedError: another session is found in a record, now or before; or the run has ended,
                and nobody looks any more.
        """
        with self._changed:
            if not self._is_told():
                self._await_looks()
        if self._lost is not None:
            raise self._lost

    def require_anew(self) -> None:
        """`require`, by a look that begins now: for the sweep of a start. Looks that began before
        its claim was made, as behind a pause in that, have found nothing."""
        self.look_next()
        self.require()

    def look_next(self) -> None:
        """The next `require` looks, however young the last look is: another start may have read
        the record before ours was in it, and written its own since."""
        with self._changed:
            for record in self._records:
                record.look_next()

    def _is_told(self) -> bool:
        return self._lost is not None or all(record.is_told() for record in self._records)

    def _await_looks(self) -> None:
        for record in self._records:
            record.waiting += 1
        self._changed.notify_all()
        try:
            silent = () if self._wait_for_looks() else self._records
        finally:
            for record in self._records:
                record.waiting -= 1
        for record in silent:
            record.warn_of_silence()

    def _wait_for_looks(self) -> bool:
        """Whether there are such; False: for so long there were none.

        Behind a pause of this process it waits from the beginning: the looks were paused, too."""
        step_s = min(_STEP_S, _RETRY_FOR_S)
        waited_s, pauses = 0.0, 0
        while waited_s < _RETRY_FOR_S:
            began_s = self._age_clock()
            if self._changed.wait_for(self._is_told, step_s):
                return True
            waited_s += step_s
            if self._age_clock() - began_s > step_s + _PAUSE_S and pauses < _MOST_PAUSES:
                waited_s, pauses = 0.0, pauses + 1
        return False

    def _lose(self, lost: FencedError) -> None:
        with self._telling:
            if self._lost is not None:
                return
            self._lost, tell = lost, self._tell
        tell(lost)


class _Record:
    """One sink's. Its thread alone looks: every few seconds, and at once where somebody waits, for
    a look that hangs, as on a mount that is away, cannot be ended.

    Args:
        changed: the lock of all, told of each look.
    """

    def __init__(
        self,
        name: str,
        sink: SinkCoordinator,
        *,
        interval_s: float,
        age_clock: Clock,
        changed: threading.Condition,
        lose: Callable[[FencedError], None],
    ) -> None:
        self._name = name
        self._sink = sink
        self._interval_s = interval_s
        self._age_clock = age_clock
        self._lose = lose
        self._changed = changed
        self._looked_s = -math.inf  # when the last look that has ended began
        self._good_from_s = -math.inf  # one that began before is not enough
        self.waiting = 0  # decisions and sweeps, for a look
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"sluice-lease-{name}", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for its thread, if that was begun."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def look_next(self) -> None:
        """See `LeaseWatch.look_next`. The lock is held."""
        self._good_from_s = self._age_clock()

    def is_told(self) -> bool:
        """Whether it was looked at lately; FencedError: nobody looks any more. The lock is held."""
        if self._is_fresh():
            return True
        if self._is_over:
            raise FencedError(
                "a run that has ended renews its owner records no more",
                {"sink": self._name},
                "Nothing undecided of it is visible; the next start goes on.",
            )
        return False

    def warn_of_silence(self) -> None:
        """Where it was not looked at in time. The lock is held."""
        if not self._is_fresh():  # one that is not answered fences nobody
            log.warning("owner record was not looked at, a renewal hangs: sink=%s", self._name)

    def _is_fresh(self) -> bool:
        """By the present moment: this process may have been paused since a look began."""
        oldest_s = self._age_clock() - _FRESH_INTERVALS * self._interval_s
        return self._looked_s >= max(oldest_s, self._good_from_s)

    def _run(self) -> None:
        lost = None
        while lost is None and self._is_due():
            began_s = self._age_clock()
            lost = self._renewed()
            try:
                if lost is not None:
                    self._lose(lost)
            finally:
                with self._changed:
                    self._looked_s = began_s if lost is None else math.inf
                    self._changed.notify_all()

    def _is_due(self) -> bool:
        """True once it is time to look; False: never again."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or (self.waiting > 0 and not self._is_fresh()),
                self._interval_s,
            )
            return not self._is_over

    def _renewed(self) -> FencedError | None:
        """Who has it where another session does. An unanswered renewal fences nobody."""
        try:
            self._sink.renew()
        except FencedError as err:
            return err
        except StreamError as err:
            log.warning("owner record was not renewed: sink=%s error=%s", self._name, err)
        except Exception:  # a client's own bug must not end renewing for the rest of the run
            log.exception("owner record was not renewed; tried again: sink=%s", self._name)
        return None
