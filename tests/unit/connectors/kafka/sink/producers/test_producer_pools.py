"""One worker's pool of producers: how its ids are named, who shares it, and how it ends."""

import os
import threading
from collections.abc import Callable

import pytest

from sluice.connectors.kafka.sink.producers import producer_pool as producers
from sluice.connectors.kafka.sink.producers.producer_pool import (
    Lease,
    ProducerPool,
    ProducerPools,
    process_pools,
)
from sluice.connectors.kafka.sink.producers.producer_slots import IDS_PER_TASK, NoIdLeftError
from sluice.runtime.errors import DeliveryError, FencedError, UnreachableError
from tests.kit.kafka.fake_producer import FakeCluster
from tests.kit.kafka.producer_pools import Threads, pool_of, scope
from tests.kit.waiting import wait_for


def test_the_next_producer_is_made_ready_while_this_one_is_written() -> None:
    """`init_transactions` is not on the way of an epoch."""
    cluster, threads = FakeCluster(), Threads()
    pool = pool_of(cluster, scope(), threads)
    pool.enter(scope())
    first = pool.take(scope(), timeout_s=10)
    threads.join()
    assert first.producer.transactional_id in cluster.epochs
    assert len(cluster.epochs) == 2


def test_ids_name_prefix_job_region_attempt_owner_and_slot() -> None:
    """Rule `ids-never-reused`: the sweep reads the region and its attempt out of an id; the
    owner is random."""
    cluster, threads = FakeCluster(), Threads()
    names = []
    for _ in range(2):
        pool = pool_of(cluster, scope(attempt_id=3), threads)
        pool.enter(scope(attempt_id=3))
        names.append(pool.take(scope(attempt_id=3), timeout_s=10).producer.transactional_id)
    first, second = (name.split("/") for name in names)
    assert first[:3] == second[:3] == ["p", "j", "r.3"]
    assert first[3] != second[3]
    assert first[4] == second[4] == "0"


def test_waiting_for_a_producer_has_a_bound() -> None:
    """A background thread that hangs in the client does not hang the task."""
    pool = pool_of(FakeCluster(), scope(), lambda _: None)
    with pytest.raises(UnreachableError, match="became ready in time"):
        pool.take(scope(), timeout_s=0)


def test_nobody_waits_for_an_id_where_all_of_them_rest() -> None:
    """They become free by what the task's next batch is told, and by nothing else."""
    pool = pool_of(FakeCluster(), scope(), lambda function: function())
    pool.enter(scope())
    for _ in range(IDS_PER_TASK):
        pool.spend(pool.take(scope(), timeout_s=0))
    with pytest.raises(NoIdLeftError):
        pool.take(scope(), timeout_s=0)


def test_what_a_pool_does_in_the_background_keeps_no_worker_alive() -> None:
    """Spark ends its workers without a word to the threads in them."""
    seen: list[threading.Thread] = []
    producers.in_daemon_thread(lambda: seen.append(threading.current_thread()))
    wait_for(lambda: seen, poll_s=0.002)
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


def test_a_new_attempt_drops_the_pool_and_fences_the_old_one() -> None:
    """A zombie task of an older attempt gets no producer in this process."""
    cluster, threads, pools = FakeCluster(), Threads(), ProducerPools()
    old = pools.enter("p", scope(), lambda: pool_of(cluster, scope(), threads))
    assert pools.enter("p", scope(), lambda: pool_of(cluster, scope(), threads)) is old
    new_scope = scope(attempt_id=1)
    new = pools.enter("p", new_scope, lambda: pool_of(cluster, new_scope, threads))
    assert new is not old
    with pytest.raises(FencedError):
        old.take(scope(), timeout_s=0)
    with pytest.raises(FencedError):
        pools.enter("p", scope(), lambda: old)


def test_a_forked_worker_owns_none_of_its_parents_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: an id belongs to one process for ever; a fork is another process."""
    parents = process_pools()
    assert process_pools() is parents
    monkeypatch.setattr(producers, "_pid", os.getpid() + 1)
    monkeypatch.setattr(producers, "_of_process", parents)
    assert process_pools() is not parents


def test_a_pool_that_was_closed_lets_nothing_more_in_and_keeps_no_thread() -> None:
    """A newer attempt runs: a producer that becomes ready too late, a writer that comes back,
    and a released lease find it closed, and none of them holds or breaks anything."""
    cluster, late, task = FakeCluster(), [], scope()
    pool = pool_of(cluster, task, lambda function: late.append(function))
    pool.enter(task)
    (make_ready,) = late
    make_ready()
    lease = pool.take(task, timeout_s=1)
    pool.enter(scope(batch_id=0, task="1.0"))
    late_ones = late[1:]
    for _ in range(2):  # the end of the task, and that of its process
        pool.close()
    for function in late_ones:
        function()  # becomes ready behind the end: let go of at once
    with pytest.raises(FencedError):
        pool.take(task, timeout_s=1)
    for _ in range(2):
        pool.return_unused(lease)
        pool.let_go(lease)
        pool.hold(lease)
        pool.end(lease)
    pool.enter(scope(batch_id=1))
    assert len(pool) <= IDS_PER_TASK


def test_the_producer_of_an_epoch_that_is_flushed_outlives_the_begin_of_the_next_ones() -> None:
    """A continuous task begins them meanwhile; that of a writer which died is let go of."""
    pool = pool_of(FakeCluster(), scope(), lambda function: function())
    pool.enter(scope())
    flushed, left = pool.take(scope(), timeout_s=1), pool.take(scope(), timeout_s=1)
    pool.end(flushed)
    for batch_id in (1, 2):
        pool.enter(scope(batch_id=batch_id))
    assert flushed.producer.client is not None
    with pytest.raises(DeliveryError, match="after its release"):
        _ = left.producer.client


@pytest.mark.parametrize(
    "gives_back",
    [
        pytest.param(ProducerPool.end, id="end"),
        pytest.param(ProducerPool.spend, id="spend"),
        pytest.param(lambda pool, lease: [pool.hold(lease), pool.let_go(lease)], id="hold"),
        pytest.param(ProducerPool.return_unused, id="unused"),
        pytest.param(lambda pool, lease: pool.abort(lease, timeout_s=1), id="abort"),
    ],
)
def test_ids_never_reused_a_writer_that_was_given_up_does_not_give_back_the_id_of_another(
    gives_back: Callable[[ProducerPool, Lease], object],
) -> None:
    """It comes back when its id has long been free, and is in the hands of the next writer: to
    initialise it anew would abort what that has written, or even pre-committed."""
    cluster = FakeCluster()
    pool = pool_of(cluster, scope(), lambda function: function())
    pool.enter(scope())
    late = pool.take(scope(), timeout_s=1)
    for batch_id in (1, 2):
        task = scope(batch_id=batch_id, checkpoint_id=batch_id + 1, committed_through=batch_id)
        pool.enter(task)
    leases = [pool.take(task, timeout_s=1) for _ in range(IDS_PER_TASK)]
    (successor,) = (lease for lease in leases if lease.slot == late.slot)
    gives_back(pool, late)
    for _ in range(2):
        pool.enter(task)
    assert successor.producer.client is not None
    assert cluster.epochs[successor.producer.transactional_id] == 1
    pool.end(successor)
    pool.enter(scope(batch_id=3, checkpoint_id=4, committed_through=2))
    assert successor.producer.client is not None, "its writer has ended its epoch, and flushes it"
    pool.spend(successor)


def test_a_producer_that_is_held_too_long_is_let_go_of_beside_its_successor() -> None:
    """Its id is free once its checkpoint is committed on record, whoever has done that."""
    pool = pool_of(FakeCluster(), scope(), lambda function: function())
    pool.enter(scope())
    first = pool.take(scope(), timeout_s=1)
    pool.hold(first)
    task = scope(batch_id=1, checkpoint_id=2, committed_through=1)
    pool.enter(task)
    leases = [pool.take(task, timeout_s=1) for _ in range(IDS_PER_TASK)]
    (second,) = (lease for lease in leases if lease.slot == first.slot)
    pool.hold(second)
    pool.let_go(first)
    assert second.producer.client is not None
    with pytest.raises(DeliveryError, match="after its release"):
        _ = first.producer.client


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
