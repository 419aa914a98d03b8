"""What one run knows of a sink's partitions: written, published, marked."""

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
    """For how long a region has had no records, as far as its cuts have seen.

    A decision comes long after its cuts where another region's batch is long, and nobody looks for
    records meanwhile. The cut of one that is completed comes behind the one before was told: so
    far at least there was nothing.

    Attributes:
        since_s: clock when it last had records.
        told_s: clock when it was told of ``checkpoint_id``, which it has completed.
        seen_s: how long it was silent up to the cut of that.
    """

    since_s: float
    reported_s: float
    checkpoint_id: int
    idle_s: float = 0.0

    def after(self, checkpoint_id: int, *, now_s: float) -> "_IdleTime":
        """One more checkpoint is completed without records; or is told of again."""
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

    A sink that stands in several pipelines is several operators, each with regions of its own:
    nothing is due before all of them have been heard.

    Batches are written in their regions' callbacks, decisions are told by the coordinator, marks
    are made by the marker's thread; here they meet, so that no file is staged unseen while its
    partition is being marked. Nothing here must outlive the run: the regions' records hold it.

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
        self._reported_id = 0  # of the last decision that was told
        self._unreported: set[str] = set()
        self._restored: set[str] = set()  # regions whose marks by earlier runs are known
        self._seen: set[str] = set()  # written by this run, and not marked since
        self._begun: set[str] = set()
        self._forgotten_ms: int | None = None
        self._watermark_ms: int | None = None

    # --- the batch callbacks ----------------------------------------------------------------------

    def first_written(self, paths: Collection[str]) -> set[str]:
        """Partitions that this run writes for the first time: the store may know them as marked.

        Also those that a record has as open: a run that was killed may have marked them since.
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
            held: partitions with files that the batch's decision does not publish.
            accepted: partitions whose rows earlier decisions hold: no error any more, however late.
            found_marked: of `first_written`, those that the store says are marked.
            checkpoint_id: that the batch was cut for.
        Raises:
            LateRecordsError: rows came for what is marked, or being marked, and that is an error.
        """
        with self._lock:
            # That one may be decided without it, and marks tell of later ones meanwhile. Whatever
            # they tell of is decided, and this batch is not: a mark of it has a higher number.
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
        """An earlier run may have written elsewhere: of those partitions nothing is said here."""
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
            "records came for partitions that readers were told are complete, or may have been",
            {"partitions": ",".join(sorted(late)[:5]), "count": len(late)},
            "Nothing of their epoch is visible, and nothing is lost. Start with "
            "on_late='re-mark' to write them and mark these partitions again, or with a function "
            "that sends such records elsewhere; a larger delay makes them rarer.",
        )

    # --- the coordinator --------------------------------------------------------------------------

    def expect(self, operator_id: str) -> None:
        """Nothing is due before this operator's regions are told of."""
        with self._lock:
            self._unreported.add(operator_id)

    def published(
        self, operator_id: str, regions: Sequence[RegionProgress], *, checkpoint_id: int
    ) -> None:
        """A decision's files are published: these are all regions that write by the operator."""
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
        """A run with other regions settles a checkpoint of those that are no more: nobody waits for
        them once its own are told of, which go on with what they had open."""
        for name in self._writers.get(operator_id, set()) - names:
            self._regions.pop(name, None)
            self._staged.pop(name, None)
        self._writers[operator_id] = names

    def _learn(
        self, told: RegionProgress, state: PartitionState | None, checkpoint_id: int
    ) -> None:
        name, now_s = told.region, self._clock()
        known = self._regions.get(name)
        if (
            known is None
            or known.watermark_ms != told.least_watermark_ms
            or (known.state != state and state is not None and state.has_rows)
        ):
            idle = _IdleTime(since_s=now_s, reported_s=now_s, checkpoint_id=checkpoint_id)
        elif told.is_completed:
            idle = known.idle.after(checkpoint_id, now_s=now_s)
        else:
            idle = known.idle
        self._regions[name] = _Region(
            state=state,
            is_completed=told.is_completed,
            has_splits=told.has_splits,
            watermark_ms=told.least_watermark_ms,
            idle=idle,
        )
        if state is not None:
            self._restore_marks(name, state)

    def _restore_marks(self, region: str, state: PartitionState) -> None:
        """What earlier runs marked; of its own marks a run knows more than any record."""
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
        """Whether anything waits for its mark."""
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
        """The partitions that are to be marked now."""
        with self._lock:
            return self._due()

    def _due(self, path: str | None = None) -> list[DuePartition]:
        """Of all partitions, or of one."""
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
        is_silent = timeout_s is not None and region.idle.idle_s >= timeout_s
        return RegionView(
            state=region.state,
            is_completed=region.is_completed,
            is_idle=is_silent or not region.has_splits,
            watermark_ms=region.watermark_ms,
        )

    def begin(self, due: DuePartition) -> bool:
        """Before the first policy runs; False when it is not due any more, as it was told by `due`.

        Files of it may have been staged since, or are even published or held.

        Rows that come from here on are late: of a policy that fails nobody knows whether readers
        were told, and its answer alone was lost.
        """
        with self._lock:
            if due not in self._due(due.path):
                return False
            self._begun.add(due.path)
            return True

    def undo(self, path: str) -> None:
        """No policy has told anybody. The store is asked once more before rows are taken."""
        with self._lock:
            self._begun.discard(path)
            self._seen.discard(path)

    def finish(self, due: DuePartition) -> None:
        """Every policy has run."""
        with self._lock:
            self._begun.discard(due.path)
            self._seen.discard(due.path)
            mine = self._marked.setdefault(due.path, {})
            for region, checkpoint_id in due.through.items():
                mine[region] = max(checkpoint_id, mine.get(region, -1))
            self._forget()

    def _forget(self) -> None:
        """Keep the newest marks, and those of partitions that a record still has as open."""
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
