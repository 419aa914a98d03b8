"""A driver of continuous tasks with all its threads, a broker, and the tasks beside it.

Desk, committers, sweeps and the coordinator's core are the real ones. Threads change at each lock,
wait and request (`tests.switched_threads`); the core takes in an event at one moment.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any, cast
from unittest.mock import patch

import runtime.continuous.pulse as patched_module
from connectors.kafka.committer import KafkaCommitter
from connectors.kafka.handles import TransactionIdentity, decode_handle
from connectors.kafka.producer_wait import ProducerWait
from connectors.kafka.producers import ProducerPool
from connectors.kafka.sweep import Sweeper
from connectors.kafka.wire import TransactionState
from runtime.checkpoint.attempts import AttemptBook
from runtime.checkpoint.handlers import RegionalCheckpointHandler
from runtime.checkpoint.messages import (
    AbortWork,
    Acknowledged,
    Action,
    AskCut,
    BarrierPolled,
    Commit,
    CommitReported,
    CoreEvent,
    GiveBarrier,
    NothingDue,
    Publish,
    RegionCut,
    RegionFailed,
    RegionRegistered,
    RegionRestarted,
    RestartAsked,
    SweepOrphans,
    Tick,
)
from runtime.checkpoint.plan import CheckpointSettings, RegionPlan
from runtime.checkpoint.waiting import WakeUp, answer_in
from runtime.continuous.desk import ContinuousDesk
from runtime.continuous.native_commits import NativeCommits, TasksFirst
from runtime.contracts import RegisteredAttempt, TaskScope
from runtime.errors import StreamError
from runtime.model import Acknowledgement, Barrier, BatchKey, RegionRecord, SplitRange, Verdict
from tests.core_driver import CoreDriver, split
from tests.fake_kafka import FakeBroker, FakeWire, Written
from tests.random_moves import RandomMoves
from tests.switched_threads import Process, Switched, Thread
from tests.threaded_tasks import (
    JOB,
    OTHER,
    PREFIX,
    SILENCE_S,
    Faults,
    Life,
    PlayedLink,
    Worker,
    made_ready,
)

__all__ = ["Threads"]

_REGIONS = ("main", "side")
_PARTITIONS = 4
_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


class Threads:
    """The world; `close` it."""

    def __init__(
        self, random: Random, faults: Faults, *, level: int, sinks: int, moves: bool
    ) -> None:
        self.switched = Switched(random.randrange)
        self.faults = faults
        self.sinks = ("sink", "other")[:sinks]
        self._stack = ExitStack()
        self._stack.enter_context(
            self.switched.in_modules(
                "runtime.continuous.courier",
                "runtime.continuous.desk",
                "runtime.continuous.native_commits",
                "runtime.continuous.pulse",
                "runtime.checkpoint.waiting",
                "connectors.kafka.producers",
                "connectors.kafka.transactional_producer",
            )
        )
        writer = "connectors.kafka.writer"
        waiting = partial(ProducerWait, clock=self.switched.clock, sleep=self.switched.sleep)
        self._stack.enter_context(patch(f"{writer}.ProducerWait", waiting))
        self.broker = FakeBroker(level=level, on_end=self._ended)
        self.wire = FakeWire(self.broker)
        self.decided: set[TransactionIdentity] = set()
        self.logs = dict.fromkeys(range(_PARTITIONS), 0)
        self.driver = Process("driver")
        self.job_uid = JOB
        self.listens = True
        self.counts = False
        self.is_cut_off = False
        self.people = Process("world")
        self.workers = 0
        self.zombies: list[Life] = []
        self.is_stopping = False
        self.balancer = RandomMoves(random) if moves else None
        self._begin_driver()

    @property
    def last_committed(self) -> int:
        """See `World.last_committed`."""
        return self.core.core.last_committed

    def link(self) -> PlayedLink:
        """See `World.link`."""
        return PlayedLink(self)

    def lock(self) -> Any:
        """One of the threads that change."""
        return patched_module.threading.Lock()

    def _begin_driver(self) -> None:
        plans = [
            RegionPlan(
                name=name,
                source_ids=("source",),
                sink_ids=self.sinks,
                stateful_sink_ids=(),
                chained=True,
                follows=True,
            )
            for name in _REGIONS
        ]
        settings = CheckpointSettings(
            interval_s=0.2,
            timeout_s=SILENCE_S,
            tolerable_failures=10**6,
            handler=RegionalCheckpointHandler(region_timeout_s=6.0, max_carried_in_a_row=3),
            balancer=self.balancer,
        )
        self.core = CoreDriver(settings, regions=plans, partitions=_PARTITIONS // len(plans))
        self.core.auto = False
        self.core.clock = cast(Any, self.switched.clock)
        self.attempts = AttemptBook()
        self.wake = WakeUp()
        self.commits = NativeCommits()
        self.desk = ContinuousDesk(cast(Any, self), self.commits)
        clock, sleep = self.switched.clock, self.switched.sleep
        self.by_hand = KafkaCommitter(self.wire, clock=clock, sleep=sleep)
        self.committers = {
            sink: TasksFirst(lambda: self.by_hand, self.commits, clock=clock) for sink in self.sinks
        }
        self.sweeper = Sweeper(self.wire, prefix=PREFIX, clock=clock, sleep=sleep)
        self.lives: dict[str, Life] = {}
        for at, name in enumerate(_REGIONS):
            splits = tuple(split(number, 0, 0) for number in (2 * at, 2 * at + 1))
            record = RegionRecord(region=name, generation=0, splits=splits)
            self.lives[name] = Life(self, record, 0, self._worker(None))
        for body in (self._steps, self._ticks, self._sweeps, *map(self._looker, _REGIONS)):
            self.switched.spawn(body, process=self.driver, name=getattr(body, "__name__", "looks"))

    def close(self) -> None:
        """End all threads."""
        try:
            self.switched.end()
        finally:
            self._stack.close()

    def is_task(self, thread: Thread) -> bool:
        """Whether it is of a task: its loop, or its courier."""
        return thread.process not in (self.driver, self.people) and "pool" not in thread.name

    def end_lives(self) -> None:
        """The job is being stopped: nobody looks after lives any more."""
        self.is_stopping = True
        for life in self.lives.values():
            life.book.stop()

    def pool(self, scope: TaskScope) -> ProducerPool:
        """Of a worker."""
        self.workers += 1
        owner = f"w{self.workers}"
        return ProducerPool(
            prefix=PREFIX,
            scope=scope,
            prepare=partial(made_ready, self, OTHER * self.sinks.index(scope.operator_id)),
            background=lambda body: cast(None, self.switched.spawn_here(body, "pool")),
            clock=self.switched.clock,
            ages=self.switched.clock,
            draw_owner=lambda: owner,
        )

    def _worker(self, before: Life | None) -> Worker:
        """A new one, or the one that the last life has left."""
        is_left = before is not None and before.has_ended and not before.worker.is_killed
        if before is not None and is_left and self.faults.choose(2):
            return before.worker
        self.workers += 1
        return Worker(f"worker-{self.workers}")

    # --- what must hold ---------------------------------------------------------------------------

    def _ended(self, written: Written) -> None:
        if written.state in _COMMITTED:
            is_good, what = written.identity in self.decided, "committed and not decided"
        else:
            is_good, what = written.identity not in self.decided, "aborted and decided"
        self.switched.require(is_good, f"{what}: {written}")

    def require_order(self) -> None:
        """Readers see each record once, in order."""
        for partition in self._outputs:
            found = cast(list[tuple[int, int]], self.broker.read_committed(partition))
            seen = [offset for _, offset in found]
            assert seen == list(range(len(seen))), f"partition {partition}: {seen}"

    @property
    def is_all_seen(self) -> bool:
        """Whether readers see every record."""
        return all(len(self.broker.read_committed(p)) == e for p, e in self._outputs.items())

    @property
    def _outputs(self) -> dict[int, int]:
        firsts = [at * OTHER for at in range(len(self.sinks))]
        return {first + p: end for first in firsts for p, end in self.logs.items()}

    # --- the coordinator, as desk and tasks see it ------------------------------------------------

    def tell(self, event: CoreEvent) -> list[Action]:
        """Give the core an event, as the thread that owns it does."""
        self.switched.point("tell")
        actions = self.core.tell(event)
        if any(not isinstance(a, AskCut | GiveBarrier | NothingDue) for a in actions):
            self.wake.notify()
        self.switched.point("told")
        return actions

    def poll_barrier(
        self,
        region: str,
        generation: int,
        *,
        wait_s: float,
        has_read: bool,
        until: Callable[[], bool],
    ) -> Barrier | None:
        """See `Coordinator.poll_barrier`."""
        deadline_s = self.switched.now_s + wait_s
        while True:
            version = self.wake.version
            if until():
                return None
            answer = self._poll(region, generation, has_read=has_read)
            if answer is not None:
                return answer
            left_s = deadline_s - self.switched.now_s
            if left_s <= 0:
                return None
            self.wake.wait(version, min(left_s, 0.1))

    def _poll(self, region: str, generation: int, *, has_read: bool) -> Barrier | None:
        polled = BarrierPolled(region=region, generation=generation, has_read=has_read)
        answer = answer_in(self.tell(polled))
        if isinstance(answer, AskCut):
            self.switched.point("cut")
            cut = RegionCut(
                checkpoint_id=answer.checkpoint_id,
                region=region,
                generation=generation,
                splits=tuple(self._cut(s) for s in answer.positions),
                finished=False,
                has_read=answer.has_read,
            )
            answer = answer_in(self.tell(cut))
        return answer.barrier if isinstance(answer, GiveBarrier) else None

    def _cut(self, position: SplitRange) -> SplitRange:
        end = max(position.end_offset, self.logs[position.partition])
        return split(position.partition, position.end_offset, end)

    def is_committed(self, batch: BatchKey) -> bool:
        """See `Coordinator.is_committed`."""
        self.switched.point("is committed")
        return self.core.core.is_committed(batch)

    def look_again(self) -> None:
        """See `Coordinator.look_again`."""
        self.wake.notify()

    def acknowledge(self, ack: Acknowledgement) -> None:
        """See `Coordinator.acknowledge`."""
        self.tell(Acknowledged(ack=ack))

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `AttemptRegistry.register`."""
        self.switched.point("register")
        self.core.core.require_wanted(attempt.batch)
        self.attempts.add(attempt)
        return self.switched.now_s

    # --- the driver's threads ---------------------------------------------------------------------

    def _ticks(self) -> None:
        while True:
            self.switched.sleep(0.2)
            self.tell(Tick())

    def _sweeps(self) -> None:
        while True:
            self.switched.sleep(5.0)
            self.sweep()

    def sweep(self) -> None:
        """One pass."""
        core = self.core.core
        self.switched.point("sweep")
        view = core.sweep_view(JOB, self.attempts.orphans(core.fate))
        self.switched.point("view")
        for sink in self.sinks:
            self.sweeper.sweep(view, operator_id=sink, timeout_s=10.0)

    def _steps(self) -> None:
        while True:
            self.switched.block(lambda: bool(self.core.held), None, at="a step")
            action = self.core.held.pop(0)
            self.switched.point("a step")
            self._do(action)
            self.wake.notify()

    def _do(self, action: Action) -> None:
        if isinstance(action, Publish) and action.verdict is Verdict.DECIDED:
            entries = [entry for region in action.regions for entry in region.committables]
            self.decided |= {decode_handle(entry).identity for entry in entries}
        if isinstance(action, Commit):
            self._commit(action)
            return
        if isinstance(action, AbortWork):
            self.by_hand.abort(action.committables, timeout_s=10.0)
        if isinstance(action, SweepOrphans):
            self.sweep()
        self.switched.point("done")
        self.core.answer(action)

    def _commit(self, action: Commit) -> None:
        """As `runtime.checkpoint.steps.commit_all`: one sink after the other."""
        found = {}
        for sink, committer in self.committers.items():
            mine = [entry for entry in action.committables if entry.operator_id == sink]
            reports = committer.commit(mine, timeout_s=10.0, after_crash=action.after_crash)
            found |= dict(zip(mine, reports, strict=True))
            self.switched.point("a sink is done")
        self.tell(
            CommitReported(
                checkpoint_id=action.checkpoint_id,
                committables=action.committables,
                reports=tuple(found[entry] for entry in action.committables),
            )
        )

    def _looker(self, region: str) -> Callable[[], None]:
        def looks() -> None:
            while not self.is_stopping:
                self.switched.sleep(0.1)
                self._look(region)

        return looks

    def _look(self, region: str) -> None:
        life = self.lives[region]
        if self.core.core.is_live(region, life.generation):
            if not life.is_told:
                return
            error = life.error or StreamError("ended", {}, "")
            self.tell(RegionFailed(region=region, generation=life.generation, error=error))
        life.book.stop()
        is_over = self.switched.block(lambda: life.has_ended, 10.0, at="its good end")
        if not is_over and not life.worker.is_killed:
            if self.faults.choose(2):
                life.worker.is_killed = True
            else:
                self.zombies.append(life)
        self.tell(RegionRegistered(registration=life.book.registration()))
        before = len(self.core.seen(RegionRestarted))
        self.tell(RestartAsked(region=region))

        def granted() -> list[RegionRestarted]:
            return [a for a in self.core.seen(RegionRestarted)[before:] if a.region == region]

        self.switched.block(lambda: bool(granted()), None, at="its next life")
        self.sweep()
        if self.is_stopping:
            return
        (found,) = granted()
        worker = self._worker(life)
        self.lives[region] = Life(self, found.restored, found.generation, worker)
