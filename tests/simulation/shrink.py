"""From a world that breaks a promise to a short story of how."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from tests.simulation.profile import Profile
from tests.simulation.schedule import Kind, Move
from tests.simulation.watch import ViolationError
from tests.simulation.world import World

_MOST_RUNS = 1_500
_MOST_OF_THE_CALM = 25
_SMALLER = {"regions": (1, 2, 3), "partitions": (1, 2, 3), "max_concurrent": (1,), "rescale": (2,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A world that broke a promise.

    Attributes:
        seed, profile, moves: make it happen again.
        what: the promise; a smaller world must break the same one.
        detail: the whole message.
    """

    seed: int
    profile: Profile
    moves: tuple[Move, ...]
    what: str
    detail: str


def find(seed: int, profile: Profile, moves: Sequence[Move] | None = None) -> Failure | None:
    """Run a world, with its own moves or with given ones; None when every promise was kept."""
    world = World(seed, profile, moves=moves)
    try:
        world.run()
    except Exception as err:  # noqa: BLE001 - whatever a bug raises is what we look for
        return Failure(
            seed=seed,
            profile=profile,
            moves=tuple(world.made),
            what=err.what if isinstance(err, ViolationError) else type(err).__name__,
            detail=str(err),
        )
    return None


class _Shrinker:
    """Delta debugging over moves, and then over what is left of the profile."""

    def __init__(self, failure: Failure) -> None:
        self.best = failure
        self._runs = 0

    def run(self) -> Failure:
        """The smallest that was found within the bound."""
        size = -1
        while size != self._size() and self._runs < _MOST_RUNS:
            size = self._size()
            self._leave_out()
            self._try_each(_joined)
            self._try_each(_fewer)
            self._try_each(_quieter)
            self._calm_the_profile()
        return self.best

    def _size(self) -> tuple[int, int, int]:
        moves = self.best.moves
        return len(moves), sum(move.count for move in moves), sum(not m.quiet for m in moves)

    def _leave_out(self) -> None:
        size = max(1, len(self.best.moves) // 2)
        while size:
            at = 0
            while at < len(self.best.moves):
                moves = self.best.moves
                if not self._take(moves[:at] + moves[at + size :]):
                    at += size
            size //= 2

    def _try_each(self, smaller: Callable[[Sequence[Move]], Iterator[tuple[Move, ...]]]) -> None:
        found = True
        while found:
            found = any(self._take(moves) for moves in smaller(self.best.moves))

    def _calm_the_profile(self) -> None:
        for field in fields(Profile):
            value = getattr(self.best.profile, field.name)
            options: tuple[object, ...] = _SMALLER.get(field.name, ())
            if isinstance(value, float):
                options = (0.0,)
            for option in options:
                if value and value != option:
                    profile = replace(self.best.profile, **{field.name: option})
                    if self._take(self.best.moves, profile):
                        break

    def _take(self, moves: tuple[Move, ...], profile: Profile | None = None) -> bool:
        if self._runs >= _MOST_RUNS:
            return False
        self._runs += 1
        found = find(self.best.seed, profile or self.best.profile, moves)
        if found is None or found.what != self.best.what:
            return False
        self.best = found
        return True


def _joined(moves: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
    for at in range(len(moves) - 1):
        joined = moves[at].joined(moves[at + 1])
        if joined is not None:
            yield (*moves[:at], joined, *moves[at + 2 :])


def _fewer(moves: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
    for at, move in enumerate(moves):
        for count in {move.count // 2, move.count - 1} - {0, move.count}:
            yield (*moves[:at], replace(move, count=count), *moves[at + 1 :])


def _quieter(moves: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
    for at, move in enumerate(moves):
        if move.kind == Kind.GO and not move.quiet:
            yield (*moves[:at], replace(move, quiet=True), *moves[at + 1 :])


def shrink(failure: Failure) -> Failure:
    """A world that breaks the same promise in as few, as quiet moves as could be found."""
    return _Shrinker(failure).run()


def story(failure: Failure) -> str:
    """What happens, move by move, and which promise it breaks."""
    world = World(failure.seed, failure.profile, moves=failure.moves, telling=True)
    ending = "and every promise was kept, this time: that is a bug of the simulator."
    try:
        world.run()
    except Exception as err:  # noqa: BLE001 - as in `find`
        ending = f"{type(err).__name__}: {err}"
    told = world.told or []
    calm = told.index("No more faults.") if "No more faults." in told else len(told)
    left_out = len(told) - calm - _MOST_OF_THE_CALM
    if left_out > 0:
        told[calm + 1 : calm + 1 + left_out] = [f"    ... {left_out} lines ..."]
    return "\n".join([*told, ending])
