"""``python -m benchmarks peers``: ours and the peers in turn, on one broker, in one run."""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, topics
from benchmarks.measuring.rig import PARTITIONS, Rig, open_rig
from benchmarks.peers import race
from benchmarks.peers.records import fill
from benchmarks.peers.results import Log, Result, Setting
from benchmarks.peers.roster import CONTENDERS, Contender, Order, by_name
from sluice.runtime.errors import MissingRequirementError

__all__ = ["RESULTS", "Runner", "main", "prepare", "run_line"]

RESULTS = Path(__file__).with_name("results.jsonl")
"""Results of full runs, committed as the source of the table and the chart."""

_QUICK_RESULTS = Path("build") / "bench" / "quick.jsonl"
_KINDS = ("throughput", "counts", "latency", "guarantees")
# Contenders with both guarantees, and their commit intervals.
_GUARANTEES = ("sluice-continuous", "sluice-continuous-weak")
_GUARANTEE_INTERVALS = (1.0, 0.1)
_WARM = ("by-hand",)
_FAILURE_CHARACTERS = 1_000
_Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mode:
    """Sizes of a quick run, or of the full benchmark.

    Attributes:
        guarantees: sizes of the comparison of both guarantees. Epochs of 100 ms reduce the rate by
            a tenth, and a run of three seconds varies by more.
    """

    workloads: Sequence[str]
    guarantees: str
    repeat: int
    intervals: Sequence[float]
    warm_s: float
    seconds: float


_QUICK = _Mode(
    workloads=("100000x100",),
    guarantees="100000x100",
    repeat=1,
    intervals=(1.0,),
    warm_s=4.0,
    seconds=8.0,
)
_WHOLE = _Mode(
    workloads=("1000000x100", "5000000x100", "1000000x1000"),
    guarantees="15000000x100",
    repeat=3,
    intervals=(1.0, 0.1),
    warm_s=15.0,
    seconds=45.0,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch missing peers, run all, and write a line for each run."""
    args = _parser().parse_args(arguments)
    mode = _QUICK if args.quick else _WHOLE
    try:
        contenders = by_name(args.only)
    except ValueError as err:
        sys.exit(str(err))
    path = args.results or (_QUICK_RESULTS if args.quick else RESULTS)
    absent = prepare(contenders)
    if args.fetch:
        return
    log = Log(path, dict(machine.describe()))
    with open_rig() as rig:
        runner = Runner(rig, log, contenders, absent, repeat=args.repeat or mode.repeat)
        races = [kind for kind in ("throughput", "counts") if kind in args.kinds]
        for kind, workload in itertools.product(races, args.workloads or mode.workloads):
            runner.throughput(workload, interval_s=args.commit, is_quick=args.quick, kind=kind)
        if "guarantees" in args.kinds:
            for interval_s in _GUARANTEE_INTERVALS:
                runner.throughput(
                    mode.guarantees,
                    interval_s=interval_s,
                    is_quick=args.quick,
                    among=_GUARANTEES,
                )
        if "latency" in args.kinds:
            for interval_s in args.intervals or mode.intervals:
                runner.latency(interval_s, args.per_s, mode, is_quick=args.quick)
    print(f"results are in {path}; `python -m benchmarks report` makes a table of them")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=__doc__)
    names = ", ".join(one.name for one in CONTENDERS)
    parser.add_argument("--quick", action="store_true", help="small and short, for a first look")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=names)
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
    parser.add_argument("--workloads", nargs="+", metavar="RECORDSxBYTES")
    parser.add_argument("--commit", type=float, default=1.0, help="interval of throughput runs, s")
    parser.add_argument("--intervals", nargs="+", type=float, help="of latency runs, s")
    parser.add_argument("--per-s", type=float, default=5_000.0, help="pace of latency runs")
    parser.add_argument("--repeat", type=int, help="runs of each")
    parser.add_argument("--fetch", action="store_true", help="make the peers ready and end")
    parser.add_argument(
        "--results", type=Path, help="JSON lines; runs that it holds are not repeated"
    )
    return parser


def prepare(contenders: Sequence[Contender]) -> dict[str, str]:
    """Fetch and compile the peers; returns, by contender, why it cannot run here."""
    nowhere = Order(
        bootstrap="", source="", output="", directory=Path(),
        interval_s=1.0, value_bytes=100, partitions=PARTITIONS,
    )  # fmt: skip
    absent = {}
    for contender in contenders:
        try:
            contender.command(nowhere)
        except MissingRequirementError as err:
            absent[contender.name] = str(err)
            print(f"{contender.name} cannot run here: {err}", file=sys.stderr)
    return absent


class Runner:
    """Runs every contender in turn and logs its result."""

    def __init__(
        self,
        rig: Rig,
        log: Log,
        contenders: Sequence[Contender],
        absent: Mapping[str, str],
        *,
        repeat: int,
    ) -> None:
        self._rig = rig
        self._log = log
        self._contenders = contenders
        self._absent = absent
        self._repeat = repeat
        self._is_warm = False

    def throughput(
        self,
        workload: str,
        *,
        interval_s: float,
        is_quick: bool,
        among: Sequence[str] = (),
        kind: str = "throughput",
    ) -> None:
        """Measure the throughput of the named contenders, or of all of a kind, over one input."""
        records, _, value_bytes = workload.partition("x")
        setting = Setting(
            kind=kind,
            records=int(records),
            value_bytes=int(value_bytes),
            interval_s=interval_s,
            is_quick=is_quick,
        )
        contenders = [
            one
            for one in self._contenders
            if one.is_count == (kind == "counts") and (not among or one.name in among)
        ]
        if not list(self._turns(setting, contenders)):
            return
        given = self._filled(setting.records, setting.value_bytes)
        if not (self._is_warm or is_quick):
            self._warm_up(given, interval_s, among or _WARM)
        self._all(
            setting,
            lambda one: race.throughput(self._rig, one, given, interval_s=interval_s),
            contenders,
        )
        topics.delete(self._rig.connection, given.topic)

    def latency(self, interval_s: float, per_s: float, mode: _Mode, *, is_quick: bool) -> None:
        """Measure the latency of all contenders at one commit interval."""
        setting = Setting(
            kind="latency",
            records=int(per_s),
            value_bytes=race.PACED_BYTES,
            interval_s=interval_s,
            is_quick=is_quick,
        )
        self._all(
            setting,
            lambda one: race.latency(
                self._rig,
                one,
                interval_s=interval_s,
                per_s=per_s,
                warm_s=mode.warm_s,
                seconds=mode.seconds,
            ),
        )

    def steady(
        self, interval_s: float, per_s: float, *, warm_s: float, seconds: float, is_quick: bool
    ) -> list[Result]:
        """Measure the latency over minutes, with figures for each one; returns the new results."""
        setting = Setting(
            kind="steady",
            records=int(per_s),
            value_bytes=race.PACED_BYTES,
            interval_s=interval_s,
            is_quick=is_quick,
        )
        return self._all(
            setting,
            lambda one: race.latency(
                self._rig,
                one,
                interval_s=interval_s,
                per_s=per_s,
                warm_s=warm_s,
                seconds=seconds,
            ),
        )

    def _filled(self, records: int, value_bytes: int) -> race.Input:
        topic = topics.create(self._rig.connection, "in", partitions=PARTITIONS)
        print(f"appending {records:,} records of {value_bytes} bytes ...", flush=True)
        fill(self._rig.connection, topic, records, value_bytes=value_bytes, partitions=PARTITIONS)
        return race.Input(topic=topic, records=records, value_bytes=value_bytes)

    def _warm_up(self, given: race.Input, interval_s: float, names: Sequence[str]) -> None:
        """Run once without counting: the JVM of a new broker has compiled nothing yet."""
        for one in by_name(list(names)):
            race.throughput(self._rig, one, given, interval_s=interval_s)
        self._is_warm = True

    def _turns(
        self, setting: Setting, contenders: Sequence[Contender]
    ) -> Iterator[tuple[int, Contender]]:
        """Each second turn goes backwards, so that the predecessor of a contender changes."""
        for turn in range(self._repeat):
            for one in contenders if turn % 2 == 0 else reversed(contenders):
                if not self._log.has(setting, one.name, turn):
                    yield turn, one

    def _all(
        self,
        setting: Setting,
        measure: Callable[[Contender], _Figures],
        contenders: Sequence[Contender] | None = None,
    ) -> list[Result]:
        found = []
        copies = [one for one in self._contenders if not one.is_count]
        for turn, one in self._turns(setting, contenders or copies):
            load_before = os.getloadavg()[0]
            figures: _Figures = {}
            failure = self._absent.get(one.name, "")
            if not failure:
                try:
                    figures = measure(one)
                except race.RunFailedError as err:
                    failure = str(err)[-_FAILURE_CHARACTERS:]
            result = self._log.add(
                setting,
                (one.name, one.label, one.guarantee),
                turn,
                load_before=load_before,
                figures=figures,
                failure=failure,
            )
            print(run_line(result), flush=True)
            found.append(result)
        return found


def run_line(result: Result) -> str:
    """One line for a run, printed during the benchmark."""
    figures = result.figures
    name = f"{result.contender:20} turn {result.turn}"
    if not figures:
        return f"{name}  failed: {result.failure.splitlines()[0]}"
    if "p50_s" in figures:
        return (
            f"{name}  p50 {figures['p50_s']:.3f} s  p99 {figures['p99_s']:.3f} s"
            f"  max {figures['max_s']:.3f} s"
        )
    return (
        f"{name}  {figures['rate']:>9,.0f}/s  second half {figures['second_half_rate']:>9,.0f}/s"
        f"  CPU {figures['cpu_s']:.1f} s  with start {figures['cpu_with_start_s']:.1f} s"
        f"  broker {figures['broker_cpu_s']:.1f} s"
        f"  peak {figures['peak_bytes'] / 2**20:,.0f} MiB  faults {figures['verdict']['faults']}"
    )
