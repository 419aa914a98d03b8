"""The goals, their measured figures, and the commands that measure them. Pure.

Each goal has a line, measured or not. Lines against peers come from the results of
`benchmarks.peers`, all other lines from the log of the parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measuring.figures import Measured
from benchmarks.peers.results import Result, Setting
from benchmarks.peers.summary import PLANNED_TURNS, Row, ratio, rows_by_setting
from benchmarks.peers.tables import shown_ratio

__all__ = ["Judged", "judged", "table"]

OURS, OURS_WEAK = "sluice-continuous", "sluice-continuous-weak"
_MILLION = 1_000_000
_PEERS = "python -m benchmarks peers"
_STEADY = "python -m benchmarks steady"
_KEYED = "python -m benchmarks keyed"
_STEADY_MINUTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One line.

    Attributes:
        what: the name of the goal.
        goal: as text.
        found: the measured figure with the number of turns, or why it is missing.
        is_reached: None: not measured.
        command: that measures it.
    """

    what: str
    goal: str
    found: str
    is_reached: bool | None
    command: str


@dataclass(frozen=True, slots=True)
class _Races:
    """Rows of the peers' benchmark, by contender and setting."""

    settings: Mapping[Setting, Sequence[Row]]

    def row(
        self, contender: str, kind: str, *, records: int, value_bytes: int = 100, every_s: float = 1
    ) -> Row | None:
        """The row of a contender if it has runs; never of quick runs."""
        for setting, rows in self.settings.items():
            wanted = (kind, records, value_bytes, every_s, False)
            is_quick = setting.is_quick
            if wanted == (
                setting.kind, setting.records, setting.value_bytes, setting.interval_s, is_quick
            ):  # fmt: skip
                return next((row for row in rows if row.contender == contender and row.runs), None)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Against:
    """The ratio of ours to another contender in one figure of one race."""

    what: str
    other: str
    records: int
    least: float | None = None
    most: float | None = None
    value_bytes: int = 100
    figure: str = "rate"
    other_figure: str = ""
    ours: str = OURS
    every_s: float = 1.0
    kind: str = "throughput"
    command: str = f"{_PEERS} --kinds throughput"

    def judged(self, races: _Races) -> Judged:
        """The ratio of medians, and the range of the ratios by turn."""
        rows = [
            races.row(
                name, self.kind, records=self.records, value_bytes=self.value_bytes,
                every_s=self.every_s,
            )
            for name in (self.ours, self.other)
        ]  # fmt: skip
        goal = f">= {self.least:g} x" if self.least is not None else f"<= {self.most:g} x"
        one, other = rows
        if one is None or other is None:
            names = (self.ours, self.other)
            missing = [name for name, row in zip(names, rows, strict=True) if row is None]
            return self._line(goal, f"no run of {' and '.join(missing)}", None)
        found = ratio(one, other, self.figure, other_figure=self.other_figure)
        above = self.least is None or found.of_medians >= self.least
        below = self.most is None or found.of_medians <= self.most
        return self._line(goal, f"{shown_ratio(found)}, {_turns(*found.turns)}", above and below)

    def _line(self, goal: str, found: str, is_reached: bool | None) -> Judged:
        return Judged(
            what=self.what, goal=goal, found=found, is_reached=is_reached, command=self.command
        )


def _turns(*turns: int) -> str:
    shown = " and ".join(map(str, dict.fromkeys(turns)))
    return (
        f"{shown} turns" if min(turns) >= PLANNED_TURNS else f"**{shown}** turns of {PLANNED_TURNS}"
    )


_PLAIN = "sluice-continuous-plain"
_GUARANTEES = f"{_PEERS} --kinds guarantees"
_FIVE = 5 * _MILLION
_FIFTEEN = 15 * _MILLION

_AGAINST = (
    _Against(
        what="1,000,000 records of 100 B, whole run, over Flink SQL",
        other="flink-sql", records=_MILLION, least=2.3,
    ),
    _Against(
        what="the same, second half",
        other="flink-sql", records=_MILLION, least=1.5, figure="second_half_rate",
    ),
    _Against(
        what="the same, whole run, over PyFlink DataStream",
        other="pyflink", records=_MILLION, least=10.0,
    ),
    _Against(
        what="5,000,000 records of 100 B, whole run, over Flink SQL",
        other="flink-sql", records=_FIVE, least=1.8,
    ),
    _Against(
        what="the same, over Kafka Streams", other="kafka-streams", records=_FIVE, least=1.8
    ),
    _Against(
        what="the same without compiled code, over the tuned hand-written loop",
        other="by-hand", records=_FIVE, least=0.95, ours=_PLAIN,
    ),
    _Against(
        what="the same with it, over the tuned hand-written loop",
        other="by-hand", records=_FIVE, least=1.2,
    ),
    _Against(
        what="1,000,000 records of 1,000 B, whole run, over Flink SQL",
        other="flink-sql", records=_MILLION, value_bytes=1_000, least=3.5,
    ),
    _Against(
        what="CPU-seconds of 1,000,000 records of 100 B without Spark's start, over Flink SQL's",
        other="flink-sql", records=_MILLION, figure="cpu_s", other_figure="cpu_with_start_s",
        most=0.2,
    ),
    _Against(
        what="CPU-seconds of 1,000,000 records of 100 B, both without a start, over Flink SQL's",
        other="flink-sql", records=_MILLION, figure="cpu_s", most=0.2,
    ),
)  # fmt: skip


def _guarantees() -> Iterator[_Against]:
    for every_s, least in ((1.0, 0.97), (0.1, 0.90)):
        yield _Against(
            what=f"exactly once over at least once, ours, 15,000,000 records, commits every "
            f"{every_s:g} s",
            other=OURS_WEAK,
            records=_FIFTEEN,
            least=least,
            every_s=every_s,
            command=_GUARANTEES,
        )


def _keyed() -> Iterator[_Against]:
    """Keyed state beside the peers: the race, the figure, ours, the other, the goal."""
    count, more, process = "count per key, 10,000 keys", "count per key, 1,000,000 keys", "process"
    least: tuple[tuple[str, str, str, str, float, int], ...] = (
        ("count-10k", count, "memory", "flink-hashmap", 1.5, _FIVE),
        ("count-1m", more, "memory", "flink-hashmap", 3.0, _FIVE),
        ("count-1m", more, "rocksdb", "flink-rocksdb", 1.5, _FIVE),
        ("repartition-10k", f"{count}, repartition topic", "memory", "flink-hashmap", 0.8, _FIVE),
        ("process-10k", f"{process}, 10,000 keys", "memory", "pyflink-hashmap", 8.0, 600_000),
        ("process-10k", f"{process}, 10,000 keys", "rocksdb", "pyflink-rocksdb", 8.0, 600_000),
        ("windows-100k", "windows of 10 s, 100,000 keys", "memory", "flink-hashmap", 1.5, _FIVE),
        ("windows-100k", "windows of 10 s, 100,000 keys", "rocksdb", "flink-rocksdb", 1.5, _FIVE),
    )
    for kind, what, ours, other, goal, records in least:
        yield _Against(
            what=f"{what}, {ours}, over {other}",
            ours=f"sluice-{ours}",
            other=other,
            kind=kind,
            records=records,
            least=goal,
            command=f"{_KEYED} {kind}",
        )
    yield _Against(
        what=f"{count}, memory, rate over that of a copy without state",
        ours="sluice-memory",
        other="sluice-copy",
        kind="count-10k",
        records=_FIVE,
        least=1 / 1.6,
        command=f"{_KEYED} count-10k",
    )


def _paced(races: _Races) -> Iterator[Judged]:
    row = races.row(OURS, "latency", records=5_000)
    for name, most_s in (("p50", 0.56), ("p99", 1.05)):
        what = f"latency at 5,000 records/s, commits every 1 s, {name}"
        goal, command = f"<= {most_s:g} s", f"{_PEERS} --kinds latency --intervals 1"
        if row is None:
            yield Judged(
                what=what, goal=goal, found=f"no run of {OURS}", is_reached=None, command=command
            )
            continue
        found_s = row.spread(f"{name}_s").median
        found = f"{found_s:.3f} s, {_turns(len(row.runs))}"
        yield Judged(
            what=what, goal=goal, found=found, is_reached=found_s <= most_s, command=command
        )


def _steady(races: _Races) -> Iterator[Judged]:
    """Every minute of every run must reach the goal."""
    row = races.row(OURS, "steady", records=5_000, every_s=0.1)
    for name, most_s in (("p50", 0.09), ("p99", 0.2)):
        what = f"latency at 5,000 records/s, commits every 0.1 s, {name} of each of 10 minutes"
        goal = f"<= {most_s:g} s"
        if row is None:
            yield Judged(
                what=what, goal=goal, found=f"no run of {OURS}", is_reached=None, command=_STEADY
            )
            continue
        minutes = [minute for run in row.runs for minute in run.figures["minutes"]]
        waits = [float(minute.get(f"{name}_s", float("inf"))) for minute in minutes]
        whole = all(len(run.figures["minutes"]) >= _STEADY_MINUTES for run in row.runs)
        found = f"the worst minute {max(waits):.3f} s, the best {min(waits):.3f} s"
        yield Judged(
            what=what,
            goal=goal,
            found=found if whole else f"{found}, of fewer than {_STEADY_MINUTES} minutes",
            is_reached=max(waits) <= most_s if whole else None,
            command=_STEADY,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the benchmark whose figures have goals."""

    what: str
    goal: str
    part: str
    engine: str
    command: str


_PARTS = (
    _Part(
        what="one of 16 continuous tasks killed",
        goal="back <= 3 s, other regions lose no epoch",
        part="region-kills",
        engine="continuous",
        command="python -m benchmarks region-kills --engine continuous",
    ),
    _Part(
        what="one of 8 regions of micro-batches killed every 5 s for 2 minutes",
        goal="back <= 5 s, other regions lose no epoch and keep >= 90 % of their rate",
        part="region-kills",
        engine="micro-batch",
        command="python -m benchmarks region-kills",
    ),
    _Part(
        what="processor time of 8 regions of micro-batches over that of 1",
        goal="<= 1.3 x, bookkeeping <= 5 ms for each region",
        part="region-cpu",
        engine="micro-batch",
        command="python -m benchmarks region-cpu",
    ),
    _Part(
        what="processor time of 8 continuous regions over that of 1",
        goal="<= 1.3 x, bookkeeping <= 5 ms for each region",
        part="region-cpu",
        engine="continuous",
        command="python -m benchmarks region-cpu --engine continuous",
    ),
    _Part(
        what="bookkeeping of a checkpoint, processor time for each region",
        goal="<= 5 ms",
        part="bookkeeping",
        engine="",
        command="python -m benchmarks bookkeeping",
    ),
    _Part(
        what="a backlog with one region at a quarter of its speed, balanced over fixed",
        goal=">= 1.3 x",
        part="balancing",
        engine="",
        command="python -m benchmarks balancing",
    ),
    _Part(
        what="one task killed in a job with a shuffle",
        goal="0 lost, 0 doubled, its epoch late by its own time and <= 1 s",
        part="single-point",
        engine="",
        command="python -m benchmarks single-point",
    ),
    _Part(
        what="acknowledgements a second of the coordinator's core, 10,000 tasks",
        goal=">= 10,000",
        part="coordinator-load",
        engine="",
        command="python -m benchmarks coordinator-load",
    ),
    _Part(
        what="savepoints and full checkpoints",
        goal="a pause of <= 2 epochs, a full checkpoint >= 5 x faster",
        part="savepoints",
        engine="",
        command="python -m benchmarks savepoints",
    ),
    *(
        _Part(what=what, goal=goal, part=f"keyed-{row}", engine="", command=f"{_KEYED} {row}")
        for row, what, goal in (
            ("restore", "restore of 1 GiB of keyed state, 2 tasks", "<= 15 s"),
            ("failover", "failover of one of 8 regions with 1 GiB of keyed state", "<= 4 s"),
            ("written", "bytes of state files over changed state", "<= 3 x"),
            ("visible", "barrier to visible, with keyed state over without", "<= 1.15 x"),
        )
    ),
    *(
        _Part(
            what=f"a leading coordinator killed 100 times, --ha {ha}",
            goal=f"0 lost, 0 doubled, no attempt restarted, 99 of 100 gaps <= {most_s} s",
            part="leader-kills",
            engine=ha,
            command=f"python -m benchmarks leader-kills --ha {ha}",
        )
        for ha, most_s in (("zookeeper", 6), ("lease", 13))
    ),
    _Part(
        what="cost of a separate coordinator, and of an election",
        goal="throughput >= 0.97 x, visible <= 10 ms later",
        part="coordinator-cost",
        engine="",
        command="python -m benchmarks coordinator-cost --records 20000000 --window 10 --repeat 5",
    ),
    _Part(
        what="checkpoints in an object store",
        goal="barrier to decision <= 60 ms beyond the put, >= 0.95 x the rate of local ones",
        part="object-checkpoints",
        engine="",
        command="python -m benchmarks object-checkpoints --records 20000000",
    ),
    _Part(
        what="files in an object store",
        goal=">= 0.90 x the rate of a local disk",
        part="object-files",
        engine="",
        command="python -m benchmarks object-files",
    ),
    _Part(
        what="Iceberg",
        goal=">= 1.5 x the rate of Iceberg's own streaming sink",
        part="iceberg",
        engine="",
        command="python -m benchmarks iceberg --records 10000000",
    ),
    _Part(
        what="many Iceberg commits",
        goal="processor time of a commit <= 1.2 x",
        part="iceberg-commits",
        engine="",
        command="python -m benchmarks iceberg-commits --commits 100000",
    ),
    _Part(
        what="cost of history and metrics",
        goal="<= 1 % of a core",
        part="history-cost",
        engine="",
        command="python -m benchmarks history-cost",
    ),
)


def _parts(figures: Sequence[Measured]) -> Iterator[Judged]:
    by_part: dict[tuple[str, str], list[Measured]] = {}
    for measured in figures:
        by_part.setdefault((measured.part, measured.engine), []).append(measured)
    for part in _PARTS:
        found = by_part.get((part.part, part.engine), [])
        with_goals = [one for one in found if one.figure.is_reached is not None]
        if not with_goals:
            yield Judged(
                what=part.what, goal=part.goal, found="", is_reached=None, command=part.command
            )
        for one in with_goals:
            note = f"; {one.figure.note}" if one.figure.note else ""
            yield Judged(
                what=f"{part.what}: {one.figure.what.strip()}",
                goal=one.figure.goal,
                found=f"{one.figure.shown()}{note} ({one.at}, load before {one.load_before:.1f})",
                is_reached=one.figure.is_reached,
                command=one.command,
            )


def judged(results: Sequence[Result], figures: Sequence[Measured]) -> list[Judged]:
    """Every goal, in the order of the documentation."""
    races = _Races(rows_by_setting(results))
    against: list[Callable[[_Races], Judged]] = [one.judged for one in _AGAINST]
    weak = [one.judged for one in _guarantees()]
    keyed = [one.judged for one in _keyed()]
    return [
        *(judge(races) for judge in against),
        *_paced(races),
        *_steady(races),
        *(judge(races) for judge in weak),
        *(judge(races) for judge in keyed),
        *_parts(figures),
    ]


def table(lines: Sequence[Judged], former: str = "") -> str:
    """Markdown: a summary, then the table.

    Args:
        former: an older table; keeps its dated rows of goals without a newer figure.
    """
    rows = [row for line in lines for row in _rows(line, former.splitlines())]
    reached, missed, nothing = (
        sum(f" | {word} | `" in row for row in rows) for word in _WORDS.values()
    )
    return "\n".join(
        [
            f"{reached} reached, {missed} missed, {nothing} not measured.",
            "",
            "| figure | goal | measured | | command |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


_WORDS = {True: "reached", False: "**missed**", None: "not measured"}


def _rows(line: Judged, former: Sequence[str]) -> Sequence[str]:
    kept = [row for row in former if row.startswith((f"| {line.what} |", f"| {line.what}: "))]
    if line.is_reached is None and kept:
        return kept
    cells = (line.what, line.goal, line.found.replace("|", "/"), _WORDS[line.is_reached])
    return [f"| {' | '.join(cells)} | `{line.command}` |"]
