"""The streaming source of a Job's region: a thin reader that asks the coordinator for barriers.

Offsets, discovery and topic ids are the coordinator's business (`SplitEnumerator`); this reader
turns a barrier into Spark's offset and an offset into tasks. A chained region's tasks do all their
work inside the read: one Python worker each, whose transactional ids are all that it needs.
"""

import hashlib
import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from sluice.runtime.contracts import SplitReader
from sluice.runtime.errors import UnreachableError
from sluice.runtime.functions.at_most_once import offsets_in
from sluice.runtime.model import offsets
from sluice.runtime.model.model import Barrier, SplitRange
from sluice.runtime.process.gc_freeze import freeze_once
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.spark.tasks.region_tasks import Chain

__all__ = ["SourcePlan", "data_source_for", "deal", "probe_for"]

log = logging.getLogger(__name__)

_POLL_S = 0.2
# Spark asks again at once; a runner that waited longer would outlive a driver that was killed.
_DEADLINE_S = 5.0
_WORTH_A_TASK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What the source runner and the read tasks of one region need. Picklable.

    Attributes:
        format_name: under which the data source is registered; one per region and run.
        address: of the coordinator's service.
        region, attempt_id: whose barriers to ask for.
        initial_offset: JSON of the restored position; a first start reads nothing before it.
        tasks: at most so many chained tasks per batch; so many run at once.
        shares_tasks: splits that are read for Spark may share a task, too, where they hold little.
        chain: pickled `Chain`, which yields results instead of records; None: not chained. In
            bytes, for only tasks may need the modules of the user's functions, and the source
            runner, which each new life waits for, shall not import a client that it has no use for.
        reader: reads the records, where not chained; else None.
        schema: of the rows; as DDL where that means the same in every session.
        replayed: what is left of the batch that Spark runs once more, where there is one.
    """

    format_name: str
    address: CoordinatorAddress
    region: str
    attempt_id: int
    initial_offset: str
    tasks: int
    shares_tasks: bool
    chain: bytes | None = field(repr=False)  # with the token and the client's settings
    reader: SplitReader | None
    schema: StructType | str
    replayed: Barrier | None = None

    def left_of(self, batch: Barrier) -> tuple[SplitRange, ...]:
        """Its ranges, as they were cut; or of the one that is run once more, as the driver found
        them when this life began: some of it may be gone, and would be waited for."""
        again = self.replayed
        if again is None or (again.attempt_id, again.checkpoint_id) != (
            batch.attempt_id,
            batch.checkpoint_id,
        ):
            return batch.splits
        return again.splits


def deal(splits: Sequence[SplitRange], tasks: int) -> list[tuple[SplitRange, ...]]:
    """Spread splits over at most ``tasks`` tasks, the largest first onto the least loaded one."""
    busy = [split for split in splits if not split.is_empty]
    io_executor: list[list[SplitRange]] = [[] for _ in range(min(tasks, len(busy)))]
    loads = [0] * len(io_executor)
    for split in sorted(busy, key=lambda s: s.start_offset - s.end_offset):
        least = loads.index(min(loads))
        io_executor[least].append(split)
        loads[least] += split.end_offset - split.start_offset
    return [tuple(hand) for hand in io_executor]


class JobStreamReader(DataSourceStreamReader):
    """Source runner: one long-lived driver-side Python process per run of a region's query.

    Args:
        plan: of the region.
        client: asks for barriers; None: one that asks the plan's coordinator.
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
            # The coordinator lives in the process that started this one; while it waits for
            # brokers that do not answer it may be late, and asking again is all there is to do.
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
        io_executor = deal(splits, self._most_tasks(splits))
        return [InputPartition((barrier.checkpoint_id, hand)) for hand in io_executor]

    def _most_tasks(self, splits: Sequence[SplitRange]) -> int:
        """Records that Spark processes are read by a task for each split, as by its own source.

        But a task costs Spark, two Python workers and a transaction as much as thousands of
        records: where there are few, no more tasks than run at once.
        """
        if self._plan.chain is not None:
            return self._plan.tasks
        if not self._plan.shares_tasks:
            return len(splits)
        return max(self._plan.tasks, offsets_in(splits) // _WORTH_A_TASK)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor: the records of the ranges, or what became of them."""
        checkpoint_id, splits = partition.value
        if self._plan.reader is not None:
            yield from self._plan.reader.read(splits)
        elif self._plan.chain is not None:
            chain: Chain = pickle.loads(self._plan.chain)  # written by `RegionLauncher`
            yield from chain.run(checkpoint_id, splits)
        freeze_once()

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
    """A data source class that carries its plan: nothing of it passes through Spark's options."""

    class JobSource(_JobSource):
        pass

    JobSource.plan = plan
    return JobSource


class _ProbeSource(DataSource):
    ddl: str

    @classmethod
    def name(cls) -> str:
        """Of its columns: jobs that start at once in one session take each other's for their own,
        and then these are the same."""
        return f"sluice-probe-{hashlib.sha256(cls.ddl.encode()).hexdigest()[:16]}"

    def schema(self) -> StructType | str:
        return self.ddl


def probe_for(schema_ddl: str) -> type[DataSource]:
    """A source with columns and no reader: frames over it can be looked at, not run."""

    class ProbeSource(_ProbeSource):
        pass

    ProbeSource.ddl = schema_ddl
    return ProbeSource
