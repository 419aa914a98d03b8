"""``python -m benchmarks epoch-commits``: the cost of committing epochs of continuous tasks.

It uses a real broker, the real coordinator with its service, and real writers, task loops and
checkpoint clients, without Spark. Tasks run as threads of one other process, and make their
records. It prints the time from the decision to the durable completion marker, and the driver's
processor time for each checkpoint. Tasks and the coordinator (`EndTxn`) commit in turn.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import pyarrow as pa
from rich.console import Console

from benchmarks.measuring import machine, topics
from benchmarks.measuring.figures import Figure, table
from benchmarks.measuring.rig import Rig, open_rig
from sluice import KafkaSink
from sluice.connectors.kafka.client.confluent import TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.producers import transactional_producer
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer, topic_ends
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.contracts import Backlog, ContinuousWriter, RecordsRead, TaskScope
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

__all__ = ["main"]

_SINK = "sink"
_SOURCE = "source"
_BATCH = 20
_PAUSE_S = 0.1
_STATISTICS_MS = 200  # every 20 ms is too much for two cores with many producers
_WARM = 5
_LOST_S = 30.0
_FIGURES = ("decision to mark", "barrier to mark", "driver CPU", "age p50", "age p99")
_START_S = 60.0


def _split(number: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id=_SOURCE,
        topic="made-up",
        topic_id="none",
        partition=number,
        start_offset=start,
        end_offset=end,
    )


class _MadeUp:
    """A `SplitEnumerator` whose source always has more records."""

    def __init__(self, splits: int) -> None:
        self._splits = splits

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        del timeout_s
        return tuple(_split(number, 0, 0) for number in range(self._splits))

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """No log can have changed."""

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        del timeout_s
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
        del max_records, timeout_s
        return tuple(
            replace(at, start_offset=at.end_offset, end_offset=at.end_offset + _BATCH)
            for at in positions
        )

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        del positions
        return False

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        return None

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """Nobody asks."""

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        del positions
        return None

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        del timeout_s
        return {at.key: Backlog(records=0) for at in positions}

    def close(self) -> None:
        """Nothing is open."""


class _Follower:
    """Some records of one split now and then; a `sluice.runtime.contracts.RecordStream`."""

    def __init__(self, split: SplitRange) -> None:
        self._at = {split.key: split.end_offset}

    def poll(self) -> pa.RecordBatch | None:
        time.sleep(_PAUSE_S)  # the pace of the records
        for key in self._at:
            self._at[key] += _BATCH
        made = str(time.time_ns()).encode().ljust(100)
        return pa.RecordBatch.from_pydict({"value": [made] * _BATCH})

    def positions(self) -> Mapping[SplitKey, int]:
        return dict(self._at)

    def active(self) -> frozenset[SplitKey]:
        return frozenset()

    def pause(self, splits: Collection[SplitKey]) -> None:
        """No split has a time."""

    def records_read(self) -> Mapping[SplitKey, RecordsRead]:
        return {}

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        self._at = {split.key: split.start_offset for split in splits}

    def close(self) -> None:
        """Nothing is open."""


def _run_tasks(
    sink: KafkaSink, address: CoordinatorAddress, attempt_id: int, regions: Sequence[str]
) -> None:
    """Runs in the tasks' process until the job ends."""
    transactional_producer.STATISTICS_INTERVAL_MS = _STATISTICS_MS
    threading.excepthook = lambda _: None  # an error ends them with the job
    factory = sink.writer_factory()

    def run(number: int, region: str) -> None:
        link = CoordinatorClient(address, deadline_s=_LOST_S)
        registry = CoordinatorClient(address, deadline_s=_LOST_S)

        def opened(epoch: EpochScope) -> TaskWriters[ContinuousWriter]:
            scope = TaskScope(
                job_uid=address.job_uid,
                operator_id=_SINK,
                batch=epoch.batch,
                checkpoint_id=epoch.checkpoint_id,
                committed_through=0,
                committed_batch=epoch.committed_batch,
                task="0.0",
            )
            writer = factory.open_continuous(scope, registry)
            return TaskWriters({_SINK: writer}, dead_letter_sink=None)

        TaskLoop(
            region,
            attempt_id,
            stream=_Follower(_split(number, 0, 0)),
            client=CheckpointClient(link, region, attempt_id, lost_timeout_s=_LOST_S),
            open_writers=opened,
            functions=FunctionRun,
            begins_after=0,
        ).run()

    threads = [
        threading.Thread(target=partial(run, number, region), daemon=True)
        for number, region in enumerate(regions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(connection: KafkaConnection, topic: str, found: Connection, over: Event) -> None:
    """Runs in the reader's process: the age of each record in s when it is read."""
    consumer = reading_consumer(connection)
    ends = topic_ends(connection, topic).stable
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    ages_s: list[float] = []
    while not over.is_set():
        ages_s += [
            time.time() - int(message.value() or b"0") / 1e9
            for message in consumer.consume(1_000, 0.02)
            if message.error() is None
        ]
    found.send(ages_s)


@dataclass(slots=True)
class _Marks:
    """A listener that notes each committed checkpoint and the driver's processor time so far."""

    settle_s: list[float] = field(default_factory=list)
    barrier_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    enough: threading.Event = field(default_factory=threading.Event)
    wanted: int = 0

    def on_progress(self, progress: Progress) -> None:
        if progress.state is State.MARKED and progress.marked_s and progress.decided_s:
            self.settle_s.append(progress.marked_s - progress.decided_s)
            self.barrier_s.append(progress.marked_s)
            self.cpu_s.append(time.process_time())
            if len(self.cpu_s) > self.wanted:
                self.enough.set()


def _plan(regions: Sequence[str]) -> JobPlan:
    return JobPlan(
        name="commits",
        regions=tuple(
            RegionPlan(
                name=name,
                source_ids=(_SOURCE,),
                sink_ids=(_SINK,),
                stateful_sink_ids=(),
                chained=True,
                follows=True,
            )
            for name in regions
        ),
    )


def _measure_once(
    rig: Rig, tasks: int, *, natively: bool, interval_s: float, checkpoints: int
) -> tuple[float, ...]:
    """The `_FIGURES` in ms; those of checkpoints are medians."""
    topic = topics.create(rig.connection, "commits", partitions=4)
    sink = KafkaSink(
        bootstrap_servers=rig.bootstrap, topic=topic, transactional_id_prefix=f"commits-{topic}"
    )
    regions = [f"task-{number}" for number in range(tasks)]
    commits = NativeCommits()
    made: Any = sink.coordinator()
    marks = _Marks(wanted=_WARM + checkpoints)
    with tempfile.TemporaryDirectory(dir=rig.directory) as directory:
        coordinator = BarrierCoordinator(
            _plan(regions),
            open_store(directory),
            sinks={_SINK: made},
            tasks_first={_SINK: TasksFirst(commits, LostTimeout(None))} if natively else None,
            sources={_SOURCE: _MadeUp(tasks)},
            settings=CheckpointSettings(interval_s=interval_s),
            listeners=[marks],
        )
        try:
            started = coordinator.start(_START_S)
            barrier_service = BarrierService(coordinator, commits)
            for name in regions:
                barrier_service.open(AttemptEpochs(region=name, attempt_id=started.attempt_id))
            with CoordinatorService(
                CoordinatorApp(coordinator, barrier_service=barrier_service)
            ) as service:
                context = multiprocessing.get_context("spawn")
                process = context.Process(
                    target=_run_tasks,
                    args=(sink, service.coordinator_address, started.attempt_id, regions),
                )
                process.start()
                over, (ages, ages_sent) = context.Event(), context.Pipe(duplex=False)
                reader = context.Process(
                    target=_read, args=(rig.connection, topic, ages_sent, over)
                )
                reader.start()
                marks.enough.wait(_START_S + 10 * interval_s * (checkpoints + _WARM))
                over.set()
                ages_s = ages.recv() if ages.poll(_START_S) else []
                reader.join(30)
                coordinator.cancel()
                process.join(30)
                process.kill()  # has no effect on an ended process
        finally:
            coordinator.stop()
            topics.delete(rig.connection, topic)
    if not marks.enough.is_set():
        raise RuntimeError(f"only {len(marks.cpu_s)} checkpoints were committed")
    cpu_s = marks.cpu_s[_WARM + checkpoints] - marks.cpu_s[_WARM]
    settled = marks.settle_s[_WARM : _WARM + checkpoints]
    whole = marks.barrier_s[_WARM : _WARM + checkpoints]
    return (
        statistics.median(settled) * 1000,
        statistics.median(whole) * 1000,
        cpu_s / checkpoints * 1000,
        statistics.median(ages_s) * 1000,
        statistics.quantiles(ages_s, n=100)[98] * 1000,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks epoch-commits")
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--interval", type=float, nargs="+", default=[0.25, 0.5, 2.0])
    parser.add_argument("--checkpoints", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(arguments)
    console, measured_on = Console(highlight=False, width=140), machine.describe()
    figures: list[Figure] = []
    with open_rig() as rig:
        for tasks, interval_s in zip(args.tasks, args.interval, strict=True):
            found: dict[str, list[tuple[float, ...]]] = {"by the tasks": [], "by EndTxn": []}
            for how in list(found) * args.repeat:
                console.print(f"measuring {tasks} tasks {how} ...")
                once = _measure_once(
                    rig,
                    tasks,
                    natively=how == "by the tasks",
                    interval_s=interval_s,
                    checkpoints=args.checkpoints,
                )
                console.print(str(once))
                found[how].append(once)
            figures += [
                Figure(
                    what=f"{tasks} transactions {how}: {what}",
                    runs=[run[at] for run in runs],
                    unit="ms",
                )
                for how, runs in found.items()
                for at, what in enumerate(_FIGURES)
            ]
    for part in table(figures, measured_on):
        console.print(part)


if __name__ == "__main__":
    main()
