"""A job whose leaders and hosts are threads of this process: real HTTP, store and coordinator.

Played are Spark, the sources and the broker. A leader dies by leaving without a word: its service
is gone, while its coordinator's threads may still try to decide, as after a cut network.
"""

import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecordStore
from sluice.runtime.continuous.barrier_service import AttemptEpochs
from sluice.runtime.continuous.checkpoint_client import CheckpointClient, TaskRegistry
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.contracts import ContinuousWriter, RegionAttempt, RegionRegistration
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import StreamError
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.leading.leader import JobLeader, LeaderSettings
from sluice.runtime.model.checkpoint_record import OperatorNode, StateEntry, Verdict
from sluice.runtime.service.hosting.region_host import RegionHost
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.spark.run.hosting import job_description as description_module
from sluice.runtime.spark.run.hosting.job_description import JobDescription
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.continuous_parts import LogFollower, rows_of
from tests.kit.fakes import (
    FakeBroker,
    FakeSink,
    FakeSource,
    Transaction,
    TransactionState,
    attempt_of,
    entry_of,
    transactional_id,
)
from tests.kit.waiting import join, wait_for

__all__ = ["Host", "Leader", "LedJob"]

_REGIONS = ("left", "right")


class _Gone(BaseException):
    """A leader dies."""


class LedJob:
    """A checkpoint directory, a broker and an input; leaders and hosts come and go. `close` it.

    Attributes:
        broker: that all write to.
        logs: end of each partition of the input; a test raises them.
        lost_timeout_s: of the tasks.
        restore_from: of all leaders and hosts that come from now on.
        ports: of leaders that come from now on.
        refused: hosts of another job.
    """

    def __init__(
        self,
        directory: Path,
        *,
        report_timeout_s: float = 5.0,
        other: "LedJob | None" = None,
        restore_from: int | str | None = None,
    ) -> None:
        self.store = CheckpointStore(LocalFileSystem(directory))
        self.broker = FakeBroker() if other is None else other.broker
        self.logs = dict.fromkeys(range(4), 0) if other is None else other.logs
        self.lost_timeout_s = 60.0
        self.restore_from = restore_from
        self.ports = ServiceSettings().ports
        self.refused = 0
        self.settings = LeaderSettings(
            report_timeout_s=report_timeout_s, host_timeout_s=2.0, start_timeout_s=60.0
        )
        self._stack = ExitStack()
        known = SimpleNamespace(require_known=lambda record: None)
        self._stack.enter_context(
            patch(f"{description_module.__name__}.installed_kinds", lambda: known)
        )
        self._writing = threading.Lock()

    def lead(
        self, *, dies_at: str | None = None, hosts: int = 1, fs: FileSystem | None = None
    ) -> "Leader":
        """One more leader.

        Args:
            dies_at: step of its start at which it dies.
            hosts: it waits for so many.
            fs: by which it reaches the checkpoint directory.
        """
        leader = Leader(self, dies_at, replace(self.settings, hosts=hosts), fs or self.new_fs())
        self._stack.callback(leader.die)
        return leader

    def new_fs(self) -> LocalFileSystem:
        """The checkpoint directory, for one process."""
        return LocalFileSystem(Path(self.store.fs.uri.removeprefix("file://")))

    def host(self) -> "Host":
        """One more host."""
        return self._stack.enter_context(Host(self))

    def close(self) -> None:
        """End all."""
        self._stack.close()

    def write(self, count: int) -> None:
        """Records arrive in every partition."""
        for partition in self.logs:
            self.logs[partition] += count

    @property
    def is_all_seen(self) -> bool:
        """Whether readers see all records."""
        return all(len(self.seen(each)) == end for each, end in self.logs.items())

    def seen(self, partition: int) -> list[int]:
        """The offsets that a reader sees of a partition."""
        with self._writing:
            rows = cast(list[tuple[int, int]], self.broker.read_committed(partition))
        return [offset for _, offset in rows]

    def require_exact(self) -> None:
        """Each record once, in order."""
        for partition, end in self.logs.items():
            assert self.seen(partition) == list(range(end)), partition

    def decisions(self) -> list[tuple[int, dict[str, int]]]:
        """Id, and attempt by region, of each decision after the first."""
        records = [self.store.read(each) for each in self.store.slots()]
        return [
            (r.checkpoint_id, {each.region: each.attempt_id for each in r.regions})
            for r in records
            if r is not None and r.verdict is Verdict.DECIDED and r.checkpoint_id
        ]

    def attempts(self) -> dict[str, int]:
        """Of the newest decision."""
        return self.decisions()[-1][1]

    def description(self) -> JobDescription:
        """For a leader, with remotes of its own."""
        source = SimpleNamespace(
            name="source", enumerator=lambda _: FakeSource("source", self.logs)
        )
        sink = SimpleNamespace(name="sink", coordinator=lambda: FakeSink(self.broker))
        plans = tuple(
            RegionPlan(name=each, source_ids=("source",), sink_ids=("sink",), follows=True)
            for each in _REGIONS
        )
        regions = tuple(
            SimpleNamespace(
                name=each,
                source_id="source",
                sinks={"sink": sink},
                functions=(),
                pipeline=SimpleNamespace(source=source),
            )
            for each in _REGIONS
        )
        return JobDescription(
            plan=JobPlan(
                name="led",
                regions=plans,
                graph=(
                    OperatorNode(operator_id="source", name="s", kind="source", upstream=()),
                    OperatorNode(operator_id="sink", name="o", kind="sink", upstream=("source",)),
                ),
            ),
            settings=CheckpointSettings(
                interval_s=0.05,
                retained=1_000,
                handler=RegionalCheckpointHandler(),
                sweep_interval_s=0.5,
                renew_interval_s=0.5,
            ),
            regions=cast(tuple[Region, ...], regions),
            continuous=frozenset(_REGIONS),
            uid=None,
            lost_timeout_s=None,
            between_barriers_s=0.05,
            restore_from=self.restore_from,
        )

    def note_refusal(self) -> None:
        """A leader is about to refuse a host."""
        self.refused += 1


class Leader:
    """One leader, in a thread.

    Attributes:
        error: why it has ended.
    """

    def __init__(
        self, job: LedJob, dies_at: str | None, settings: LeaderSettings, fs: FileSystem
    ) -> None:
        self.error: BaseException | None = None
        self._is_dead = threading.Event()
        self.is_leading = threading.Event()
        self.has_ended = threading.Event()
        self._dies_at = dies_at
        self._leader = JobLeader(
            description=job.description(),
            store=CheckpointStore(fs),
            election=None,
            listener=Listener.of(ServiceSettings(ports=job.ports)),
            open_fs=lambda uri: LocalFileSystem(Path(uri.removeprefix("file://"))),
            settings=settings,
            on_step=self._step,
            check=self._check,
            on_leading=lambda _: self.is_leading.set(),
            keep_description=job.note_refusal,
        )
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._leader.run()
        except (StreamError, _Gone) as err:
            self.error = err
        finally:
            self.has_ended.set()

    def _step(self, name: str) -> None:
        if name == self._dies_at:
            self._is_dead.set()
        self._check()

    def _check(self) -> None:
        if self._is_dead.is_set():
            raise _Gone

    def await_lead(self) -> None:
        """Until it leads; raises what has ended it before."""
        wait_for(lambda: self.is_leading.is_set() or self.has_ended.is_set(), poll_s=0.02)
        if not self.is_leading.is_set():
            assert self.error is not None
            raise self.error

    def die(self) -> None:
        """Leave without a word."""
        self._is_dead.set()
        self.has_ended.wait(30.0)


class Host:
    """One host: a context manager; its tasks are threads.

    Attributes:
        begun: attempts that were started here, in order.
    """

    def __init__(self, job: LedJob) -> None:
        self.begun: list[tuple[str, int]] = []
        self.errors: list[BaseException] = []
        self._tasks: list[_RunningTask] = []
        self._is_dead = False
        self._job = job
        self.host = RegionHost(
            _REGIONS,
            self._begin,
            digest=job.description().digest,
            find=RunRecordStore(job.store.fs).newest_for_hosts,
            listener=Listener.of(ServiceSettings()),
        )

    def __enter__(self) -> "Host":
        self.host.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_dead:
            self.host.__exit__(None, None, None)

    def die(self) -> None:
        """Its service, its link and its tasks end; they abort nothing."""
        self._is_dead = True
        for task in self._tasks:
            task.is_killed = True
        self.host.__exit__(None, None, None)

    def _begin(self, host: RegionHost, attempt: RegionAttempt) -> "_RunningTask":
        told = host.link.started(10.0)
        self.begun.append((attempt.region, attempt.attempt_id))
        self._tasks.append(_RunningTask(self._job, self, attempt, told.job_uid))
        return self._tasks[-1]


class _RunningTask:
    """Implements `RunningAttempt`: a real task loop with a writer to the played broker."""

    def __init__(self, job: LedJob, played: Host, attempt: RegionAttempt, job_uid: str) -> None:
        host, self._errors = played.host, played.errors
        self.is_killed = False
        self._job, self._attempt, self.job_uid = job, attempt, job_uid
        self._error: BaseException | None = None
        splits = [split.at_end() for split in attempt.restored.splits]
        self._epochs = AttemptEpochs(
            attempt.region,
            attempt.attempt_id,
            splits=tuple(split.key for split in splits),
            keyed_state=attempt.restored.keyed_state,
        )
        host.relays.open(self._epochs)
        link = CoordinatorClient(host.address, deadline_s=1.0)
        client = CheckpointClient(
            link, attempt.region, attempt.attempt_id, lost_timeout_s=job.lost_timeout_s
        )
        registry = TaskRegistry(CoordinatorClient(host.address, deadline_s=1.0), client)
        self._loop = TaskLoop(
            attempt.region,
            attempt.attempt_id,
            stream=LogFollower(splits, job.logs),
            client=client,
            open_writers=partial(self._open, registry),
            functions=lambda: FunctionRun(()),
            begins_after=attempt.after,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception as err:  # noqa: BLE001 - as `ContinuousChain.run`
            self._error = err
            self._errors.append(err)

    def _open(self, registry: TaskRegistry, epoch: EpochScope) -> TaskWriters[ContinuousWriter]:
        writer = _Writer(self._job, self, registry, epoch)
        return TaskWriters(
            cast(Mapping[str, ContinuousWriter], {"sink": writer}), dead_letter_sink=None
        )

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def registration(self) -> RegionRegistration:
        return self._epochs.registration()

    def prepare_stop(self) -> None:
        self._epochs.stop()

    def stop(self) -> None:
        self._epochs.stop()
        join(self._thread)

    def require_writable(self) -> None:
        pass

    def failure(self) -> BaseException | None:
        return self._error


class _Writer:
    """Implements `ContinuousWriter`: a transaction begins with the first record."""

    def __init__(
        self, job: LedJob, task: _RunningTask, registry: TaskRegistry, epoch: EpochScope
    ) -> None:
        self.decide_by_s: float | None = None
        self._job, self._task, self._registry, self._epoch = job, task, registry, epoch
        self._transaction: Transaction | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._task.is_killed:
            raise RuntimeError("killed")
        key = self._epoch.batch
        with self._job._writing:  # noqa: SLF001 - of this module
            if self._transaction is None:
                self._transaction = self._job.broker.init(
                    transactional_id(self._task.job_uid, key, f"w{key.batch_id}")
                )
        if self._transaction.state is TransactionState.READY:
            at_s = self._registry.register(attempt_of(self._transaction, key))
            self.decide_by_s = at_s + 45.0
        with self._job._writing:  # noqa: SLF001 - of this module
            for partition, offset in rows_of(batch):
                self._job.broker.append(self._transaction, partition, (partition, offset))

    def end_epoch(self, ranges: Any, *, checkpoint_id: int) -> None:
        del ranges, checkpoint_id

    def pre_commit(self) -> list[StateEntry]:
        return [] if self._transaction is None else [entry_of(self._transaction)]

    def commit(self, *, timeout_s: float) -> bool:
        del timeout_s
        if self._transaction is None:
            return False
        self._job.broker.end(self._transaction.identity, commit=True)
        return True

    def release(self) -> None:
        pass

    def abort(self) -> None:
        if self._transaction is not None and not self._task.is_killed:
            with suppress(Exception):
                self._job.broker.end(self._transaction.identity, commit=False)
