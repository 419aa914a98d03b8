"""Renews the leases of a run, and checks that they are still its own."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import FencedError, StreamError

__all__ = ["LeaseWatch"]

log = logging.getLogger(__name__)

_FRESH_INTERVALS = 2
"""A renewal counts for so long: another job watches a lease for three intervals."""
_RETRY_FOR_S = 15.0
"""How long a decision waits for all leases. After a pause a renewal may be under way that reads
again 6 s later, and another one follows it."""
_STEP_S = 1.0
_PAUSE_S = 2.0
"""A longer gap means that the process or its host was paused, not just busy."""
_MOST_PAUSES = 4
"""A host that pauses all the time never renews in time."""


class LeasedSink(Protocol):
    """A sink with a lease; see `sluice.runtime.contracts.SinkCoordinator`."""

    def renew(self) -> None:
        """Renew the lease; FencedError if another session holds it."""
        ...


class LeaseWatch:
    """Renews all leases, and knows whether they are still ours (`lease-guards-outputs`).
    Thread-safe.

    Each lease has a thread of its own. A start that repairs, a sweep that waits for a broker, a
    commit without an answer, or another sink's cluster must not delay its renewal.

    Args:
        sinks: by operator id; a sink that has claimed nothing yet has nothing to renew.
        interval_s: between two renewals.
        age_clock: seconds, also while the host is suspended: other jobs watch a lease meanwhile.
    """

    def __init__(
        self, sinks: Mapping[str, LeasedSink], *, interval_s: float, age_clock: Clock
    ) -> None:
        self._age_clock = age_clock
        self._changed = threading.Condition()
        self._reporting = threading.Lock()
        self._lost: FencedError | None = None
        self._on_lost: Callable[[FencedError], None] = lambda _: None
        self._leases = [
            _WatchedLease(
                name,
                sink,
                interval_s=interval_s,
                age_clock=age_clock,
                changed=self._changed,
                on_lost=self._lose,
            )
            for name, sink in sinks.items()
        ]

    def start(self) -> None:
        """Begin to renew."""
        for lease in self._leases:
            lease.start()

    def report_loss(self, on_lost: Callable[[FencedError], None]) -> None:
        """Call ``on_lost`` once, when another session holds a lease; now if one already does."""
        with self._reporting:
            self._on_lost = on_lost
            lost = self._lost
        if lost is not None:
            on_lost(lost)

    def stop(self, *, timeout_s: float) -> None:
        """End the threads. Repeatable."""
        for lease in self._leases:
            lease.end()
        deadline_s = time.monotonic() + timeout_s
        for lease in self._leases:
            lease.join(max(0.0, deadline_s - time.monotonic()))

    def require(self) -> None:
        """Check before a decision or a sweep that all leases are ours.

        A lease without a recent renewal is renewed first, so a process that was paused finds out
        here that another run has taken over. A process that was not paused waits only for its first
        decision. All renewals must be recent at one moment: the process may be paused while it
        waits for the last one. If a renewal hangs, the check waits for a few seconds and then uses
        the results that it has.

        Raises:
            FencedError: another session holds a lease, or the run has ended and renews no more.
        """
        with self._changed:
            if not self._is_known():
                self._await_renewals()
        if self._lost is not None:
            raise self._lost

    def require_renewed(self) -> None:
        """`require`, with renewals that begin now: for the sweep of a start.

        A renewal that began before the lease was acquired has checked nothing.
        """
        self.expire()
        self.require()

    def expire(self) -> None:
        """Make the next `require` renew, however recent the last renewal is. Another start may have
        read the lease before we acquired it, and written it since."""
        with self._changed:
            for lease in self._leases:
                lease.expire()

    def _is_known(self) -> bool:
        return self._lost is not None or all(lease.is_known() for lease in self._leases)

    def _await_renewals(self) -> None:
        for lease in self._leases:
            lease.waiting += 1
        self._changed.notify_all()
        try:
            is_renewed = self._wait_for_renewals()
        finally:
            for lease in self._leases:
                lease.waiting -= 1
        if not is_renewed:
            for lease in self._leases:
                lease.warn_if_hung()

    def _wait_for_renewals(self) -> bool:
        """Whether all leases were renewed in time.

        After a pause of this process the time starts again: the renewals were paused too.
        """
        step_s = min(_STEP_S, _RETRY_FOR_S)
        waited_s, pauses = 0.0, 0
        while waited_s < _RETRY_FOR_S:
            began_s = self._age_clock()
            if self._changed.wait_for(self._is_known, step_s):
                return True
            waited_s += step_s
            if self._age_clock() - began_s > step_s + _PAUSE_S and pauses < _MOST_PAUSES:
                waited_s, pauses = 0.0, pauses + 1
        return False

    def _lose(self, lost: FencedError) -> None:
        with self._reporting:
            if self._lost is not None:
                return
            self._lost, on_lost = lost, self._on_lost
        on_lost(lost)


class _WatchedLease:
    """One sink's lease. Only its own thread renews: every few seconds, and at once if a decision
    waits. A renewal that hangs, for example on a mount that is gone, cannot be ended.

    Args:
        changed: the lock of all leases, notified after each renewal.
    """

    def __init__(
        self,
        name: str,
        sink: LeasedSink,
        *,
        interval_s: float,
        age_clock: Clock,
        changed: threading.Condition,
        on_lost: Callable[[FencedError], None],
    ) -> None:
        self._name = name
        self._sink = sink
        self._interval_s = interval_s
        self._age_clock = age_clock
        self._on_lost = on_lost
        self._changed = changed
        self._renewed_s = -math.inf  # when the last finished renewal began
        self._expired_s = -math.inf  # an earlier renewal is not enough
        self.waiting = 0  # decisions and sweeps that wait for a renewal
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"sluice-lease-{name}", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def end(self) -> None:
        """Stop renewing."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, if it was started."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def expire(self) -> None:
        """See `LeaseWatch.expire`. The caller holds the lock."""
        self._expired_s = self._age_clock()

    def is_known(self) -> bool:
        """Whether the last renewal is recent; FencedError: the run has ended. The caller holds the
        lock."""
        if self._is_fresh():
            return True
        if self._is_over:
            raise FencedError(
                "the run has ended and no longer renews its leases",
                {"sink": self._name},
                "Start the job again; nothing undecided of this run is visible.",
            )
        return False

    def warn_if_hung(self) -> None:
        """Warn of a renewal that has not finished in time. The caller holds the lock."""
        if not self._is_fresh():  # a store that does not answer fences no run
            log.warning("lease was not checked, a renewal hangs: sink=%s", self._name)

    def _is_fresh(self) -> bool:
        """Measured from now: this process may have been paused since the renewal began."""
        oldest_s = self._age_clock() - _FRESH_INTERVALS * self._interval_s
        return self._renewed_s >= max(oldest_s, self._expired_s)

    def _run(self) -> None:
        lost = None
        while lost is None and self._is_due():
            began_s = self._age_clock()
            lost = self._renew()
            try:
                if lost is not None:
                    self._on_lost(lost)
            finally:
                with self._changed:
                    self._renewed_s = began_s if lost is None else math.inf
                    self._changed.notify_all()

    def _is_due(self) -> bool:
        """Wait until a renewal is due; False if the run has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or (self.waiting > 0 and not self._is_fresh()),
                self._interval_s,
            )
            return not self._is_over

    def _renew(self) -> FencedError | None:
        """The error of a lease that another session holds. Other failures fence no run."""
        try:
            self._sink.renew()
        except FencedError as err:
            return err
        except StreamError as err:
            log.warning("lease was not renewed: sink=%s error=%s", self._name, err)
        except Exception:  # a bug in a client must not end the renewals of this run
            log.exception("lease was not renewed, trying again: sink=%s", self._name)
        return None
