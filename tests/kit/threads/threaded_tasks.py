"""Continuous tasks with all their threads: what `tests.kit.threads.threaded_runs` begins.

Loop, checkpoint client, writers, producers and their pools are the real ones. Played are Spark, the way to
the driver, and librdkafka.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa

from sluice.connectors.kafka.client.confluent import KafkaException
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool, ProducerPools
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService, TaskHeartbeat
from sluice.runtime.continuous.checkpoint_client import CheckpointClient, TaskRegistry
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import ContinuousWriter, RegisteredAttempt, TaskScope
from sluice.runtime.errors import StreamError, TransactionAbortedError, UnreachableError
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.on_error import Skip
from sluice.runtime.model.splits import BatchKey
from tests.kit.continuous_parts import LogFollower
from tests.kit.kafka.fake_kafka import FakeBroker, Fenced
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, kafka_error
from tests.kit.threads.switched_threads import Process, Switched

PREFIX, JOB = "p", "job"
OTHER = 100  # partitions of the second sink
LOST_S = 60.0
"""For how long a task continues without hearing of its driver."""
SILENCE_S = 20.0
"""For how long a driver waits for a task's next question, and for a checkpoint."""

_OVER = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_ANSWER_S = 11.0
_REFUSED_S = 5.0
T = TypeVar("T")


class World(Protocol):
    """Where tasks live, and what they see of their driver.

    Attributes:
        switched: whose turn it is.
        faults: what goes wrong.
        broker: that all write to.
        logs: end of each partition of the input.
        sinks: by operator id.
        driver: its process.
        job_uid: of the job.
        counts: functions skip the records that they fail for.
    """

    counts: bool
    switched: Switched
    faults: "Faults"
    broker: FakeBroker
    logs: dict[int, int]
    sinks: Sequence[str]
    driver: Process
    job_uid: str

    @property
    def barrier_service(self) -> BarrierService:
        """Of the driver."""
        ...

    @property
    def last_committed(self) -> int:
        """Newest checkpoint that is committed on record."""
        ...

    @property
    def listens(self) -> bool:
        """Whether the driver serves requests; else they are refused."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing gets through to it, or from it."""
        ...

    def link(self) -> "PlayedLink":
        """From a task to the driver."""
        ...

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `AttemptRegistry.register`."""
        ...

    def pool(self, scope: TaskScope) -> ProducerPool:
        """Of a worker."""
        ...

    def lock(self) -> Any:
        """One of the threads that change."""
        ...


class PlayedClient(FakeClient):
    """A librdkafka producer over the model broker; other threads run while one is inside of it."""

    def __init__(self, world: World, first: int, config: Mapping[str, Any]) -> None:
        super().__init__(FakeCluster(partitions=2 * OTHER), config)
        self.identity: TransactionIdentity | None = None
        self._world = world
        self._first = first
        self._user = ""

    @contextmanager
    def _inside(self, what: str) -> Iterator[None]:
        """Callbacks run in the thread that is inside: there is one at a time."""
        self._world.switched.require(not self._user, f"{what} beside {self._user}")
        self._user = what
        try:
            self._world.switched.point(what)
            yield
            self._world.switched.point(f"behind {what}")
        finally:
            self._user = ""

    def init_transactions(self, timeout: float) -> None:
        with self._inside("init_transactions"):
            until_s = self._world.switched.now_s + timeout
            while (described := self._world.broker.describe(self._id)) is not None:
                if described.state not in _ENDING:
                    break
                if self._world.switched.now_s >= until_s:
                    raise KafkaException(kafka_error("_TIMED_OUT", retriable=True))
                self._world.switched.sleep(0.1)
            is_over = described is None or described.state in _OVER
            self._world.switched.require(is_over, f"not over: {described}")
            self.identity = self._world.broker.initialise(self._id)
            self.epoch, self.state = self.identity.producer_epoch, "Ready"
            self.initialisations += 1

    def statistics(self) -> str:
        told = json.loads(super().statistics())
        told["eos"]["producer_id"] = -1 if self.identity is None else self.identity.producer_id
        return json.dumps(told)

    def poll(self, timeout: float) -> int:
        with self._inside("poll"):
            if timeout > 0:
                self._world.switched.sleep(timeout)
            return super().poll(timeout)

    def flush(self, timeout: float) -> int:
        with self._inside("flush"):
            self._send(self._world.faults.choose(20))
            if self._queue:
                self._world.switched.sleep(timeout / 10)
                self._send()
            return len(self._queue)

    def _deliver(self) -> int:
        return self._send(self._world.faults.choose(20))

    def _send(self, most: int | None = None) -> int:
        count = len(self._queue) if most is None else min(most, len(self._queue))
        for callback, message in [self._queue.pop(0) for _ in range(count)]:
            assert self.identity is not None
            row = (message.record_partition, int(message.record_value or b""))
            try:
                self._world.broker.append(self.identity, self._first + row[0], row)
            except Fenced:
                self.state = "FatalError"
                callback(kafka_error("_FENCED", fatal=True), message)
        return count

    def commit_transaction(self, timeout: float) -> None:
        with self._inside("commit"):
            self._world.switched.require(not self._queue, "not all was flushed")
            self._end(timeout, commit=True)

    def abort_transaction(self, timeout: float) -> None:
        with self._inside("abort"):
            self._queue.clear()
            self._end(timeout, commit=False)

    def _end(self, timeout_s: float, *, commit: bool) -> None:
        world = self._world
        if world.faults.happens("lose_end"):
            world.broker.late.append(partial(self._land, commit=commit))
            world.switched.sleep(timeout_s)
            raise KafkaException(kafka_error("_TIMED_OUT", retriable=True))
        is_done = self._land(commit=commit)
        world.switched.point("EndTxn is done")
        if world.faults.happens("lose_end"):
            raise KafkaException(kafka_error("_TIMED_OUT", retriable=True))
        if not is_done:
            raise KafkaException(kafka_error("_FENCED", fatal=True))
        self.state = "Ready"

    def _land(self, *, commit: bool) -> bool:
        assert self.identity is not None
        if self._world.broker.logs and self.transaction is None:
            return True  # nothing was begun at the broker
        try:
            self._world.broker.end_natively(self.identity, commit=commit)
        except Fenced:
            return False
        return True


class _Producer(TransactionalProducer):
    """Given up at times."""

    world: World

    def confirm(self) -> None:
        super().confirm()
        if self.world.faults.happens("confirm"):
            raise TransactionAbortedError("not the one that was started", {}, "")


def made_ready(world: World, first: int, transactional_id: str) -> TransactionalProducer:
    """A producer whose records go to partitions from ``first`` on."""
    producer = _Producer(
        partial(PlayedClient, world, first),
        {"transaction.timeout.ms": 900_000},
        transactional_id,
        clock=world.switched.clock,
        ages=world.switched.clock,
    )
    producer.world = world
    producer.prepare(topic="out", timeout_s=10.0)
    return producer


class _Follower(LogFollower):
    """With what a sink needs."""

    def poll(self) -> pa.RecordBatch | None:
        batch = super().poll()
        if batch is None:
            return None
        offsets = batch.column("offset").to_pylist()
        columns = {
            "partition": batch.column("partition").cast(pa.int32()),
            "offset": batch.column("offset"),
            "value": pa.array([str(offset).encode() for offset in offsets], pa.binary()),
        }
        return pa.RecordBatch.from_pydict(columns)


class Faults:
    """What goes wrong, and how often: one in so many.

    Args:
        choose: a number below the one that it is given.
    """

    def __init__(self, choose: Callable[[int], int], one_in: Mapping[str, int]) -> None:
        self.choose = choose
        self.are_off = False
        self._one_in = dict(one_in)
        self.seen: dict[str, int] = {}

    def happens(self, what: str) -> bool:
        """Whether it goes wrong now."""
        one_in = self._one_in.get(what, 0)
        found = bool(one_in) and not self.are_off and self.choose(one_in) == one_in - 1
        self.seen[what] = self.seen.get(what, 0) + found
        return found


class PlayedLink:
    """From a task to its driver: a request is done in a thread of the driver's."""

    def __init__(self, world: World) -> None:
        self._world = world

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        return self._asked(
            lambda: self._world.barrier_service.next_barrier(
                region, attempt_id, wait_s=wait_s, has_read=has_read, committed=committed
            )
        )

    def acknowledge_epoch(self, result: EpochResult) -> None:
        self._asked(lambda: self._world.barrier_service.acknowledge(result))

    def register(self, attempt: RegisteredAttempt) -> float:
        return self._asked(lambda: self._world.register(attempt))

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        del batch, what, why

    def waited(self, batch: BatchKey, what: str) -> None:
        del batch, what

    def _asked(self, work: Callable[[], T]) -> T:
        world, switched = self._world, self._world.switched
        switched.point("ask")
        is_refused = world.driver.is_killed or not world.listens
        if is_refused or world.faults.happens("lose_question"):
            switched.sleep(_REFUSED_S if is_refused else 0.1)
            raise UnreachableError("nothing listens", {}, "")
        if world.is_cut_off:
            switched.sleep(_ANSWER_S)
            raise UnreachableError("nobody answers", {}, "")
        answers: list[T | Exception] = []

        def serve() -> None:
            try:
                answers.append(work())
            except Exception as err:  # noqa: BLE001 - raised where it was asked
                answers.append(err)

        switched.spawn(serve, process=world.driver, name="service")
        is_cut = world.faults.happens("break")
        limit_s = 0.005 * world.faults.choose(8) if is_cut else _ANSWER_S
        if not switched.block(
            lambda: bool(answers) and not world.is_cut_off, limit_s, at="an answer"
        ):
            raise UnreachableError("no answer", {}, "")
        if is_cut or world.faults.happens("lose_answer"):
            raise UnreachableError("the answer is lost", {}, "")
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return answer


class Worker(Process):
    """A Python worker of Spark's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pools: ProducerPools = ProducerPools()


class Life:
    """An attempt of a region: its task in a worker, and who waits for it in the driver."""

    def __init__(self, world: World, record: RegionRecord, attempt_id: int, worker: Worker) -> None:
        self.region, self.attempt_id, self.worker = record.region, attempt_id, worker
        self.world = world
        self.begins_after = world.last_committed
        self.error: BaseException | None = None
        self.has_ended = False
        self.is_told = False
        self.fails = False
        self.checkpoint_client: CheckpointClient | None = None
        policy = Skip() if world.counts else None
        self.functions = (
            ChainedFunction(
                name="f",
                operator_id="f",
                function=self._function,
                policy=policy,
                takes_context=True,
            ),
        )
        self.book = AttemptEpochs(
            region=record.region,
            attempt_id=attempt_id,
            functions=self.functions,
            operator_states=record.operator_states,
            heartbeat=TaskHeartbeat(world.switched.clock),
        )
        self.book._lock = cast(Any, world.lock())  # noqa: SLF001 - its default is a real one
        self.splits = [s.at_end() for s in record.splits]
        world.barrier_service.open(self.book)
        world.switched.spawn(self._task, process=worker, name=f"{self.region}.{attempt_id}")
        world.switched.spawn(self._watch, process=world.driver, name=f"watch {self.region}")

    def _task(self) -> None:
        try:
            self._loop().run()
        except Exception as err:  # noqa: BLE001 - as `ContinuousChain.run`
            self.error = err
        self.has_ended = True

    def _watch(self) -> None:
        """As `sluice.runtime.spark.tasks.continuous_attempt.ContinuousAttempt`."""
        switched, pulse = self.world.switched, self.book.heartbeat
        begun_s = switched.now_s
        while not switched.block(lambda: self.has_ended or self.worker.is_killed, 1.0, at="a task"):
            waits_s = 0.0 if pulse.has_begun else switched.now_s - begun_s
            if max(pulse.overdue_s(), waits_s) > SILENCE_S:
                break
        else:
            switched.sleep(0.01 if self.has_ended else 1.0 * self.world.faults.choose(4))
        if not self.has_ended:
            self.error = StreamError("the worker is lost, or silent", {}, "")
        self.book.stop()
        self.is_told = True

    def _loop(self) -> TaskLoop:
        world = self.world
        link = world.link()
        self.checkpoint_client = CheckpointClient(
            link, self.region, self.attempt_id, lost_timeout_s=LOST_S, clock=world.switched.clock
        )
        registry = TaskRegistry(link, self.checkpoint_client)
        return TaskLoop(
            self.region,
            self.attempt_id,
            stream=_Follower(self.splits, world.logs),
            client=self.checkpoint_client,
            open_writers=partial(self._open, registry),
            functions=lambda: FunctionRun(self.functions),
            begins_after=self.begins_after,
            clock=world.switched.clock,
        )

    def _function(self, batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        ctx.counter("seen").inc(batch.num_rows)
        self.world.switched.point("a function")
        if self.fails:
            if self.world.counts:  # any other error is the record's
                raise StreamError("the function fails", {}, "")
            raise RuntimeError("the function fails")
        return batch

    def _open(self, registry: TaskRegistry, epoch: EpochScope) -> TaskWriters[ContinuousWriter]:
        world = self.world
        writers = {name: self._writer(name, registry, epoch) for name in world.sinks}
        if self.fails and self.world.faults.choose(2):
            raise RuntimeError("no writer can be opened")
        return TaskWriters(writers, dead_letter_sink=None)

    def _writer(self, sink: str, registry: TaskRegistry, epoch: EpochScope) -> ContinuousWriter:
        scope = TaskScope(
            job_uid=self.world.job_uid,
            operator_id=sink,
            batch=epoch.batch,
            checkpoint_id=epoch.checkpoint_id,
            committed_through=self.begins_after,
            committed_batch=epoch.committed_batch,
            task="0.0",
        )
        pool = self.worker.pools.enter(PREFIX, scope, lambda: self.world.pool(scope))
        writer = TransactionalWriter(pool, scope, registry, "out", keeps_producer=True)
        return cast(ContinuousWriter, writer)
