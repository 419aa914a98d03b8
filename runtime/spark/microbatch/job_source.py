"""The streaming source of a Job's region: a thin reader that polls the coordinator for barriers.

The coordinator resolves offsets, discovers partitions and knows topic ids (`SplitEnumerator`). This
reader turns a barrier into Spark's offset, and an offset into tasks. A `RangeTask` is the work of
such a task: a chained region's tasks copy their ranges into the sinks, all in one Python worker.
"""

import hashlib
import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from sluice.runtime.contracts import SplitReader
from sluice.runtime.errors import UnreachableError
from sluice.runtime.functions.at_most_once import offsets_in
from sluice.runtime.keyed.kept_state import KeyedBatch
from sluice.runtime.model import offsets
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.process.worker_memory import tidy_after_task
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.spark.tasks.region_tasks import Chain

__all__ = [
    "CopyRanges",
    "RangeTask",
    "ReadRanges",
    "SourcePlan",
    "assign",
    "assign_all",
    "data_source_for",
    "probe_for",
]

log = logging.getLogger(__name__)

_POLL_S = 0.2
# Spark polls again at once; a runner that waited longer would outlive a driver that was killed.
_DEADLINE_S = 5.0
_WORTH_A_TASK = 20_000


class RangeTask(Protocol):
    """The work of one task of the source. Picklable."""

    def most_tasks(self, splits: Sequence[SplitRange]) -> int:
        """Source runner: the most tasks that a batch of these splits gets."""
        ...

    def run(
        self, checkpoint_id: int, splits: tuple[SplitRange, ...], keyed: KeyedBatch | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Executor: do the work; yields the rows for Spark."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRanges(RangeTask):
    """Reads the records for Spark's planner.

    A task costs Spark, two Python workers and a transaction as much as thousands of records. So in
    one process few records get no more tasks than run at once. The executors of a cluster may
    still be starting, so their number is unknown: there each split gets a task, as Spark's own
    Kafka source does it.

    Attributes:
        reader: of the source.
        parallelism: tasks that run at once; None: unknown.
    """

    reader: SplitReader
    parallelism: int | None

    def most_tasks(self, splits: Sequence[SplitRange]) -> int:
        if self.parallelism is None:
            return len(splits)
        return max(self.parallelism, offsets_in(splits) // _WORTH_A_TASK)

    def run(
        self, checkpoint_id: int, splits: tuple[SplitRange, ...], keyed: KeyedBatch | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self.reader.read(splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRanges(RangeTask):
    """Copies the records into the sinks: the work of a chained region.

    Attributes:
        chain: pickled `Chain`. In bytes, because only tasks may need the modules of the user's
            functions, and each attempt waits for the source runner, which must not import them.
        parallelism: the most tasks of a batch; that many run at once.
    """

    chain: bytes = field(repr=False)  # it holds the token and the client's settings
    parallelism: int

    def most_tasks(self, splits: Sequence[SplitRange]) -> int:
        return self.parallelism

    def run(
        self, checkpoint_id: int, splits: tuple[SplitRange, ...], keyed: KeyedBatch | None = None
    ) -> Iterator[pa.RecordBatch]:
        chain: Chain = pickle.loads(self.chain)  # written by `RegionLauncher`
        return chain.copy_ranges(checkpoint_id, splits, keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Everything that the source runner and the tasks of one region's source need. Picklable.

    Attributes:
        format_name: name of the registered data source; one per region and run.
        address: of the coordinator's service.
        region, attempt_id: the attempt that polls for barriers.
        initial_offset: JSON of the restored position; a first start reads nothing before it.
        ranges: the work of a task.
        schema: of the rows; as DDL where that means the same in every session.
        replayed: the rest of the batch that Spark runs again, if there is one.
    """

    format_name: str
    address: CoordinatorAddress
    region: str
    attempt_id: int
    initial_offset: str
    ranges: RangeTask
    schema: StructType | str
    replayed: Barrier | None = None

    def left_of(self, batch: Barrier) -> tuple[SplitRange, ...]:
        """The batch's ranges as its barrier has them. For a batch that Spark runs again, the ranges
        that the driver found at the attempt's start: records that are gone cannot be read."""
        again = self.replayed
        if again is None or (again.attempt_id, again.checkpoint_id) != (
            batch.attempt_id,
            batch.checkpoint_id,
        ):
            return batch.splits
        return again.splits


def assign(splits: Sequence[SplitRange], tasks: int) -> list[tuple[SplitRange, ...]]:
    """Spread splits over at most ``tasks`` tasks, the largest first onto the least loaded one."""
    busy = [split for split in splits if not split.is_empty]
    assigned: list[list[SplitRange]] = [[] for _ in range(min(tasks, len(busy)))]
    loads = [0] * len(assigned)
    for split in sorted(busy, key=lambda s: s.start_offset - s.end_offset):
        least = loads.index(min(loads))
        assigned[least].append(split)
        loads[least] += split.end_offset - split.start_offset
    return [tuple(each) for each in assigned]


def assign_all(splits: Sequence[SplitRange], tasks: int) -> list[tuple[SplitRange, ...]]:
    """Spread all splits of a keyed region, also those without records: their timers may be due.
    A split stays in its task from batch to batch, so that a worker may still have its state."""
    ordered = sorted(splits, key=lambda split: split.key)
    return [tuple(ordered[at::tasks]) for at in range(min(tasks, len(ordered)))]


class JobStreamReader(DataSourceStreamReader):
    """Source runner: one long-lived driver-side Python process per run of a region's query.

    Args:
        plan: of the region.
        client: to the coordinator; None: made from the plan's address.
    """

    def __init__(self, plan: SourcePlan, *, client: CoordinatorClient | None = None) -> None:
        self._plan = plan
        self._client = client or CoordinatorClient(plan.address, deadline_s=_DEADLINE_S)

    def initialOffset(self) -> dict[str, Any]:
        """The restored position: numbers, resolved before the first record
        (`start-offsets-once`)."""
        offset: dict[str, Any] = json.loads(self._plan.initial_offset)
        return offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The barrier after ``start`` if one is due; else ``start``, and Spark runs no batch."""
        del limit  # the barrier is the limit
        try:
            barrier = self._client.poll_barrier(
                self._plan.region, self._plan.attempt_id, wait_s=_POLL_S
            )
        except UnreachableError as err:
            # The coordinator runs in the process that started this one. It may be late while it
            # waits for brokers, and the only thing to do is to poll again.
            log.warning("no answer about a barrier yet: region=%s error=%s", self._plan.region, err)
            return start
        return start if barrier is None else offsets.encode(barrier)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks of a batch, from ``end`` alone (`restore-by-attempt` and `start-offsets-once`);
        equal offsets read nothing."""
        if offsets.is_initial(end) or start == end:
            return []
        barrier = offsets.decode(end)
        splits = self._plan.left_of(barrier)
        most = self._plan.ranges.most_tasks(splits)
        if barrier.new_state is None:
            tasks = assign(splits, most)
            return [InputPartition((barrier.checkpoint_id, ranges)) for ranges in tasks]
        return [
            InputPartition((barrier.checkpoint_id, ranges, KeyedBatch.of(barrier, ranges)))
            for ranges in assign_all(splits, most)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor: run the task; Spark's interface fixes this name, although the tasks of a
        chained region also write (`CopyRanges`)."""
        yield from self._plan.ranges.run(*partition.value)
        tidy_after_task()

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan}  # a task opens no connection to the coordinator

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._plan = state["_plan"]


class _JobSource(DataSource):
    plan: SourcePlan

    @classmethod
    def name(cls) -> str:
        return cls.plan.format_name

    def schema(self) -> StructType | str:
        return self.plan.schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        del schema
        return JobStreamReader(self.plan)


def data_source_for(plan: SourcePlan) -> type[DataSource]:
    """A data source class that contains its plan, so that the plan needs no Spark options."""

    class JobSource(_JobSource):
        pass

    JobSource.plan = plan
    return JobSource


class _ProbeSource(DataSource):
    ddl: str

    @classmethod
    def name(cls) -> str:
        """Derived from its columns. Jobs that start at once in one session find each other's
        sources by name, and equal names then mean equal columns."""
        return f"sluice-probe-{hashlib.sha256(cls.ddl.encode()).hexdigest()[:16]}"

    def schema(self) -> StructType | str:
        return self.ddl


def probe_for(schema_ddl: str) -> type[DataSource]:
    """A source with columns and no reader: Spark can analyse frames over it, but not run them."""

    class ProbeSource(_ProbeSource):
        pass

    ProbeSource.ddl = schema_ddl
    return ProbeSource
