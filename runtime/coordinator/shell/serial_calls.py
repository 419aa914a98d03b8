"""Wrappers of the driver's sinks and sources, so that one thread at a time calls each of them.

Also a lock that serves its waiters in order.
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
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["CallQueue", "SerialSink", "SerialSource"]


class CallQueue:
    """A fair `threading.RLock`: it serves waiting threads in the order of their calls.

    Python's own lock goes to any thread that tries when it is free. A thread that holds it for
    seconds and takes it again at once would lock out threads that wait for a limited time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Whether this thread holds the lock now; without a time limit it waits for ever."""
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
        except BaseException:  # Ctrl-C: this thread must not keep a lock that it just received
            if not self._leave(me, turn):
                self.release()
            raise
        return not self._leave(me, turn)

    def _leave(self, me: int, turn: threading.Event) -> bool:
        """Stop waiting; False if the thread received the lock a moment ago."""
        with self._lock:
            if turn.is_set():
                return False
            self._waiting.remove((me, turn))
            return True

    def release(self) -> None:
        """Release the lock; the next waiting thread receives it."""
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
        """Hold the lock for a block; waits for ever."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


log = logging.getLogger(__name__)

_COURTESY_S = 1.0
_CLOSE_S = 10.0


class SerialSource:
    """A `SplitEnumerator` with a lock: many threads fetch barrier offsets, one at a time.

    A thread waits for the lock at most as long as its call may take. A source with unreachable
    brokers is locked for that long.
    """

    def __init__(self, source: SplitEnumerator) -> None:
        self._source = source
        self._lock = CallQueue()

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[tuple[SplitEnumerator, float]]:
        """Lock the source for several calls; yields it and the remaining time.

        Raises:
            WaitedTooLongError: other threads held the lock all the time.
        """
        began_s = time.monotonic()
        if not self._lock.acquire(max(0.0, timeout_s)):
            raise WaitedTooLongError(
                "the source is busy with other calls",
                {"waited_s": round(timeout_s, 1)},
                "Check that all brokers of its partitions run; the call is repeated.",
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
        """See `SplitEnumerator.replayable`. Other threads may use the source in its pauses."""
        wait = time.sleep if pause is None else pause

        def pause_unlocked(seconds: float) -> None:
            self._lock.release()
            try:
                wait(seconds)
            finally:
                self._lock.acquire()

        with self.held(timeout_s) as (source, left_s):
            return source.replayable(ranges, timeout_s=left_s, pause=pause_unlocked)

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
        """See `SplitEnumerator.committed`. If the source stays locked, the positions wait for the
        next call: only lag tools read them, and commits wait for this call."""
        try:
            with self.held(_COURTESY_S) as (source, _):
                source.committed(positions)
        except UnreachableError as err:
            log.debug("committed positions are not published: error=%s", err)

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
    """A `SinkCoordinator` with three locks: for its committer, its renewal, and all other calls.

    So neither a commit nor a renewal waits for a sweep that waits for a dead broker. A sink's
    committer may exist only after `claim`, so it is read at each call.
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
        """See `SinkCoordinator.close`. If a renewal hangs, for example on a mount that is gone, the
        sink stays open and its lease is not released: the job must end."""
        if not self._renewing.acquire(timeout=_CLOSE_S):
            log.warning("sink is not closed, a renewal of its lease hangs: waited_s=%.0f", _CLOSE_S)
            return
        try:
            with self._committing, self._lock:
                self._sink.close()
        finally:
            self._renewing.release()
