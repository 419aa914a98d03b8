"""Sinks and sources of the driver, each called by one thread at a time as its contract says.

A lock that its waiters have in the order in which they came.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sluice.runtime.contracts import (
    Backlog,
    CommitListener,
    CommitOutcome,
    CommitReport,
    Committer,
    RegionProgress,
    SinkContext,
    SinkCoordinator,
    SplitEnumerator,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import UnreachableError, WaitedTooLongError
from sluice.runtime.model.model import SplitKey, SplitRange, StateEntry

__all__ = ["CallQueue", "SerialSink", "SerialSource"]


class CallQueue:
    """As `threading.RLock`, and fair: who comes often does not come before who waits.

    Python's own are taken by whoever is there when they are free. A caller that holds one for
    seconds, and comes again at once, would keep others out for ever that wait for a while each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Whether this thread has it now; None: wait for as long as it takes."""
        me, turn = threading.get_ident(), threading.Event()
        with self._lock:
            if self._owner in (me, None):
                self._owner = me
                self._depth += 1
                return True
            self._waiting.append((me, turn))
        try:
            if turn.wait(timeout_s):
                return True
        except BaseException:  # Ctrl-C: nobody would give back what this thread does not take
            if not self._leave(me, turn):
                self.release()
            raise
        return not self._leave(me, turn)

    def _leave(self, me: int, turn: threading.Event) -> bool:
        """Wait no more; False: it has its turn since a moment ago."""
        with self._lock:
            if turn.is_set():
                return False
            self._waiting.remove((me, turn))
            return True

    def release(self) -> None:
        """Give it to the next one."""
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """For as long as it takes."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


log = logging.getLogger(__name__)

_COURTESY_S = 1.0
_CLOSE_S = 10.0


class SerialSource:
    """A `SplitEnumerator` behind a lock: barriers are cut by many threads, one at a time.

    Whoever waits for the lock waits no longer than the call may take: a source whose brokers are
    away holds it for as long as that.
    """

    def __init__(self, source: SplitEnumerator) -> None:
        self._source = source
        self._lock = CallQueue()

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[tuple[SplitEnumerator, float]]:
        """The source for this thread alone, for several calls, and what is left of the time.

        Raises:
            WaitedTooLongError: others have held it all the time.
        """
        began_s = time.monotonic()
        if not self._lock.acquire(max(0.0, timeout_s)):
            raise WaitedTooLongError(
                "the source is busy answering others",
                {"waited_s": round(timeout_s, 1)},
                "It is asked again. Are all brokers of its partitions up?",
            )
        try:
            yield self._source, max(0.0, timeout_s - (time.monotonic() - began_s))
        finally:
            self._lock.release()

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.resolve_start`."""
        with self.held(timeout_s) as (source, left_s):
            return source.resolve_start(timeout_s=left_s)

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """See `SplitEnumerator.restore`."""
        with self.held(timeout_s) as (source, left_s):
            source.restore(positions, timeout_s=left_s)

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.readable`."""
        with self.held(timeout_s) as (source, left_s):
            return source.readable(ranges, timeout_s=left_s)

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.replayable`. Others have the source in its pauses."""
        wait = time.sleep if pause is None else pause

        def let_others(seconds: float) -> None:
            self._lock.release()
            try:
                wait(seconds)
            finally:
                self._lock.acquire()

        with self.held(timeout_s) as (source, left_s):
            return source.replayable(ranges, timeout_s=left_s, pause=let_others)

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.discover`."""
        with self.held(timeout_s) as (source, left_s):
            return source.discover(timeout_s=left_s)

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.cut`."""
        with self.held(timeout_s) as (source, left_s):
            return source.cut(positions, max_records=max_records, timeout_s=left_s)

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """See `SplitEnumerator.is_finished`."""
        with self._lock.taken():
            return self._source.is_finished(positions)

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        """See `SplitEnumerator.fixed_ends`."""
        with self._lock.taken():
            return self._source.fixed_ends()

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """See `SplitEnumerator.committed`. While others wait for brokers it is left to the next
        time: only lag tools read it, and commits wait for it."""
        try:
            with self.held(_COURTESY_S) as (source, _):
                source.committed(positions)
        except UnreachableError as err:
            log.debug("committed positions are not told: error=%s", err)

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """See `SplitEnumerator.lag_records`."""
        with self._lock.taken():
            return self._source.lag_records(positions)

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        """See `SplitEnumerator.measure`."""
        with self.held(timeout_s) as (source, left_s):
            return source.measure(positions, timeout_s=left_s)

    def close(self) -> None:
        """See `SplitEnumerator.close`."""
        with self._lock.taken():
            self._source.close()


class _SerialCommitter:
    def __init__(self, sink: SinkCoordinator, lock: threading.Lock) -> None:
        self._sink = sink
        self._lock = lock

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        with self._lock:
            return self._sink.committer.commit(
                committables, timeout_s=timeout_s, after_crash=after_crash
            )

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        with self._lock:
            return self._sink.committer.abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        with self._lock:
            return self._sink.committer.await_visible(timeout_s=timeout_s)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        with self._lock:
            committer = self._sink.committer
            if not isinstance(committer, CommitListener):
                return CommitReport(outcome=CommitOutcome.COMMITTED)
            return committer.regions_published(checkpoint_id, regions, timeout_s=timeout_s)


class SerialSink:
    """A `SinkCoordinator` behind three locks: its committer's, its renewal's, and that of all else.

    So neither a commit nor a renewal waits for a sweep that waits for a dead broker. A sink's
    committer may exist only after `claim`, so it is looked up when first used.
    """

    def __init__(self, sink: SinkCoordinator) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        self._renewing = threading.Lock()
        self.committer: Committer = _SerialCommitter(sink, self._committing)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`."""
        with self._lock:
            return self._sink.check(timeout_s=timeout_s)

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`."""
        with self._lock:
            self._sink.claim(context, timeout_s=timeout_s)

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """See `SinkCoordinator.sweep`."""
        with self._lock:
            return self._sink.sweep(view, timeout_s=timeout_s)

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        with self._renewing:
            self._sink.renew()

    def close(self) -> None:
        """See `SinkCoordinator.close`. A renewal that hangs, as on a mount that is away, would hold
        up the end of the job: then the sink stays open, and its owner record is left behind."""
        if not self._renewing.acquire(timeout=_CLOSE_S):
            log.warning(
                "sink is not closed, a renewal of its owner record hangs: waited_s=%.0f", _CLOSE_S
            )
            return
        try:
            with self._committing, self._lock:
                self._sink.close()
        finally:
            self._renewing.release()
