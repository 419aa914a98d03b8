"""A producer that nobody writes with: served, made anew when it is old, and let go."""

from collections.abc import Mapping
from typing import Any

from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster
from tests.kit.kafka.producer_pools import Threads, pool_of, scope
from tests.kit.waiting import wait_for


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
