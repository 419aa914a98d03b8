"""What a world does in its rough time, move by move: values that can be written down and replayed.

A move skips the seed of all dice that are rolled inside it, so that it stays what it was when
other moves are left out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.profile import Profile

if TYPE_CHECKING:
    from tests.simulation.world import World


class Kind:
    """Of moves; plain text, so that a schedule reads well."""

    GO = "go"
    START = "start"
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"
    RECORDS = "records"
    PARTITION = "partition"
    ZOMBIE = "zombie"
    EXPIRE = "expire"
    LATE = "late"
    MARKERS = "markers"
    FORGET = "forget"
    TXN = "txn"
    RESTORE = "restore"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class Move:
    """One move.

    Attributes:
        kind: one of `Kind`.
        number: whose: a coordinator's, a partition's, or which of several.
        count: steps, or records.
        seed: of the dice inside it.
        quiet: no fault happens inside it.
    """

    kind: str
    number: int = 0
    count: int = 1
    seed: int = 0
    quiet: bool = False

    def joined(self, other: "Move") -> "Move | None":
        """This and the next one as one move of the same coordinator, if that can be."""
        if self.kind != Kind.GO or other.kind != Kind.GO or self.number != other.number:
            return None
        return replace(self, count=self.count + other.count, quiet=self.quiet and other.quiet)


_SENTENCES: dict[str, Callable[[Move], str]] = {
    Kind.GO: lambda move: f"coordinator {move.number} continues for {move.count} steps",
    Kind.START: lambda move: "somebody starts the job",
    Kind.KILL: lambda move: f"coordinator {move.number} is killed",
    Kind.PAUSE: lambda move: f"coordinator {move.number} is paused",
    Kind.RESUME: lambda move: f"coordinator {move.number} wakes up",
    Kind.RECORDS: lambda move: f"{move.count} records arrive in partition {move.number}",
    Kind.PARTITION: lambda move: "a partition is added",
    Kind.ZOMBIE: lambda move: "a task without a driver writes on",
    Kind.EXPIRE: lambda move: "an open transaction times out",
    Kind.LATE: lambda move: "a late request arrives",
    Kind.MARKERS: lambda move: "the broker writes its markers",
    Kind.FORGET: lambda move: "a transactional id expires",
    Kind.TXN: lambda move: "somebody uses `sluice txn`",
    Kind.CLEAN: lambda move: "somebody uses `sluice files clean`",
    Kind.RESTORE: lambda move: "somebody starts the job from an older checkpoint",
}


def say(move: Move) -> str:
    """A move in words."""
    return _SENTENCES[move.kind](move)


class Dice:
    """Draws the moves of one world from its seed and its profile."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self._random = random.Random(seed)
        self._profile = profile
        others = (
            (Kind.RECORDS, 0.1),
            (Kind.PARTITION, profile.add),
            (Kind.ZOMBIE, 0.1),
            (Kind.LATE, 3 * profile.late),
            (Kind.MARKERS, 0.2 if profile.markers else 0.0),
            (Kind.EXPIRE, profile.expire),
            (Kind.FORGET, profile.forget),
            (Kind.TXN, profile.txn),
            (Kind.CLEAN, profile.clean),
            (Kind.START, profile.start),
            (Kind.RESTORE, profile.restore),
            (Kind.KILL, 2 * profile.kill),
            (Kind.PAUSE, 2 * profile.pause),
        )
        self._others: list[tuple[float, str]] = []
        total = 0.0
        for kind, chance in others:
            total += chance
            self._others.append((total, kind))
        self._total = total

    def draw(self, world: "World") -> Move:
        """The next move: of somebody who can move."""
        random_ = self._random
        seed = random_.getrandbits(32)
        paused = [p.number for p in world.processes if p.paused and not p.is_stuck()]
        if paused and random_.random() < self._profile.resume:
            return Move(Kind.RESUME, random_.choice(paused), seed=seed)
        awake = [p.number for p in world.processes if not p.paused and not p.is_stuck()]
        may_start = len(world.processes) < self._profile.processes
        if not awake:
            if self._profile.txn and random_.random() < 0.5:  # the job is gone
                return Move(Kind.TXN, random_.randrange(8), seed=seed)
            if self._profile.clean and random_.random() < 0.5:
                return Move(Kind.CLEAN, seed=seed)
            if may_start and self._profile.restore and random_.random() < 0.5:
                return Move(Kind.RESTORE, random_.randrange(8), seed=seed)
            if may_start:
                return Move(Kind.START, seed=seed)
            return Move(Kind.RESUME, random_.choice(paused) if paused else 0, seed=seed)
        drawn = random_.random()
        if drawn < self._total:
            kind = next(kind for chance, kind in self._others if drawn < chance)
            move = self._other(kind, world, awake, seed)
            if move is not None and (kind not in (Kind.START, Kind.RESTORE) or may_start):
                return move
        count = random_.choice((1, 2, 4, 8, 16))
        return Move(Kind.GO, random_.choice(awake), count, seed)

    def _other(self, kind: str, world: "World", awake: list[int], seed: int) -> Move | None:
        random_ = self._random
        match kind:
            case Kind.RECORDS:
                partition = random_.randrange(len(world.ends))
                return Move(kind, partition, random_.randint(1, 5), seed)
            case Kind.PARTITION:
                is_full = len(world.ends) >= self._profile.partitions + 2
                return None if is_full else Move(kind, seed=seed)
            case Kind.ZOMBIE:
                return Move(kind, random_.randrange(8), 2, seed) if world.has_zombies() else None
            case Kind.LATE:
                return Move(kind, random_.randrange(8), seed=seed) if world.has_late() else None
            case Kind.KILL | Kind.PAUSE:
                return Move(kind, random_.choice(awake), seed=seed)
            case _:
                return Move(kind, random_.randrange(8), seed=seed)
