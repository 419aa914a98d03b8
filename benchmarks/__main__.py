"""``python -m benchmarks``: measure, and print a table.

``peers``, ``report``, ``scaling`` and ``coordinator-load`` are commands with options of their own.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from benchmarks import (
    balancing,
    bookkeeping,
    endurance,
    files,
    hot_path,
    latency,
    machine,
    recovery,
    region_costs,
    region_kills,
    rolling,
    single_point,
    throughput,
)
from benchmarks.figures import Figure, table
from benchmarks.rig import Rig, open_rig

_Measure = Callable[[Rig, argparse.Namespace], Sequence[Figure]]

_REGIONS: Mapping[str, _Measure] = {
    "region-kills": lambda rig, args: region_kills.measure(rig, seconds=args.seconds),
    "region-cpu": lambda rig, args: region_costs.measure(
        rig, repeat=args.repeat, per_s=args.rate, seconds=args.window
    ),
    "bookkeeping": lambda _, args: bookkeeping.measure(repeat=args.repeat),
    "balancing": lambda rig, args: balancing.measure(rig, records=args.backlog),
    "single-point": lambda rig, args: single_point.measure(rig, kills=args.kills),
}

_PARTS: Mapping[str, _Measure] = {
    "throughput": lambda rig, args: throughput.measure(
        rig, records=args.records, repeat=args.repeat
    ),
    "latency": lambda rig, args: latency.measure_visibility(rig, epochs=60, repeat=args.repeat),
    "idle": lambda rig, args: latency.measure_idle(rig, repeat=args.repeat),
    "recovery": lambda rig, args: recovery.measure(rig, repeat=args.repeat),
    "files": lambda rig, args: files.measure(
        rig, records=args.records, repeat=args.repeat, files=args.files
    ),
    "hot-path": lambda rig, args: hot_path.measure(rig, records=args.records, repeat=args.repeat),
    "rolling": lambda rig, args: rolling.measure(rig, minutes=args.minutes),
    "endurance": lambda rig, args: endurance.measure(rig, epochs=args.epochs),
    **_REGIONS,
}
_GROUPS: Mapping[str, Sequence[str]] = {"regions": tuple(_REGIONS)}


_COMMANDS = {
    "peers": "benchmarks.peers.command",
    "report": "benchmarks.peers.report",
    "scaling": "benchmarks.scaling",
    "coordinator-load": "benchmarks.coordinator_load",
}


def main() -> None:
    """One of the commands, or the parts that are named."""
    if len(sys.argv) > 1 and sys.argv[1] in _COMMANDS:
        importlib.import_module(_COMMANDS[sys.argv[1]]).main(sys.argv[2:])
    else:
        _measure_parts()


def _measure_parts() -> None:
    """Run the parts that were asked for; a goal that is missed is shown, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join((*_PARTS, *_GROUPS)))
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2_000, help="of the endurance part")
    parser.add_argument(
        "--files", type=int, default=10_000, help="committed before a restart, of the files part"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="of the rolling part")
    _add_regions(parser)
    args = parser.parse_args()
    known = (*_PARTS, *_GROUPS)
    unknown = set(args.parts).difference(known)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    asked = [part for name in args.parts for part in _GROUPS.get(name, (name,))]

    # A log or a pipe has no width: long lines are better than broken ones.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    measured_on = machine.describe()
    figures: list[Figure] = []
    with open_rig() as rig:
        for name in asked or _PARTS:
            console.print(f"measuring {name} ...")
            figures += _PARTS[name](rig, args)
    for part in table(figures, measured_on):
        console.print(part)


def _add_regions(parser: argparse.ArgumentParser) -> None:
    """Settings of the parts that ``regions`` stands for."""
    parser.add_argument("--seconds", type=float, default=120.0, help="of kills of regions, twice")
    parser.add_argument(
        "--rate", type=float, default=100_000.0, help="records a second, of the region-cpu part"
    )
    parser.add_argument("--window", type=float, default=30.0, help="seconds, of the same part")
    parser.add_argument(
        "--backlog", type=int, default=4_000_000, help="records, of the balancing part"
    )
    parser.add_argument("--kills", type=int, default=9, help="of tasks, of the single-point part")


if __name__ == "__main__":
    main()
