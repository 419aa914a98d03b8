"""``python -m tests.simulation``: many schedules, or one again.

``--schedules 1e7`` runs that many, from ``--seed`` on, in ``--workers`` processes; it prints the
seeds that break a promise, and the story of the first one, shrunk. ``--seed N`` alone runs that one
schedule again, exactly, and reports its story.
"""

import argparse
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.profiles import profile_of
from tests.simulation.shrink import Failure, find, shrink, story
from tests.simulation.world import World

_CHUNK = 100
_MOST_FAILURES = 10
_PROGRESS_S = 2.0
_INTERRUPTED = 130
_WORLDS_OF_GARBAGE = 20_000  # objects, of some twenty of them: a few MB


@dataclass(slots=True)
class Tally:
    """What schedules did.

    Attributes:
        schedules: that were run.
        counts: what happened in them, by name.
        failures: (seed, promise) of those that broke one.
    """

    schedules: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Another worker's part."""
        self.schedules += other.schedules
        self.counts += other.counts
        self.failures += other.failures


def _run_chunk(seeds: range) -> Tally:
    tally = Tally(schedules=len(seeds))
    for seed in seeds:
        world = World(seed, profile_of(seed)[1])
        try:
            world.run()
        except Exception:  # noqa: BLE001 - found again below, with its name
            failure = find(seed, profile_of(seed)[1])
            what = "it broke no promise when it was run again" if failure is None else failure.what
            tally.failures.append((seed, what))
        tally.counts.update(move.kind for move in world.made)
        tally.counts.update(f"checkpoints by {record.requested_by}" for record in world.history)
        tally.counts.update(world.faults)
        tally.counts["repairs"] += world.repairs
        tally.counts["restores"] += world.watch.lineages.turns
        tally.counts["records read"] += sum(map(len, world.watch.seen.values()))
    return tally


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us,
    # by this one, which a handler of the parent's would only note where a worker waits for a lock.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    gc.freeze()  # a world is garbage when it ends; modules never are
    gc.set_threshold(_WORLDS_OF_GARBAGE)


def _chunks(first: int, schedules: int) -> Iterator[range]:
    for at in range(first, first + schedules, _CHUNK):
        yield range(at, min(at + _CHUNK, first + schedules))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _Progress:
    """One line that is written over, on a terminal; one a minute elsewhere."""

    def __init__(self, schedules: int) -> None:
        self._schedules = schedules
        self._began_s = self._last_s = time.monotonic()
        self._every_s = _PROGRESS_S if sys.stderr.isatty() else 60.0

    def tell(self, tally: Tally) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= self._every_s:
            self._last_s = now_s
            end = "\r" if sys.stderr.isatty() else "\n"
            sys.stderr.write(f"{self.line(tally)}{end}")
            sys.stderr.flush()

    def line(self, tally: Tally) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-9)
        return (
            f"{tally.schedules:,} of {self._schedules:,} schedules in {elapsed_s:.0f} s, "
            f"{tally.schedules / elapsed_s:,.0f} per second, {len(tally.failures)} failures"
        )


def _run_many(schedules: int, first: int, workers: int) -> int:
    tally, progress = Tally(), _Progress(schedules)
    interrupted = False
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, initializer=_begin_worker) as pool:
        try:
            for part in pool.imap_unordered(_run_chunk, _chunks(first, schedules)):
                tally.add(part)
                for seed, what in part.failures:
                    _say(f"seed {seed}: {what}; again: python -m tests.simulation --seed {seed}")
                progress.tell(tally)
                if len(tally.failures) >= _MOST_FAILURES:
                    break
        except KeyboardInterrupt:
            interrupted = True
    _say(progress.line(tally))
    for name, count in sorted(tally.counts.items()):
        _say(f"  {count:>12,}  {name}")
    if tally.failures and not interrupted:
        _replay(min(tally.failures)[0], is_shrunk=True)
    if interrupted:
        return _INTERRUPTED
    return 1 if tally.failures else 0


def _replay(seed: int, *, is_shrunk: bool) -> int:
    name, profile = profile_of(seed)
    failure: Failure | None = find(seed, profile)
    if failure is None:
        _say(f"seed {seed} ({name}, {profile.steps} moves): every promise was kept")
        return 0
    _say(f"seed {seed} ({name}): {failure.what}, in {len(failure.moves)} moves")
    if is_shrunk:
        failure = shrink(failure)
        _say(f"shrunk to {len(failure.moves)} moves:")
    _say(story(failure))
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code: 0, 1 when a promise was broken, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=lambda text: int(float(text)), default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="do not shrink what fails")
    given = parser.parse_args(arguments)
    if given.schedules is None:
        return _replay(given.seed, is_shrunk=not given.whole)
    return _run_many(given.schedules, given.seed, given.workers)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets have one order, so that a seed replays
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)
    sys.exit(main())
