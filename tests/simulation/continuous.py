"""Continuous tasks: production loops, checkpoint clients and barrier service, one step at a time.

Epochs of a region follow one another before they are decided, tasks commit natively what they are
asked to, and the driver finishes manually what none of them has acknowledged. Left out are the
checkpoint client's thread and the client of librdkafka; a task outlives its driver, or its region's attempt.
"""

from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.sink.producers.producer_pool import Lease
from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.continuous.native_commits import (
    LostTimeout,
    NativeCommits,
    RequestedCommits,
    TasksFirst,
)
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.contracts import (
    ContinuousWriter,
    Coordinator,
    OpenWork,
    RegionRegistration,
    TaskScope,
)
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    RegionBarrierOffsets,
    RegionFailed,
)
from sluice.runtime.errors import (
    CoordinatorLostError,
    DeliveryError,
    FencedError,
    StreamError,
)
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from tests.kit.continuous_parts import LogFollower, rows_of
from tests.kit.kafka.fake_kafka import Fenced
from tests.simulation.courier import Courier, PlayedLink, WaitsError
from tests.simulation.kafka import attempt_of, entry_of
from tests.simulation.keyed import keyed_task
from tests.simulation.led import Relay
from tests.simulation.worker import Worker, transaction_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")


class _Commits(NativeCommits):
    """While the driver waits for its tasks, they move: some answer in time."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__()
        self._engine = engine

    def request(self, entries: Collection[StateEntry]) -> RequestedCommits:
        """See `NativeCommits.ask`."""
        asked = super().request(entries)
        self._engine.move_tasks()
        return asked


class Engine:
    """The continuous engine of one driver process; the coordinator as its barrier service sees it."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self.commits = _Commits(self)
        self.barrier_service = BarrierService(cast(Coordinator, self), self.commits)

        self.tasks_first = TasksFirst(
            self.commits, LostTimeout(None), report_s=0.0, clock=self._world.clock
        )

    def move_tasks(self) -> None:
        """Some of the tasks that live ask, commit and answer."""
        attempts = [attempt for attempt in self._process.attempts if not attempt.dead]
        for _ in range(self._world.random.randint(0, 3 * len(attempts))):
            attempt = self._world.random.choice(attempts)
            if isinstance(attempt, ContinuousAttempt) and not attempt.dead:
                attempt.ask()

    # --- what the barrier service asks -----------------------------------------------------------------------

    def wake_waiters(self) -> None:
        """See `Coordinator.wake_waiters`: nobody waits here."""

    def poll_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> Barrier | None:
        """See `Coordinator.poll_barrier`."""
        del wait_s
        if until():
            return None
        self._process.discover()
        polled = BarrierPolled(region=region, attempt_id=attempt_id, has_read=has_read)
        for action in self._process.tell(polled, raises=True):
            if isinstance(action, GiveBarrier):
                return action.barrier
            if isinstance(action, FetchBarrierOffsets):
                return self._cut(action, region, attempt_id)
        return None

    def _cut(self, asked: FetchBarrierOffsets, region: str, attempt_id: int) -> Barrier | None:
        source = self._process.source
        splits = source.cut(asked.positions, max_records=None, timeout_s=1)
        cut = RegionBarrierOffsets(
            checkpoint_id=asked.checkpoint_id,
            region=region,
            attempt_id=attempt_id,
            splits=splits,
            finished=source.is_finished(splits),
            has_read=asked.has_read,
        )
        given = [a for a in self._process.tell(cut, raises=True) if isinstance(a, GiveBarrier)]
        return given[0].barrier if given else None

    def acknowledge(self, ack: Acknowledgement) -> None:
        """See `Coordinator.acknowledge`."""
        self._process.tell(Acknowledged(ack=ack), raises=True)

    def is_committed(self, batch: BatchKey) -> bool:
        """See `Coordinator.is_committed`."""
        return self._process.core.is_committed(batch)


class _Writer:
    """Implements `ContinuousWriter`: a transaction begins with its first record."""

    def __init__(self, task: "Task", scope: TaskScope) -> None:
        self.decide_by_s: float | None = None
        self._task = task
        self._world = task.world
        self._scope = scope
        self._lease: Lease | None = None
        self._held: Lease | None = None
        self._ranges: tuple[SplitRange, ...] = ()
        self._checkpoint_id = scope.checkpoint_id
        task.worker.enter(scope)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        lease = self._lease or self._begin()
        if self._world.fault(self._world.profile.late / 4, "AddPartitions will come once more"):
            self._world.producers.repeat_add(transaction_of(lease))
        try:
            for partition, offset in rows_of(batch):
                output = 0 if self._world.profile.shared_output else partition
                self._world.broker.append(transaction_of(lease), output, (partition, offset))
        except Fenced as err:
            raise DeliveryError("a record was refused", {}, "The region begins again.") from err

    def _begin(self) -> Lease:
        worker = self._task.worker
        while (lease := worker.take(self._scope)) is None:
            worker.work()
            self._world.nap(0.01)
        try:
            self._task.register(transaction_of(lease), self._scope.batch)
        except BaseException:
            worker.return_unused(lease)
            raise
        self._lease = lease
        self._world.producers.ahead += self._task.holds
        return lease

    @property
    def is_begun(self) -> bool:
        """Whether its transaction is registered, so that nobody has to be asked."""
        return self._lease is not None

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """See `ContinuousWriter.end_epoch`."""
        self._ranges, self._checkpoint_id = tuple(ranges), checkpoint_id
        if self._lease is not None:
            self._task.worker.end(self._lease)

    def pre_commit(self) -> list[StateEntry]:
        """See `SinkWriter.pre_commit`."""
        if self._lease is None:
            return []
        self._world.producers.confirm(transaction_of(self._lease))
        self._task.worker.hold(self._lease)
        self._held, self._lease = self._lease, None
        if self._world.fault(self._world.profile.old, "an epoch must be decided soon"):
            self.decide_by_s = self._world.ages() + self._world.random.choice((0.0, 0.05, 0.2))
        return [entry_of(transaction_of(self._held), self._checkpoint_id, self._ranges)]

    def commit(self, *, timeout_s: float) -> bool:
        """See `ContinuousWriter.commit`."""
        del timeout_s
        if self._held is None:
            return False
        is_acknowledged = self._world.producers.commit_natively(transaction_of(self._held))
        self.release()
        return is_acknowledged

    def release(self) -> None:
        """See `ContinuousWriter.release`."""
        held, self._held = self._held, None
        if held is not None:
            self._task.worker.let_go(held)

    def abort(self) -> None:
        """See `SinkWriter.abort`."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._task.worker.abort(lease)
        self.release()


class Task:
    """One task: a loop and its checkpoint client, in a worker of its own. It may outlive all that it knows.

    Attributes:
        is_over: it has ended.
    """

    def __init__(self, process: "Process", restored: RegionRecord, attempt_id: int) -> None:
        self.world = process.world
        self.is_over = False
        self.relay = Relay(process, restored, attempt_id)
        if self.world.profile.outlived:
            self.world.tasks.append(self)
        self._refusal: StreamError | None = None
        self._job_uid = process.found.record.job_uid
        self._begins_after = process.core.last_committed
        self._writers: list[_Writer] = []
        batch = BatchKey(region=restored.region, attempt_id=attempt_id, batch_id=0)
        self.worker = Worker(self.world, self._scope(batch, 1, committed_batch=-1))
        self._checkpoint_client = Courier(
            PlayedLink(self.relay),
            restored.region,
            attempt_id,
            lost_timeout_s=0.0,
            clock=self.world.clock,
        )
        if self.world.profile.outlived:
            self._checkpoint_client.world = self.world
        self._loop = TaskLoop(
            restored.region,
            attempt_id,
            stream=LogFollower([split.at_end() for split in restored.splits], self.world.ends),
            client=self._checkpoint_client,
            open_writers=self._open,
            functions=FunctionRun,
            keyed=self._keyed(restored, attempt_id),
            begins_after=self._begins_after,
            clock=self.world.clock,
        )

    def _keyed(self, restored: RegionRecord, attempt_id: int) -> KeyedTask | None:
        if not self.world.profile.keyed:
            return None
        try:
            return keyed_task(self.world, restored, attempt_id)
        except StreamError as err:  # another run has deleted what an attempt of this one needs
            self._refusal = err
            return None

    def _scope(self, batch: BatchKey, checkpoint_id: int, *, committed_batch: int) -> TaskScope:
        return TaskScope(
            job_uid=self._job_uid,
            operator_id="sink",
            batch=batch,
            checkpoint_id=checkpoint_id,
            committed_through=self._begins_after,
            committed_batch=committed_batch,
            task="0.0",
        )

    def _open(self, epoch: EpochScope) -> TaskWriters[ContinuousWriter]:
        scope = self._scope(epoch.batch, epoch.checkpoint_id, committed_batch=epoch.committed_batch)
        self._writers = [*self._writers[-1:], _Writer(self, scope)]
        writers: Mapping[str, ContinuousWriter] = {"sink": self._writers[-1]}
        return TaskWriters(writers, dead_letter_sink=None)

    @property
    def holds(self) -> bool:
        """Whether an epoch that it has reported is not committed yet, as far as it knows."""
        return self._checkpoint_client.holds

    def register(self, transaction: TransactionIdentity, batch: BatchKey) -> None:
        """Report to the coordinator a transaction, before its first record (`ids-never-reused`)."""
        if self.relay.process.dead or not self.relay.process.running:
            raise CoordinatorLostError("silent for too long", {}, "The task ends.")
        attempt = attempt_of(transaction, batch)
        self.relay.keep_registered(attempt)
        self.relay.process.core.register(attempt)

    def read(self) -> None:
        """Read, write, and end the epoch if that is asked for."""
        if self.world.random.random() < 0.3:
            self.worker.work()
        must_ask = not (self._writers and self._writers[-1].is_begun)
        if self.world.profile.outlived and must_ask and not self._is_led:
            return  # it would have to register its transaction
        self._guarded(self._step)

    @property
    def _is_led(self) -> bool:
        return self.relay.is_heard and not self.relay.process.core.is_fenced

    def _step(self) -> bool:
        if self._refusal is not None:
            raise self._refusal
        self._loop.step()
        return True

    def ask(self) -> None:
        """The checkpoint client continues: asks, commits, reports."""
        self._guarded(self._checkpoint_client.go_on)

    def _guarded(self, act: Callable[[], bool]) -> None:
        try:
            goes_on = act()
        except WaitsError:
            return
        except StreamError:
            self._end()
            raise
        if not goes_on:
            self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._writers[-1].abort()
            self._checkpoint_client.let_go()

    def write(self, count: int) -> bool:
        """It continues without anybody; True when it has ended.

        Of a paused driver it hears nothing, and writes until it would have to ask.
        """
        for _ in range(count):
            process = self.relay.process
            is_alone = process.paused and not process.dead
            if self.is_over or (is_alone and not self._writers[-1].is_begun):
                break
            try:
                (self.ask if self.world.random.random() < 0.3 and not is_alone else self.read)()
            except StreamError:
                break
        return self.is_over


class ContinuousAttempt:
    """One life of one region, as its driver sees it; the same as `tests.simulation.spark.Life`."""

    def __init__(
        self,
        process: "Process",
        restored: RegionRecord,
        attempt_id: int,
        task: "Task | None" = None,
    ) -> None:
        self.region = restored.region
        self.attempt_id = attempt_id
        self.dead = False
        self._process = process
        self._world = process.world
        self._book = AttemptEpochs(
            region=self.region, attempt_id=attempt_id, operator_states=restored.operator_states
        )
        process.engine.barrier_service.open(self._book)
        self.task = task or Task(process, restored, attempt_id)
        self._steps = self._run()

    @classmethod
    def resumed(cls, process: "Process", record: RegionRecord, task: "Task") -> "ContinuousAttempt":
        """A task that an earlier coordinator has begun; as `JobLeader` resumes it."""
        report = task.relay.report(is_running=True)
        made = cls(process, record, report.attempt_id, task)
        made._book = book = AttemptEpochs.resumed(record.region, report.attempt_id, (), record)
        process.engine.barrier_service.open(book)
        if task in process.world.zombies:
            process.world.zombies.remove(task)
        process.world.faults["an attempt is resumed"] += 1
        try:
            for each in report.registered:
                with suppress(FencedError):
                    process.core.register(each)
            for result in report.epochs:
                if not book.is_decided(result.batch):
                    process.world.faults["an epoch is acknowledged to the next leader"] += 1
                    book.acknowledge(cast(Coordinator, process.engine), result)
        except StreamError as err:
            process.require_no_bug(made, err)
            made.fail(err)
        return made

    @property
    def open(self) -> tuple[OpenWork, ...]:
        """What it has reported, and what is not committed on record."""
        return self.registration().open

    def returns(self, batches: Iterable[BatchKey]) -> None:
        """Nothing of Spark's waits for it."""

    def registration(self) -> RegionRegistration:
        """See `RegionHandle.register`."""
        return self._book.registration()

    def is_awake(self, now_s: float) -> bool:
        """A task always is."""
        del now_s
        return True

    def step(self) -> None:
        """Its task reads, or asks."""
        next(self._steps)

    def _run(self) -> Generator[None, None, None]:
        world = self._world
        while True:
            if self.task.relay.process is not self._process:
                yield  # it has joined another leader
                continue
            is_lost = world.fault(world.profile.fail_task / 4, "a continuous task is lost")
            if is_lost or self.task.is_over:
                self.fail(StreamError("the task is lost", {}, "The region begins again."))
            elif world.random.random() < 0.5:
                self.ask()
            else:
                self._guarded(self.task.read)
            yield

    def ask(self) -> None:
        """Its checkpoint client continues."""
        if not self.task.is_over:
            self._guarded(self.task.ask)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except FencedError:
            self.dead = True
            self._book.stop()
        except StreamError as err:
            self._process.require_no_bug(self, err)
            self.fail(err)
        else:
            self.dead |= self.task.is_over

    def fail(self, error: BaseException, *, permanent: bool = False) -> None:
        """It is given up; its task may continue, and may still ask."""
        self.end()
        self._process.tell(
            RegionFailed(
                region=self.region, attempt_id=self.attempt_id, error=error, permanent=permanent
            )
        )

    def end(self) -> None:
        """See `tests.simulation.spark.Life.end`."""
        self.orphan()
        self.dead = True
        if self._world.roll(0.5):
            self._book.stop()
        self._process.watch.fails(self.region, self.attempt_id)

    def orphan(self) -> None:
        """Its driver is gone, or does not count on it any more."""
        is_ours = self.task.relay.process is self._process
        if is_ours and not self.task.is_over and self.task not in self._world.zombies:
            self._world.note(f"a task of {self.region} continues without its driver")
            self._world.zombies.append(self.task)
