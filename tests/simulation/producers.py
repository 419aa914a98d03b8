"""What tasks' producers ask of the model Kafka; answers are lost, requests come late or twice."""

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.errors import DeliveryError, TransactionAbortedError, UnreachableError
from tests.kit.kafka.fake_kafka import Fenced

if TYPE_CHECKING:
    from tests.simulation.world import World


class Producers:
    """Of all workers; they write their records at the broker itself.

    Attributes:
        natively: commits of their own that the broker has acknowledged.
        ahead: transactions that a task began before its last one was ended by anybody.
    """

    def __init__(self, world: "World") -> None:
        self.natively = 0
        self.ahead = 0
        self._world = world
        self._repeated: set[TransactionIdentity] = set()

    def initialise(self, transactional_id: str, *, hand: str) -> TransactionIdentity:
        """`init_transactions` of a producer that ``hand`` owns.

        Raises:
            DeliveryError: markers are due, which is asked for again.
            UnreachableError: nothing is answered; it has happened, or will.
        """
        if self._world.fault(self._world.profile.late / 2, "init_transactions comes late"):
            self._world.broker.late.append(partial(self._initialise_late, transactional_id, hand))
            raise UnreachableError("no answer", {"id": transactional_id}, "Take another id.")
        try:
            made = self._world.broker.initialise(transactional_id)
        except Fenced as err:
            where = {"id": transactional_id}
            raise DeliveryError("its markers are still written", where, "Ask again.") from err
        self._world.watch.initialised(transactional_id, hand, made)
        return made

    def _initialise_late(self, transactional_id: str, hand: str) -> None:
        with contextlib.suppress(Fenced):  # nobody sends it again
            made = self._world.broker.init_producer_id(transactional_id)
            self._world.watch.initialised(transactional_id, hand, made)

    def abort_natively(self, transaction: TransactionIdentity) -> bool:
        """A producer's own abort, and whether the broker has acknowledged it."""
        if self._world.fault(self._world.profile.unreached, "a producer's abort is not sent"):
            return False
        described = self._world.broker.describe(transaction.transactional_id)
        if described is not None and described.state is TransactionState.EMPTY:
            return True  # no record was sent: nothing is to be ended
        try:
            self._world.broker.end_natively(transaction, commit=False)
        except Fenced:
            return False
        return not self._world.fault(
            self._world.profile.unanswered, "a producer's abort is not answered"
        )

    def commit_natively(self, transaction: TransactionIdentity) -> bool:
        """A producer's own commit, and whether the broker has acknowledged it."""
        profile = self._world.profile
        if self._world.fault(profile.unreached, "a producer's commit is not sent"):
            return False
        if self._world.fault(profile.late, "a producer's commit comes late"):
            self._world.broker.late.append(partial(self._commit_late, transaction))
            return False
        try:
            self._world.broker.end_natively(transaction, commit=True)
        except Fenced:
            return False
        if self._world.fault(profile.unanswered, "a producer's commit is not answered"):
            return False
        self.natively += 1
        self._world.watch.tells_committed(transaction)
        return True

    def _commit_late(self, transaction: TransactionIdentity) -> None:
        with contextlib.suppress(Fenced):
            self._world.broker.end_natively(transaction, commit=True)

    def repeat_add(self, transaction: TransactionIdentity) -> None:
        """A copy of a task's AddPartitions lies in a queue; the task will be reported it."""
        known = self._world.broker.ids.get(transaction.transactional_id)
        written = None if known is None else known.written
        if written is None:
            return  # nothing was added yet, or the id has expired
        self._repeated.add(transaction)
        for partition in sorted(written.partitions)[:1]:
            self._world.broker.late.append(partial(self._add_late, transaction, partition))

    def confirm(self, transaction: TransactionIdentity) -> None:
        """After a flush; see `TransactionalProducer.confirm`.

        Raises:
            TransactionAbortedError: it may be begun once more after its commit.
        """
        if transaction in self._repeated:
            where = {"id": transaction.transactional_id}
            raise TransactionAbortedError("may be begun again", where, "It is written again.")

    def _add_late(self, transaction: TransactionIdentity, partition: int) -> None:
        with contextlib.suppress(Fenced):
            self._world.broker.add_partitions(transaction, partition)
