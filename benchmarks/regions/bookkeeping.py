"""The coordinator's own cost for each checkpoint and region, without Spark and a broker.

It runs the production coordinator with its threads, syncs records to a local disk, and uses a sink
that commits at once. A thread for each region polls for the barrier, registers attempts,
acknowledges and waits, as its query and its tasks do.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.measuring.figures import Figure
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.contracts import (
    Backlog,
    CommitOutcome,
    CommitReport,
    Committer,
    RegisteredAttempt,
    SinkContext,
    SweepReport,
    SweepView,
)
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import StreamError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import (
    OperatorNode,
    Redistribution,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey, SplitRange

__all__ = ["measure"]

_SPLITS_EACH = 2
_CHECKPOINTS = 200
_WARM = 20
_START_S = 60.0
_POLL_S = 0.2
_SOURCE, _SINK = "source", "sink"
_HANDLE = bytes(200)  # a transaction's handle is about as long


def measure(*, repeat: int, regions: Sequence[int] = (1, 8, 16)) -> list[Figure]:
    """Measure each number of regions in turn; the goal is for eight."""
    found: dict[int, list[_Sample]] = {count: [] for count in regions}
    for _ in range(repeat):
        for count in regions:
            found[count].append(_sample(count))
    return [figure for count in regions for figure in _figures(count, found[count])]


def _figures(regions: int, samples: Sequence["_Sample"]) -> list[Figure]:
    goal = 5.0 if regions > 1 else None
    what = f"bookkeeping of a checkpoint of {regions} regions" if regions > 1 else "of one region"
    return [
        Figure(
            what=f"{what}: processor time of the driver",
            runs=[sample.cpu_ms for sample in samples],
            unit="ms per region",
            goal="" if goal is None else "<= 5",
            most=goal,
            note=f"{_CHECKPOINTS} checkpoints each, the regions' own threads included",
        ),
        Figure(
            what="  from the last acknowledgement to the marker, by the clock",
            runs=[sample.wall_ms for sample in samples],
            unit="ms per region",
            goal="" if goal is None else "<= 5",
            most=goal,
            note="record and marker synced to the disk",
        ),
    ]


class _Sample:
    """A listener that measures the time of checkpoints."""

    def __init__(self, regions: int) -> None:
        self._regions = regions
        self._walls: list[float] = []
        self._began: tuple[int, float] | None = None
        self.cpu_ms = 0.0
        self.done = threading.Event()

    def on_progress(self, progress: Progress) -> None:
        """See `sluice.runtime.coordinator.shell.action_dispatcher.ProgressListener`."""
        if progress.state is not State.MARKED or self.done.is_set():
            return
        if progress.checkpoint_id == _WARM:
            self._began = (progress.checkpoint_id, time.process_time())
        if self._began is None or progress.marked_s is None or progress.acked_s is None:
            return
        self._walls.append(progress.marked_s - progress.acked_s)
        count = progress.checkpoint_id - self._began[0]
        if count >= _CHECKPOINTS:
            spent_s = time.process_time() - self._began[1]
            self.cpu_ms = spent_s * 1000 / count / self._regions
            self.done.set()

    @property
    def wall_ms(self) -> float:
        """The median of a checkpoint, divided by the regions."""
        return statistics.median(self._walls) * 1000 / self._regions


def _sample(regions: int) -> _Sample:
    sample = _Sample(regions)
    plan = JobPlan(
        name="bookkeeping",
        regions=tuple(
            RegionPlan(name=f"in-{number}", source_ids=(_SOURCE,), sink_ids=(_SINK,), chained=True)
            for number in range(regions)
        ),
        graph=(
            OperatorNode(operator_id=_SOURCE, name="in", kind="source", upstream=()),
            OperatorNode(operator_id=_SINK, name="out", kind="sink", upstream=(_SOURCE,)),
        ),
    )
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        coordinator = BarrierCoordinator(
            plan,
            open_store(str(Path(directory) / "checkpoint")),
            sinks={_SINK: _InstantSink()},
            sources={_SOURCE: _EndlessSource(regions * _SPLITS_EACH)},
            settings=CheckpointSettings(
                interval_s=0.01,
                discovery_interval_s=None,
                pace_epochs=False,
                handler=RegionalCheckpointHandler(),
            ),
            listeners=[sample],
        )
        with coordinator:
            started = coordinator.start(_START_S)
            threads = [
                threading.Thread(
                    target=_live, args=(coordinator, name, started.attempt_id), daemon=True
                )
                for name in started.regions
            ]
            for thread in threads:
                thread.start()
            if not sample.done.wait(_START_S * 2):
                raise RuntimeError("the coordinator did not get through its checkpoints in time")
    return sample


def _live(coordinator: BarrierCoordinator, region: str, attempt_id: int) -> None:
    """A region's query and tasks, without work of their own."""
    batch_id = 0
    while True:
        try:
            barrier = coordinator.poll_barrier(region, attempt_id, wait_s=_POLL_S)
            if barrier is not None:
                batch_id += 1
                _run_batch(coordinator, barrier, batch_id)
        except StreamError:
            return  # the measurement is over


def _run_batch(coordinator: BarrierCoordinator, barrier: Barrier, batch_id: int) -> None:
    batch = BatchKey(region=barrier.region, attempt_id=barrier.attempt_id, batch_id=batch_id)
    entries = []
    for task in range(_SPLITS_EACH):
        name = f"{barrier.region}|{batch_id}|{task}"
        coordinator.register(RegisteredAttempt(batch=batch, operator_id=_SINK, resource=name))
        entries.append(
            StateEntry(
                operator_id=_SINK,
                state_name="committables",
                kind="kafka-transaction",
                version=1,
                redistribution=Redistribution.SPLIT,
                payload=name.encode() + _HANDLE,
            )
        )
    coordinator.is_decided(batch)
    record = RegionRecord(
        region=barrier.region,
        attempt_id=barrier.attempt_id,
        batch_id=batch_id,
        splits=barrier.splits,
        committables=tuple(entries),
    )
    ack = Acknowledgement(batch=batch, checkpoint_id=barrier.checkpoint_id, region=record)
    coordinator.acknowledge(ack)
    coordinator.await_committed(batch)


class _EndlessSource:
    """A `SplitEnumerator` with a hundred new records at each barrier."""

    def __init__(self, splits: int) -> None:
        self._splits = splits

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        return tuple(_split(number, 0, 0) for number in range(self._splits))

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        pass

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        return ()

    def adopt(self, positions: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        return tuple(positions)

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        return tuple(ranges)

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
    ) -> tuple[SplitRange, ...]:
        return tuple(ranges)

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        return tuple(_split(s.partition, s.end_offset, s.end_offset + 100) for s in positions)

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        return False

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        return None

    def committed(self, positions: Sequence[SplitRange]) -> None:
        pass

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        return None

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        """See `SplitEnumerator.measure`."""
        return {}

    def close(self) -> None:
        pass


def _split(partition: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id=_SOURCE,
        topic="in",
        topic_id="0" * 22,
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


class _InstantSink:
    """A `SinkCoordinator` and its committer, without a remote system."""

    def __init__(self) -> None:
        self.committer: Committer = self

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        return {}

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        pass

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        return SweepReport(aborted=0)

    def renew(self) -> None:
        pass

    def close(self) -> None:
        pass

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        return [CommitReport(outcome=CommitOutcome.COMMITTED) for _ in committables]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        return [CommitReport(outcome=CommitOutcome.ABORTED) for _ in committables]

    def await_visible(self, *, timeout_s: float) -> bool:
        return True
