"""Spark as a region sees it: batches, task attempts, ids, and logs that outlive the driver."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from connectors.kafka.handles import TransactionIdentity
from connectors.kafka.producers import Lease
from runtime.checkpoint.messages import (
    Acknowledged,
    AskCut,
    BarrierPolled,
    GiveBarrier,
    RegionCut,
    RegionFailed,
)
from runtime.contracts import OpenWork, RegionRegistration, StagedFrame, TaskScope
from runtime.errors import FencedError, StreamError, TransactionAbortedError
from runtime.model import (
    Acknowledgement,
    Barrier,
    BatchKey,
    RegionRecord,
    SplitRange,
    StateEntry,
    StateSnapshot,
)
from tests.fake_kafka import FakeBroker, Fenced
from tests.simulation.files import FILES, FileTask
from tests.simulation.kafka import attempt_of, entry_of
from tests.simulation.worker import Worker, scope_of, transaction_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

__all__ = ["Life", "SparkLog", "Writer"]

_STATE = StateSnapshot(
    provider="rocksdb", checkpoint_format_version=2, state_version=1, state_partitions=1
)


@dataclass(slots=True)
class SparkLog:
    """Spark's own logs of a drop-in query: planned and committed batches; nobody rewinds them."""

    planned: dict[int, tuple[SplitRange, ...]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Writer:
    """A task attempt: it may outlive the driver that started it."""

    broker: FakeBroker
    lease: Lease
    transaction: TransactionIdentity
    records: Iterator[tuple[int, object]]

    def write(self, count: int) -> bool:
        """Write some; True when all are written. Fenced when the broker refuses."""
        for _ in range(count):
            item = next(self.records, None)
            if item is None:
                return True
            self.broker.append(self.transaction, *item)
        return False


class Life:
    """One life of one region, as Spark runs it: poll, cut, open, register, write, acknowledge."""

    def __init__(
        self, process: "Process", restored: RegionRecord, generation: int, first_batch: int
    ) -> None:
        self._process = process
        self._world = process.world
        self.region = restored.region
        self.generation = generation
        self.batch_id = first_batch
        self._states = restored.operator_states  # in the last decided record
        self._worker: Worker | None = None
        self.writer: Writer | FileTask | None = None
        self.dead = False
        self.open: tuple[OpenWork, ...] = ()
        self._awaited: BatchKey | None = None
        self._sleeps_until_s = 0.0
        self._steps = self._run()

    def is_awake(self, now_s: float) -> bool:
        """Whether it has something to do."""
        if self._awaited is not None:
            return self._awaited in self._process.results
        return now_s >= self._sleeps_until_s

    def _sleep(self) -> None:
        self._sleeps_until_s = self._world.clock() + self._world.random.choice((0.05, 0.2, 0.3))

    def step(self) -> None:
        """Go on to the next point."""
        try:
            next(self._steps)
        except FencedError:
            self.dead = True
        except Fenced as err:
            self.fail(err)
        except StreamError as err:
            self._process.require_no_bug(self, err)
            self.fail(err)

    def fail(self, error: BaseException, *, permanent: bool = False) -> None:
        """Spark gives the batch up; its tasks may go on writing for a while."""
        self.end()
        self._process.tell(
            RegionFailed(
                region=self.region,
                generation=self.generation,
                error=error,
                permanent=permanent,
            )
        )

    def end(self) -> None:
        """Nothing more comes of it; the core is about to be told."""
        self.orphan()
        self.dead = True
        self._process.watch.fails(self.region, self.generation)

    def registration(self) -> RegionRegistration:
        """What it says of itself once it is over."""
        return RegionRegistration(region=self.region, generation=self.generation, open=self.open)

    def orphan(self) -> None:
        """Its driver is gone; a task on another machine does not know yet."""
        if self.writer is not None:
            self._world.note(f"a task of {self.region} goes on without its driver")
            self._world.zombies.append(self.writer)
            self.writer = None

    def _run(self) -> Generator[None, None, None]:
        while True:
            batch = BatchKey(region=self.region, generation=self.generation, batch_id=self.batch_id)
            if self._process.core.is_decided(batch):
                yield from self._returned()
                continue
            states = yield from self._write(batch, *(yield from self._plan()))
            self._make_ready()
            self._awaited = batch
            while batch not in self._process.results:
                yield
            self._awaited = None
            error = self._process.results.pop(batch)
            if error is not None:
                raise error
            self._states = states
            yield from self._returned()

    def _returned(self) -> Generator[None, None, None]:
        self.open = ()
        yield
        if self._world.profile.external:
            self._world.spark.committed.add(self.batch_id)
        self.batch_id += 1

    def _plan(self) -> Generator[None, None, tuple[tuple[SplitRange, ...], Barrier | None]]:
        if self._world.profile.external:
            while (splits := self._world.planned(self.batch_id)) is None:
                self._sleep()
                yield
            return splits, None
        while True:
            yield
            barrier = yield from self._poll()
            if barrier is not None and not self._world.roll(0.15):  # Spark may ask again
                return barrier.splits, barrier
            self._sleep()

    def _poll(self) -> Generator[None, None, Barrier | None]:
        self._process.discover()
        answers = self._process.tell(
            BarrierPolled(region=self.region, generation=self.generation), raises=True
        )
        for answer in answers:
            if isinstance(answer, GiveBarrier):
                return answer.barrier
            if isinstance(answer, AskCut):
                yield
                source = self._process.source
                splits = source.cut(answer.positions, max_records=self._limit(), timeout_s=1)
                yield
                cut = RegionCut(
                    checkpoint_id=answer.checkpoint_id,
                    region=self.region,
                    generation=self.generation,
                    splits=splits,
                    finished=source.is_finished(splits),
                )
                for given in self._process.tell(cut, raises=True):
                    if isinstance(given, GiveBarrier):
                        return given.barrier
        return None

    def _limit(self) -> int | None:
        return self._world.random.choice((None, 1, 3))

    def _write(
        self, batch: BatchKey, splits: tuple[SplitRange, ...], barrier: Barrier | None
    ) -> Generator[None, None, tuple[StateEntry, ...]]:
        """What the region's record holds of its sinks, once it is acknowledged."""
        yield
        world, committables = self._world, []
        hint = None if barrier is None else barrier.checkpoint_id
        # As tasks are told, also when a late batch is tried again, long behind its label.
        through = self._process.core.settled_through if hint is None else hint - 1
        scope = scope_of(
            self._process.found.record.job_uid, batch, checkpoint_id=through + 1, through=through
        )
        if not world.profile.only_files and any(not split.is_empty for split in splits):
            transaction = yield from self._write_records(batch, splits, scope)
            label = self._process.core.settled_through + 1 if hint is None else hint
            committables.append(entry_of(transaction, label, splits))
        staged = StagedFrame(rows=0)
        if world.profile.files:
            is_last = barrier is not None and barrier.is_last
            staged = yield from self._stage(splits, replace(scope, is_last=is_last))
            committables += staged.committables
        if committables:
            self.open = (OpenWork(batch=batch, committables=tuple(committables)),)
        yield
        record = RegionRecord(
            region=self.region,
            generation=self.generation,
            batch_id=batch.batch_id,
            splits=splits,
            committables=tuple(committables),
            state=_STATE if world.profile.stateful else None,
            operator_states=staged.operator_states,
        )
        decide_by_s = None
        if world.fault(world.profile.old, "a batch must be decided soon"):
            decide_by_s = world.clock() + world.random.choice((0.0, 0.05, 0.2))
        ack = Acknowledgement(
            batch=batch,
            checkpoint_id=hint,
            region=record,
            again_in_s=staged.again_in_s,
            # Its records have moved a watermark.
            state_is_due=world.profile.stateful and any(not split.is_empty for split in splits),
            decide_by_s=decide_by_s,
        )
        self._process.tell(Acknowledged(ack=ack), raises=True)
        if world.roll(0.05):
            self._process.tell(Acknowledged(ack=ack), raises=True)  # the answer was lost
        return record.operator_states

    def _stage(
        self, splits: tuple[SplitRange, ...], scope: TaskScope
    ) -> Generator[None, None, StagedFrame]:
        """Files: the directory, the task, and what the driver makes of both."""
        staging, world = self._process.staging, self._world
        scope = replace(scope, operator_id=FILES, operator_states=self._states)
        directory = staging.begin(scope)
        yield
        task = self.writer = staging.task(directory, splits)
        while not task.write(world.random.randint(1, 4)):
            yield
            if world.fault(world.profile.fail_task, "a task that stages is tried again"):
                self.orphan()
                task = self.writer = staging.task(directory, splits)
        self.writer = None
        yield
        return staging.finish(directory, task.files, scope)

    def _write_records(
        self, batch: BatchKey, splits: tuple[SplitRange, ...], scope: TaskScope
    ) -> Generator[None, None, TransactionIdentity]:
        world = self._world
        writer = self.writer = yield from self._open(batch, splits, scope)
        while True:
            yield
            if world.fault(world.profile.fail_task, "a task fails and is tried again"):
                self._give_up(writer)
                writer = self.writer = yield from self._open(batch, splits, scope)
            if world.fault(world.profile.late / 2, "AddPartitions will come once more"):
                world.producers.repeat_add(writer.transaction)
            if not writer.write(world.random.randint(1, 4)):
                continue
            try:
                world.producers.confirm(writer.transaction)
            except TransactionAbortedError:
                self._give_up(writer)
                writer = self.writer = yield from self._open(batch, splits, scope)
                continue
            self.writer = None
            assert self._worker is not None
            self._worker.spend(writer.lease)
            return writer.transaction

    def _give_up(self, writer: Writer) -> None:
        """An attempt has failed: it aborts in its worker, or is left behind there, or with it."""
        assert self._worker is not None
        chance = self._world.random.random()
        if chance < 0.3:
            self.writer = None
            self._worker.abort(writer.lease)
            return
        self.orphan()
        self._worker.spend(writer.lease)
        if chance < 0.7:
            self._worker = None

    def _open(
        self, batch: BatchKey, splits: tuple[SplitRange, ...], scope: TaskScope
    ) -> Generator[None, None, Writer]:
        """Begin a transaction; it is registered before its first record (rule 4)."""
        if self._worker is None:
            self._worker = Worker(self._world, scope)
        self._worker.enter(scope)
        while (lease := self._worker.take(scope)) is None:
            yield
            self._worker.work()
        yield
        transaction = transaction_of(lease)
        self._process.core.require_wanted(batch)
        self._process.attempts.add(attempt_of(transaction, batch))
        return Writer(self._world.broker, lease, transaction, self._world.records_of(splits))

    def _make_ready(self) -> None:
        """The next transaction's id may be initialised while this one waits for its commit."""
        for _ in range(self._world.random.randint(0, 3)):
            if self._worker is not None:
                self._worker.work()
