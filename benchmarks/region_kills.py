"""One of eight regions killed every five seconds: what the others notice, and when it is back.

A kill is ``kill -9`` of a Python worker in the middle of that region's epoch, at one of three
places in turn (`benchmarks.mortal_sink`): nothing written, written, or all flushed and nobody told.
Spark gives a task one attempt under ``local[2]``, so the whole region fails. Measured twice, by the
coordinator's own progress and by a ``read_committed`` reader: with output partitions of their own,
and with two that all regions write, where an open transaction of one hides what others commit.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import region_lives, topics
from benchmarks.feeding import Feed
from benchmarks.figures import Figure
from benchmarks.mortal_sink import MOMENTS, Death, Doom
from benchmarks.rig import Rig, Running, wait_until
from benchmarks.visibility import Paced, Seen, VisibleRecords
from runtime.checkpoint.store import open_store

__all__ = ["PARTITIONS", "REGIONS", "await_warm", "measure"]

PARTITIONS = 16
REGIONS = 8
_PER_S = 2_000.0
_PAUSE_S = 0.02
_LINGER_MS = 10
_EVERY_S = 5.0
_CALM_S = 20.0
_AFTER_S = 10.0
_WARM_EPOCHS = 8
_START_S = 240.0
_TAKEN_S = 30.0
_SHARED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """All that one run left to be judged.

    Attributes:
        lines: the coordinator's progress.
        deaths: in order.
        seen: by input partition.
        sent: records by input partition.
        partitions: that each region reads.
        calm_s, kills_s, end_s: wall clock: beginning of the calm, of the kills, and their end.
    """

    lines: Sequence[Mapping[str, Any]]
    deaths: Sequence[Death]
    seen: Mapping[int, Seen]
    sent: Mapping[int, int]
    partitions: Mapping[str, frozenset[int]]
    calm_s: float
    kills_s: float
    end_s: float

    def others(self, death: Death) -> list[Seen]:
        """Partitions that the region which died does not read."""
        own = self.partitions[death.region]
        return [seen for number, seen in self.seen.items() if number not in own]


def measure(rig: Rig, *, seconds: float) -> list[Figure]:
    """Kills for so long, with output partitions of each region's own, then with shared ones."""
    own = _run(rig, outputs=PARTITIONS, seconds=seconds)
    shared = _run(rig, outputs=_SHARED, seconds=seconds)
    return [
        *_figures(own, "own output partitions"),
        *_figures(shared, f"{_SHARED} shared output partitions"),
    ]


def await_warm(running: Running, epochs: int = _WARM_EPOCHS) -> None:
    """Spark's first epochs are its slowest."""

    def is_warm() -> bool:
        return len(running.epochs_s()) >= epochs

    wait_until(is_warm, program=running.program, timeout_s=_START_S)


def _run(rig: Rig, *, outputs: int, seconds: float) -> _Run:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=outputs)
    doom = Doom(Path(tempfile.mkdtemp(dir=rig.directory)))
    pace = Paced(PARTITIONS, _PER_S)
    arguments = ["--regions", str(REGIONS), "--regional", "--outputs", str(outputs)]
    arguments += ["--doom", str(doom.directory)]
    reader = VisibleRecords(rig.connection, output)
    with (
        reader,
        rig.run("regional_pipeline", source, output, arguments) as running,
    ):
        with Feed(rig, source, pause_s=_PAUSE_S, burst=pace, linger_ms=_LINGER_MS):
            await_warm(running)
            calm_s = time.time()
            time.sleep(_CALM_S)  # what is measured is this span without kills
            kills_s = time.time()
            _kill(running, doom, until_s=time.monotonic() + seconds)
            end_s = time.time()
            time.sleep(_AFTER_S)  # the last kill's span, too, is fed
        wait_until(lambda: reader.total >= pace.sent, program=running.program, timeout_s=_START_S)
        lines = running.progress()
        partitions = _partitions(running.directory / "checkpoint")
    return _Run(
        lines=lines,
        partitions=partitions,
        deaths=doom.deaths(),
        seen=reader.by_partition(),
        sent={number: pace.sent_to(number) for number in range(PARTITIONS)},
        calm_s=calm_s,
        kills_s=kills_s,
        end_s=end_s,
    )


def _partitions(directory: Path) -> Mapping[str, frozenset[int]]:
    """Which partitions each region reads, as the newest decision says."""
    store = open_store(str(directory))
    records = (store.read(place) for place in sorted(store.places(), reverse=True))
    assignment = next(r.assignment for r in records if r is not None and r.assignment is not None)
    return {
        name: frozenset(number for _, _, number in keys)
        for name, keys in assignment.regions.items()
    }


def _kill(running: Running, doom: Doom, *, until_s: float) -> None:
    """The regions in turn, and for each round another place to die at."""
    marked = [line for line in running.progress() if line["state"] == "marked"]
    names = sorted(marked[-1]["attempts"])
    chosen = itertools.cycle(zip(names * len(MOMENTS), _moments(len(names)), strict=True))
    while time.monotonic() < until_s:
        next_s = time.monotonic() + _EVERY_S
        region, moment = next(chosen)
        doom.ask(region, moment)
        wait_until(
            lambda asked=region: not doom.is_asked(asked),  # type: ignore[misc]
            program=running.program,
            timeout_s=_TAKEN_S,
        )
        time.sleep(max(0.0, next_s - time.monotonic()))  # kills come at a pace


def _moments(regions: int) -> list[str]:
    """All places within each three kills, and each region at every place once in three rounds."""
    count = regions * len(MOMENTS)
    return [MOMENTS[(at + at // regions) % len(MOMENTS)] for at in range(count)]


def _figures(run: _Run, where: str) -> list[Figure]:
    kills = len(run.deaths)
    faults = sum(seen.faults(run.sent[number]) for number, seen in run.seen.items())
    lost = region_lives.epochs_lost_by_others(run.lines, run.deaths)
    lives = region_lives.extra_lives(run.lines, run.deaths)
    return [
        Figure(
            what=f"{kills} kills, {where}: records lost, doubled or misplaced",
            runs=[float(faults + sum(run.sent[n] for n in run.sent.keys() - run.seen.keys()))],
            unit="records",
            goal="0",
            most=0,
            note=f"of {sum(run.sent.values()):,}",
        ),
        Figure(
            what="  epochs that the others lost, or lives",
            runs=[float(lost + lives)],
            unit="epochs",
            goal="0",
            most=0,
            note=f"carried or given up {lost}; lives that nobody had ended {lives}",
        ),
        *_rates(run),
        *_returns(run),
        *_waits(run),
    ]


def _rates(run: _Run) -> list[Figure]:
    calm = {number: seen.between(run.calm_s, run.kills_s) for number, seen in run.seen.items()}
    calm_s = run.kills_s - run.calm_s
    shares = []
    for death in run.deaths:
        others = run.others(death)
        found = sum(seen.between(death.at_s, death.at_s + _EVERY_S) for seen in others)
        own = run.partitions[death.region]
        usual = sum(count for number, count in calm.items() if number not in own)
        shares.append(found / _EVERY_S / (usual / calm_s))
    return [
        Figure(
            what="  the others' rate after a kill, over their rate before the first",
            runs=[statistics.mean(shares)],
            unit="x",
            goal=">= 0.9",
            least=0.9,
            note=f"by a reader, in the {_EVERY_S:g} s behind each; the worst {min(shares):.2f}",
        )
    ]


def _returns(run: _Run) -> list[Figure]:
    decided = [region_lives.back_after_s(run.lines, death) for death in run.deaths]
    seen = [
        None if at_s is None else at_s - death.at_s
        for death in run.deaths
        for number, start, _ in death.ranges[:1]
        for at_s in [run.seen[number].seen_s(start)]
    ]
    return [
        _return("  kill to the region's next commit, the slowest", decided, "at the coordinator"),
        _return("  kill to its records before a reader, the slowest", seen, "by a reader"),
    ]


def _return(what: str, found: Sequence[float | None], where: str) -> Figure:
    known = [seconds if seconds is not None else float("inf") for seconds in found]
    return Figure(
        what=what,
        runs=[max(known)],
        unit="s",
        goal="<= 5",
        most=5.0,
        note=f"{where}; median of {len(known)}: {statistics.median(known):.2f} s",
    )


def _waits(run: _Run) -> list[Figure]:
    """How old the others' records were when they became visible."""
    calm = [s for seen in run.seen.values() for s in seen.waits_s(run.calm_s, run.kills_s)]
    hurt = [
        s
        for death in run.deaths
        for seen in run.others(death)
        for s in seen.waits_s(death.at_s, death.at_s + _EVERY_S)
    ]
    return [
        Figure(
            what="  the others' records, made to seen, 99 of 100",
            runs=[_percentile(hurt, 0.99)],
            unit="s",
            note=f"the longest {max(hurt):.2f} s; before the kills {_percentile(calm, 0.99):.2f} s,"
            f" the longest {max(calm):.2f} s",
        )
    ]


def _percentile(found: Sequence[float], share: float) -> float:
    return sorted(found)[int((len(found) - 1) * share)]
