"""Sinks and sources of the driver, each called by one thread at a time as its contract says."""

import threading
from collections.abc import Mapping, Sequence

from runtime.contracts import (
    Backlog,
    CommitOutcome,
    CommitReport,
    Committer,
    RegionFollower,
    RegionProgress,
    SinkContext,
    SinkCoordinator,
    SplitEnumerator,
    SweepView,
)
from runtime.model import SplitKey, SplitRange, StateEntry

__all__ = ["SerialSink", "SerialSource"]


class SerialSource:
    """A `SplitEnumerator` behind a lock: barriers are cut by many threads, one at a time."""

    def __init__(self, source: SplitEnumerator) -> None:
        self._source = source
        self._lock = threading.Lock()

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.resolve_start`."""
        with self._lock:
            return self._source.resolve_start(timeout_s=timeout_s)

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """See `SplitEnumerator.restore`."""
        with self._lock:
            self._source.restore(positions, timeout_s=timeout_s)

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.readable`."""
        with self._lock:
            return self._source.readable(ranges, timeout_s=timeout_s)

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.discover`."""
        with self._lock:
            return self._source.discover(timeout_s=timeout_s)

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.cut`."""
        with self._lock:
            return self._source.cut(positions, max_records=max_records, timeout_s=timeout_s)

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """See `SplitEnumerator.is_finished`."""
        with self._lock:
            return self._source.is_finished(positions)

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        """See `SplitEnumerator.fixed_ends`."""
        with self._lock:
            return self._source.fixed_ends()

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """See `SplitEnumerator.committed`."""
        with self._lock:
            self._source.committed(positions)

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """See `SplitEnumerator.lag_records`."""
        with self._lock:
            return self._source.lag_records(positions)

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        """See `SplitEnumerator.measure`."""
        with self._lock:
            return self._source.measure(positions, timeout_s=timeout_s)

    def close(self) -> None:
        """See `SplitEnumerator.close`."""
        with self._lock:
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
            if not isinstance(committer, RegionFollower):
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

    def sweep(self, view: SweepView, *, timeout_s: float) -> int:
        """See `SinkCoordinator.sweep`."""
        with self._lock:
            return self._sink.sweep(view, timeout_s=timeout_s)

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        with self._renewing:
            self._sink.renew()

    def close(self) -> None:
        """See `SinkCoordinator.close`."""
        with self._committing, self._renewing, self._lock:
            self._sink.close()
