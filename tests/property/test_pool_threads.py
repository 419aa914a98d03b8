"""A pool of producers under the threads of a worker, which change at each line of it.

Writers, the checkpoint clients that end their epochs, what is made ready in the background, zombies of an
older batch or attempt and the end of the pool meet in it, whichever comes first.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

import pytest

from sluice.connectors.kafka.sink.producers.producer_errors import LateRequestError, NotReadyError
from sluice.connectors.kafka.sink.producers.producer_pool import Lease, ProducerPool, ProducerPools
from sluice.connectors.kafka.sink.producers.producer_slots import NoIdLeftError
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import FencedError, UnreachableError
from tests.kit.kafka.fake_producer import FakeCluster
from tests.kit.kafka.producer_pools import pool_of, scope
from tests.kit.threads.switched_threads import Process, Switched, Thread

pytestmark = pytest.mark.usefixtures("silence")

_SWITCHED = (
    "sluice.connectors.kafka.sink.producers.producer_pool",
    "sluice.connectors.kafka.sink.producers.transactional_producer",
)
_AT_EACH_LINE = (
    "sluice.connectors.kafka.sink.producers.producer_pool",
    "sluice.connectors.kafka.sink.producers.producer_slots",
)
_TIMEOUT_S = 600.0  # of virtual time: nothing takes so long
_MOST_TURNS = 100_000
_BATCHES = 4
_PAUSED = 0.1  # of all lines
_PAUSES_S = (0.1, 1.0, 3.0)
_IDLE_S = (*(0.0, 0.1, 1.0) * 10, 400.0)
_PREPARING_S = (0.0, 0.1, 1.0, 20.0)
_LATE = UnreachableError("no answer", {}, "Wait.")


class _Producer(TransactionalProducer):
    """Counts how often it is let go of; its client may give up at any moment."""

    releases = 0
    gives_up: Callable[[], bool]

    def keep_alive(self) -> bool:
        return super().keep_alive() and not self.gives_up()

    def release(self) -> None:
        self.releases += 1
        super().release()


class Worker:
    """A process with its pools, for one sink and region.

    Args:
        fails: of a hundred producers so many are not made ready.

    Attributes:
        pools: the attempt of each that was made.
        reported: what refused a writer.
    """

    def __init__(self, random: Random, *, fails: int) -> None:
        self.pools: list[int] = []
        self.told: list[type[Exception]] = []
        self.switched = Switched(random.randrange)
        self._random = random
        self._fails = fails
        self._cluster = FakeCluster()
        self._made: list[_Producer] = []
        self._left: list[TransactionalProducer] = []
        self._begun = (0, 0)
        self._process = Process("worker")

    def live(self, *, attempt_ids: int, tasks: int) -> None:
        """With so many writers of each attempt, until all threads have ended."""
        switched = self.switched
        with switched.in_modules(*_SWITCHED), self._at_each_line():
            self._of_process = ProducerPools()
            writers = [
                self._spawn(self._writer(attempt_id, number))
                for attempt_id in range(attempt_ids)
                for number in range(tasks)
            ]
            self._spawn(lambda: self._end(writers))
            try:
                is_over = switched.run(lambda: not switched.living, most_turns=_MOST_TURNS)
                assert is_over, [(thread.name, thread.at) for thread in switched.living]
            finally:
                switched.end()
        assert NotReadyError not in self.told, "somebody waits in vain"
        for producer in self._made:
            times = (0, 1) if producer in self._left else (1,)
            assert producer.releases in times, f"let go of {producer.releases} times"

    def _at_each_line(self) -> AbstractContextManager[None]:
        return self.switched.at_each_line(*_AT_EACH_LINE, pauses_s=self._pause_s)

    def _pause_s(self) -> float:
        return self._random.choice(_PAUSES_S) if self._random.random() < _PAUSED else 0.0

    def _idle(self) -> None:
        """There is nothing to do: for a moment, or for so long that producers grow old."""
        self.switched.sleep(self._random.choice(_IDLE_S))

    def _spawn(self, target: Callable[[], None]) -> Thread:
        return self.switched.spawn(target, process=self._process, name="thread")

    def _end(self, writers: list[Thread]) -> None:
        self.switched.block(
            lambda: not any(writer.is_alive() for writer in writers), None, at="the end"
        )
        self._of_process.close()

    # --- the pool's side --------------------------------------------------------------------------

    def _pool(self, task: TaskScope) -> ProducerPool:
        self.pools.append(task.batch.attempt_id)
        self.switched.point("make")
        return ProducerPool(
            prefix="p",
            scope=task,
            prepare=self._prepare,
            background=self._in_background,
            keep_alive_s=2.0,
            clock=self.switched.clock,
            ages=self.switched.clock,
        )

    def _in_background(self, function: Callable[[], None]) -> None:
        self._spawn(function)

    def _prepare(self, transactional_id: str) -> TransactionalProducer:
        self.switched.sleep(self._random.choice(_PREPARING_S))
        if self._fails_now():
            raise self._random.choice([LateRequestError(_LATE), _LATE])
        producer = _Producer(self._cluster.client, {}, transactional_id)
        producer.gives_up = self._fails_now
        producer.prepare(topic=None, timeout_s=1.0)
        self._made.append(producer)
        return producer

    def _fails_now(self) -> bool:
        return self._random.randrange(100) < self._fails

    # --- the writers' side ------------------------------------------------------------------------

    def _writer(self, attempt_id: int, number: int) -> Callable[[], None]:
        def write() -> None:
            for batch_id in range(_BATCHES):
                task = scope(
                    batch_id=batch_id,
                    checkpoint_id=batch_id + 1,
                    committed_through=batch_id,
                    task=f"{number}.0",
                    attempt_id=attempt_id,
                )
                self._idle()
                self._begun = max(self._begun, (attempt_id, batch_id))
                try:
                    self._write(task)
                except FencedError as err:
                    self.told.append(type(err))
                    return
                except (NoIdLeftError, UnreachableError) as err:
                    self.told.append(type(err))

        return write

    def _write(self, task: TaskScope) -> None:
        pool = self._of_process.enter("p", task, lambda: self._pool(task))
        lease = pool.take(task, timeout_s=_TIMEOUT_S)
        self._require_living(lease, task)
        self._idle()
        self._require_living(lease, task)
        chosen = self._random.randrange(6)
        if chosen == 0:
            self._left.append(lease.producer)  # it dies without a word
        elif chosen == 1:
            pool.return_unused(lease)
        elif chosen == 2:
            self._finish(pool, lease)
        else:  # while the next epoch is written
            pool.end(lease)
            self._spawn(lambda: self._finish(pool, lease))

    def _finish(self, pool: ProducerPool, lease: Lease) -> None:
        self._idle()
        chosen = self._random.randrange(3)
        if chosen == 0:
            pool.abort(lease, timeout_s=1.0)
        elif chosen == 1:
            pool.spend(lease)
        else:
            pool.hold(lease)
            self._idle()
            pool.let_go(lease)

    def _require_living(self, lease: Lease, task: TaskScope) -> None:
        assert isinstance(lease.producer, _Producer)
        is_succeeded = self._begun > (task.batch.attempt_id, task.batch.batch_id)
        self.switched.require(
            is_succeeded or not lease.producer.releases, "let go of in a writer's hands"
        )


@pytest.mark.parametrize(("fails", "runs"), [(0, 8), (30, 20)])
def test_writers_couriers_zombies_and_the_end_disturb_no_pool(fails: int, runs: int) -> None:
    for seed in range(runs):
        worker = Worker(Random(seed), fails=fails)
        worker.live(attempt_ids=2, tasks=3)
        assert worker.pools in ([0, 1], [1]), "one of each attempt"


def test_writers_have_successors_and_are_reported_them() -> None:
    lived = [Worker(Random(seed), fails=30) for seed in range(5)]
    for worker in lived:
        worker.live(attempt_ids=2, tasks=3)
    told = [each for worker in lived for each in worker.told]
    assert told.count(FencedError) >= 5
    assert told.count(UnreachableError) >= 3


@pytest.mark.parametrize(
    "gives_back",
    [
        pytest.param(ProducerPool.end, id="end"),
        pytest.param(ProducerPool.spend, id="spend"),
        pytest.param(ProducerPool.hold, id="hold"),
        pytest.param(ProducerPool.return_unused, id="unused"),
    ],
)
def test_a_task_of_the_next_batch_may_begin_at_any_line_of_what_gives_a_producer_back(
    gives_back: Callable[[ProducerPool, Lease], None],
) -> None:
    line, lines = 0, 1
    while line < lines:
        lines = _interrupted(gives_back, line)
        line += 1
    assert lines > 1


def _interrupted(gives_back: Callable[[ProducerPool, Lease], None], line: int) -> int:
    """How many lines that took; in front of this one it hangs while the other begins."""
    switched, seen, late = Switched(lambda _: 0), list[int](), Process("late")

    def pause_s() -> float:
        assert switched.running is not None
        if switched.running.process is not late:
            return 0.0
        seen.append(line)
        return 10.0 if len(seen) == line + 1 else 0.0

    def succeed() -> None:
        switched.sleep(5.0)
        pool.enter(scope(batch_id=1))

    with switched.in_modules(*_SWITCHED), switched.at_each_line(*_AT_EACH_LINE, pauses_s=pause_s):
        pool = pool_of(FakeCluster(), scope(), lambda function: function())
        pool.enter(scope())
        lease = pool.take(scope(), timeout_s=1.0)
        switched.spawn(lambda: gives_back(pool, lease), process=late, name="writer")
        switched.spawn(succeed, process=Process("next"), name="writer")
        assert switched.run(lambda: not switched.living, most_turns=_MOST_TURNS)
    return len(seen)
