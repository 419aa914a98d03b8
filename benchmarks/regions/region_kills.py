"""One of the regions killed every five seconds: its recovery time and effects on other regions.

With micro-batches, a kill is ``kill -9`` of a Python worker in the middle of its region's epoch.
The moments take turns (`benchmarks.regions.mortal_sink`): before the writes, during them, or after
the flush and before the report. Under ``local[2]`` Spark runs a task once, so the whole
region fails. A continuous region is one long task: its Python worker is killed at the same moments,
and also at any time. It keeps its slot, so there are as many slots as regions on any number of
cores.

The coordinator's progress and a ``read_committed`` reader measure two runs. In the first one each
region has output partitions of its own. In the second one all regions share two partitions, where
an open transaction of one region hides commits of other regions. The figures name the cause of each
epoch that another region loses.
"""

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, Running, wait_until
from benchmarks.measuring.visibility import Paced, Seen, VisibleRecords
from benchmarks.regions import region_deaths
from benchmarks.regions.mortal_sink import ANY_TIME, MOMENTS, Death, Doom
from sluice.runtime.checkpoint.checkpoint_store import open_store

__all__ = ["PARTITIONS", "REGIONS", "Bed", "await_warm", "measure"]

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
_SPARE_SLOTS = 2
_BEHIND_S = 2.0  # an epoch, and the time until it is visible
_SPREAD_S = 1.0  # keeps kills independent of barriers


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """The regions under measurement.

    Attributes:
        engine: ``micro-batch`` or ``continuous``.
        regions: at most `PARTITIONS`.
    """

    engine: str
    regions: int

    @property
    def is_continuous(self) -> bool:
        """Whether a region is one long task."""
        return self.engine == "continuous"

    @property
    def moments(self) -> Sequence[str]:
        """The moments of death, in turn."""
        return (*MOMENTS, ANY_TIME) if self.is_continuous else MOMENTS

    @property
    def most_s(self) -> float:
        """The goal of the time from a kill to the region's next commit."""
        return 3.0 if self.is_continuous else 5.0

    def arguments(self, *, slots: int | None = None) -> list[str]:
        """For `benchmarks.programs.regional_pipeline`; slots None: as many as the regions need."""
        needed = self.regions + _SPARE_SLOTS if self.is_continuous else 2
        return [
            *("--engine", self.engine, "--regions", str(self.regions), "--regional"),
            *("--master", f"local[{slots or needed}]"),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The data of one run.

    Attributes:
        lines: the coordinator's progress.
        events: the job's warnings.
        deaths: in order.
        seen: by input partition.
        sent: records by input partition.
        partitions: of each region.
        calm_s, kills_s, end_s: wall clock: start of the time without kills, of the kills, and end.
    """

    lines: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    deaths: Sequence[Death]
    seen: Mapping[int, Seen]
    sent: Mapping[int, int]
    partitions: Mapping[str, frozenset[int]]
    calm_s: float
    kills_s: float
    end_s: float

    def others(self, death: Death) -> list[Seen]:
        """Partitions of the other regions."""
        own = self.partitions[death.region]
        return [seen for number, seen in self.seen.items() if number not in own]

    def sight_s(self, death: Death) -> float | None:
        """Seconds from a death until a reader sees later records of all the region's partitions.

        The last commit of the dead attempt may show earlier records.
        """
        found = [
            self.seen[number].back_s(death.at_s) if number in self.seen else None
            for number in self.partitions[death.region]
        ]
        known = [at_s for at_s in found if at_s is not None]
        return max(known) - death.at_s if known and len(known) == len(found) else None


def measure(rig: Rig, *, bed: Bed, seconds: float) -> list[Figure]:
    """Kill regions for so long, with own output partitions, then with shared ones."""
    own = _run(rig, bed, outputs=PARTITIONS, seconds=seconds)
    shared = _run(rig, bed, outputs=_SHARED, seconds=seconds)
    return [
        *_figures(own, bed, "own output partitions"),
        *_figures(shared, bed, f"{_SHARED} shared output partitions"),
    ]


def await_warm(running: Running, epochs: int = _WARM_EPOCHS) -> None:
    """Spark's first epochs are its slowest."""

    def is_warm() -> bool:
        return len(running.epochs_s()) >= epochs

    wait_until(is_warm, program=running.program, timeout_s=_START_S)


def _run(rig: Rig, bed: Bed, *, outputs: int, seconds: float) -> _Run:
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=outputs)
    doom = Doom(Path(tempfile.mkdtemp(dir=rig.directory)))
    pace = Paced(PARTITIONS, _PER_S)
    arguments = [*bed.arguments(), "--outputs", str(outputs), "--doom", str(doom.directory)]
    reader = VisibleRecords(rig.connection, output)
    with (
        reader,
        rig.run("regional_pipeline", source, output, arguments) as running,
    ):
        with Feed(rig, source, pause_s=_PAUSE_S, burst=pace, linger_ms=_LINGER_MS):
            await_warm(running)
            _await_caught_up(running, reader, pace)
            calm_s = time.time()
            time.sleep(_CALM_S)  # a time without kills, for comparison
            kills_s = time.time()
            _kill(running, doom, bed, until_s=time.monotonic() + seconds)
            end_s = time.time()
            time.sleep(_AFTER_S)  # feeds also the time after the last kill
        wait_until(lambda: reader.total >= pace.sent, program=running.program, timeout_s=_START_S)
        lines, events = running.progress(), running.events()
        partitions = _partitions(running.directory / "checkpoint")
    return _Run(
        lines=lines,
        events=events,
        partitions=partitions,
        deaths=doom.deaths(),
        seen=reader.by_partition(),
        sent={number: pace.sent_to(number) for number in range(PARTITIONS)},
        calm_s=calm_s,
        kills_s=kills_s,
        end_s=end_s,
    )


def _await_caught_up(running: Running, reader: VisibleRecords, pace: Paced) -> None:
    """Wait until the records of the start are visible: they would raise the rate."""
    wait_until(
        lambda: reader.total >= pace.sent - _BEHIND_S * _PER_S,
        program=running.program,
        timeout_s=_START_S,
    )


def _partitions(directory: Path) -> Mapping[str, frozenset[int]]:
    """The partitions of each region, by the newest decision."""
    store = open_store(str(directory))
    records = (store.read(place) for place in sorted(store.slots(), reverse=True))
    assignment = next(r.assignment for r in records if r is not None and r.assignment is not None)
    return {
        name: frozenset(number for _, _, number in keys)
        for name, keys in assignment.regions.items()
    }


def _kill(running: Running, doom: Doom, bed: Bed, *, until_s: float) -> None:
    """Kill the regions in turn, each round at another moment."""
    marked = [line for line in running.progress() if line["state"] == "marked"]
    names = sorted(marked[-1]["attempts"])
    moments = _moments(len(names), bed.moments)
    chosen = itertools.cycle(zip(names * len(bed.moments), moments, strict=True))
    dice = random.Random(bed.regions)
    while time.monotonic() < until_s:
        next_s = time.monotonic() + _EVERY_S
        region, moment = next(chosen)
        if moment == ANY_TIME:
            time.sleep(dice.uniform(0.0, _SPREAD_S))  # a random moment
        else:
            doom.request(region, moment)
        wait_until(
            partial(_is_dead, doom, region, moment),
            program=running.program,
            timeout_s=_TAKEN_S,
        )
        time.sleep(max(0.0, next_s - time.monotonic()))  # kills come at a pace


def _is_dead(doom: Doom, region: str, moment: str) -> bool:
    """Whether the task has died, or is about to."""
    return doom.strike(region) if moment == ANY_TIME else not doom.is_requested(region)


def _moments(regions: int, moments: Sequence[str]) -> list[str]:
    """All moments in turn; each region dies once at every moment."""
    count = regions * len(moments)
    return [moments[(at + at // regions) % len(moments)] for at in range(count)]


def _figures(run: _Run, bed: Bed, where: str) -> list[Figure]:
    faults = sum(seen.faults(run.sent[number]) for number, seen in run.seen.items())
    lost = region_deaths.lost_epochs(run.lines, run.deaths, run.events)
    epochs = sum(one.count for one in lost)
    attempts = region_deaths.extra_attempts(run.lines, run.deaths)
    unasked = region_deaths.unasked_ends(run.events, run.deaths) if attempts else []
    return [
        Figure(
            what=f"{where}: records lost, doubled or misplaced",
            runs=[float(faults + sum(run.sent[n] for n in run.sent.keys() - run.seen.keys()))],
            unit="records",
            goal="0",
            most=0,
            note=f"of {sum(run.sent.values()):,}; {len(run.deaths)} kills of {bed.regions} "
            f"{bed.engine} regions",
        ),
        Figure(
            what=f"{where}: epochs or attempts that other regions lost",
            runs=[float(epochs + attempts)],
            unit="epochs",
            goal="0",
            most=0,
            note=f"skipped or aborted {epochs}; attempts that ended by themselves {attempts}",
            details=[*map(str, lost), *unasked],
        ),
        *_rates(run, where),
        *_returns(run, bed, where),
        *_waits(run, where),
    ]


def _rates(run: _Run, where: str) -> list[Figure]:
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
            what=f"{where}: rate of the other regions after a kill, over their rate before",
            runs=[statistics.mean(shares)],
            unit="x",
            goal=">= 0.9",
            least=0.9,
            note=f"by a reader, in the {_EVERY_S:g} s after each; the worst {min(shares):.2f}",
        )
    ]


def _returns(run: _Run, bed: Bed, where: str) -> list[Figure]:
    decided = [region_deaths.back_after_s(run.lines, death) for death in run.deaths]
    seen = [run.sight_s(death) for death in run.deaths]
    begun = [region_deaths.begun_after_s(run.events, death) for death in run.deaths]
    known = [seconds for seconds in begun if seconds is not None]
    what = f"{where}: from a kill to the region's next commit, the slowest"
    return [
        _return(f"{what}, at the coordinator", run, bed, decided),
        _return(f"{what}, by a reader", run, bed, seen),
        Figure(
            what=f"{where}: of that, until its next attempt begins, the slowest",
            runs=[max(known, default=float("inf"))],
            unit="s",
            note=f"median of {len(known)}: {statistics.median(known):.2f} s" if known else "",
        ),
    ]


def _return(what: str, run: _Run, bed: Bed, found: Sequence[float | None]) -> Figure:
    known = [seconds if seconds is not None else float("inf") for seconds in found]
    late = [
        f"{death.region}, {death.moment}: {seconds:.2f} s"
        for death, seconds in zip(run.deaths, known, strict=True)
        if seconds > bed.most_s
    ]
    return Figure(
        what=what,
        runs=[max(known)],
        unit="s",
        goal=f"<= {bed.most_s:g}",
        most=bed.most_s,
        note=f"median of {len(known)}: {statistics.median(known):.2f} s",
        details=late,
    )


def _waits(run: _Run, where: str) -> list[Figure]:
    """The age of other regions' records when they became visible."""
    calm = [s for seen in run.seen.values() for s in seen.waits_s(run.calm_s, run.kills_s)]
    hurt = [
        s
        for death in run.deaths
        for seen in run.others(death)
        for s in seen.waits_s(death.at_s, death.at_s + _EVERY_S)
    ]
    return [
        Figure(
            what=f"{where}: records of the other regions, made to seen, 99 of 100",
            runs=[_percentile(hurt, 0.99)],
            unit="s",
            note=f"the longest {max(hurt):.2f} s; before the kills {_percentile(calm, 0.99):.2f} s,"
            f" the longest {max(calm):.2f} s",
        )
    ]


def _percentile(found: Sequence[float], share: float) -> float:
    return sorted(found)[int((len(found) - 1) * share)]
