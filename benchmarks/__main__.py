"""``python -m benchmarks``: measure, and print a table."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from benchmarks import endurance, files, latency, machine, recovery, rolling, throughput
from benchmarks.figures import Figure, table
from benchmarks.rig import Rig, open_rig

_Measure = Callable[[Rig, argparse.Namespace], Sequence[Figure]]

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
    "rolling": lambda rig, args: rolling.measure(rig, minutes=args.minutes),
    "endurance": lambda rig, args: endurance.measure(rig, epochs=args.epochs),
}


def main() -> None:
    """Run the parts that were asked for; a goal that is missed is shown, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2_000, help="of the endurance part")
    parser.add_argument(
        "--files", type=int, default=10_000, help="committed before a restart, of the files part"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="of the rolling part")
    args = parser.parse_args()
    unknown = set(args.parts) - set(_PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(_PARTS)}")

    # A log or a pipe has no width: long lines are better than broken ones.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    measured_on = machine.describe()
    figures: list[Figure] = []
    with open_rig() as rig:
        for name in args.parts or _PARTS:
            console.print(f"measuring {name} ...")
            figures += _PARTS[name](rig, args)
    for part in table(figures, measured_on):
        console.print(part)


if __name__ == "__main__":
    main()
