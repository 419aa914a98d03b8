"""Tasks that write a region's batches to Kafka: each its part, in a transaction of its own."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.sink.producers.producer_pool import Lease
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import TransactionAbortedError
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.kafka.fake_kafka import FakeBroker
from tests.simulation.kafka import attempt_of
from tests.simulation.worker import Worker, transaction_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

Part = tuple[TransactionIdentity, tuple[SplitRange, ...]]
"""What a task has pre-committed, and the ranges whose records it holds."""

_T = TypeVar("_T")
_Writing = Generator[None, None, TransactionIdentity]


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


class KafkaTasks:
    """Of one attempt of a region. Tasks of a batch run side by side, each in a worker of its own; a
    worker that has done with one takes the next.

    Attributes:
        writers: attempts under way.
    """

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self._idle: list[Worker] = []
        self.writers: list[Writer] = []

    def run(
        self, batch: BatchKey, splits: tuple[SplitRange, ...], scope: TaskScope
    ) -> Generator[None, None, list[Part]]:
        """Write all records of a batch, and confirm each transaction."""
        parts = self._parts(splits)
        running = {
            number: self._write(batch, part, replace(scope, task=f"{number}.0"))
            for number, part in enumerate(parts)
        }
        done: dict[int, TransactionIdentity] = {}
        while running:
            number = self._one_of(list(running))
            try:
                next(running[number])
            except StopIteration as end:
                done[number] = end.value
                del running[number]
                if running and self._is_lost():
                    # An executor is gone with what its task had to report; the attempt is nobody's.
                    again = replace(scope, task=f"{number}.1")
                    running[number] = self._write(batch, parts[number], again)
                continue
            yield
        return [(done[number], part) for number, part in enumerate(parts)]

    def orphan(self) -> None:
        """The driver does not wait for them any more."""
        self._world.zombies += self.writers
        self.writers.clear()

    def make_ready(self) -> None:
        """The next transactions' ids may be initialised while these wait for their commit."""
        for _ in range(self._world.random.randint(0, 3)):
            if self._idle:
                self._one_of(self._idle).work()

    def _parts(self, splits: tuple[SplitRange, ...]) -> list[tuple[SplitRange, ...]]:
        """By task: whole splits, for a split that is cut over tasks loses its order."""
        most = self._world.profile.tasks
        if most == 1:
            return [splits]
        by_task: dict[int, list[SplitRange]] = {}
        for split in splits:
            if not split.is_empty:
                by_task.setdefault(self._world.random.randrange(most), []).append(split)
        return [tuple(by_task[number]) for number in sorted(by_task)]

    def _one_of(self, choices: list[_T]) -> _T:
        return choices[0] if len(choices) == 1 else self._world.random.choice(choices)

    def _is_lost(self) -> bool:
        return self._world.fault(self._world.profile.fail_task / 2, "a task's result is lost")

    def _write(self, batch: BatchKey, splits: tuple[SplitRange, ...], scope: TaskScope) -> _Writing:
        world = self._world
        worker, writer = yield from self._open(None, batch, splits, scope)
        while True:
            yield
            if world.fault(world.profile.fail_task, "a task fails and is tried again"):
                left = self._give_up(worker, writer)
                worker, writer = yield from self._open(left, batch, splits, scope)
            if world.fault(world.profile.late / 2, "AddPartitions will come once more"):
                world.producers.repeat_add(writer.transaction)
            if not writer.write(world.random.randint(1, 4)):
                continue
            try:
                world.producers.confirm(writer.transaction)
            except TransactionAbortedError:
                left = self._give_up(worker, writer)
                worker, writer = yield from self._open(left, batch, splits, scope)
                continue
            self.writers.remove(writer)
            worker.spend(writer.lease)
            self._idle.append(worker)
            return writer.transaction

    def _give_up(self, worker: Worker, writer: Writer) -> Worker | None:
        """An attempt has failed: it aborts in its worker, or is left there, or with it."""
        self.writers.remove(writer)
        chance = self._world.random.random()
        if chance < 0.3:
            worker.abort(writer.lease)
            return worker
        self._world.note("a task continues without its driver")
        self._world.zombies.append(writer)
        worker.spend(writer.lease)
        return None if chance < 0.7 else worker

    def _open(
        self,
        worker: Worker | None,
        batch: BatchKey,
        splits: tuple[SplitRange, ...],
        scope: TaskScope,
    ) -> Generator[None, None, tuple[Worker, Writer]]:
        """Begin a transaction; it is registered before its first record (`ids-never-reused`)."""
        if worker is None:
            worker = self._idle.pop() if self._idle else Worker(self._world, scope)
        worker.enter(scope)
        while (lease := worker.take(scope)) is None:
            yield
            worker.work()
        yield
        transaction = transaction_of(lease)
        self._process.core.register(attempt_of(transaction, batch))
        writer = Writer(self._world.broker, lease, transaction, self._world.records_of(splits))
        self.writers.append(writer)
        return worker, writer
