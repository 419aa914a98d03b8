"""Partition commit without Spark: regions write and publish, a run is killed and begun again."""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.connectors.hdfs.partition_commit.marker import PartitionMarker
from sluice.connectors.hdfs.partition_commit.open_partitions import PartitionLedger
from sluice.connectors.hdfs.partition_commit.partition_state import encode_state, state_in
from sluice.connectors.hdfs.partition_commit.policies import RunPolicy
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit, PartitionMark
from sluice.runtime.contracts import RegionProgress, SinkContext
from sluice.runtime.model.checkpoint_record import RegionStatus, StateEntry

__all__ = ["HOUR_MS", "MarkedSink", "by_time", "hour"]

HOUR_MS = 3_600_000
TARGET = "fake:///data/orders"
CONTEXT = SinkContext(
    job_uid="job",
    job_name="orders",
    operator_id="op",
    checkpoint_uri="fake:///checkpoint",
    leader_session_id="s",
)


def hour(number: int) -> str:
    """An hourly partition, counted from 1970."""
    return f"dt=1970-01-01/hour={number}"


def by_time(**changes: Any) -> PartitionCommit:
    """Hourly partitions, marked an hour after they begin."""
    return PartitionCommit(
        **{
            "trigger": "partition-time",
            "delay_s": 3600.0,
            "timestamp_pattern": "$dt $hour:00:00",
            **changes,
        }
    )


@dataclass(slots=True)
class MarkedSink:
    """One sink of several regions, as coordinator and callbacks use it. Time stands still.

    Attributes:
        commit: what the user asked for.
        regions: its regions.
        success_files: partitions that the store has as marked.
        refuses: policies fail while it is set, with ``refusal``: nobody knows what came of it.
        loses_answers: they do their work while it is set, and fail all the same.
        is_newest_run: see `PartitionMarker`; of the present run.
        tried: partitions that policies were asked to mark, whatever came of it.
        marks: what policies were told, in order; of all runs.
        watermarks: by region.
        target: of the present run.
        records: each region's states in its last decided record.
    """

    commit: PartitionCommit
    regions: tuple[str, ...] = ("main",)
    now_ms: int = 0
    now_s: float = 0.0
    refuses: bool = False
    refusal: Exception = field(default_factory=lambda: OSError("not now"))
    loses_answers: bool = False
    is_newest_run: Callable[[], bool] = lambda: True
    tried: set[str] = field(default_factory=set)
    marks: list[PartitionMark] = field(default_factory=list)
    success_files: set[str] = field(default_factory=set)
    watermarks: dict[str, int | None] = field(default_factory=dict)
    target: str = TARGET
    records: dict[str, tuple[StateEntry, ...]] = field(default_factory=dict)
    checkpoint_id: int = 0
    ledger: PartitionLedger = field(init=False)
    marker: PartitionMarker = field(init=False)
    _staged: dict[str, tuple[StateEntry, ...]] = field(default_factory=dict)
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new run: nothing is known but what records and the store hold."""
        self._staged.clear()
        self.ledger = PartitionLedger(
            self.commit,
            target=self.target,
            clock=lambda: self.now_s,
            wall_ms=lambda: self.now_ms,
        )
        self.marker = PartitionMarker(
            self.ledger,
            [("policy", self._policy())],
            context=CONTEXT,
            target=self.target,
            clock=lambda: self.now_s,
            is_newest_run=lambda: self.is_newest_run(),
        )

    def _policy(self) -> RunPolicy:
        def run(mark: PartitionMark) -> None:
            self.tried.add(mark.partition)
            if self.refuses:
                raise self.refusal
            self.marks.append(mark)
            if self.commit.has_success_file:
                self.success_files.add(mark.partition)
            if self.loses_answers:
                raise TimeoutError("no answer")

        return run

    def cut(self) -> int:
        """The checkpoint that a region's next batch is cut for."""
        return next(self._ids)

    def stage(
        self,
        region: str,
        *paths: str,
        pending: Collection[str] = (),
        checkpoint_id: int | None = None,
    ) -> None:
        """A batch of the region, up to its acknowledgement; cut just now, or long ago."""
        checkpoint_id = self.cut() if checkpoint_id is None else checkpoint_id
        first_written = self.ledger.first_written(paths)
        state = self.ledger.stage(
            region,
            previous=state_in(self.records.get(region, ()), target=self.target),
            written=set(paths),
            pending=pending,
            found_marked=first_written & self.success_files if self.commit.has_success_file else (),
            checkpoint_id=checkpoint_id,
        )
        self._staged[region] = (encode_state(state, operator_id="op"),)

    def decide(self, *, skipped: Collection[str] = ()) -> None:
        """A checkpoint: what is staged is in the records, and published."""
        for region in set(self._staged) - set(skipped):
            self.records[region] = self._staged.pop(region)
        self.checkpoint_id = next(self._ids)
        self.skipped = skipped

    skipped: Collection[str] = ()
    without_splits: Collection[str] = ()

    def tell(self) -> None:
        """The coordinator tells what the last decision says; the marker looks."""
        self.tell_ledger()
        self.marker.round()

    def tell_ledger(self) -> None:
        """The coordinator tells; the marker is busy."""
        self.ledger.published(
            "op",
            [
                RegionProgress(
                    region=region,
                    status=RegionStatus.SKIPPED
                    if region in self.skipped
                    else RegionStatus.COMPLETED,
                    has_splits=region not in self.without_splits,
                    least_watermark_ms=self.watermarks.get(region),
                    operator_states=self.records.get(region, ()),
                )
                for region in self.regions
            ],
            checkpoint_id=self.checkpoint_id,
        )

    def epoch(self, written: Mapping[str, Collection[str]], **watermarks: int | None) -> None:
        """All of a checkpoint: these regions write, and come to these watermarks."""
        for region, paths in written.items():
            self.stage(region, *paths)
        self.watermarks |= watermarks
        self.decide()
        self.tell()

    def pass_s(self, seconds: float) -> None:
        """Time goes by, and the marker looks."""
        self.now_s += seconds
        self.now_ms += round(1000 * seconds)
        self.marker.round()

    @property
    def told(self) -> list[tuple[str, bool]]:
        """Partition, and whether late, of each mark."""
        return [(mark.partition, mark.is_late) for mark in self.marks]
