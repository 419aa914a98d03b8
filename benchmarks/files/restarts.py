"""Restarts of a job whose file sink has committed few files, and many."""

import statistics
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.measuring.figures import Figure
from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, split_target, staging_root
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import CommitOutcome, SweepView
from sluice.runtime.coordinator.committing.commit_steps import RunIdentity, drive
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import (
    Commit,
    CommitReported,
    MarkCommitted,
    Publish,
    RemoteAction,
    Retire,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start.startup import Found, StartSequence
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    OperatorNode,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.process.host_clock import age_clock
from sluice.runtime.storage.file_system import OpenFileSystem

__all__ = ["measure_restarts"]

_FEW = 1_000
_AN_EPOCH = 1_000
_DIRECTORIES = 100
_STARTS = 15
_AT_ONCE = 8
_START_S = 60.0
_ROWS = b"rows"
_SINK = "op"
_PLAN = JobPlan(
    name="restarts",
    regions=(RegionPlan(name="main", sink_ids=(_SINK,)),),
    graph=(OperatorNode(operator_id=_SINK, name="files", kind="sink", upstream=()),),
)


def measure_restarts(uri: str, opened: OpenFileSystem, *, many: int, where: str) -> Figure:
    """Both jobs commit their files first. Then they start in turn, so that other work on the
    machine slows both."""
    jobs = [_Job(uri=f"{uri}/{count}", opened=opened) for count in (_FEW, many)]
    for job, count in zip(jobs, (_FEW, many), strict=True):
        job.commit(count)
    seconds: list[list[float]] = [[], []]
    for _ in range(_STARTS):
        for job, found in zip(jobs, seconds, strict=True):
            found.append(job.restart_s())
    few, much = map(statistics.median, seconds)
    return Figure(
        what=f"restart of a job with {many:,} committed files on {where}, over {_FEW:,}",
        runs=[much / few],
        unit="x",
        goal="0.8 to 1.2",
        most=1.2,
        note=f"medians of {_STARTS}: {few:.3f} s and {much:.3f} s",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of a job: the records at its start, and its sink."""

    found: Found
    session: str
    sink: FileSinkCoordinator
    store: CheckpointStore


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job with one file sink and its checkpoints beside the files, without Spark. It starts,
    decides, commits and retires by the coordinator's own steps."""

    uri: str
    opened: OpenFileSystem

    @property
    def _target(self) -> str:
        return f"{self.uri}/orders"

    def commit(self, files: int) -> None:
        """Commit epochs of a thousand files each, in a hundred directories."""
        run = self._start()
        io_executor = self._io_executor(run)
        for number in range(files // _AN_EPOCH):
            self._epoch(run, io_executor, number)
        run.sink.close()

    def restart_s(self) -> float:
        """Seconds from the first read of the records to the end of the first sweep."""
        started_s = time.monotonic()
        run = self._start()
        uid, attempt_id = run.found.record.job_uid, run.found.attempt_id
        run.sink.sweep(
            SweepView(job_uid=uid, attempt_ids={"main": attempt_id}, protected=(), orphans=()),
            timeout_s=_START_S,
        )
        elapsed_s = time.monotonic() - started_s
        run.sink.close()
        return elapsed_s

    def _start(self) -> _Run:
        sink = FileSinkCoordinator(self._target, self.opened)
        store = CheckpointStore(self.opened(f"{self.uri}/checkpoints"))
        session = str(uuid.uuid4())
        sequence = StartSequence(
            plan=_PLAN,
            settings=CheckpointSettings(),
            store=store,
            sinks={_SINK: SerialSink(sink)},
            sources={},
            session=session,
            clock=time.monotonic,
            pause=time.sleep,
            wall_ms=_wall_ms,
        )
        found = drive(sequence.run(timeout_s=_START_S, restore_from=None))
        return _Run(found=found, session=session, sink=sink, store=store)

    def _io_executor(self, run: _Run) -> IoExecutor:
        identity = RunIdentity(
            plan=_PLAN,
            job_uid=run.found.record.job_uid,
            session=run.session,
            attempt_id=run.found.attempt_id,
            run_attempt=run.found.run_attempt,
            restored_from=None,
        )
        return IoExecutor(
            store=run.store,
            sinks={_SINK: SerialSink(run.sink)},
            sources={},
            identity=identity,
            settings=CheckpointSettings(call_timeout_s=_START_S),
            age_clock=age_clock,
            wall_ms=_wall_ms,
        )

    def _epoch(self, run: _Run, io_executor: IoExecutor, number: int) -> None:
        batch = BatchKey(region="main", attempt_id=run.found.attempt_id, batch_id=number)
        entry = self._staged(run, batch)
        checkpoint_id = run.found.attempt_id + 1 + number
        region = RegionRecord(
            region="main",
            attempt_id=batch.attempt_id,
            batch_id=number,
            splits=(),
            committables=(entry,),
        )
        for step in _steps(checkpoint_id, region):
            event = drive(io_executor.perform(step))
            if isinstance(event, CommitReported):
                outcomes = {report.outcome for report in event.reports}
                assert outcomes == {CommitOutcome.COMMITTED}, event.reports

    def _staged(self, run: _Run, batch: BatchKey) -> StateEntry:
        """Stage the files of a batch, whole and on disk."""
        parent, name = split_target(self._target)
        fs = self.opened(parent)
        root = staging_root(name, job_uid=run.found.record.job_uid, operator_id=_SINK)
        attempt = StagingAttempt.draw(batch)
        staging = f"{root}/{attempt.path}"
        files = tuple(
            StagedFile(
                staged=f"dt={n % _DIRECTORIES}/part-{n}",
                final=f"dt={n % _DIRECTORIES}/part-{n}-{attempt.attempt}",
                length_bytes=len(_ROWS),
            )
            for n in range(_AN_EPOCH)
        )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda f: fs.write_temporary(f"{staging}/{f.staged}", _ROWS), files))
        fs.close()
        found = FileSet(target=self._target, staging=staging, rows=_AN_EPOCH, files=files)
        return encode_file_set(found, operator_id=_SINK)


def _steps(checkpoint_id: int, region: RegionRecord) -> Iterator[RemoteAction]:
    yield Publish(
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        requested_by="interval",
        reason="",
        regions=(region,),
    )
    yield Commit(
        checkpoint_id=checkpoint_id,
        committables=region.committables,
        after_crash=False,
        regions=(region,),
    )
    yield MarkCommitted(checkpoint_id=checkpoint_id, regions=(region,))
    yield Retire(retained=CheckpointSettings().retained)


def _wall_ms() -> int:
    return int(time.time() * 1000)
