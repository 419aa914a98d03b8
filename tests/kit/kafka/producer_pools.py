"""Pools of transactional producers on a fake cluster, and the tasks that ask them for one."""

import threading
from collections.abc import Callable

import pytest

from sluice.connectors.kafka.sink.producers.producer_errors import NotReadyError
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import StreamError
from sluice.runtime.model.splits import BatchKey
from tests.kit.kafka.fake_producer import FakeCluster
from tests.kit.waiting import join


def scope(
    *,
    batch_id: int = 0,
    checkpoint_id: int = 1,
    committed_through: int = 0,
    task: str = "0.0",
    attempt_id: int = 0,
) -> TaskScope:
    """A task's, of one sink in one region."""
    return TaskScope(
        job_uid="j",
        operator_id="o",
        batch=BatchKey(region="r", attempt_id=attempt_id, batch_id=batch_id),
        checkpoint_id=checkpoint_id,
        committed_through=committed_through,
        task=task,
    )


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
    """A pool for a task's region, on ``cluster``; what it makes ready is made in ``background``."""

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
        """A task asks, and is reported it before its time is up."""
        with pytest.raises(error) as told:
            self.pool.take(scope(), timeout_s=10)
        assert not isinstance(told.value, NotReadyError)
        self.threads.join()
