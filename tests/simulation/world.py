"""A whole job on fakes, moved one step at a time by a seed: crashes, pauses, second coordinators.

What runs is the production code: `StartSequence`, `CoordinatorCore` and `Hands` are generators and
pure functions, so the world can stop between any two of their remote steps. Only threads and HTTP
are left out. The world plays Spark, the broker, the store, the network and the operator who kills.
"""

import itertools
import random
from collections.abc import Iterator

from runtime.checkpoint.assignment import hand_over
from runtime.checkpoint.handlers import GlobalCheckpointHandler, RegionalCheckpointHandler
from runtime.checkpoint.plan import (
    CheckpointSettings,
    JobPlan,
    OnLost,
    OnRegionFailure,
    RegionPlan,
)
from runtime.errors import (
    FencedError,
    RegionGivenUpError,
    RegionsParkedError,
    StorageError,
    UnreachableError,
)
from runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    RestartStrategy,
)
from runtime.model import Assignment, CheckpointRecord, RegionStatus, SplitRange, Verdict
from tests.fakes import (
    FakeBroker,
    FakeStore,
    FencedWriterError,
    ManualClock,
    TransactionState,
)
from tests.simulation.moves import RandomMoves, owners
from tests.simulation.process import Process, RegionBrokenError
from tests.simulation.profile import Profile
from tests.simulation.spark import SparkLog, Writer

__all__ = ["World"]

_REGIONAL = RegionalCheckpointHandler(
    max_failed_ratio=0.7, max_carried_in_a_row=4, region_timeout_s=0.3
)
_DELAYED = ExponentialDelayRestart(
    initial_backoff_s=0.2, max_backoff_s=3.0, reset_backoff_threshold_s=5.0, jitter_factor=0.5
)
_SECOND_IS_FOR_GOOD = FixedDelayRestart(attempts=1, delay_s=0.1)


def _strategy(profile: Profile) -> RestartStrategy | None:
    if profile.park:
        return _SECOND_IS_FOR_GOOD
    return _DELAYED if profile.delayed else None


class World:
    """Everything, and the seed that moves it."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.profile = profile
        self.clock = ManualClock()
        self.broker = FakeBroker()
        self.names = itertools.count()
        self.ends = dict.fromkeys(range(profile.partitions), 0)
        self.spark = SparkLog()
        self.zombies: list[Writer] = []
        self.calm = False
        self.repairs = 0
        self.moves = 0
        self.rescales = 0
        self.processes: list[Process] = []
        self.deadly: list[str] = []
        self._started = 0
        self.store = FakeStore(
            on_call=self._store_call, lose_answer=lambda: self.fault(profile.lost_answer)
        )
        self.settings = CheckpointSettings(
            interval_s=None if profile.external else 0.5,
            timeout_s=8.0,
            tolerable_failures=1_000_000,
            retry_s=0.01,
            max_retry_s=0.1,
            settle_timeout_s=1e9,
            unknown_timeout_s=0.0,
            max_concurrent=profile.max_concurrent,
            on_lost=OnLost.REPAIR if profile.expire else OnLost.FAIL,
            handler=_REGIONAL if profile.regional else GlobalCheckpointHandler(),
            restart_strategy=_strategy(profile),
            on_region_failure=OnRegionFailure.PARK if profile.park else OnRegionFailure.FAIL,
            balancer=RandomMoves(self) if profile.move else None,
        )

    # --- what its inhabitants ask -----------------------------------------------------------------

    def plan(self) -> JobPlan:
        """The job, as somebody starts it now."""
        profile = self.profile
        count = 1 if profile.external else profile.regions
        if profile.rescale:
            count = self.random.randint(1, profile.rescale)
        names = ["r"] if profile.rescale and count == 1 else [f"r{n}" for n in range(count)]
        return JobPlan(
            name="simulated",
            regions=tuple(
                RegionPlan(
                    name=name,
                    source_ids=() if profile.external else ("source",),
                    sink_ids=("sink",),
                    chained=True,
                    stateful=profile.stateful,
                    stateful_sink_ids=() if profile.move else None,
                    keeps_logs=profile.external,
                )
                for name in names
            ),
        )

    def roll(self, chance: float) -> bool:
        """Whether something rough happens now; never in the calm."""
        return not self.calm and self.random.random() < chance

    def fault(self, chance: float) -> bool:
        """A network's fault."""
        return self.roll(chance)

    def _store_call(self, name: str) -> None:
        if self.roll(self.profile.refused):
            raise StorageError("a simulated fault", {"call": name}, "Ask again.")

    def records_of(self, splits: tuple[SplitRange, ...]) -> Iterator[tuple[int, object]]:
        """(output partition, value) of each input record."""
        for split in splits:
            for offset in range(split.start_offset, split.end_offset):
                output = 0 if self.profile.shared_output else split.partition
                yield output, (split.partition, offset)

    def planned(self, batch_id: int) -> tuple[SplitRange, ...] | None:
        """What Spark's offset log says of a batch; planned now if there is something to read."""
        known = self.spark.planned.get(batch_id)
        if known is not None:
            return known
        before = self.spark.planned.get(batch_id - 1, ())
        starts = dict.fromkeys(self.ends, 0) | {s.partition: s.end_offset for s in before}
        if all(starts[partition] >= end for partition, end in self.ends.items()):
            return None
        splits = tuple(
            SplitRange(
                source_id="spark",
                topic="input",
                topic_id="topic-uuid",
                partition=partition,
                start_offset=starts[partition],
                end_offset=end,
            )
            for partition, end in sorted(self.ends.items())
        )
        self.spark.planned[batch_id] = splits
        return splits

    # --- moving -----------------------------------------------------------------------------------

    def start_process(self) -> Process:
        """Somebody starts the job (again)."""
        self._started += 1
        process = Process(self, self._started)
        self.processes.append(process)
        return process

    def run(self) -> None:
        """The rough time, then the calm, then the verdict."""
        for _ in range(self.profile.steps):
            self.step()
        self.settle()

    def step(self) -> None:
        """One move of somebody."""
        self.clock.advance(self.random.choice((0.0, 0.0, 0.01, 0.1)))
        self._let_things_happen()
        living = [process for process in self.processes if not process.is_stuck()]
        awake = [process for process in living if not process.paused]
        if self._started < self.profile.processes and (not awake or self.roll(self.profile.start)):
            self.start_process()
        for process in living:
            self._hurt(process)
        if awake:
            process = self.random.choice(awake)
            for _ in range(self.random.choice((1, 1, 2, 8))):
                if not process.dead:
                    process.step()
        self.check_readers()

    def _let_things_happen(self) -> None:
        """Records arrive, orphaned tasks write, transactions expire."""
        if self.roll(0.1):
            self.ends[self.random.choice(sorted(self.ends))] += self.random.randint(1, 5)
        if len(self.ends) < self.profile.partitions + 2 and self.roll(0.005):
            self.ends[len(self.ends)] = 0  # a partition is added
        if self.zombies and self.random.random() < 0.1:
            self.move_zombie()
        if self.roll(self.profile.expire) and (ongoing := self.broker.ongoing()):
            self.random.choice(ongoing).state = TransactionState.ABORTED

    def _hurt(self, process: Process) -> None:
        if self.roll(self.profile.kill):
            self.kill(process)
        elif self.roll(self.profile.pause):
            process.paused = True
        elif process.paused and self.random.random() < self.profile.resume:
            process.paused = False

    def kill(self, process: Process) -> None:
        """kill -9 of a driver; tasks on other machines may go on for a while."""
        process.dead = True
        for life in process.lives:
            life.orphan()

    def reached(self, process: Process, point: str) -> None:
        """A process stands at a named point: deadly is the first that is left, to whoever gets
        there, also in the calm."""
        if self.deadly and self.deadly[0] == point:
            self.deadly.pop(0)
            self.kill(process)

    def move_zombie(self) -> None:
        """A task whose driver is gone, or whose batch was given up, writes on."""
        zombie = self.random.choice(self.zombies)
        try:
            done = zombie.write(self.broker, 2)
        except FencedWriterError:
            done = True
        if done:
            self.zombies.remove(zombie)

    def settle(self, *, bound: int = 20_000) -> None:
        """No more faults: whoever lives goes on, until one coordinator has read everything."""
        self.calm = True
        for process in self.processes:
            process.paused = False
        for _ in range(bound):
            self.clock.advance(0.01)
            for process in self.processes:
                process.source.bounded = True
            living = [process for process in self.processes if not process.is_stuck()]
            self.require_no_violation()
            if self._is_complete():
                break
            if not living:
                self.start_process()
                continue
            self.random.choice(living).step()
        self.check_readers()
        self.check_complete()

    def _is_complete(self) -> bool:
        if self.profile.external:
            return self.visible() == self.expected()
        # A fenced coordinator's task may open a transaction behind the last sweep of the one that
        # finished: it holds readers back, not records, until somebody starts the job again.
        finished = any(process.finished and process.is_stuck() for process in self.processes)
        return finished and not self.broker.ongoing()

    # --- the verdict ------------------------------------------------------------------------------

    def expected(self) -> dict[int, list[int]]:
        """Offsets of each input partition."""
        return {partition: list(range(end)) for partition, end in self.ends.items()}

    def visible(self) -> dict[int, list[int]]:
        """Offsets of each input partition, as a read_committed reader finds them."""
        found: dict[int, list[int]] = {partition: [] for partition in self.ends}
        outputs = [0] if self.profile.shared_output else list(self.ends)
        for output in outputs:
            for value in self.broker.read_committed(output):
                assert isinstance(value, tuple)
                found[value[0]].append(value[1])
        return found

    def check_readers(self) -> None:
        """Whoever reads now sees a prefix: nothing twice, nothing missing before it, in order."""
        for partition, offsets in self.visible().items():
            assert offsets == list(range(len(offsets))), self.story(
                f"partition {partition} is not a prefix: {offsets}"
            )

    def require_no_violation(self) -> None:
        """Nobody may stop for lost or unknown transactions: nothing here loses any."""
        for process in self.processes:
            error = process.error
            tolerated: tuple[type[BaseException], ...] = (
                FencedError,
                StorageError,
                UnreachableError,
            )
            if self.profile.park:  # the last one that is left ends the job, and so do parked ones
                tolerated += (RegionGivenUpError, RegionsParkedError, RegionBrokenError)
            assert error is None or isinstance(error, tolerated), self.story(repr(error))
        assert self.broker.aborts_of_committed == 0, self.story("a committed one was aborted")

    def check_complete(self) -> None:
        """Every record is visible exactly once, in order."""
        self.require_no_violation()
        assert self.visible() == self.expected(), self.story("records are missing")
        self.check_assignments()

    def check_assignments(self) -> None:
        """Each decision gives every split to one region, and none takes a split from the job."""
        last: Assignment | None = None
        for record in self.store.history:
            if record.verdict is not Verdict.DECIDED or record.assignment is None:
                continue
            hand_over(record.regions, record.assignment)  # raises unless whole
            if last is not None:
                self._check_next(last, record, record.assignment)
            last = record.assignment

    def _check_next(self, last: Assignment, record: CheckpointRecord, now: Assignment) -> None:
        before, after = owners(last), owners(now)
        assert before.keys() <= after.keys(), self.story("a split was lost")
        if last.regions.keys() != now.regions.keys():
            self.rescales += 1
            assert now.version > last.version, self.story("the version does not tell")
            return
        status = {region.region: region.status for region in record.regions}
        moves = {key for key, name in before.items() if after[key] != name}
        self.moves += len(moves)
        for key in moves:
            both = {status[before[key]], status[after[key]]}
            assert both == {RegionStatus.COMPLETED}, self.story("a carried region's split moved")
        is_newer = now.version > last.version
        assert is_newer == (now.regions != last.regions), self.story("the version does not tell")

    def story(self, what: str) -> str:
        """What is needed to see it again."""
        places = [
            (
                record.checkpoint_id,
                record.verdict.value,
                record.leader_session_id,
                record.checkpoint_id in self.store.committed,
            )
            for record in self.store.history
        ]
        return f"{what}; seed={self.seed} profile={self.profile} places={places[-12:]}"
