"""Rule `ids-never-reused`: a transactional id is initialised again only when its last transaction
is over."""

import os
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.connectors.kafka.sink.producers.id_owners import OwnerFile, take_owner
from sluice.connectors.kafka.sink.producers.producer_pool import Lease, ProducerPool
from sluice.connectors.kafka.sink.producers.producer_slots import IDS_PER_TASK, SlotState
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import BatchKey
from tests.kit.effort import examples
from tests.kit.kafka.fake_producer import FakeCluster, FakeTransaction


@dataclass
class Use:
    """One transaction, and whether it is certain that nobody will commit it any more."""

    transaction: FakeTransaction
    checkpoint_id: int
    over: bool = False


class PoolMachine(RuleBasedStateMachine):
    """A region's batches over one worker's pool, in any order of tasks, failures and threads.

    Micro-batch: a batch begins when the last one is committed on record. Continuous: it begins at
    once, and checkpoints are committed later, in order.

    A micro-batch that is late joins a later checkpoint than the one its scope hints at
    (`batch-identity`), while the hinted one is aborted, so that ``committed_through`` runs ahead
    of the batch.
    """

    @initialize(continuous=st.booleans())
    def start(self, continuous: bool) -> None:
        self.continuous = continuous
        self.cluster = FakeCluster()
        self.pending: deque[Callable[[], None]] = deque()
        self.uses: dict[str, list[Use]] = {}
        self.leases: list[tuple[Lease, Use]] = []
        self.batch_id = 0
        self.checkpoint_id = 1
        self.committed_through = 0
        self.tasks: set[int] = set()
        self.most_tasks = 1
        self.brokers_answer = True
        self.unanswered: set[str] = set()
        self.given_up: set[str] = set()
        self.breaches: list[str] = []
        self.left: set[str] = set()
        self.directory = tempfile.TemporaryDirectory()
        self.begin_process()

    def begin_process(self) -> None:
        self.pending.clear()
        self.owner = take_owner(["p", "j", "r", "o"], 0, base=Path(self.directory.name))
        assert isinstance(self.owner, OwnerFile)
        self.pool = ProducerPool(
            prefix="p",
            scope=self.scope(0),
            prepare=self.prepare,
            background=self.pending.append,
            keep_alive_s=None,
            clock=lambda: 0.0,
            ages=lambda: 0.0,
            owner=self.owner,
        )

    def teardown(self) -> None:
        """Hypothesis calls this at the end of each example."""
        if hasattr(self, "directory"):
            os.close(self.owner._descriptor)  # noqa: SLF001
            self.directory.cleanup()

    def scope(self, task: int) -> TaskScope:
        return TaskScope(
            job_uid="j",
            operator_id="o",
            batch=BatchKey(region="r", attempt_id=0, batch_id=self.batch_id),
            checkpoint_id=self.checkpoint_id,
            committed_through=self.committed_through,
            task=f"{task}.0",
        )

    def prepare(self, transactional_id: str) -> TransactionalProducer:
        # Noted, not asserted: the pool makes any error in here one of the task that waits.
        if not all(use.over for use in self.uses.get(transactional_id, [])):
            self.breaches.append(f"{transactional_id}: its transaction may be decided")
        if transactional_id in self.unanswered | self.given_up:
            self.breaches.append(f"{transactional_id}: an earlier request may yet arrive")
        if not self.brokers_answer:
            self.unanswered.add(transactional_id)
            raise UnreachableError("no answer", {}, "Wait.")
        producer = TransactionalProducer(self.cluster.client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        return producer

    @rule(task=st.integers(0, 2), registered=st.booleans())
    def write(self, task: int, registered: bool) -> None:
        """A task takes a producer, if one is ready, and writes; or fails before it begins."""
        self.tasks.add(task)
        self.most_tasks = max(self.most_tasks, len(self.tasks))
        self.pool.enter(self.scope(task))
        try:
            lease = self.pool.take(self.scope(task), timeout_s=0)
        except UnreachableError:
            return
        if not registered:
            self.pool.return_unused(lease)
            return
        client = lease.producer.client
        lease.producer.begin(lambda _: None)
        client.produce("t", b"v", None, 0, lambda *_: None, None, 0, None)
        transaction = self.cluster.transactions[-1]
        use = Use(transaction, self.checkpoint_id)
        self.uses.setdefault(lease.producer.transactional_id, []).append(use)
        self.leases.append((lease, use))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def pre_commit(self, data: st.DataObject) -> None:
        """A writer is done; its transaction stays open."""
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.pool.spend(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), acknowledged=st.booleans())
    def abort(self, data: st.DataObject, acknowledged: bool) -> None:
        """A task fails; the broker answers, or does not: after an abort the client initialises
        the id, too, and that request may arrive late."""
        lease, use = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.cluster.abort_is_acknowledged = acknowledged
        self.pool.abort(lease, timeout_s=1)
        use.over = acknowledged
        if not acknowledged:
            self.given_up.add(lease.producer.transactional_id)

    @precondition(lambda self: not self.continuous)
    @rule()
    def expire(self) -> None:
        """The hinted checkpoint is aborted, but the batch lives on and will join the next one."""
        self.committed_through = self.checkpoint_id

    @rule()
    def next_batch(self) -> None:
        """A later batch begins. Writers that died without a word stay after."""
        self.batch_id += 1
        if not self.continuous:
            self.commit_through(self.checkpoint_id)
            self.committed_through = max(self.committed_through, self.checkpoint_id)
            self.checkpoint_id = self.committed_through
        self.checkpoint_id += 1
        self.tasks = set()
        self.leases = []

    @precondition(lambda self: self.continuous and self.committed_through < self.checkpoint_id - 1)
    @rule()
    def commit_oldest(self) -> None:
        """The oldest undecided checkpoint is committed on record; what it left out is swept."""
        self.committed_through += 1
        self.commit_through(self.committed_through)

    def commit_through(self, checkpoint_id: int) -> None:
        for uses in self.uses.values():
            for use in uses:
                if use.checkpoint_id <= checkpoint_id:
                    use.over = True
                    use.transaction.state = "over"

    @rule(is_sent=st.booleans())
    def end_process(self, is_sent: bool) -> None:
        """Spark ends the worker, at any time; a later one takes its ids over."""
        slots = self.pool._slot_table  # noqa: SLF001
        for number in range(len(slots)):
            name, state = self.pool._id_of(number), slots.state(number)  # noqa: SLF001
            if state is SlotState.PREPARING and is_sent:
                self.unanswered.add(name)
            if state not in (SlotState.FREE, SlotState.READY, SlotState.RETIRED):
                self.left.add(name)
        self.leases = []
        os.close(self.owner._descriptor)  # noqa: SLF001 - as the kernel does
        name, left = self.owner.name, len(slots)
        self.begin_process()
        if left:
            assert self.owner.name == name or len(self.left) > 16
        self.tasks = set()

    @rule(answer=st.booleans())
    def pause_or_wake_the_brokers(self, answer: bool) -> None:
        """Requests to initialise an id are given up while they are paused."""
        self.brokers_answer = answer

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def run_background(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.pending) - 1))
        self.pending.rotate(-index)
        self.pending.popleft()()

    @invariant()
    def no_id_is_initialised_too_soon(self) -> None:
        assert not self.breaches

    @invariant()
    def one_live_transaction_per_id(self) -> None:
        for transactional_id in self.cluster.epochs:
            assert len(self.cluster.open_transactions(transactional_id)) <= 1

    @invariant()
    def a_request_that_arrives_late_aborts_nothing(self) -> None:
        for transactional_id in self.unanswered:
            assert not self.cluster.open_transactions(transactional_id)

    @invariant()
    def ids_are_bounded(self) -> None:
        assert len(self.pool) <= IDS_PER_TASK * self.most_tasks + len(
            self.unanswered | self.given_up | self.left
        )


TestProducerPool = PoolMachine.TestCase
TestProducerPool.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
