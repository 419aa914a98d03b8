"""One region's query without Spark: its frame, batches, and a coordinator that answers at once."""

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql import DataFrame

from sluice.runtime.contracts import (
    AttemptRegistry,
    Coordinator,
    FrameWriter,
    RegionRegistration,
    StagedFrame,
    TaskScope,
    WriterFactory,
)
from sluice.runtime.errors import StreamError
from sluice.runtime.functions.at_most_once import DropBudget
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.model import offsets
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts, StageTimes
from sluice.runtime.model.checkpoint_record import Redistribution, RegionRecord, StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.microbatch.batch_strategies import (
    BatchStrategy,
    ChainedBatch,
    FilesBatch,
    PlannedBatch,
    UnwrittenRows,
)
from sluice.runtime.spark.microbatch.event_times import EventTimes
from sluice.runtime.spark.microbatch.region_query import RegionQuery, RegionSpec
from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough
from sluice.runtime.spark.tasks.region_tasks import RegionTasks, TaskResult
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

LOCATION = "spark/main/3"
ADDRESS = CoordinatorAddress(address="http://x", token="t", leader_session_id="s", job_uid="j")


@dataclass
class Context:
    """Spark's context: what the environment of a Python function is copied from."""

    environment: dict[str, str] = field(default_factory=dict)

    def getLocalProperty(self, key: str) -> str:
        return "run"

    def statusTracker(self) -> "Context":
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return []


@dataclass
class Session:
    """Spark's session, as far as it is asked."""

    sparkContext: Context = field(default_factory=Context)


@dataclass
class Batch:
    """The frame that Spark passes to the callback; counts what is run of it."""

    results: tuple[TaskResult, ...] = (TaskResult(),)
    runs: int = 0
    noops: int = 0
    mapped: int = 0
    is_hidden: bool = False
    error: Exception | None = None
    on_run: Callable[[], None] = lambda: None
    sparkSession: Session = field(default_factory=Session)
    sink_environment: dict[str, str] = field(default_factory=dict)
    schema: str = ""

    def where(self, condition: str) -> "Batch":
        self.is_hidden = True  # the one condition is that of `without_rows`
        return self

    def mapInArrow(self, task: object, schema: str) -> "Batch":
        self.mapped += 1
        self.sink_environment = dict(self.sparkSession.sparkContext.environment)
        return self

    def collect(self) -> list[list[bytes]]:
        self.runs += 1
        self.on_run()
        if self.error is not None:
            raise self.error
        return [[pickle.dumps(result)] for result in self.results]

    @property
    def write(self) -> "Batch":
        return self

    def format(self, name: str) -> "Batch":
        assert name == "noop"
        return self

    def mode(self, name: str) -> "Batch":
        return self

    def save(self) -> None:
        self.noops += 1


@dataclass
class Frame:
    """The region's frame, and the query that it becomes; keeps the callback."""

    id: str = "query-id"
    isActive: bool = True
    error: Exception | None = None
    callback: Callable[[DataFrame, int], None] = field(default=lambda *_: None)

    @property
    def writeStream(self) -> "Frame":
        return self

    def foreachBatch(self, callback: Callable[[DataFrame, int], None]) -> "Frame":
        self.callback = callback
        return self

    def queryName(self, name: str) -> "Frame":
        return self

    def outputMode(self, mode: str) -> "Frame":
        return self

    def option(self, name: str, value: str) -> "Frame":
        return self

    def start(self) -> "Frame":
        return self

    def exception(self) -> Exception | None:
        return self.error


@dataclass
class CountingWriter:
    """A frame writer whose state is how many frames it has written, and how often it was closed.

    Attributes:
        asked: whether it could write, as whom.
        error: what it answers to that.
    """

    rows: int = 0
    closed: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    error: StreamError | None = None
    given: list[tuple[StateEntry, ...]] = field(default_factory=list)

    def write(self, frame: object, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        self.given.append(scope.operator_states)
        return StagedFrame(rows=self.rows, operator_states=(written("files", len(self.given)),))

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        """See `FrameWriter.require_writable`."""
        self.asked.append((job_uid, operator_id))
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """See `FrameWriter.close`."""
        self.closed += 1


@dataclass
class Answers:
    """An accumulator that was added to."""

    value: Any = field(default_factory=list)


@dataclass
class Decisions:
    """A coordinator that commits at once, or says why not."""

    decided: set[BatchKey] = field(default_factory=set)
    told: list[object] = field(default_factory=list)
    refusal: StreamError | None = None
    region: RegionRecord | None = None
    counts: list[Mapping[str, RecordCounts]] = field(default_factory=list)
    stages: list[StageTimes | None] = field(default_factory=list)
    decide_by_s: float | None = None
    registered: list[RegionRegistration] = field(default_factory=list)

    def is_committed(self, batch: BatchKey) -> bool:
        raise NotImplementedError

    def is_decided(self, batch: BatchKey) -> bool:
        return batch in self.decided

    def require_newest(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def acknowledge(self, ack: Acknowledgement) -> None:
        self.region = ack.region
        self.decide_by_s = ack.decide_by_s
        self.counts.append(ack.counts)
        self.stages.append(ack.stages)
        self.told.append(("acknowledged", ack.batch))

    def await_committed(self, batch: BatchKey, *, timeout_s: float | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(("committed", batch))

    def register_region(self, registration: RegionRegistration) -> None:
        self.registered.append(registration)

    def fail(self, region: str, attempt_id: int, error: BaseException) -> None:
        self.told.append(("failed", error))


def split(start: int, end: int) -> SplitRange:
    """A range of the input's one partition."""
    return SplitRange(
        source_id="s", topic="in", topic_id="id", partition=0, start_offset=start, end_offset=end
    )


def written(operator_id: str, count: int) -> StateEntry:
    """An operator's state: how many frames it has written."""
    return StateEntry(
        operator_id=operator_id,
        state_name="count",
        kind="count",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=b"%d" % count,
    )


def barrier(checkpoint_id: int = 7, *, attempt_id: int = 3) -> Barrier:
    """Two records of the input."""
    return Barrier(
        checkpoint_id=checkpoint_id, region="main", attempt_id=attempt_id, splits=(split(3, 5),)
    )


class RegionWorld:
    """One region whose query has started."""

    def __init__(
        self,
        *,
        stateful: bool = False,
        mode: str = "update",
        repeats_result: bool = False,
        files: CountingWriter | None = None,
        answers: tuple[TaskResult, ...] = (),
        chained: bool = False,
        restored: tuple[StateEntry, ...] = (),
        functions: tuple[ChainedFunction, ...] = (),
        event_times: EventTimes | None = None,
        factories: Mapping[str, WriterFactory] | None = None,
        drops: DropBudget | None = None,
    ) -> None:
        self.now_ms = 0
        self.disk = Disk()
        self.coordinator = Decisions()
        self.frame = Frame()
        tasks = RegionTasks(
            address=ADDRESS, job_uid="j", region="main", attempt_id=3, factories=factories or {}
        )
        writers = {} if files is None else {"files": cast(FrameWriter, files)}
        strategy: BatchStrategy = ChainedBatch() if chained else PlannedBatch(tasks)
        if files is not None:
            strategy = FilesBatch(
                ChainedBatch()
                if chained
                else PlannedBatch(tasks)
                if factories
                else UnwrittenRows(),
                writers,
                FilePassThrough(columns=None, results=cast(Any, Answers(list(answers)))),
                job_uid="j",
                registry=cast(Coordinator, self.coordinator),
            )
        spec = RegionSpec(
            tasks=tasks,
            location=LOCATION,
            source_name="source_s",
            strategy=strategy,
            stateful=stateful,
            output_mode=mode,
            repeats_result=repeats_result,
            files=writers,
            operator_states=restored,
            functions=functions,
            event_times=event_times,
            frame_name="windows",
            drops=drops,
        )
        fs = FakeFileSystem(self.disk, uri="file:///checkpoints")
        self.query = RegionQuery(
            spec, cast(Coordinator, self.coordinator), fs, wall_ms=lambda: self.now_ms
        )
        self.query.start(cast(DataFrame, self.frame))

    def batch(
        self,
        batch_id: int,
        given: Barrier,
        *,
        initial: bool = False,
        results: tuple[TaskResult, ...] = (TaskResult(),),
        error: Exception | None = None,
        lasts_ms: int = 0,
    ) -> Batch:
        """Spark logs the offset, then calls back."""
        offset = json.dumps(offsets.encode(given, initial=initial))
        entry = f"v2\n{{}}\nsource_s:{offset}"
        self.disk.files[f"{LOCATION}/offsets/{batch_id}"] = entry.encode()
        made = Batch(results=results, error=error, on_run=lambda: self._pass(lasts_ms))
        self.frame.callback(cast(DataFrame, made), batch_id)
        return made

    def _pass(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
