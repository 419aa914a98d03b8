"""A sink's task waits for brokers that are away: how long, who hears of it, and what ends it."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.preparation import WaitLimits
from sluice.connectors.kafka.sink.producers.producer_errors import NotReadyError, UnsentError
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.producer_slots import NoIdLeftError
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee, PlainWriter
from sluice.connectors.kafka.sink.writer.producer_wait import ProducerWait
from sluice.connectors.kafka.sink.writer.sender import flush
from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.errors import AuthenticationError, FencedError, StreamError, UnreachableError
from sluice.runtime.model.splits import BatchKey
from tests.kit.fakes import ManualClock
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster
from tests.kit.kafka.producer_pools import Threads
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import SCOPE

AWAY = UnsentError("no broker answers", {}, "Start them.")


@dataclass
class Room:
    """A registry that hears of waits; it may tell the task to end."""

    told: list[str] = field(default_factory=list)
    over: int = 0
    ends_after: int = 1_000

    def register(self, attempt: RegisteredAttempt) -> float:
        raise AssertionError(attempt)

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        assert (batch, what) == (SCOPE.batch, "a producer")
        self.told.append(why)
        if len(self.told) > self.ends_after:
            raise FencedError("the life is over", {}, "End.")

    def waited(self, batch: BatchKey, what: str) -> None:
        self.over += 1


class Waiting:
    """A wait on a clock that only waits advance."""

    def __init__(self, *answers: StreamError | None, room: Room | None = None) -> None:
        self.clock = ManualClock()
        self._began_s = self.clock()
        self.room = room or Room()
        self.tries_at_s: list[float] = []
        self._answers = list(answers)
        self._wait = ProducerWait(
            self.room, SCOPE.batch, "a producer", clock=self.clock, sleep=self.clock.advance
        )

    @property
    def waited_s(self) -> float:
        return self.clock() - self._began_s

    def run(self, timeout_s: float) -> str:
        return self._wait.until_ready(self._take, timeout_s=timeout_s)

    def _take(self, step_s: float) -> str:
        self.tries_at_s.append(self.clock())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, NotReadyError):
            self.clock.advance(step_s)
            raise NotReadyError("not ready in time", {"timeout_s": step_s}, "Check.")
        if answer is not None:
            raise answer
        return "lease"


def test_brokers_that_come_back_in_time_cost_a_wait_and_no_failure() -> None:
    """A restart of the region would count against the job, three of them would end it."""
    waiting = Waiting(*[AWAY] * 20, None)
    assert waiting.run(120.0) == "lease"
    assert waiting.waited_s < 120
    assert waiting.room.over == 1


def test_who_waits_in_vain_says_why() -> None:
    """The reason that a try had, and not that time ran out; and when there was none, how much."""
    with pytest.raises(UnsentError, match="no broker answers"):
        Waiting(AWAY, NotReadyError("", {}, "")).run(120.0)
    waiting = Waiting(NotReadyError("", {}, ""))
    with pytest.raises(UnreachableError, match=r"timeout_s=120\.0"):
        waiting.run(120.0)
    assert 120 <= waiting.waited_s < 122


@pytest.mark.parametrize("error", [AuthenticationError("no", {}, ""), NoIdLeftError("no", {}, "")])
def test_what_no_wait_mends_is_told_at_once(error: StreamError) -> None:
    waiting = Waiting(error)
    with pytest.raises(type(error)):
        waiting.run(120.0)
    assert len(waiting.tries_at_s) == 1


def test_the_coordinator_hears_every_few_seconds_what_is_waited_for() -> None:
    """And nothing of a wait that is as short as most."""
    waiting = Waiting(NotReadyError("", {}, ""), AWAY)
    with pytest.raises(UnsentError):
        waiting.run(60.0)
    assert 15 <= len(waiting.room.told) <= 30
    assert "no broker answers" in waiting.room.told[-1]
    short = Waiting(AWAY, None)
    short.run(60.0)
    assert (short.room.told, short.room.over) == ([], 0)


def test_a_life_that_is_over_ends_the_wait() -> None:
    """Ctrl-C, a newer life, a newer run: nobody waits two minutes for nothing."""
    waiting = Waiting(AWAY, room=Room(ends_after=1))
    with pytest.raises(FencedError):
        waiting.run(120.0)
    assert waiting.waited_s < 10


def test_the_pool_and_the_wait_outlive_an_outage_together() -> None:
    """Each try fails in the background; no id is used up, for nothing was sent."""
    cluster, failures = FakeCluster(), [AWAY] * 5
    ids, threads = set[str](), Threads()

    def prepare(transactional_id: str) -> TransactionalProducer:
        ids.add(transactional_id)
        if failures:
            raise failures.pop()
        producer = TransactionalProducer(cluster.client, {}, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        return producer

    pool = ProducerPool(
        prefix="p",
        scope=SCOPE,
        prepare=prepare,
        background=threads,
        keep_alive_s=None,
    )
    pool.enter(SCOPE)
    clock = ManualClock()
    wait = ProducerWait(Room(), SCOPE.batch, "a producer", clock=clock, sleep=clock.advance)
    lease = wait.until_ready(lambda step_s: pool.take(SCOPE, timeout_s=step_s), timeout_s=60)
    threads.join()
    assert lease.producer.transactional_id in ids
    assert len(ids) == 2, "and the next one is made ready"


class StuckClient(FakeClient):
    """Some records are never acknowledged; others are, one by one, as the test says."""

    def __init__(self, *left: int) -> None:
        super().__init__(FakeCluster(), {})
        self.left = list(left)

    def flush(self, timeout: float) -> int:
        del timeout
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def __len__(self) -> int:
        return self.left[0]


@dataclass
class NotedWait:
    """Remembers what it was told."""

    events: list[str] = field(default_factory=list)
    limit: int = 1_000

    def report(self, why: object) -> None:
        self.events.append(str(why))
        if len(self.events) >= self.limit:
            raise FencedError("the life is over", {}, "End.")

    def is_over(self) -> None:
        self.events.append("over")


def test_a_flush_tells_of_its_wait_and_ends_with_the_task() -> None:
    wait: Any = NotedWait(limit=5)
    with pytest.raises(FencedError):
        flush(StuckClient(3), DeliveryLog(SCOPE), timeout_s=1_000, wait=wait)
    assert wait.events[-1] == "over"
    assert "records=3" in wait.events[0]


def test_a_flush_that_gets_on_is_no_wait() -> None:
    """What was told would not be true: the brokers do take records."""
    wait = NotedWait()
    flush(StuckClient(9, 7, 7, 5, 0), DeliveryLog(SCOPE), timeout_s=1_000, wait=wait)
    assert [event.rpartition(": ")[2] for event in wait.events] == [
        "records=9",
        "over",
        "records=7",
        "records=7",
        "over",
        "records=5",
        "over",
    ]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_a_writer_without_transactions_ends_its_wait_with_its_task(guarantee: Guarantee) -> None:
    """No record is called lost for that."""
    writer = PlainWriter(
        StuckClient(3),
        SCOPE,
        "out",
        guarantee=guarantee,
        partition_count=None,
        drop=lambda: None,
        wait=NotedWait(limit=2),
    )
    with pytest.raises(FencedError):
        writer.pre_commit()


@pytest.mark.parametrize(
    ("options", "ready_s", "flush_s"),
    [
        ({}, 120, 180),
        ({"message.timeout.ms": "300000"}, 300, 360),
        ({"delivery.timeout.ms": "300000"}, 300, 360),
        ({"message.timeout.ms": "1000"}, 25, 180),
        ({"message.timeout.ms": "0"}, 180, 180),
        ({"message.timeout.ms": "soon"}, 120, 180),
    ],
)
def test_a_wait_is_as_long_as_a_record_is_kept(
    options: dict[str, str], ready_s: float, flush_s: float
) -> None:
    """As ``message.timeout.ms`` says; for ever is none, and a flush has its bound."""
    assert WaitLimits.of(options) == WaitLimits(ready_s=ready_s, flush_s=flush_s)


def test_a_short_transaction_bounds_the_wait() -> None:
    assert WaitLimits.of({}, transaction_timeout_s=30.0).ready_s == 30.0


def test_a_wait_that_is_looked_at_often_is_told_every_two_seconds() -> None:
    """Flushes look many times a second, of all tasks at once."""
    room, clock = Room(), ManualClock()
    wait = ProducerWait(room, SCOPE.batch, "a producer", clock=clock)
    for _ in range(2):
        room.told.clear()
        for _ in range(200):
            clock.advance(0.1)
            wait.report("the queue is full")
        assert 9 <= len(room.told) <= 10
        wait.is_over()
    assert room.over == 2
