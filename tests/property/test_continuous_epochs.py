"""Continuous regions in random order: loops, barrier service and coordinator's core over logs and a broker
that are played. What readers see is each partition's records, in order, each once, whoever commits:
the task that wrote them, the driver instead, or both."""

from collections.abc import Callable, Mapping
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.continuous.checkpoint_client import EndedEpoch
from sluice.runtime.continuous.native_commits import RequestedCommits
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.continuous.task_messages import CommittedEpoch
from sluice.runtime.contracts import CommitOutcome, CommitReport
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Action,
    BarrierPolled,
    Commit,
    CommitReported,
    FetchBarrierOffsets,
    GiveBarrier,
    RegionBarrierOffsets,
    RegionFailed,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, RegionLoad
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import FencedError, StreamError
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from tests.kit.continuous_parts import LogFollower, RecordingWriter
from tests.kit.coordinator.core_driver import CoreDriver, split
from tests.kit.coordinator.random_moves import RandomMoves
from tests.kit.effort import examples

_REGIONS = ("main", "side")
_PARTITIONS = 4


class _Courier:
    """Between a loop and the barrier service, moved on by the test."""

    def __init__(self, barrier_service: BarrierService, region: str, attempt_id: int) -> None:
        self._barrier_service = barrier_service
        self._who = (region, attempt_id)
        self.committed_batch = -1
        self.is_over = False
        self.waits_for_epoch = False
        self.has_read = False
        self._barrier: Barrier | None = None
        self._ended: EndedEpoch | None = None
        self._held: dict[int, EndedEpoch] = {}
        self._to_commit: tuple[int, ...] = ()
        self._outcomes: tuple[CommittedEpoch, ...] = ()

    def start(self) -> None:
        """Nothing to begin."""

    def take_barrier(self) -> Barrier | None:
        barrier, self._barrier = self._barrier, None
        return barrier

    def submit_epoch(self, ended: EndedEpoch) -> None:
        self._ended = ended

    def close(self) -> None:
        """Nothing to end."""

    def ask(self) -> None:
        """One request for a barrier, unless an epoch is owed."""
        if self.waits_for_epoch:
            return
        found = self._barrier_service.next_barrier(
            *self._who, wait_s=0.0, has_read=self.has_read, committed=self._outcomes
        )
        self._outcomes = ()
        self.committed_batch = found.committed_batch
        for batch_id in [each for each in self._held if each <= found.committed_batch]:
            self._held.pop(batch_id).release()
        self._to_commit = found.to_commit
        if found.barrier is not None:
            self._barrier, self.waits_for_epoch = found.barrier, True

    def commit(self) -> None:
        for batch_id in self._to_commit:
            held = self._held.pop(batch_id, None)
            operators = () if held is None else held.commit(timeout_s=1.0)
            self._outcomes += (CommittedEpoch(batch_id=batch_id, operators=operators),)
        self._to_commit = ()

    def tell(self, *, twice: bool) -> None:
        """Acknowledge the epoch that has ended; the first answer may be lost."""
        if self._ended is None:
            return
        ended, self._ended = self._ended, None
        result = ended.pre_commit()
        self._held[result.batch.batch_id] = ended
        for _ in range(1 + twice):
            self._barrier_service.acknowledge(result)
        self.waits_for_epoch = False


class _Attempt:
    """A region's task."""

    def __init__(self, world: "Epochs", record: RegionRecord, attempt_id: int) -> None:
        self.region, self.attempt_id = record.region, attempt_id
        self.checkpoint_client = _Courier(world.barrier_service, record.region, attempt_id)
        splits = [s.at_end() for s in record.splits]
        self._world = world
        self.loop = TaskLoop(
            record.region,
            attempt_id,
            stream=LogFollower(splits, world.logs),
            client=self.checkpoint_client,  # type: ignore[arg-type]  # what the loop uses of it
            open_writers=self._open,
            functions=FunctionRun,
            begins_after=world.driver.core.last_committed,
        )
        world.barrier_service.open(AttemptEpochs(region=record.region, attempt_id=attempt_id))

    def _open(self, scope: EpochScope) -> TaskWriters[RecordingWriter]:
        writer = RecordingWriter(scope)
        key = scope.batch
        payload = f"{key.region}.{key.attempt_id}.{key.batch_id}".encode()
        writer.on_commit = lambda: self._world.commit_natively(payload)
        self._world.writers[payload] = writer
        return TaskWriters({"sink": writer}, dead_letter_sink=None)


class _Driver(CoreDriver):
    """Commits take their time: the test says when they are settled."""

    committing: Commit | None = None

    def answer(self, action: Action) -> None:
        if isinstance(action, Commit):
            self.committing = action
        else:
            super().answer(action)


class Epochs(RuleBasedStateMachine):
    """Two regions of two partitions each, whose tasks die and whose splits move."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = dict.fromkeys(range(_PARTITIONS), 0)
        self.writers: dict[bytes, RecordingWriter] = {}
        self.seen: dict[int, list[int]] = {number: [] for number in self.logs}
        self.asked: RequestedCommits | None = None
        self.decided: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.natively = 0
        self.random = Random(7)
        self.balancer = RandomMoves(self.random)
        plans = [
            RegionPlan(
                name=name,
                source_ids=("source",),
                sink_ids=("sink",),
                stateful_sink_ids=(),
                chained=True,
                follows=True,
            )
            for name in _REGIONS
        ]
        self.driver = _Driver(
            CheckpointSettings(
                interval_s=1.0,
                timeout_s=10.0,
                tolerable_failures=10**6,
                handler=RegionalCheckpointHandler(region_timeout_s=4.0),
                balancer=self.balancer,
            ),
            regions=plans,
            partitions=_PARTITIONS // len(plans),
        )
        self.barrier_service = BarrierService(self)  # type: ignore[arg-type]  # what the barrier service uses of it
        records = {
            name: RegionRecord(
                region=name,
                attempt_id=0,
                splits=tuple(split(number, 0, 0) for number in (2 * at, 2 * at + 1)),
            )
            for at, name in enumerate(_REGIONS)
        }
        self.attempts = {name: _Attempt(self, record, 0) for name, record in records.items()}
        self.zombies: list[_Attempt] = []
        self.restarts = 0

    # --- the coordinator, as the barrier service sees it ----------------------------------------------------

    def poll_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        until: Callable[[], bool],
    ) -> Barrier | None:
        del wait_s
        if until():
            return None
        polled = BarrierPolled(region=region, attempt_id=attempt_id, has_read=has_read)
        for action in self.driver.tell(polled):
            if isinstance(action, GiveBarrier):
                return action.barrier
            if isinstance(action, FetchBarrierOffsets):
                cut = RegionBarrierOffsets(
                    checkpoint_id=action.checkpoint_id,
                    region=region,
                    attempt_id=attempt_id,
                    splits=tuple(self._cut(s) for s in action.positions),
                    finished=False,
                    has_read=action.has_read,
                )
                given = [a for a in self.driver.tell(cut) if isinstance(a, GiveBarrier)]
                return given[0].barrier if given else None
        return None

    def _cut(self, position: SplitRange) -> SplitRange:
        end = max(position.end_offset, self.logs[position.partition])
        return split(position.partition, position.end_offset, end)

    def is_committed(self, batch: BatchKey) -> bool:
        return self.driver.core.is_committed(batch)

    def wake_waiters(self) -> None:
        """See `Coordinator.wake_waiters`."""

    def acknowledge(self, ack: Acknowledgement) -> None:
        self.driver.tell(Acknowledged(ack=ack))

    # --- the broker, and the driver's commits ----------------------------------------------------

    def commit_natively(self, payload: bytes) -> bool:
        """A task's commit; its answer may be lost, and after the driver's it does nothing."""
        is_first = payload not in self.ended
        self._commit(payload)
        self.natively += is_first
        return is_first and self.random.random() < 0.7

    def _commit(self, payload: bytes) -> None:
        assert payload in self.decided, "nobody commits what is not decided"
        if payload in self.ended:
            return
        self.ended.add(payload)
        for partition, offset in self.writers[payload].records:
            self.seen[partition].append(offset)

    def _ask_tasks(self) -> None:
        if self.driver.committing is not None and self.asked is None:
            entries = self.driver.committing.committables
            self.decided |= {entry.payload for entry in entries}
            self.asked = self.barrier_service.commits.request(entries)

    @precondition(lambda self: self.asked is not None)
    @rule()
    def settle(self) -> None:
        """Time is up for the tasks: what none has acknowledged is committed by the driver, after a
        look at it."""
        action, asked = self.driver.committing, self.asked
        assert asked is not None
        self.driver.committing = self.asked = None
        for entry in asked.await_acknowledged(timeout_s=0.0):
            assert entry.payload in self.ended, "only what was acknowledged is believed"
        for entry in action.committables:
            self._commit(entry.payload)
        reports = tuple(CommitReport(outcome=CommitOutcome.COMMITTED) for _ in action.committables)
        self.driver.tell(
            CommitReported(
                checkpoint_id=action.checkpoint_id,
                committables=action.committables,
                reports=reports,
            )
        )
        self._ask_tasks()

    # --- what happens ----------------------------------------------------------------------------

    @rule(partition=st.sampled_from(range(_PARTITIONS)), records=st.integers(1, 40))
    def produce(self, partition: int, records: int) -> None:
        self.logs[partition] += records

    @rule(region=st.sampled_from(_REGIONS), times=st.integers(1, 6))
    def step(self, region: str, times: int) -> None:
        for _ in range(times):
            self.attempts[region].loop.step()

    @rule(region=st.sampled_from(_REGIONS))
    def ask(self, region: str) -> None:
        self._if_alive(region, self.attempts[region].checkpoint_client.ask)

    @rule(region=st.sampled_from(_REGIONS), twice=st.booleans())
    def tell(self, region: str, twice: bool) -> None:
        self._if_alive(region, lambda: self.attempts[region].checkpoint_client.tell(twice=twice))
        self._ask_tasks()

    @rule(region=st.sampled_from(_REGIONS))
    def commit(self, region: str) -> None:
        self.attempts[region].checkpoint_client.commit()

    @rule(order=st.permutations(_REGIONS), answers=st.booleans())
    def commit_natively_and_settle(self, order: list[str], answers: bool) -> None:
        """The tasks hear of the decision, commit, and most of them say so in time."""
        if self.asked is None:
            return
        for region in order:
            self.ask(region)
            self.commit(region)
            if answers:
                self.ask(region)
        self.settle()

    @rule(
        order=st.permutations(_REGIONS),
        read=st.lists(st.integers(0, 4), min_size=2, max_size=2),
        told=st.lists(st.booleans(), min_size=2, max_size=2),
        grown=st.integers(0, 30),
    )
    def epoch(self, order: list[str], read: list[int], told: list[bool], grown: int) -> None:
        for partition in self.logs:
            self.logs[partition] += grown
        self.driver.tick(1.1)
        self._look()
        for region, times, tells in zip(order, read, told, strict=True):
            self.step(region, times)
            self.ask(region)
            self.step(region, 2)
            if tells or times:
                self.tell(region, False)
        if told[0]:
            self.commit_natively_and_settle(order, told[1])
        elif self.asked is not None:
            self.settle()

    @rule(grown=st.integers(1, 30))
    def good_epoch(self, grown: int) -> None:
        self.epoch(list(_REGIONS), [2, 2], [True, True], grown)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 11.0]))
    def tick(self, seconds: float) -> None:
        self.driver.tick(seconds)
        self._look()

    @rule(region=st.sampled_from(_REGIONS), lives_on=st.booleans())
    def lose(self, region: str, lives_on: bool) -> None:
        """A task is lost; it may continue all the same, unseen."""
        attempt = self.attempts[region]
        if lives_on:
            self.zombies.append(attempt)
        error = StreamError("lost", {}, "")
        if self.driver.core.is_live(region, attempt.attempt_id):
            event = RegionFailed(region=region, attempt_id=attempt.attempt_id, error=error)
            self.driver.tell(event)
        self._look()

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 5), times=st.integers(0, 3))
    def haunt(self, which: int, times: int) -> None:
        zombie = self.zombies[which % len(self.zombies)]
        for _ in range(times):
            zombie.loop.step()
        zombie.checkpoint_client.commit()  # of what it was reported before: that is decided
        for act in (
            zombie.checkpoint_client.ask,
            lambda: zombie.checkpoint_client.tell(twice=False),
        ):
            try:
                act()
            except FencedError:
                continue

    def _if_alive(self, region: str, act: Callable[[], None]) -> None:
        try:
            act()
        except FencedError:
            self._look()

    def _look(self) -> None:
        """Lives that are over get their successors."""
        self._ask_tasks()
        for region, attempt in list(self.attempts.items()):
            if self.driver.core.is_live(region, attempt.attempt_id):
                continue
            before = len(self.driver.seen(RegionRestarted))
            self.driver.tell(RestartRequested(region=region))
            self.driver.tick(0.1)
            restarted = [
                a for a in self.driver.seen(RegionRestarted)[before:] if a.region == region
            ]
            if restarted:
                self.restarts += 1
                found = restarted[-1]
                self.attempts[region] = _Attempt(self, found.restored, found.attempt_id)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def readers_see_each_record_once_and_in_order(self) -> None:
        for partition, offsets in self.seen.items():
            assert offsets == list(range(len(offsets))), f"partition {partition}: {offsets}"

    def teardown(self) -> None:
        """Left alone, the job comes to the end of every log."""
        for _ in range(200):
            if all(len(self.seen[p]) == end for p, end in self.logs.items()):
                break
            self.driver.tick(1.1)
            self._look()
            for region in _REGIONS:
                self._if_alive(region, self.attempts[region].checkpoint_client.ask)
                self.step(region, 12)
                self.tell(region, False)
                self.commit(region)
            if self.asked is not None:
                self.settle()
            self.readers_see_each_record_once_and_in_order()
        assert {p: len(found) for p, found in self.seen.items()} == self.logs


def test_a_giver_whose_other_splits_are_idle_is_reported_at_once() -> None:
    """Nothing is left to cut for it, and its open epoch holds records of the split that went: it
    would hold back readers of the taker's commits until the transaction times out."""
    world = Epochs()
    moved: list[Move] = []

    def once(offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        if moved or len(offered) < len(_REGIONS):
            return Choice()
        moved.append(
            Move(split=min(offered["main"].records), source_region="main", target_region="side")
        )
        return Choice(moves=(moved[0],))

    world.balancer.choose = once  # type: ignore[method-assign]
    while not moved:
        world.good_epoch(5)
    for _ in range(6):  # the giver is asked twice for each checkpoint, with nothing to end
        world.logs[0] += 5
        world.epoch(list(_REGIONS), [3, 3], [True, True], 0)
    epoch = world.attempts["main"].loop._epoch  # noqa: SLF001 - what it has open
    writers = epoch.writers.writers.values()
    assert not [r for writer in writers for r in writer.records if r[0] == 0]
    world.readers_see_each_record_once_and_in_order()
    assert len(world.seen[0]) >= 20, "the taker continues"
    world.teardown()


TestEpochs = Epochs.TestCase
TestEpochs.settings = settings(max_examples=examples(75), stateful_step_count=60, deadline=None)
