"""A whole job on fakes, moved one step at a time by a seed: crashes, pauses, second coordinators.

What runs is the production code: `StartSequence`, `CoordinatorCore`, `IoExecutor` are generators
and pure functions, so the world can stop between any two of their remote steps. Only threads and
HTTP are left out. The world plays Spark, the broker, the store, the network and the operator who
kills.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.fakes import ManualClock
from tests.kit.files.fake_file_system import Disk
from tests.kit.kafka.fake_kafka import FakeBroker, Fenced
from tests.simulation.cleaning import Cleaner
from tests.simulation.continuous import ContinuousAttempt, Task
from tests.simulation.ending import Ending
from tests.simulation.file_watch import WatchedFiles
from tests.simulation.files import FileTask
from tests.simulation.keyed import StateUpload
from tests.simulation.moves import RandomMoves
from tests.simulation.people import People
from tests.simulation.policies import settings_of
from tests.simulation.process import Process
from tests.simulation.producers import Producers
from tests.simulation.profile import Profile
from tests.simulation.schedule import Dice, Kind, Move, say
from tests.simulation.spark import SparkLog
from tests.simulation.stores import (
    DiskStore,
    MemoryStore,
    WatchedDisk,
    make_disk_store,
    memory_store_of,
)
from tests.simulation.tasks import Writer
from tests.simulation.watch import Watch


class World:
    """Everything, and the seed that moves it.

    Args:
        seed: of the moves, of the broker's level and of the calm.
        profile: how rough it is.
        moves: made instead of drawn ones.
        telling: keep the story of what happens.
    """

    def __init__(
        self,
        seed: int,
        profile: Profile,
        *,
        moves: Sequence[Move] | None = None,
        telling: bool = False,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.profile = profile
        self.clock = ManualClock()
        self.slept_s = 0.0
        level = self.random.randrange(3) if profile.level is None else profile.level
        self.broker = FakeBroker(level=level, hold_markers=profile.markers)
        self.watch = Watch(self)
        self.broker.on_end = self.watch.ended
        self.require = self.watch.require
        self.people = People(self)
        self.cleaner = Cleaner(self)
        self.producers = Producers(self)
        self.ending = Ending(self)
        self.owner: LeaseRecord | None = None
        self.names = itertools.count()
        self.ends = dict.fromkeys(range(profile.partitions), 0)
        self.spark = SparkLog()
        self.zombies: list[Writer | FileTask | StateUpload | Task] = []
        self.tasks: list[Task] = []  # continuous ones that may be taken over
        self.attempt_files: dict[str, bytes] = {}
        self.calm = False
        self.repairs = 0
        self.wish: int | None = None  # the last one
        self.remedy: int | None = None  # what somebody has to wish for
        self.processes: list[Process] = []
        self.deadly: list[str] = []
        self.made: list[Move] = []
        self.faults: Counter[str] = Counter()
        self.told: list[str] | None = [] if telling else None
        self._given = moves
        self._dice = Dice(seed, profile)
        self._quiet = False
        self._is_busy = False
        self.memory = MemoryStore(self)
        self.disk = WatchedDisk(self)
        self.shelf = WatchedFiles(self)
        self.spark_disk = Disk()
        self.settings = settings_of(profile, seed, RandomMoves(self))

    def draw_settings(self) -> CheckpointSettings:
        """As somebody starts the job now."""
        if self.profile.some_repair and self.random.random() < 0.5:
            return replace(self.settings, on_lost=OnLost.REPAIR)
        return self.settings

    # --- what its inhabitants ask -----------------------------------------------------------------

    def roll(self, chance: float) -> bool:
        """Whether something rough happens now; never in the calm, nor in a quiet move.

        The dice are rolled all the same: what follows in the move stays as it was.
        """
        return self.random.random() < chance and not self.calm and not self._quiet

    def fault(self, chance: float, what: str) -> bool:
        """As `roll`, for a fault that belongs in the story."""
        happens = self.roll(chance)
        if happens:
            self.faults[what] += 1
            self.note(what)
        return happens

    def ages(self) -> float:
        """The clock, and what the host has slept."""
        return self.clock() + self.slept_s

    def sleep(self) -> None:
        """The host may: nobody waits meanwhile, and what is open grows old."""
        if self.profile.sleeps and self.fault(self.profile.sleeps, "the host sleeps"):
            self.slept_s += self.random.choice((0.05, 0.3))

    def note(self, what: str) -> None:
        """Something that belongs in the story."""
        if self.told is not None:
            self.told.append(f"    {what}")

    def _note_point(self, process: Process, point: str) -> None:
        told = self.told
        assert told is not None
        head = f"    coordinator {process.number} is at"
        if told and told[-1].startswith(head):
            told[-1] += f", {point}"
        else:
            told.append(f"{head} {point}")

    def nap(self, seconds: float) -> None:
        """Somebody waits, and the broker does what is due."""
        self.clock.advance(seconds)
        if self.profile.markers:
            self.broker.write_markers()

    def open_store(self) -> MetadataStore:
        """The checkpoint directory, for a process that starts."""
        if self.profile.disk:
            return make_disk_store(self, self.disk)
        return memory_store_of(self, self.memory)

    def store_without_faults(self) -> DiskStore | MemoryStore:
        """Where people look."""
        return DiskStore(self) if self.profile.disk else self.memory

    @property
    def history(self) -> list[CheckpointRecord]:
        """Every record that was ever published."""
        return self.watch.history

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

    def start_process(self, wish: int | None = None) -> Process:
        """Somebody starts the job (again), at times from an older checkpoint."""
        process = Process(self, len(self.processes) + 1, wish)
        self.processes.append(process)
        return process

    def start_again(self) -> Process:
        """A cluster manager starts the program that ran last, with its wish, or somebody without;
        in the calm a wish that was never done is given up."""
        if self.remedy is not None:
            self.wish, self.remedy = self.remedy, None
            return self.start_process(self.wish)
        is_ours = self.wish is not None and (not self.calm or self.wish == self.watch.lineages.wish)
        again = is_ours and self.random.random() < 0.5
        return self.start_process(self.wish if again else None)

    def _restore(self, number: int) -> None:
        """To any decision that is still there, or to the first one, that may not be."""
        store = self.store_without_faults()
        there = [at for at in self.watch.lineages.decisions() if store.read(at) is not None]
        self.wish = there[number % len(there)] if there else 0
        self.note(f"to place {self.wish}")
        self.start_process(self.wish)

    def wish_of(self, session: str) -> int | None:
        """What the run of a session was asked to go back to."""
        (process,) = [each for each in self.processes if each.session == session]
        return process.wish

    def run(self) -> None:
        """The rough time, then the calm, then the verdict."""
        if self._given is None:
            for _ in range(self.profile.steps):
                self.step()
        else:
            for move in self._given:
                self.make(move)
        self.ending.settle()

    def step(self) -> None:
        """One move of somebody."""
        self.make(self._dice.draw(self))

    def make(self, move: Move) -> None:
        """Make a move; nothing happens where whoever it is about is not there, or cannot."""
        self.made.append(move)
        if self.told is not None:
            self.told.append(f"{len(self.made)}. {say(move)}")
        self.random.seed(move.seed)
        self._quiet = move.quiet
        if move.kind in (Kind.GO, Kind.KILL, Kind.PAUSE, Kind.RESUME):
            self._make_of_process(move)
        else:
            self._make_of_the_world(move)
        self._quiet = False

    def _make_of_the_world(self, move: Move) -> None:
        match move.kind:
            case Kind.START:
                self.start_again()
            case Kind.RESTORE:
                self._restore(move.number)
            case Kind.RECORDS:
                if move.number in self.ends:
                    self.ends[move.number] += move.count
            case Kind.PARTITION:
                self.ends[len(self.ends)] = 0
            case Kind.ZOMBIE:
                self.move_zombie(move.number)
            case Kind.TXN:
                self.people.move_command(move.number)
            case Kind.CLEAN:
                self.cleaner.move()
            case _:
                self._make_of_the_broker(move)

    def _make_of_the_broker(self, move: Move) -> None:
        match move.kind:
            case Kind.EXPIRE:
                self._expire(move.number)
            case Kind.FORGET:
                self._forget(move.number)
            case Kind.LATE:
                self.land_late(move.number)
            case Kind.MARKERS:
                self.broker.write_markers()

    def meanwhile(self, process: Process | None) -> None:
        """Somebody else continues while ``process`` waits for an answer."""
        if self._is_busy or not self.roll(self.profile.meanwhile):
            return
        others = [p for p in self.processes if p is not process and not p.paused]
        self._is_busy = True
        try:
            for _ in range(self.random.choice((1, 2, 4, 8, 16))):
                living = [p.step for p in others if not p.is_stuck()]
                self.random.choice([*living, self._let_time_pass])()
        finally:
            self._is_busy = False

    def _let_time_pass(self) -> None:
        self.land_late()
        if self.roll(self.profile.expire):
            self._expire(self.random.randrange(8))
        if self.roll(self.profile.forget):
            self._forget(self.random.randrange(8))

    def quietly(self, action: Callable[[], None]) -> None:
        """What is far longer than any fault lasts: none happens in it."""
        known, self._quiet = self._quiet, True
        action()
        self._quiet = known

    def _make_of_process(self, move: Move) -> None:
        if not 0 < move.number <= len(self.processes):
            return
        process = self.processes[move.number - 1]
        if process.is_stuck():
            return
        match move.kind:
            case Kind.KILL:
                self.kill(process)
            case Kind.PAUSE | Kind.RESUME:
                process.paused = move.kind == Kind.PAUSE
            case Kind.GO if not process.paused:
                for _ in range(move.count):
                    self.clock.advance(self.random.choice((0.0, 0.0, 0.01, 0.05)))
                    if not process.dead:
                        process.step()

    def _expire(self, number: int) -> None:
        if ongoing := self.broker.ongoing():
            lost = ongoing[number % len(ongoing)]
            self.watch.expires(lost)
            self.broker.expire(lost.transactional_id)

    def _forget(self, number: int) -> None:
        names = self.broker.forgettable()
        due = self.watch.unmarked_ids()
        chosen = [name for name in names if name in due] if number % 4 else names
        if chosen:
            name = chosen[number % len(chosen)]
            self.note(f"the broker forgets {name}")
            self.watch.forgets(name)
            self.broker.forget(name)

    def has_late(self) -> bool:
        """Whether requests lie in some queue."""
        return bool(self.broker.late or self.disk.late or self.shelf.late)

    def land_late(self, number: int = 0) -> None:
        """One of the requests that lie in some queue arrives, if there is any."""
        if self.broker.late:
            self.broker.land_late_request(number % len(self.broker.late))
        else:
            self.disk.land_late_steps()
            self.shelf.land_late_steps()

    def kill(self, process: Process) -> None:
        """kill -9 of a driver; tasks on other machines may continue for a while."""
        process.dead = True
        self.note(f"coordinator {process.number} is dead")
        for attempt in process.attempts:
            attempt.orphan()

    def reached(self, process: Process, point: str) -> None:
        """A process stands at a named point: deadly is the first that is left, to whoever gets
        there, also in the calm."""
        if self.told is not None:
            self._note_point(process, point)
        if self.deadly and self.deadly[0] == point:
            self.deadly.pop(0)
            self.kill(process)

    def has_zombies(self) -> bool:
        """Whether tasks write on without a driver."""
        return bool(self.zombies or self._tasks_of_the_paused())

    def move_zombie(self, number: int = 0) -> None:
        """A task whose driver is gone or paused, or whose batch was given up, writes on."""
        alone = self.zombies + self._tasks_of_the_paused()
        if not alone:
            return
        zombie = alone[number % len(alone)]
        try:
            done = zombie.write(2)
        except Fenced:
            done = True
        if done and zombie in self.zombies:
            self.zombies.remove(zombie)

    def _tasks_of_the_paused(self) -> list[Task]:
        if not self.profile.continuous:
            return []
        return [
            attempt.task
            for process in self.processes
            if process.paused and not process.dead
            for attempt in process.attempts
            if isinstance(attempt, ContinuousAttempt) and not attempt.dead
        ]

    def facts(self) -> str:
        """What is needed to see it again."""
        places = [
            (record.checkpoint_id, record.verdict.value, record.leader_session_id)
            for record in self.history
        ]
        return f"seed={self.seed} profile={self.profile} places={places[-12:]}"
