"""The drop-in source of frames: ``spark.read`` with ``format("sluice-kafka")``.

Spark plans the tasks of a loaded frame once and keeps them for all later runs of that frame. So a
task requests its ranges when it runs, from the service in the user's process. The service resolves
starts and ends once for each run, and all tasks of the run get the same answer.
"""

import itertools
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluice.connectors.kafka.client.client_options import Role, translate_names
from sluice.connectors.kafka.client.client_tuning import (
    ReadSettings,
    claimed_by_reader,
    read_settings,
)
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.source.splits import key_of, split_evenly
from sluice.runtime.errors import ConfigError, FencedError
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.payloads import number, text
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.task_memory import TaskMemory, settings_within
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

__all__ = [
    "FrameRuns",
    "KafkaBatchReader",
    "open_enumerator",
    "range_of_task",
    "split_reader",
    "tasks_of",
]

_KEY = "kafka-frames"
_SOURCE_ID = "sluice-kafka"
_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 15.0  # an unreachable cluster is reported within 30 s
_CALL_TIMEOUT_S = 60.0
_MOST_FRAMES = 10_000
_MOST_RUNS = 1_000  # of each frame

Tasks = Sequence[Sequence[SplitRange]]


def open_enumerator(options: SourceOptions, *, bounded: bool) -> KafkaSplitEnumerator:
    """The driver's side of a drop-in source."""
    return KafkaSplitEnumerator(
        options,
        KafkaCluster(options.connection, read_committed=options.read_committed),
        source_id=_SOURCE_ID,
        group_id=options.group_name(f"spark-{options.subscription}"),
        bounded=bounded,
    )


def split_reader(options: SourceOptions, columns: tuple[str, ...]) -> KafkaSplitReader:
    """The executor's side of a drop-in source."""
    return KafkaSplitReader(
        connection=options.connection,
        columns=columns,
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        no_progress_timeout_s=options.no_progress_timeout_s,
        settings=_read_settings(options),
        hot_path=options.hot_path,
    )


def _read_settings(options: SourceOptions) -> ReadSettings:
    """Settings for tasks that only read."""
    own = translate_names(options.connection.options, Role.CONSUMER)
    claimed = claimed_by_reader(own)
    return settings_within(
        options.task_memory_mib,
        lambda mib: read_settings(TaskMemory.of_mib(mib, claimed_bytes=claimed, sinks=0), own),
    )


def tasks_of(options: SourceOptions, ranges: Sequence[SplitRange]) -> Tasks:
    """The ranges of each read task."""
    parts = split_evenly(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [(split,) for split in parts]


def _resolve(options: SourceOptions) -> tuple[SplitRange, ...]:
    enumerator = open_enumerator(options, bounded=True)
    try:
        start = enumerator.resolve_start(timeout_s=_START_TIMEOUT_S)
        ranges = enumerator.cut_to_ends(start, max_records=None, timeout_s=_TIMEOUT_S, whole=True)
        enumerator.require_readable_ends(ranges)
    finally:
        enumerator.close()
    return ranges


class KafkaBatchReader(DataSourceReader):
    """``spark.read``. `partitions` runs in the driver, once for each loaded frame; `read` in
    executors.

    Args:
        options: as the user gave them.
        columns: of the frame.
        service: in the user's process; None: later runs read the ranges of the first run.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        columns: tuple[str, ...],
        service: CoordinatorAddress | None,
    ) -> None:
        self._given = dict(options.items())
        self._options = SourceOptions.of(options, bounded=True, stream=False)
        self._split_reader = split_reader(self._options, columns)
        self._service = service
        self._frame_id = uuid.uuid4().hex

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks, by the present ranges."""
        # Without any task, Spark would add one without a value.
        tasks = tasks_of(self._options, _resolve(self._options)) or [()]
        if self._service is None:
            return [InputPartition(ranges) for ranges in tasks]
        self._call("load", {"options": self._given, "tasks": to_json(tuple(map(tuple, tasks)))})
        return [InputPartition(index) for index in range(len(tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the task's ranges of this run."""
        ranges = partition.value
        if self._service is not None:
            found = self._call("ranges", {"run": _run_id(), "task": partition.value})
            ranges = from_json(tuple[SplitRange, ...], found)
        yield from self._split_reader.read(ranges)

    def _call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        assert self._service is not None
        with CoordinatorClient(self._service) as client:
            message = {"frame": self._frame_id, **payload}
            return client.query(_KEY, call, message, timeout_s=_CALL_TIMEOUT_S)


def _run_id() -> str:
    """A name that all tasks of a run share, also those that run again; a later run has another."""
    context = TaskContext.get()
    assert context is not None
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"stage-{context.stageId()}" if execution is None else f"query-{execution}"


def range_of_task(task: int, tasks: Tasks, ranges: Sequence[SplitRange]) -> tuple[SplitRange, ...]:
    """The part of a run's ranges that a planned task reads. Pure.

    A partition belongs to the same tasks in all runs. So records stay whole and single even if
    Spark combines tasks of several runs, as it does when it recomputes a part of a cached frame.
    If several tasks share a partition, their inner bounds stay as planned. A partition without
    planned records belongs to the task that its name hashes to.
    """
    planned: dict[PartitionKey, list[tuple[int, SplitRange]]] = {}
    for index, split in ((i, split) for i, splits in enumerate(tasks) for split in splits):
        planned.setdefault(key_of(split), []).append((index, split))
    found: list[SplitRange] = []
    for split in ranges:
        default = [(zlib.crc32(split.name.encode()) % len(tasks), split)]
        parts = planned.get(key_of(split), default)
        inner = (part.end_offset for _, part in parts[:-1])
        bounds = (
            split.start_offset,
            *(min(max(end, split.start_offset), split.end_offset) for end in inner),
            split.end_offset,
        )
        found += [
            replace(split, start_offset=start, end_offset=end)
            for (index, _), (start, end) in zip(parts, itertools.pairwise(bounds), strict=True)
            if index == task and start < end
        ]
    return tuple(found)


_Run = tuple[str, int]  # kind and number; numbers of a kind rise


@dataclass(slots=True, kw_only=True)
class _Frame:
    """A loaded frame and its newest runs.

    Attributes:
        runs: the least recently used first.
        forgotten: highest number of the runs that were removed, by kind.
    """

    options: SourceOptions
    tasks: Tasks
    runs: "OrderedDict[_Run, Future[tuple[SplitRange, ...]]]" = field(default_factory=OrderedDict)
    forgotten: dict[str, int] = field(default_factory=dict)

    def find(self, run: _Run) -> tuple[Future[tuple[SplitRange, ...]], bool]:
        """The run's answer, and whether the caller must resolve it.

        Raises:
            FencedError: the run may have had an answer, which was removed.
        """
        future = self.runs.get(run)
        is_first = future is None
        kind, count = run
        if is_first and count <= self.forgotten.get(kind, -1):
            raise FencedError(
                "the ranges of this run of a loaded frame are no longer known",
                {"run": f"{kind}-{count}", "later_runs": f"{_MOST_RUNS} or more"},
                "Run the query again. Load the frame once for each query that uses it.",
            )
        self.runs[run] = future = future or Future()
        self.runs.move_to_end(run)
        while len(self.runs) > _MOST_RUNS:
            (kind, count), _ = self.runs.popitem(last=False)
            self.forgotten[kind] = max(count, self.forgotten.get(kind, -1))
        return future, is_first


class FrameRuns:
    """Resolves the ranges of each run of each loaded frame. Driver, service threads.

    Implements `sluice.runtime.service.coordinator_app.QueryHandler`. Keeps the newest frames, and
    the newest runs of each, only. A task of an older one is refused: other ends than those of the
    run's first tasks would lose or double records.
    """

    key = _KEY
    """Path under which `sluice.install` mounts it."""

    def __init__(self) -> None:
        self._frames: OrderedDict[str, _Frame] = OrderedDict()
        self._lock = Lock()

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Register a frame (``load``), or return a task's ranges of a run (``ranges``).

        Raises:
            ConfigError: the message is not of this version of Sluice.
            FencedError: the frame or its run is not known here, or not any more.
            StreamError: the ranges cannot be resolved; as of the first run.
        """
        try:
            frame_id = text(payload["frame"])
            if call == "load":
                options = {text(name): text(value) for name, value in payload["options"].items()}
                tasks = from_json(tuple[tuple[SplitRange, ...], ...], payload["tasks"])
                parsed = SourceOptions.of(options, bounded=True, stream=False)
                frame = _Frame(options=parsed, tasks=tasks)
                run, task = ("", 0), 0
            else:
                frame = self._frame(frame_id)
                kind, _, count = text(payload["run"]).rpartition("-")
                run, task = (kind, int(count)), number(payload["task"])
            if not 0 <= task < len(frame.tasks):
                raise LookupError(task)
        except (AttributeError, LookupError, TypeError, ValueError) as err:
            raise ConfigError(
                "this message does not come from a loaded frame",
                {"call": call, "reason": type(err).__name__},
                "Call sluice.install(spark) with the Sluice version that Spark's processes import.",
            ) from err
        with self._lock:
            frame = self._frames.setdefault(frame_id, frame)  # a repeated load keeps the runs
            self._frames.move_to_end(frame_id)
            while len(self._frames) > _MOST_FRAMES:
                self._frames.popitem(last=False)
        if call == "load":
            return None
        return to_json(range_of_task(task, frame.tasks, self._ranges(frame, run)))

    def _frame(self, frame_id: str) -> _Frame:
        with self._lock:
            frame = self._frames.get(frame_id)
        if frame is None:
            raise FencedError(
                "this process does not know the loaded frame",
                {"frame": frame_id},
                "Load the frame again with spark.read.",
            )
        return frame

    def _ranges(self, frame: _Frame, run: _Run) -> tuple[SplitRange, ...]:
        """One answer for a run: the first task's call resolves it, other calls wait."""
        with self._lock:
            future, is_first = frame.find(run)
        if is_first:
            try:
                future.set_result(_resolve(frame.options))
            except BaseException as err:  # noqa: BLE001 - every waiting call raises it
                with self._lock:  # no task has a range yet, so the next call may resolve it
                    frame.runs.pop(run, None)
                future.set_exception(err)
        return future.result()
