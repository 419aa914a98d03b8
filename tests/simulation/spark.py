"""Spark as a region sees it: batches, task attempts, ids, and logs that outlive the driver."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sluice.runtime.contracts import OpenWork, RegionRegistration, StagedFrame, TaskScope
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    RegionBarrierOffsets,
    RegionFailed,
)
from sluice.runtime.errors import FencedError, StorageError, StreamError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry, StateSnapshot
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from sluice.runtime.model.state.keyed_state import Due
from tests.kit.kafka.fake_kafka import Fenced
from tests.simulation.files import FILES, FileTask
from tests.simulation.kafka import entry_of
from tests.simulation.keyed import AttemptState
from tests.simulation.shared import with_epoch
from tests.simulation.state_logs import StateLog
from tests.simulation.tasks import KafkaTasks
from tests.simulation.worker import scope_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

_STATE = StateSnapshot(
    provider="rocksdb", checkpoint_format_version=2, state_version=1, state_partitions=1
)


@dataclass(slots=True)
class SparkLog:
    """Spark's own logs of a drop-in query: planned and committed batches; nobody rewinds them."""

    planned: dict[int, tuple[SplitRange, ...]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)


class Life:
    """One life of one region, as Spark runs it: poll, cut, open, register, write, acknowledge."""

    def __init__(
        self, process: "Process", restored: RegionRecord, attempt_id: int, first_batch: int
    ) -> None:
        self._process = process
        self._world = process.world
        self.region = restored.region
        self.attempt_id = attempt_id
        self.batch_id = first_batch
        self.log: StateLog | None = None
        if process.keeps_state_logs:
            is_newest = process.is_newest()
            self.log = StateLog(process.world, restored, attempt_id, is_newest=is_newest)
            self.batch_id = self.log.first
        self._states = restored.operator_states  # in the last decided record
        self._tasks = KafkaTasks(process)
        self._keyed = AttemptState(process.world)
        self._staging_task: FileTask | None = None
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
        """Move to the next point."""
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
        """Spark gives the batch up; its tasks may continue writing for a while."""
        self.end()
        self._process.tell(
            RegionFailed(
                region=self.region, attempt_id=self.attempt_id, error=error, permanent=permanent
            )
        )

    def end(self) -> None:
        """Nothing more comes of it; the core is about to be reported."""
        self.orphan()
        self.dead = True
        self._process.watch.fails(self.region, self.attempt_id)

    def registration(self) -> RegionRegistration:
        """What it says of itself once it is over."""
        return RegionRegistration(region=self.region, attempt_id=self.attempt_id, open=self.open)

    def orphan(self) -> None:
        """Its driver is gone; a task on another machine does not know yet."""
        left = self._tasks.writers or self._staging_task or self._keyed.upload
        if left:
            self._world.note(f"a task of {self.region} continues without its driver")
        self._tasks.orphan()
        if self._staging_task is not None:
            self._world.zombies.append(self._staging_task)
            self._staging_task = None
        self._keyed.orphan()

    def _run(self) -> Generator[None, None, None]:
        while True:
            batch = BatchKey(region=self.region, attempt_id=self.attempt_id, batch_id=self.batch_id)
            if self._process.core.is_decided(batch):
                if self.log is not None:
                    self.log.replay(is_ours=self._process.is_newest())
                    yield
                    self._process.require_newest()
                    self.log.returns(self.batch_id)
                yield from self._returned()
                continue
            splits, barrier = yield from self._plan()
            if self.log is not None and barrier is not None:
                self.log.plan(self.batch_id, barrier)
            states = yield from self._write(batch, splits, barrier)
            self._tasks.make_ready()
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
            BarrierPolled(region=self.region, attempt_id=self.attempt_id), raises=True
        )
        for answer in answers:
            if isinstance(answer, GiveBarrier):
                return self._given(answer.barrier)
            if isinstance(answer, FetchBarrierOffsets):
                yield
                source = self._process.source
                splits = source.cut(answer.positions, max_records=self._limit(), timeout_s=1)
                yield
                cut = RegionBarrierOffsets(
                    checkpoint_id=answer.checkpoint_id,
                    region=self.region,
                    attempt_id=self.attempt_id,
                    splits=splits,
                    finished=source.is_finished(splits),
                )
                for given in self._process.tell(cut, raises=True):
                    if isinstance(given, GiveBarrier):
                        return self._given(given.barrier)
        return None

    def _given(self, barrier: Barrier) -> Barrier:
        self._world.watch.shared.begins(self._process.session, barrier)
        return barrier

    def _limit(self) -> int | None:
        return self._world.random.choice((None, 1, 3))

    def _write(
        self, batch: BatchKey, splits: tuple[SplitRange, ...], barrier: Barrier | None
    ) -> Generator[None, None, tuple[StateEntry, ...]]:
        yield
        world, committables = self._world, []
        hint = None if barrier is None else barrier.checkpoint_id
        # As tasks are reported, also when a late batch is tried again, long after its label.
        through = self._process.core.settled_through if hint is None else hint - 1
        scope = scope_of(
            self._process.found.record.job_uid, batch, checkpoint_id=through + 1, through=through
        )
        if not world.profile.only_files and any(not split.is_empty for split in splits):
            parts = yield from self._tasks.run(batch, splits, scope)
            label = self._process.core.settled_through + 1 if hint is None else hint
            committables += [entry_of(transaction, label, part) for transaction, part in parts]
        staged = StagedFrame(rows=0)
        if world.profile.files:
            publishes_all = barrier is not None and barrier.publishes_all
            staged = yield from self._stage(splits, replace(scope, publishes_all=publishes_all))
            committables += staged.committables
        keyed_state = None
        if barrier is not None and barrier.new_state is not None:
            self._keyed.adopt(barrier.new_state, splits)
            keyed_state = yield from self._keyed.end_epoch(batch, splits)
        if committables:
            self.open = (OpenWork(batch=batch, committables=tuple(committables)),)
        yield
        record = RegionRecord(
            region=self.region,
            attempt_id=self.attempt_id,
            batch_id=batch.batch_id,
            splits=splits,
            committables=tuple(committables),
            state=self._snapshot(splits),
            operator_states=(*staged.operator_states, *self._listed(batch)),
            keyed_state=keyed_state,
        )
        decide_by_s = None
        if world.fault(world.profile.old, "a batch must be decided soon"):
            decide_by_s = world.ages() + world.random.choice((0.0, 0.05, 0.2))
        ack = Acknowledgement(
            batch=batch,
            checkpoint_id=hint,
            region=record,
            again_in_s=staged.again_in_s,
            # Its records have moved a watermark.
            state_is_due=world.profile.stateful and any(not split.is_empty for split in splits),
            decide_by_s=decide_by_s,
            due=Due(),
        )
        self._process.tell(Acknowledged(ack=ack), raises=True)
        if world.roll(0.05):
            self._process.tell(Acknowledged(ack=ack), raises=True)  # the answer was lost
        return record.operator_states

    def _listed(self, batch: BatchKey) -> tuple[StateEntry, ...]:
        return (with_epoch(self._states, batch),) if self._world.profile.shared else ()

    def _snapshot(self, splits: tuple[SplitRange, ...]) -> StateSnapshot | None:
        if self.log is None:
            return _STATE if self._world.profile.stateful else None
        self.log.run(splits, is_ours=self._process.is_newest())
        return replace(_STATE, location=f"{self.log.location}/state")

    def returns(self, batches: Iterable[BatchKey]) -> None:
        """Spark logs a batch as soon as its callback has returned."""
        if self.log is not None and self._awaited in batches and not self.dead:
            try:
                self.log.returns(self.batch_id)
            except StorageError as err:
                self.fail(err)

    def _stage(
        self, splits: tuple[SplitRange, ...], scope: TaskScope
    ) -> Generator[None, None, StagedFrame]:
        """Files: the directory, the task, and what the driver makes of both."""
        staging, world = self._process.staging, self._world
        scope = replace(scope, operator_id=FILES, operator_states=self._states)
        directory = staging.begin(scope)
        yield
        task = self._staging_task = staging.task(directory, splits)
        while not task.write(world.random.randint(1, 4)):
            yield
            if world.fault(world.profile.fail_task, "a task that stages is tried again"):
                self.orphan()
                task = self._staging_task = staging.task(directory, splits)
        self._staging_task = None
        yield
        return staging.finish(directory, task.files, scope)
