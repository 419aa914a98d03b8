"""Which modules an epoch enters, from its poll to its marker, in each engine.

``python -m tests.kit.threads.epoch_modules`` writes them into the page; a test compares it. Real are the coordinator with its threads,
the sink's committer, writer and producers, and the continuous task; played are Spark, the brokers
and the checkpoint directory (`tests.kit.threads.threaded_runs`).
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pyarrow as pa

from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.continuous.native_commits import NativeCommits, TasksFirst
from sluice.runtime.contracts import TaskScope
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, StartedJob
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.functions.record_counts import encode_totals
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.threads.threaded_runs import Run, Runs
from tests.kit.threads.threaded_tasks import PREFIX, Faults, Worker

__all__ = ["BEGIN", "END", "PAGE", "of_batches", "of_streaming_tasks", "table"]

BEGIN = "<!-- python -m tests.kit.threads.epoch_modules -->\n"
END = "<!-- end -->\n"

_ROOT = Path(__file__).parents[3]
PAGE = _ROOT / "docs" / "internals" / "life-of-a-checkpoint.md"
_NOT_COUNTED = ("model", "process", "contracts", "storage", "errors", "failpoints")
"""Values, clocks, protocols, file systems: each layer uses them."""
_WARM_UP, _EPOCHS = 5, 6
_MOST_TURNS = 200_000


def of_streaming_tasks() -> frozenset[str]:
    """Modules that each epoch of two continuous tasks enters."""
    return _entered(Runs)


def of_batches() -> frozenset[str]:
    """Modules that each epoch of two micro-batch regions enters, Spark's part left out."""
    return _entered(_BatchRuns)


def _entered(make: Callable[..., Runs]) -> frozenset[str]:
    """Modules of which a function runs in each of a few epochs; a sweep, for one, is not in each."""
    seen: set[str] = set()

    is_seen = [False]

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_seen[0] and not _supervises(runs):
            seen.add(frame.f_code.co_filename)

    threading.setprofile(profile)
    try:
        runs = make(
            Random(1),
            Faults(lambda _: 0, {}),
            level=2,
            sinks=1,
            moves=False,
            rescales=False,
            suspends=False,
            counts=False,
        )
        try:
            (run,) = runs.runs
            _let_commit(runs, run, _WARM_UP)
            is_seen[0] = True
            found: list[set[str]] = []
            for _ in range(_EPOCHS):
                seen.clear()
                _let_commit(runs, run, 2)  # the second one from its poll on
                found.append(set(seen))
        finally:
            is_seen[0] = False
            with _quiet():  # of threads that are ended where they are
                runs.close()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    return frozenset(filter(None, map(_module, set.intersection(*found))))


def _supervises(runs: Runs) -> bool:
    """Whether it is the turn of a thread that looks after attempts, whether epochs end or not."""
    running = runs.switched.running
    return running is not None and running.name.endswith("/main")


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _let_commit(runs: Runs, run: Run, epochs: int) -> None:
    """Until so many more checkpoints are committed, with records in each of them."""
    runs.switched.run(lambda: run.started is not None and run.listens, most_turns=_MOST_TURNS)
    for _ in range(epochs):
        for partition in runs.logs:
            runs.logs[partition] += 3
        before = _last_committed(run)
        assert runs.switched.run(lambda: _last_committed(run) > before, most_turns=_MOST_TURNS)  # noqa: B023


def _last_committed(run: Run) -> int:
    """Without the core's thread: the world is paused."""
    return run.coordinator._running().loop._core.last_committed  # noqa: SLF001 - see above


def _module(path: str) -> str | None:
    """Name of a counted module."""
    try:
        parts = Path(path).resolve().relative_to(_ROOT).with_suffix("").parts
    except ValueError:
        return None
    if parts[0] not in ("runtime", "connectors") or parts[1] in _NOT_COUNTED:
        return None
    return ".".join(parts)


class _BatchRuns(Runs):
    """Runs whose regions are micro-batches."""

    def begin(self, restore_from: int | None = None) -> Run:
        run = _BatchRun(self, len(self.runs) + 1, restore_from)
        self.runs.append(run)
        self.switched.spawn(run.live, process=run.driver, name="main")
        return run


class _BatchRun(Run):
    """A driver whose regions poll, write and wait, as `sluice.runtime.spark.microbatch` does."""

    def _plan(self) -> JobPlan:
        plan = super()._plan()
        return replace(plan, regions=tuple(replace(r, follows=False) for r in plan.regions))

    def _tasks_first(self, commits: NativeCommits) -> Mapping[str, TasksFirst]:
        return {}

    def _serve(self, coordinator: BarrierCoordinator, started: StartedJob) -> None:
        self.listens = True
        for name in self._names:
            self.switched.spawn(
                lambda name=name: self._batches(name, coordinator, started),  # type: ignore[misc]
                process=self.driver,
                name=name,
            )
        coordinator.wait(None)

    def _batches(self, name: str, coordinator: BarrierCoordinator, started: StartedJob) -> None:
        worker = Worker(f"worker-{name}")
        batch_id = 0
        while True:
            barrier = coordinator.poll_barrier(name, started.attempt_id, wait_s=1.0)
            if barrier is not None:
                batch_id += 1
                key = BatchKey(region=name, attempt_id=started.attempt_id, batch_id=batch_id)
                coordinator.acknowledge(self._written(worker, barrier, key))
                coordinator.await_committed(key)

    def _written(self, worker: Worker, barrier: Barrier, key: BatchKey) -> Acknowledgement:
        scope = TaskScope(
            job_uid=self.job_uid,
            operator_id=self.sinks[0],
            batch=key,
            checkpoint_id=barrier.checkpoint_id,
            committed_through=self.last_committed,
            task="0.0",
        )
        pool = worker.pools.enter(PREFIX, scope, lambda: self.pool(scope))
        writer = TransactionalWriter(pool, scope, self.coordinator, "out")
        rows: dict[str, list[Any]] = {"partition": [], "value": []}
        for split in barrier.splits:
            for offset in range(split.start_offset, split.end_offset):
                rows["partition"].append(split.partition)
                rows["value"].append(str(offset).encode())
        if rows["value"]:
            writer.write(
                pa.RecordBatch.from_pydict(
                    {
                        "partition": pa.array(rows["partition"], pa.int32()),
                        "value": pa.array(rows["value"], pa.binary()),
                    }
                )
            )
        read = sum(split.end_offset for split in barrier.splits)
        totals = RecordCounts(read=read, counters={"seen": read})
        region = RegionRecord(
            region=key.region,
            attempt_id=key.attempt_id,
            batch_id=key.batch_id,
            splits=barrier.splits,
            committables=tuple(writer.pre_commit()),
            operator_states=(encode_totals(totals, operator_id="f"),),
        )
        return Acknowledgement(
            batch=key,
            checkpoint_id=barrier.checkpoint_id,
            region=region,
            decide_by_s=writer.decide_by_s,
        )


def table() -> str:
    """The modules of both engines, by package."""
    streaming, batches = of_streaming_tasks(), of_batches()
    rows = [
        "| package | continuous | micro-batch | modules |",
        "| --- | --- | --- | --- |",
    ]
    for package in sorted({module.rpartition(".")[0] for module in streaming | batches}):
        mine = [m for m in sorted(streaming | batches) if m.rpartition(".")[0] == package]
        names = ", ".join(module.rpartition(".")[2] for module in mine)
        counts = (sum(m in found for m in mine) for found in (streaming, batches))
        rows.append("| {} | {} | {} | {} |".format(f"`{package}`", *counts, names))
    rows.append(f"| all | {len(streaming)} | {len(batches)} | |")
    return "\n".join(rows) + "\n"


def _write() -> None:
    page = PAGE.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}{table()}{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    _write()
