"""``python -m benchmarks transform-profile``: the parts of a `transform` by processor time.

It runs one program after the other, under a backlog, ten records a second, and no records. It
measures processor time by process and by thread of Spark's JVM, which a busy machine changes
little. With ``--against``, another checkout of Sluice takes turns with this one, each second turn
backwards.
"""

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.measuring import machine, topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.rig import PARTITIONS, Rig, Running, open_rig, wait_until

__all__ = ["Run", "main", "part_of_process", "part_of_thread", "spent_between", "table"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 1.0
_TRICKLE_PER_S = 10
_WARM_EPOCHS = 15
_WARM_RECORDS = 300_000
_START_S = 240.0
_ALL = "all"
_BROKER = "broker"

LOADS: Mapping[str, str] = {
    "backlog": "us per record",
    "trickle": "ms per epoch",
    "idle": "ms per second",
}

_THREADS = (
    ("Executor task", "JVM: tasks"),
    ("stream executio", "JVM: query (planning, logs)"),
    ("Thread-", "JVM: calls from Python (planning of the write)"),
    ("C1 Compiler", "JVM: compiling"),
    ("C2 Compiler", "JVM: compiling"),
    ("GC Thread", "JVM: garbage"),
    ("G1 ", "JVM: garbage"),
    ("VM Thread", "JVM: garbage"),
    ("dag-scheduler", "JVM: scheduling"),
    ("dispatcher-", "JVM: scheduling"),
    ("task-result-get", "JVM: scheduling"),
    ("spark-listener", "JVM: scheduling"),
)
_OTHER_THREADS = "JVM: others"
_JVM = "JVM"


def part_of_thread(name: str) -> str:
    """The work of a JVM thread, by the 15 letters that Linux keeps of its name."""
    return next((part for start, part in _THREADS if name.startswith(start)), _OTHER_THREADS)


def part_of_process(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The work of one of Spark's Python processes."""
    if any("python_streaming_source_runner" in word for word in command):
        return "Python: source runner"
    if any(word.startswith("pyspark.sql.worker") for word in command):
        return "Python: planners"
    if environment.get("SLUICE_WORKERS") == "sink":
        return "Python: tasks that write"
    return "Python: tasks that read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one checkout under one load.

    Attributes:
        load: of `LOADS`.
        tree: name of the checkout.
        parts: processor time by part, in the unit of the load.
        epochs: committed meanwhile.
        epoch_s: median from barrier to mark; 0 without epochs.
    """

    load: str
    tree: str
    parts: Mapping[str, float]
    epochs: int
    epoch_s: float


_Spent = Mapping[tuple[str, int], float]
"""Seconds so far by part, and by process or thread. That of a JVM contains all its threads."""


def spent_between(before: _Spent, after: _Spent) -> dict[str, float]:
    """Seconds by part. Ended processes do not count; ended threads count as other threads."""
    parts: dict[str, float] = defaultdict(float)
    for (part, number), seconds in after.items():
        parts[part] += seconds - before.get((part, number), 0.0)
    threads = sum(each for part, each in parts.items() if part.startswith("JVM: "))
    parts[_OTHER_THREADS] += parts.pop(_JVM, 0.0) - threads
    return dict(parts)


class _Clock:
    """Processor time of a running program by part, and of the broker."""

    def __init__(self, rig: Rig, running: Running) -> None:
        self._rig = rig
        self._running = running

    def now(self) -> _Spent:
        """Seconds so far."""
        spent = {(_BROKER, self._rig.broker_pid): self._rig.broker_cpu_s()}
        for process in self._running.program.members():
            with suppress(psutil.Error, OSError):
                spent |= self._of(process)
        return spent

    def _of(self, process: psutil.Process) -> _Spent:
        whole_s = sum(process.cpu_times()[:2])
        if process.pid == self._running.program.pid:
            return {("Python: driver", process.pid): whole_s}
        if process.name() == "java":
            return {(_JVM, process.pid): whole_s, **dict(_threads_of(process.pid))}
        return {(part_of_process(process.cmdline(), process.environ()), process.pid): whole_s}


def _threads_of(pid: int) -> Iterator[tuple[tuple[str, int], float]]:
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            head, _, tail = stat.read_text("utf-8", "replace").rpartition(")")
            fields = tail.split()
            spent_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
            yield (part_of_thread(head.partition("(")[2]), int(stat.parent.name)), spent_s


class _Measured:
    """A new program of one checkout, under one load after the other."""

    def __init__(self, rig: Rig, running: Running, tree: str, args: argparse.Namespace) -> None:
        self._running = running
        self._rig = rig
        self._tree = tree
        self._args = args
        self._clock = _Clock(rig, running)

    def warm(self) -> None:
        """Run ten epochs, which start and compile all that they need."""
        topics.fill(
            self._rig.connection,
            self._running.source,
            _WARM_RECORDS,
            value_bytes=self._args.value_bytes,
            partitions=PARTITIONS,
        )
        self._running.await_committed(_WARM_RECORDS, timeout_s=_START_S)

    def trickle(self) -> Run:
        """Few records in every epoch: the fixed cost of an epoch."""
        with self._fed():
            self._await_epochs(_WARM_EPOCHS)
            begun = self._begin()
            self._pass(self._args.seconds)
            return self._end("trickle", begun, per=None)

    def idle(self) -> Run:
        """No records."""
        seen = -1
        while len(self._running.epochs_s()) != seen:  # wait for epochs of the last load
            seen = len(self._running.epochs_s())
            self._pass(5 * _INTERVAL_S)
        begun = self._begin()
        self._pass(self._args.seconds)
        return self._end("idle", begun, per=self._args.seconds)

    def backlog(self) -> Run:
        """The whole backlog, in epochs of about a second."""
        self._running.copy_more(_WARM_RECORDS, value_bytes=self._args.value_bytes)
        begun = self._begin()
        self._running.copy_more(self._args.records, value_bytes=self._args.value_bytes)
        return self._end("backlog", begun, per=self._args.records / 1000)

    def _fed(self) -> Feed:
        burst = [(number, b"x" * self._args.value_bytes) for number in range(PARTITIONS)]
        pause_s = len(burst) / _TRICKLE_PER_S
        return Feed(self._rig, self._running.source, pause_s=pause_s, burst=lambda: burst)

    def _begin(self) -> tuple[_Spent, int]:
        return self._clock.now(), len(self._running.epochs_s())

    def _end(self, load: str, begun: tuple[_Spent, int], *, per: float | None) -> Run:
        before, seen = begun
        after, epochs = self._clock.now(), self._running.epochs_s()[seen:]
        count = per or max(1, len(epochs))
        parts = {p: each * 1000 / count for p, each in spent_between(before, after).items()}
        return Run(
            load=load,
            tree=self._tree,
            parts=parts | {_ALL: sum(each for part, each in parts.items() if part != _BROKER)},
            epochs=len(epochs),
            epoch_s=statistics.median(epochs) if epochs else 0.0,
        )

    def _await_epochs(self, count: int) -> None:
        goal = len(self._running.epochs_s()) + count
        wait_until(
            lambda: len(self._running.epochs_s()) >= goal,
            program=self._running.program,
            timeout_s=_START_S,
        )

    def _pass(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        wait_until(
            lambda: time.monotonic() > until_s,
            program=self._running.program,
            timeout_s=seconds + 60,
        )


@dataclass(frozen=True, slots=True)
class _Contender:
    """A contender: a checkout (None: this one), with this many rows in an Arrow batch of Spark."""

    tree: Path | None
    arrow_rows: int | None

    @property
    def name(self) -> str:
        tree = "this" if self.tree is None else self.tree.name
        return tree if self.arrow_rows is None else f"{tree}, {self.arrow_rows:,} rows"

    @property
    def arguments(self) -> list[str]:
        return [] if self.arrow_rows is None else ["--arrow-rows", str(self.arrow_rows)]


def _contenders(args: argparse.Namespace) -> list[_Contender]:
    trees = [None, args.against.resolve()] if args.against else [None]
    return [_Contender(tree, rows) for tree in trees for rows in args.arrow_rows or [None]]


def _measure(rig: Rig, contender: _Contender, args: argparse.Namespace) -> list[Run]:
    source = topics.create(rig.connection, "in", partitions=args.partitions)
    output = topics.create(rig.connection, "out", partitions=args.partitions)
    arguments = ["--mode", args.mode, "--interval", str(_INTERVAL_S)]
    arguments += ["--max-records", str(args.epoch), "--columns", args.columns]
    arguments += contender.arguments
    try:
        with rig.run("pipeline", source, output, arguments, tree=contender.tree) as running:
            measured = _Measured(rig, running, contender.name, args)
            measured.warm()
            return [getattr(measured, load)() for load in args.loads]
    finally:
        topics.delete(rig.connection, source, output)


def table(runs: Sequence[Run]) -> str:
    """Markdown: a table for each load, with a column of medians for each checkout."""
    lines: list[str] = []
    for load, unit in LOADS.items():
        found = [run for run in runs if run.load == load]
        if found:
            lines += [*_table(load, unit, found), ""]
    return "\n".join(lines)


def _table(load: str, unit: str, runs: Sequence[Run]) -> Iterator[str]:
    trees = list(dict.fromkeys(run.tree for run in runs))
    by_tree = {tree: [run for run in runs if run.tree == tree] for tree in trees}

    def median(tree: str, part: str) -> float:
        return statistics.median(run.parts.get(part, 0.0) for run in by_tree[tree])

    yield f"| {load}, {unit} of processor time | " + " | ".join(trees) + " |"
    yield "| --- " * (len(trees) + 1) + "|"
    parts = sorted({part for run in runs for part in run.parts} - {_ALL, _BROKER})
    for part in (*parts, _ALL, _BROKER):
        values = [f"{median(tree, part):.2f}" for tree in trees]
        if part == _ALL:
            spread = {t: " ".join(f"{r.parts[_ALL]:.2f}" for r in by_tree[t]) for t in trees}
            values = [f"**{v}** ({spread[t]})" for v, t in zip(values, trees, strict=True)]
        yield f"| {part} | " + " | ".join(values) + " |"
    epochs = (
        f"{statistics.median(run.epochs for run in by_tree[tree]):.0f} of "
        f"{statistics.median(run.epoch_s for run in by_tree[tree]):.2f} s"
        for tree in trees
    )
    yield "| epochs | " + " | ".join(epochs) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks transform-profile", description=__doc__
    )
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--mode", choices=["transform", "chained"], default="transform")
    parser.add_argument("--columns", choices=["used", "all"], default="used", help="of the source")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--epoch", type=int, default=200_000, help="records in one, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="of trickle and idle")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, which takes turns")
    parser.add_argument(
        "--arrow-rows", type=int, nargs="+", help="in one of Spark's Arrow batches; take turns"
    )
    parser.add_argument("--results", type=Path, help="a line of JSON for each run")
    args = parser.parse_args(arguments)
    for name, value in machine.describe():
        print(f"{name}: {value}")
    runs: list[Run] = []
    contenders = _contenders(args)
    with open_rig() as rig:
        for turn in range(args.repeat):
            for contender in contenders if turn % 2 == 0 else contenders[::-1]:
                found = _measure(rig, contender, args)
                runs += found
                print("; ".join(f"{r.tree} {r.load} {r.parts[_ALL]:.2f}" for r in found))
                _keep(found, args.results)
    print(table(runs))


def _keep(found: Sequence[Run], path: Path | None) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(run)) + "\n" for run in found)


if __name__ == "__main__":
    main()
