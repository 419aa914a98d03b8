"""Rule 4 step by step: when an id may be initialised again, and how many there are."""

import inspect
import os
import threading
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest

from connectors.kafka import producers
from connectors.kafka.producers import ProducerPool, ProducerPools, process_pools
from connectors.kafka.refusals import UnsentError
from connectors.kafka.slots import (
    IDS_PER_TASK,
    TRANSITIONS,
    SlotBook,
    SlotEvent,
    SlotState,
    advance,
)
from connectors.kafka.transactional_producer import TransactionalProducer
from runtime.checkpoint.plan import CheckpointSettings
from runtime.contracts import TaskScope
from runtime.errors import (
    AuthenticationError,
    DeliveryError,
    FencedError,
    IllegalTransitionError,
    StreamError,
    UnreachableError,
)
from runtime.job import Job
from runtime.model import BatchKey
from tests.fake_producer import FakeClient, FakeCluster, kafka_error
from tests.waiting import join, wait_for


def scope(
    *,
    batch_id: int = 0,
    checkpoint_id: int = 1,
    committed_through: int = 0,
    task: str = "0.0",
    generation: int = 0,
) -> TaskScope:
    return TaskScope(
        job_uid="j",
        operator_id="o",
        batch=BatchKey(region="r", generation=generation, batch_id=batch_id),
        checkpoint_id=checkpoint_id,
        committed_through=committed_through,
        task=task,
    )


def used_slot(book: SlotBook, task: TaskScope) -> int:
    """Take a slot for a task and leave a pre-committed transaction in it."""
    book.enter(task)
    for prepared in book.to_prepare(at_least=1):
        book.record(prepared, SlotEvent.PREPARED)
    slot = book.take(task)
    assert slot is not None
    book.record(slot, SlotEvent.SPEND)
    return slot


@pytest.mark.parametrize(("state", "event"), list(product(SlotState, SlotEvent)))
def test_every_pair_of_state_and_event_is_in_the_table_or_refused(
    state: SlotState, event: SlotEvent
) -> None:
    """A slot changes in one place only; what the table does not have is a bug that says so."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event, slot=0) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            advance(state, event, slot=0)


def test_an_id_rests_until_its_checkpoint_is_committed_on_record() -> None:
    """Rule 4: `init_transactions` would abort what is decided but not yet committed."""
    book = SlotBook()
    slot = used_slot(book, scope())
    book.enter(scope(batch_id=1, checkpoint_id=2, committed_through=0))
    assert book.state(slot) is SlotState.SPENT
    book.enter(scope(batch_id=2, checkpoint_id=3, committed_through=1))
    assert book.state(slot) is SlotState.FREE


def test_an_id_of_a_late_batch_rests_although_its_hinted_checkpoint_is_over() -> None:
    """Rule 8: the checkpoint id is a hint; the batch may be decided in a later checkpoint."""
    book = SlotBook()
    slot = used_slot(book, scope(batch_id=5, checkpoint_id=5, committed_through=4))
    book.enter(scope(batch_id=5, checkpoint_id=6, committed_through=5, task="1.0"))
    assert book.state(slot) is SlotState.SPENT


def test_a_task_whose_transactions_rest_gets_three_ids_and_then_an_error() -> None:
    """The bound of rule 4 holds when no checkpoint is committed."""
    book = SlotBook()
    used = {used_slot(book, scope(task=f"0.{attempt}")) for attempt in range(IDS_PER_TASK)}
    assert used == set(range(IDS_PER_TASK))
    assert book.to_prepare(at_least=1) == []
    with pytest.raises(UnreachableError, match="every transactional id"):
        book.require_hope()


def test_steady_batches_of_one_task_need_two_ids() -> None:
    """2,000 epochs leave 2 ids behind: one was made ready while the other was written."""
    book = SlotBook()
    for batch in range(100):
        used_slot(book, scope(batch_id=batch, checkpoint_id=batch + 1, committed_through=batch))
        for slot in book.to_prepare():
            book.record(slot, SlotEvent.PREPARED)
    assert len(book) == 2


def test_as_many_are_made_ready_as_the_last_batch_had_tasks() -> None:
    """A worker that runs three tasks of a batch one after the other waits for none of them."""
    book = SlotBook()
    for task in range(3):
        used_slot(book, scope(task=f"{task}.0"))
    book.enter(scope(batch_id=1, checkpoint_id=2, committed_through=1))
    assert len(book.to_prepare(at_least=1)) == 3


class Threads:
    """A background whose threads start at once, and can be waited for."""

    def __init__(self) -> None:
        self.started: list[threading.Thread] = []

    def __call__(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, daemon=True)
        self.started.append(thread)
        thread.start()

    def join(self) -> None:
        join(*self.started)


def pool_of(
    cluster: FakeCluster,
    task: TaskScope,
    background: Callable[[Callable[[], None]], None],
    clock: Callable[[], float] = lambda: 0.0,
    keep_alive_s: float | None = None,
) -> ProducerPool:
    def prepare(transactional_id: str) -> TransactionalProducer:
        producer = TransactionalProducer(cluster.client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        return producer

    return ProducerPool(
        prefix="p",
        scope=task,
        prepare=prepare,
        background=background,
        keep_alive_s=keep_alive_s,
        clock=clock,
        ages=clock,
    )


def test_the_next_producer_is_made_ready_while_this_one_is_written() -> None:
    """`init_transactions` is not on the way of an epoch."""
    cluster, threads = FakeCluster(), Threads()
    pool = pool_of(cluster, scope(), threads)
    pool.enter(scope())
    first = pool.take(scope(), timeout_s=10)
    threads.join()
    assert first.producer.transactional_id in cluster.epochs
    assert len(cluster.epochs) == 2


def test_ids_name_prefix_job_region_generation_owner_and_slot() -> None:
    """Rule 4: the sweep reads the region and its generation out of an id; the owner is random."""
    cluster, threads = FakeCluster(), Threads()
    names = []
    for _ in range(2):
        pool = pool_of(cluster, scope(generation=3), threads)
        pool.enter(scope(generation=3))
        names.append(pool.take(scope(generation=3), timeout_s=10).producer.transactional_id)
    first, second = (name.split("/") for name in names)
    assert first[:3] == second[:3] == ["p", "j", "r.3"]
    assert first[3] != second[3]
    assert first[4] == second[4] == "0"


def test_a_failed_initialisation_reaches_the_task_with_its_type() -> None:
    """Bad credentials are an error of their own, not a time-out."""
    cluster, threads = FakeCluster(init_error=kafka_error("_AUTHENTICATION")), Threads()
    pool = pool_of(cluster, scope(), threads)
    with pytest.raises(AuthenticationError):
        pool.take(scope(), timeout_s=10)


@pytest.mark.parametrize("met", ["_AUTHENTICATION", "_TRANSPORT"])
def test_a_failure_that_nobody_waited_for_is_told_to_the_next_task(met: str) -> None:
    """A second try would take as long once more, and say the same."""
    preparations = Preparations(FakeCluster(init_error=kafka_error(met)))
    preparations.pool.enter(scope())
    preparations.threads.join()
    preparations.fail(StreamError)
    assert len(preparations.asked) == 1
    preparations.cluster.init_error = None
    assert preparations.take() != preparations.asked[0], "it is told once"


@pytest.mark.parametrize("met", ["_TRANSPORT", "_AUTHENTICATION"])
def test_what_a_task_before_did_not_hear_is_of_the_past_if_it_is_mended(met: str) -> None:
    """A task without records asks for no producer. An hour later its failure would end the job,
    though the next task has begun a try, which says what holds now."""
    preparations = Preparations(FakeCluster(init_error=kafka_error(met)))
    for batch_id in range(2):
        preparations.pool.enter(scope(batch_id=batch_id))
        preparations.threads.join()
    preparations.cluster.init_error = None
    preparations.pool.enter(scope(batch_id=2))
    preparations.take()


def test_a_log_in_that_is_still_refused_is_told() -> None:
    """By the try that the task itself has begun."""
    preparations = Preparations(FakeCluster(init_error=kafka_error("_AUTHENTICATION")))
    for batch_id in range(2):
        preparations.pool.enter(scope(batch_id=batch_id))
        preparations.threads.join()
    preparations.fail(AuthenticationError)
    assert len(preparations.asked) == 2


@pytest.mark.parametrize(("error", "ids"), [(UnsentError, 1), (UnreachableError, 3)])
def test_an_id_for_which_nothing_was_sent_is_used_again(
    error: type[UnreachableError], ids: int
) -> None:
    """While brokers are away each try would make a new one. What was sent may yet happen."""
    tried, threads = [], Threads()

    def prepare(transactional_id: str) -> TransactionalProducer:
        tried.append(transactional_id)
        raise error("no broker answers", {}, "Start them.")

    pool = ProducerPool(prefix="p", scope=scope(), prepare=prepare, background=threads)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            pool.take(scope(), timeout_s=10)
        threads.join()
    assert len(set(tried)) == ids


class Preparations:
    """Makes producers ready for one pool, and knows which ids it was asked for."""

    def __init__(self, cluster: FakeCluster, *, timeout_s: float = 0) -> None:
        self.cluster = cluster
        self.threads = Threads()
        self.asked: list[str] = []
        self._timeout_s = timeout_s
        self.pool = ProducerPool(
            prefix="p",
            scope=scope(),
            prepare=self._prepare,
            background=self.threads,
            keep_alive_s=None,
        )

    def _prepare(self, transactional_id: str) -> TransactionalProducer:
        self.asked.append(transactional_id)
        producer = TransactionalProducer(self.cluster.client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=self._timeout_s)
        return producer

    def take(self) -> str:
        """The id that a task gets, when nothing is under way any more."""
        lease = self.pool.take(scope(), timeout_s=10)
        self.threads.join()
        return lease.producer.transactional_id

    def fail(self, error: type[StreamError]) -> None:
        """A task asks, and is told of it."""
        with pytest.raises(error):
            self.pool.take(scope(), timeout_s=10)
        self.threads.join()


@pytest.mark.parametrize(
    ("met", "told"), [("_TRANSPORT", UnreachableError), ("_AUTHENTICATION", AuthenticationError)]
)
def test_rule_4_an_id_whose_initialisation_was_not_answered_is_never_used_again(
    met: str, told: type[StreamError]
) -> None:
    """The request may still arrive, from the socket of a broker that was paused, and would abort
    what a second producer of the same id has begun, or even pre-committed. What people are told
    as its reason changes nothing about that: another broker may have refused this client."""
    preparations = Preparations(FakeCluster(init_error=kafka_error(met)))
    preparations.fail(told)
    preparations.cluster.init_error = None
    assert preparations.take() != preparations.asked[0]
    assert len(set(preparations.asked)) == len(preparations.asked)


def test_rule_4_an_id_whose_abort_was_not_answered_is_never_used_again() -> None:
    """Behind an abort the client may have to initialise the id anew; that request may arrive when
    its next transaction is decided."""
    cluster = FakeCluster(abort_is_acknowledged=False)
    pool = pool_of(cluster, scope(), lambda function: function())
    used = []
    for batch in range(4):
        task = scope(batch_id=batch, checkpoint_id=batch + 1, committed_through=batch)
        pool.enter(task)
        lease = pool.take(task, timeout_s=1)
        lease.producer.begin(lambda _: None)
        used.append(lease.producer.transactional_id)
        pool.abort(lease, timeout_s=1)
    assert len(set(used)) == len(used)


def test_ids_without_an_answer_do_not_use_up_the_three_of_a_task() -> None:
    """An outage of any length leaves the task able to go on."""
    book = SlotBook()
    book.enter(scope())
    for _ in range(2 * IDS_PER_TASK):
        (slot,) = book.to_prepare(at_least=1)
        book.record(slot, SlotEvent.UNANSWERED)
    assert len(book.to_prepare(at_least=1)) == 1


def test_a_producer_that_cannot_be_made_at_all_is_an_error_of_the_task() -> None:
    """Whatever goes wrong in a background thread, the task does not wait for its time-out."""

    def prepare(transactional_id: str) -> TransactionalProducer:
        raise RuntimeError(transactional_id)

    pool = ProducerPool(prefix="p", scope=scope(), prepare=prepare, background=Threads())
    with pytest.raises(DeliveryError, match="could not be made"):
        pool.take(scope(), timeout_s=10)


def test_waiting_for_a_producer_has_a_bound() -> None:
    """A background thread that hangs in the client does not hang the task."""
    pool = pool_of(FakeCluster(), scope(), lambda _: None)
    with pytest.raises(UnreachableError, match="became ready in time"):
        pool.take(scope(), timeout_s=0)


def test_a_producer_that_waited_too_long_is_replaced() -> None:
    """Topics get new partitions, and load balancers drop idle connections."""
    now = [0.0]
    cluster, threads = FakeCluster(), Threads()
    pool = pool_of(cluster, scope(), threads, clock=lambda: now[0])
    pool.enter(scope())
    threads.join()
    now[0] = 301
    pool.enter(scope(batch_id=1))
    threads.join()
    lease = pool.take(scope(batch_id=1), timeout_s=10)
    assert lease.producer.identity.producer_epoch == 1


def test_a_producer_that_nobody_takes_any_more_is_let_go() -> None:
    """A worker outlives its jobs; what they made ready must not stay connected for ever."""
    cluster, threads, now_s = FakeCluster(), Threads(), [0.0]
    pool = pool_of(cluster, scope(), threads, clock=lambda: now_s[0], keep_alive_s=0.001)
    pool.enter(scope())

    def all_have_ended() -> bool:
        now_s[0] += 301
        return not any(thread.is_alive() for thread in threads.started)

    wait_for(all_have_ended, what="the end of its thread, though no task comes")
    assert len(cluster.epochs) == 1


def test_a_writer_keeps_its_producer_however_old_that_grows() -> None:
    """What it has open would be lost; only what nobody has taken is made anew."""
    cluster, threads, now_s, clients = FakeCluster(), Threads(), [0.0], []

    def prepare(transactional_id: str) -> TransactionalProducer:
        def client(config: Mapping[str, Any]) -> FakeClient:
            clients.append(FakeClient(cluster, config))
            return clients[-1]

        producer = TransactionalProducer(client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        return producer

    pool = ProducerPool(
        prefix="p",
        scope=scope(),
        prepare=prepare,
        background=threads,
        keep_alive_s=0.001,
        ages=lambda: now_s[0],
    )
    pool.enter(scope())
    lease = pool.take(scope(), timeout_s=10)
    leased = lease.producer.client
    assert isinstance(leased, FakeClient)
    now_s[0] += 301
    before = leased.polls
    wait_for(lambda: leased.polls >= before + 3, what="three looks at its age", poll_s=0.002)
    assert lease.producer.client is leased
    pool.close()
    threads.join()


def test_what_a_pool_does_in_the_background_keeps_no_worker_alive() -> None:
    """Spark ends its workers without a word to the threads in them."""
    seen: list[threading.Thread] = []
    producers.in_daemon_thread(lambda: seen.append(threading.current_thread()))
    wait_for(lambda: seen, poll_s=0.002)
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


def test_a_producer_is_served_while_its_writer_waits_for_records() -> None:
    """Nobody else polls between two batches: statistics pile up, tokens expire."""
    threads, clients = Threads(), []

    def client(config: Mapping[str, Any]) -> FakeClient:
        clients.append(FakeClient(FakeCluster(), config))
        return clients[-1]

    def prepare(transactional_id: str) -> TransactionalProducer:
        producer = TransactionalProducer(client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        return producer

    pool = ProducerPool(
        prefix="p", scope=scope(), prepare=prepare, background=threads, keep_alive_s=0.001
    )
    pool.enter(scope())
    lease = pool.take(scope(), timeout_s=10)
    leased = lease.producer.client
    assert isinstance(leased, FakeClient)
    before = leased.polls
    wait_for(lambda: leased.polls >= before + 3, what="three polls while nothing is written")

    with lease.producer.in_use():
        before = leased.polls
        assert lease.producer.keep_alive()
        assert leased.polls == before, "callbacks belong to the thread that writes"

    pool.spend(lease)
    pool.close()
    threads.join()


def test_a_new_generation_drops_the_pool_and_fences_the_old_one() -> None:
    """A zombie task of an older generation gets no producer in this process."""
    cluster, threads, pools = FakeCluster(), Threads(), ProducerPools()
    old = pools.enter("p", scope(), lambda: pool_of(cluster, scope(), threads))
    assert pools.enter("p", scope(), lambda: pool_of(cluster, scope(), threads)) is old
    new_scope = scope(generation=1)
    new = pools.enter("p", new_scope, lambda: pool_of(cluster, new_scope, threads))
    assert new is not old
    with pytest.raises(FencedError):
        old.take(scope(), timeout_s=0)
    with pytest.raises(FencedError):
        pools.enter("p", scope(), lambda: old)


def test_a_forked_worker_owns_none_of_its_parents_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 4: an id belongs to one process for ever; a fork is another process."""
    parents = process_pools()
    assert process_pools() is parents
    monkeypatch.setattr(producers, "_pid", os.getpid() + 1)
    monkeypatch.setattr(producers, "_of_process", parents)
    assert process_pools() is not parents


def test_rule_4_a_task_has_an_id_for_each_epoch_that_a_job_can_have_open() -> None:
    """One undecided for each checkpoint under way, one being written, one made ready. A job has one
    checkpoint under way, and nothing to change that."""
    assert CheckpointSettings().max_concurrent + 2 == IDS_PER_TASK
    assert "max_concurrent" not in inspect.signature(Job).parameters


def test_a_pool_that_was_closed_lets_nothing_more_in_and_keeps_no_thread() -> None:
    """A newer generation runs: a producer that becomes ready too late, a writer that comes back,
    and a lease that is given back find it closed, and none of them holds or breaks anything."""
    cluster, late, task = FakeCluster(), [], scope()
    pool = pool_of(cluster, task, lambda function: late.append(function))
    pool.enter(task)
    (make_ready,) = late
    make_ready()
    lease = pool.take(task, timeout_s=1)
    pool.enter(scope(batch_id=0, task="1.0"))
    late_ones = late[1:]
    pool.close()
    for function in late_ones:
        function()  # becomes ready behind the end: let go of at once
    with pytest.raises(FencedError):
        pool.take(task, timeout_s=1)
    for _ in range(2):
        pool.give_back_unused(lease)
        pool.let_go(lease)
        pool.hold(lease)
        pool.end(lease)
    pool.enter(scope(batch_id=1))
    assert len(pool) <= IDS_PER_TASK


def test_all_pools_of_a_process_are_let_go_at_once() -> None:
    """The next task begins with new ids."""
    cluster, pools, task = FakeCluster(), ProducerPools(), scope()
    first = pools.enter("p", task, lambda: pool_of(cluster, task, lambda function: function()))
    pools.close()
    with pytest.raises(FencedError):
        first.take(task, timeout_s=1)
    second = pools.enter("p", task, lambda: pool_of(cluster, task, lambda function: function()))
    assert second is not first
    assert second.take(task, timeout_s=1).producer.transactional_id.startswith("p/j/r.0/")
