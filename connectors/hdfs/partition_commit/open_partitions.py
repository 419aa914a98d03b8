"""The partitions of a sink that one run has written, published or marked."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.hdfs.partition_commit.partition_state import (
    PartitionState,
    after_batch,
    state_in,
)
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit
from sluice.connectors.hdfs.partition_commit.trigger import (
    DuePartition,
    RegionView,
    due_partitions,
    passed_ms,
)
from sluice.runtime.contracts import Clock, RegionProgress
from sluice.runtime.errors import LateRecordsError

__all__ = ["PartitionLedger"]

_REMEMBERED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _IdleTime:
    """For how long a region has had no records, measured at its barriers.

    If another region's batch is long, a decision comes long after its barriers, and no task reads
    records in between. The barrier of a completed checkpoint comes after the report of the one
    before: at least until that report there were no records.

    Attributes:
        since_s: clock when it last had records.
        reported_s: clock at the report of ``checkpoint_id``, which the region completed.
        idle_s: how long it had no records before the barrier of that checkpoint.
    """

    since_s: float
    reported_s: float
    checkpoint_id: int
    idle_s: float = 0.0

    def after(self, checkpoint_id: int, *, now_s: float) -> "_IdleTime":
        """Returns the value after one more checkpoint without records, or the same one again."""
        if checkpoint_id == self.checkpoint_id:
            return self
        idle_s = self.reported_s - self.since_s
        return replace(self, reported_s=now_s, checkpoint_id=checkpoint_id, idle_s=idle_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    state: PartitionState | None
    is_completed: bool
    has_splits: bool
    watermark_ms: int | None
    idle: _IdleTime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """Partitions of a batch that is not published yet."""

    checkpoint_id: int
    paths: frozenset[str]


class PartitionLedger:
    """Partitions of one sink, over all its regions. Driver; every method is thread-safe.

    A sink in several pipelines is several operators, each with regions of its own. Nothing is due
    before the regions of all operators are reported.

    The regions' callbacks write batches, the coordinator reports decisions, and the marker's thread
    makes marks. They meet here under one lock, so that no file is staged unnoticed while its
    partition is being marked. The regions' records keep all that must outlive the run.

    Args:
        commit: what the user asked for.
        target: URI of the directory that the partitions are in.
        clock: monotonic seconds, for idle regions.
        wall_ms: the driver's wall clock, for process time.
    """

    def __init__(
        self,
        commit: PartitionCommit,
        *,
        target: str,
        clock: Clock = time.monotonic,
        wall_ms: Callable[[], int] = lambda: round(time.time() * 1000),
    ) -> None:
        self._commit = commit
        self._target = target
        self._clock = clock
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._regions: dict[str, _Region] = {}
        self._writers: dict[str, set[str]] = {}  # regions by operator
        self._staged: dict[str, _Staged] = {}
        self._marked: dict[str, dict[str, int]] = {}
        self._reported_id = 0  # of the last decision that was reported
        self._unreported: set[str] = set()
        self._restored: set[str] = set()  # regions whose marks by earlier runs are known
        self._seen: set[str] = set()  # written by this run, and not marked since
        self._begun: set[str] = set()
        self._forgotten_ms: int | None = None
        self._watermark_ms: int | None = None

    # --- the batch callbacks ----------------------------------------------------------------------

    def first_written(self, paths: Collection[str]) -> set[str]:
        """The partitions that this run writes for the first time: an earlier run may have marked
        them.

        Partitions that a record has as open are among them: a run that was killed may have marked
        them after that record.
        """
        with self._lock:
            return set(paths) - self._seen - self._marked.keys()

    def stage(
        self,
        region: str,
        *,
        previous: PartitionState | None,
        written: Collection[str],
        pending: Collection[str],
        accepted: Collection[str] = (),
        found_marked: Collection[str],
        checkpoint_id: int,
    ) -> PartitionState:
        """A batch's files are staged: the state for its record.

        Args:
            previous: in the region's last decided record.
            written: partitions that the batch has rows for.
            pending: partitions with files that the batch's decision does not publish.
            accepted: partitions whose rows an earlier decision kept pending: they are no error,
                however late.
            found_marked: those of `first_written` whose success file is in the store.
            checkpoint_id: of the batch's barrier.
        Raises:
            LateRecordsError: rows came for a partition that is marked or being marked, and the sink
                stops at late rows.
        """
        with self._lock:
            # That checkpoint may be decided without this batch, and marks may cover later ones in
            # between. A mark covers decided batches only, and this batch is not decided: its number
            # must be higher.
            checkpoint_id = max(checkpoint_id, self._reported_id + 1)
            previous = self._mine(previous)
            if previous is not None:
                self._restore_marks(region, previous)
            for path in found_marked:
                self._marked.setdefault(path, {})
            late = {path for path in written if self._is_late(path, previous)}
            if self._commit.stops_at_late and not late <= set(accepted):
                raise self._late_error(late - set(accepted))
            self._seen |= set(written)
            self._staged[region] = _Staged(
                checkpoint_id=checkpoint_id, paths=frozenset(written) | frozenset(pending)
            )
            return after_batch(
                previous,
                region=region,
                written=written,
                pending=pending,
                late=late,
                marked={path: dict(through) for path, through in self._marked.items()},
                forgotten_ms=self._forgotten_ms,
                checkpoint_id=checkpoint_id,
                now_ms=self._wall_ms(),
                target=self._target,
            )

    def _mine(self, state: PartitionState | None) -> PartitionState | None:
        """None if an earlier run wrote to another target: its partitions are not this ledger's."""
        return state if state is not None and state.target == self._target else None

    def _is_late(self, path: str, previous: PartitionState | None) -> bool:
        if path in self._marked or path in self._begun:
            return True
        is_open = path in self._open_paths() or (previous is not None and path in previous.opened)
        if is_open or self._forgotten_ms is None or self._commit.has_success_file:
            return False
        begins_ms = self._commit.times.begins_ms(path)
        return begins_ms is not None and begins_ms <= self._forgotten_ms

    def _late_error(self, late: Collection[str]) -> LateRecordsError:
        return LateRecordsError(
            "late records came for partitions that may be marked complete",
            {"partitions": ",".join(sorted(late)[:5]), "count": len(late)},
            "Start with on_late='re-mark' to write them and mark these partitions again, or send "
            "such records elsewhere in a function before the sink. Nothing is lost; a larger "
            "delay makes late records rarer.",
        )

    # --- the coordinator --------------------------------------------------------------------------

    def expect(self, operator_id: str) -> None:
        """Make nothing due before the regions of this operator are reported."""
        with self._lock:
            self._unreported.add(operator_id)

    def published(
        self, operator_id: str, regions: Sequence[RegionProgress], *, checkpoint_id: int
    ) -> None:
        """Take a decision whose files are published, with all regions that write by the
        operator."""
        with self._lock:
            self._reported_id = max(self._reported_id, checkpoint_id)
            self._unreported.discard(operator_id)
            self._forget_gone(operator_id, {region.region for region in regions})
            for region in regions:
                state = state_in(region.operator_states, target=self._target)
                self._learn(region, state, checkpoint_id)
                staged = self._staged.get(region.region)
                if staged and state and state.checkpoint_id >= staged.checkpoint_id:
                    del self._staged[region.region]

    def _forget_gone(self, operator_id: str, names: set[str]) -> None:
        """Forget regions that no longer exist. A run with other regions first settles a
        checkpoint of the earlier ones; its own regions then resume their open partitions."""
        for name in self._writers.get(operator_id, set()) - names:
            self._regions.pop(name, None)
            self._staged.pop(name, None)
        self._writers[operator_id] = names

    def _learn(
        self, progress: RegionProgress, state: PartitionState | None, checkpoint_id: int
    ) -> None:
        name, now_s = progress.region, self._clock()
        known = self._regions.get(name)
        if (
            known is None
            or known.watermark_ms != progress.least_watermark_ms
            or (known.state != state and state is not None and state.has_rows)
        ):
            idle = _IdleTime(since_s=now_s, reported_s=now_s, checkpoint_id=checkpoint_id)
        elif progress.is_completed:
            idle = known.idle.after(checkpoint_id, now_s=now_s)
        else:
            idle = known.idle
        self._regions[name] = _Region(
            state=state,
            is_completed=progress.is_completed,
            has_splits=progress.has_splits,
            watermark_ms=progress.least_watermark_ms,
            idle=idle,
        )
        if state is not None:
            self._restore_marks(name, state)

    def _restore_marks(self, region: str, state: PartitionState) -> None:
        """Take over the marks of earlier runs, once for each region: of its own marks a run
        knows more than a record."""
        if region in self._restored:
            return
        self._restored.add(region)
        for path, through in state.marked.items():
            mine = self._marked.setdefault(path, {})
            for name, checkpoint_id in through.items():
                mine[name] = max(checkpoint_id, mine.get(name, -1))
        self._forgotten_ms = _latest(self._forgotten_ms, state.forgotten_ms)

    # --- the marker -------------------------------------------------------------------------------

    @property
    def has_open(self) -> bool:
        """Whether a partition waits for its mark."""
        with self._lock:
            return bool(self._open_paths())

    @property
    def is_waiting_for_a_watermark(self) -> bool:
        """Whether no partition can be due before some region has a timestamp."""
        with self._lock:
            views = [self._view(region) for region in self._regions.values()]
            return self._commit.is_by_partition_time and any(
                view.is_live and view.watermark_ms is None for view in views
            )

    def due(self) -> list[DuePartition]:
        """The partitions to mark now."""
        with self._lock:
            return self._due()

    def _due(self, path: str | None = None) -> list[DuePartition]:
        """The partitions to mark now, among all or only ``path``."""
        if self._unreported:
            return []
        views = {name: self._view(region) for name, region in self._regions.items()}
        self._watermark_ms = passed_ms(views.values(), before_ms=self._watermark_ms)
        return due_partitions(
            self._commit,
            views if path is None else {name: view.only(path) for name, view in views.items()},
            marked=self._marked,
            staged={path for staged in self._staged.values() for path in staged.paths},
            watermark_ms=self._watermark_ms,
            now_ms=self._wall_ms(),
        )

    def _view(self, region: _Region) -> RegionView:
        timeout_s = self._commit.idle_timeout_s
        has_timed_out = timeout_s is not None and region.idle.idle_s >= timeout_s
        return RegionView(
            state=region.state,
            is_completed=region.is_completed,
            is_idle=has_timed_out or not region.has_splits,
            watermark_ms=region.watermark_ms,
        )

    def begin(self, due: DuePartition) -> bool:
        """Begin a mark, before its first policy runs. False: it is no longer due as `due` returned
        it.

        Files of it may have been staged since, and even published or kept pending.

        Rows that come from here on are late: if a policy fails, it is unknown whether it notified
        readers, because only its answer may be lost.
        """
        with self._lock:
            if due not in self._due(due.path):
                return False
            self._begun.add(due.path)
            return True

    def undo(self, path: str) -> None:
        """Take back a mark of which no policy notified a reader. The next rows of the partition
        look up its success file again."""
        with self._lock:
            self._begun.discard(path)
            self._seen.discard(path)

    def finish(self, due: DuePartition) -> None:
        """End a mark whose policies have all run."""
        with self._lock:
            self._begun.discard(due.path)
            self._seen.discard(due.path)
            mine = self._marked.setdefault(due.path, {})
            for region, checkpoint_id in due.through.items():
                mine[region] = max(checkpoint_id, mine.get(region, -1))
            self._forget()

    def _forget(self) -> None:
        """Keep the newest marks, and marks of partitions that a record still has as open."""
        named = {
            path
            for region in self._regions.values()
            if region.state is not None
            for path in region.state.opened
        }
        by_age = sorted(self._marked, key=lambda p: max(self._marked[p].values(), default=0))
        for path in by_age[:-_REMEMBERED]:
            if path not in named:
                del self._marked[path]
                if self._commit.is_by_partition_time:
                    begins_ms = self._commit.times.begins_ms(path)
                    self._forgotten_ms = _latest(self._forgotten_ms, begins_ms)

    def _open_paths(self) -> set[str]:
        return set(_unmarked_paths(self._regions.items(), self._marked))


def _unmarked_paths(
    regions: Iterable[tuple[str, _Region]], marked: dict[str, dict[str, int]]
) -> Iterable[str]:
    for name, region in regions:
        if region.state is not None:
            yield from region.state.unmarked(name, marked)


def _latest(first: int | None, second: int | None) -> int | None:
    known = [ms for ms in (first, second) if ms is not None]
    return max(known, default=None)
