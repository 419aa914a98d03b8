"""A Python worker of Spark's: its transactional ids come from the production pool."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.sink.producers.id_owners import NewOwner
from sluice.connectors.kafka.sink.producers.producer_pool import Lease, ProducerPool
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import BatchKey
from tests.simulation.kafka import PREFIX

if TYPE_CHECKING:
    from tests.simulation.world import World


def scope_of(job_uid: str, batch: BatchKey, *, checkpoint_id: int, through: int) -> TaskScope:
    """What the one task of a batch is reported."""
    return TaskScope(
        job_uid=job_uid,
        operator_id="sink",
        batch=batch,
        checkpoint_id=checkpoint_id,
        committed_through=through,
        task="0.0",
    )


@dataclass(frozen=True, slots=True)
class _Producer:
    """Of `TransactionalProducer` what the pool asks for."""

    world: "World"
    transaction: TransactionIdentity

    def release(self) -> None:
        """See `TransactionalProducer.release`."""

    def abort(self, *, timeout_s: float) -> bool:
        """See `TransactionalProducer.abort`."""
        return self.world.producers.abort_natively(self.transaction)


class Worker:
    """One process. What the pool does in the background is done step by step, by `work`."""

    def __init__(self, world: "World", scope: TaskScope) -> None:
        self._world = world
        self._name = f"worker-{next(world.names)}"
        self._to_do: list[Callable[[], None]] = []
        self._pool = ProducerPool(
            prefix=PREFIX,
            scope=scope,
            prepare=self._prepare,
            background=self._to_do.append,
            keep_alive_s=None,
            clock=world.clock,
            ages=world.ages,
            owner=NewOwner(f"w{next(world.names)}"),
        )

    def _prepare(self, transactional_id: str) -> TransactionalProducer:
        made = self._world.producers.initialise(transactional_id, hand=self._name)
        return cast(TransactionalProducer, cast(Any, _Producer(self._world, made)))

    def enter(self, scope: TaskScope) -> None:
        """A task begins."""
        self._pool.enter(scope)

    def take(self, scope: TaskScope) -> Lease | None:
        """A ready producer; None: there is `work` to be done first.

        Raises:
            UnreachableError: every id of the task holds a transaction whose end is unknown.
        """
        try:
            return self._pool.take(scope, timeout_s=0.0)
        except UnreachableError:
            if not self._to_do:
                raise
            return None

    def work(self) -> None:
        """The next thing that a background thread has to do, if there is one."""
        if self._to_do:
            self._to_do.pop(0)()

    def spend(self, lease: Lease) -> None:
        """Its transaction is pre-committed, or given up with an unknown end."""
        self._pool.spend(lease)

    def end(self, lease: Lease) -> None:
        """Its epoch has ended, and the next one is written."""
        self._pool.end(lease)

    def hold(self, lease: Lease) -> None:
        """Its transaction is pre-committed, and the producer lives on to commit it."""
        self._pool.hold(lease)

    def let_go(self, lease: Lease) -> None:
        """That producer is not needed any more."""
        self._pool.let_go(lease)

    def return_unused(self, lease: Lease) -> None:
        """No transaction was begun with it."""
        self._pool.return_unused(lease)

    def abort(self, lease: Lease) -> None:
        """The task aborts it; the id is free at once where the broker says so."""
        self._pool.abort(lease, timeout_s=0.0)

    def take_at_once(self, scope: TaskScope) -> TransactionIdentity:
        """One transaction, for somebody who waits for it."""
        self.enter(scope)
        while (lease := self.take(scope)) is None:
            self.work()
        return transaction_of(lease)


def transaction_of(lease: Lease) -> TransactionIdentity:
    """Which transaction a ready producer begins."""
    return cast(_Producer, lease.producer).transaction
