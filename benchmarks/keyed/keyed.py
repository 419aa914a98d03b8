"""``python -m benchmarks keyed``: keyed state beside the peers, and what it costs alone.

``python -m benchmarks keyed count-10k --quick`` runs one row with few records. Rows beside the
peers are logged as those of `benchmarks.peers`, all other rows as figures of the parts.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.keyed import growth, state_costs
from benchmarks.keyed.contenders import RACES, Race
from benchmarks.measuring import machine, topics
from benchmarks.measuring.figures import PARTS_RESULTS, Figure, command_line, log_figures, table
from benchmarks.measuring.rig import PARTITIONS, Rig, open_rig
from benchmarks.peers import race
from benchmarks.peers.command import prepare, run_line
from benchmarks.peers.records import fill
from benchmarks.peers.results import Log, Setting
from benchmarks.peers.roster import Contender

__all__ = ["RESULTS", "main"]

RESULTS = Path(__file__).with_name("keyed_results.jsonl")
"""Results of full runs beside the peers."""

_QUICK = Path("build") / "bench"
_QUICK_RECORDS = 100_000
_VALUE_BYTES = 100
_FAILURE_CHARACTERS = 1_000

_ALONE: Mapping[str, Callable[[Rig, argparse.Namespace], Sequence[Figure]]] = {
    "restore": lambda rig, args: state_costs.measure_restore(
        rig, mib=args.state_mib, repeat=args.repeat
    ),
    "failover": lambda rig, args: state_costs.measure_failover(
        rig, mib=args.state_mib, repeat=args.repeat
    ),
    "written": lambda rig, args: state_costs.measure_written(rig, epochs=args.epochs),
    "visible": lambda rig, args: state_costs.measure_visible(
        rig, per_s=args.per_s, epochs=args.epochs, repeat=args.repeat
    ),
    "growth": lambda _, args: growth.measure(scale=args.scale),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the named rows."""
    parser = _parser()
    args = parser.parse_args(arguments)
    races = {one.name: one for one in RACES}
    unknown = set(args.rows).difference(races, _ALONE)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if args.quick:
        args.repeat, args.state_mib, args.epochs, args.scale = 1, 8, 10, 0.001
    wanted = args.rows or [*races, *_ALONE]
    with open_rig() as rig:
        for name in wanted:
            if name in races:
                _race(rig, races[name], args)
            else:
                _alone(rig, name, args, arguments or sys.argv[2:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks keyed", description=__doc__)
    rows = ", ".join([*(one.name for one in RACES), *_ALONE])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=rows)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="contenders")
    parser.add_argument("--quick", action="store_true", help="small and short, for a first look")
    parser.add_argument("--records", type=int, help="of a row beside the peers")
    parser.add_argument("--commit", type=float, default=1.0, help="between two commits, s")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each")
    parser.add_argument("--state-mib", type=int, default=1024, help="of restore and failover")
    parser.add_argument("--epochs", type=int, default=60, help="of written and visible")
    parser.add_argument("--per-s", type=int, default=5_000, help="records a second, of visible")
    parser.add_argument("--scale", type=float, default=1.0, help="of the growth tables")
    parser.add_argument("--results", type=Path, help="JSON lines of rows beside the peers")
    parser.add_argument("--parts", type=Path, help="JSON lines of all other rows")
    return parser


def _race(rig: Rig, row: Race, args: argparse.Namespace) -> None:
    contenders = [one for one in row.contenders if not args.only or one.name in args.only]
    records = args.records or (_QUICK_RECORDS if args.quick else row.records)
    setting = Setting(
        kind=row.name,
        records=records,
        value_bytes=_VALUE_BYTES,
        interval_s=args.commit,
        is_quick=args.quick,
    )
    path = args.results or (_QUICK / "keyed.jsonl" if args.quick else RESULTS)
    log = Log(path, dict(machine.describe()))
    absent = prepare(contenders)
    given = _filled(rig, row, records)
    for turn in range(args.repeat):
        for one in contenders if turn % 2 == 0 else reversed(contenders):
            if not log.has(setting, one.name, turn):
                _run(rig, log, setting, turn, one, given, absent.get(one.name, ""))
    topics.delete(rig.connection, given.topic)


def _filled(rig: Rig, row: Race, records: int) -> race.Input:
    topic = topics.create(rig.connection, "in", partitions=PARTITIONS)
    print(f"{row.title}: appending {records:,} records ...", flush=True)
    fill(
        rig.connection,
        topic,
        records,
        value_bytes=_VALUE_BYTES,
        partitions=PARTITIONS,
        every=row.every,
        us_each=row.us_each(records),
        end_us=row.end_us(),
    )
    return race.Input(
        topic=topic,
        records=records,
        value_bytes=_VALUE_BYTES,
        every=row.every,
        output=row.output,
    )


def _run(
    rig: Rig,
    log: Log,
    setting: Setting,
    turn: int,
    one: Contender,
    given: race.Input,
    failure: str,
) -> None:
    load_before = os.getloadavg()[0]
    figures = {}
    if not failure:
        try:
            figures = race.throughput(rig, one, given, interval_s=setting.interval_s)
        except race.RunFailedError as err:
            failure = str(err)[-_FAILURE_CHARACTERS:]
    result = log.add(
        setting,
        (one.name, one.label, one.guarantee),
        turn,
        load_before=load_before,
        figures=figures,
        failure=failure,
    )
    print(run_line(result), flush=True)


def _alone(rig: Rig, name: str, args: argparse.Namespace, arguments: Sequence[str]) -> None:
    print(f"measuring {name} ...", flush=True)
    load_before = os.getloadavg()[0]
    measured_on = machine.describe()
    found = _ALONE[name](rig, args)
    log_figures(
        args.parts or (_QUICK / "parts.jsonl" if args.quick else PARTS_RESULTS),
        found,
        part=f"keyed-{name}",
        engine="",
        command=command_line(["keyed", *arguments]),
        load_before=load_before,
        machine=dict(measured_on),
    )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for part in table(found, measured_on):
        console.print(part)
