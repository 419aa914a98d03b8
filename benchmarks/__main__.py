"""``python -m benchmarks``: measure, and print a table.

``peers``, ``steady``, ``keyed``, ``report``, ``scaling``, ``tuning``, ``transform-profile``,
``checker``, ``epoch-commits``, ``iceberg-commits``, ``coordinator-load`` and ``leader-kills`` are
commands with options of their own. The parts log their figures as lines of JSON, and `report` makes
a table of them.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.files import file_costs, rolling
from benchmarks.iceberg import iceberg_copies
from benchmarks.jobs import (
    endurance,
    latency,
    object_checkpoints,
    recovery,
    savepoints,
    service_costs,
    throughput,
)
from benchmarks.kafka import avro_serdes, hot_path, producer_costs
from benchmarks.leading import coordinator_cost
from benchmarks.measuring import machine
from benchmarks.measuring.figures import PARTS_RESULTS, Figure, command_line, log_figures, table
from benchmarks.measuring.rig import Rig, open_rig
from benchmarks.regions import (
    balancing,
    bookkeeping,
    history_cost,
    region_costs,
    region_kills,
    single_point,
)

_Measure = Callable[[Rig, argparse.Namespace], Sequence[Figure]]

_REGIONS: Mapping[str, _Measure] = {
    "region-kills": lambda rig, args: region_kills.measure(
        rig, bed=_bed(args.engine, args.regions), seconds=args.seconds
    ),
    "region-cpu": lambda rig, args: region_costs.measure(
        rig, engine=args.engine, repeat=args.repeat, per_s=args.rate, seconds=args.window
    ),
    "bookkeeping": lambda _, args: bookkeeping.measure(repeat=args.repeat),
    "history-cost": lambda _, args: history_cost.measure(repeat=args.repeat),
    "balancing": lambda rig, args: balancing.measure(rig, records=args.backlog),
    "single-point": lambda rig, args: single_point.measure(rig, kills=args.kills),
    "coordinator-cost": lambda rig, args: coordinator_cost.measure(
        rig, records=args.records, seconds=args.window, repeat=args.repeat
    ),
}

_PARTS: Mapping[str, _Measure] = {
    "throughput": lambda rig, args: throughput.measure(
        rig, records=args.records, repeat=args.repeat
    ),
    "latency": lambda rig, args: latency.measure_visibility(
        rig, engine=args.engine, epochs=60, repeat=args.repeat
    ),
    "idle": lambda rig, args: latency.measure_idle(rig, engine=args.engine, repeat=args.repeat),
    "recovery": lambda rig, args: recovery.measure(rig, repeat=args.repeat),
    "producers": lambda rig, args: producer_costs.measure(rig, repeat=args.repeat),
    "messages": lambda _, args: service_costs.measure(repeat=args.repeat),
    "files": lambda rig, args: file_costs.measure(
        rig, records=args.records, repeat=args.repeat, files=args.files
    ),
    "object-files": lambda rig, args: file_costs.measure_objects(
        rig, records=args.records, repeat=args.repeat
    ),
    "hot-path": lambda rig, args: hot_path.measure(rig, records=args.records, repeat=args.repeat),
    "serdes": lambda _, args: avro_serdes.measure(records=args.records, repeat=args.repeat),
    "rolling": lambda rig, args: rolling.measure(rig, minutes=args.minutes),
    "savepoints": lambda rig, args: savepoints.measure(
        rig, mib=args.state_mib, per_s=args.paced, repeat=args.repeat
    ),
    "object-checkpoints": lambda rig, args: object_checkpoints.measure(
        rig, records=args.records, repeat=args.repeat
    ),
    "iceberg": lambda rig, args: iceberg_copies.measure(
        rig, records=args.records, repeat=args.repeat
    ),
    "endurance": lambda rig, args: endurance.measure(rig, epochs=args.epochs),
    **_REGIONS,
}
_GROUPS: Mapping[str, Sequence[str]] = {"regions": tuple(_REGIONS)}
# The other parts run in micro-batches only: the driver ends their epochs, they have a shuffle or
# write files, or they measure Spark's queries.
_BY_ENGINE = frozenset({"region-kills", "region-cpu", "latency", "idle"})
_ENGINES = ("micro-batch", "continuous")


_COMMANDS = {
    "peers": "benchmarks.peers.command",
    "steady": "benchmarks.peers.steady",
    "keyed": "benchmarks.keyed.keyed",
    "report": "benchmarks.report.report",
    "scaling": "benchmarks.scaling.scaling",
    "transform-profile": "benchmarks.jobs.transform_profile",
    "tuning": "benchmarks.tuning.tuning",
    "checker": "benchmarks.kafka.checker",
    "coordinator-load": "benchmarks.regions.coordinator_load",
    "epoch-commits": "benchmarks.kafka.epoch_commits",
    "iceberg-commits": "benchmarks.iceberg.many_commits",
    "leader-kills": "benchmarks.leading.leader_kills",
}


def main() -> None:
    """Run a command, or the named parts."""
    if len(sys.argv) > 1 and sys.argv[1] in _COMMANDS:
        importlib.import_module(_COMMANDS[sys.argv[1]]).main(sys.argv[2:])
    else:
        _measure_parts()


def _measure_parts() -> None:
    """Run the named parts. The table shows a missed goal, which is not an error."""
    parser = _parser()
    args = parser.parse_args()
    wanted = [part for name in args.parts for part in _GROUPS.get(name, (name,))] or list(_PARTS)
    unknown = set(wanted).difference(_PARTS)
    if unknown:
        known = ", ".join((*_PARTS, *_GROUPS))
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {known}")
    others = [name for name in wanted if name not in _BY_ENGINE]
    if args.engine != "micro-batch" and others:
        parser.error(
            f"in micro-batches only: {', '.join(others)}; in both: {', '.join(sorted(_BY_ENGINE))}"
        )

    # A log or a pipe has no width: long lines are better than wrapped ones.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    measured_on = machine.describe()
    figures: list[Figure] = []
    with open_rig() as rig:
        for name in wanted:
            console.print(f"measuring {name} ...")
            load_before = os.getloadavg()[0]
            found = _PARTS[name](rig, args)
            log_figures(
                args.results,
                found,
                part=name,
                engine=args.engine if name in _BY_ENGINE else "",
                command=command_line(sys.argv[1:]),
                load_before=load_before,
                machine=dict(measured_on),
            )
            figures += found
    for part in table(figures, measured_on):
        console.print(part)


def _bed(engine: str, regions: int | None) -> region_kills.Bed:
    """The goals are for 8 regions of micro-batches, and for 16 continuous tasks."""
    usual = 8 if engine == "micro-batch" else region_kills.PARTITIONS
    return region_kills.Bed(engine=engine, regions=usual if regions is None else regions)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join((*_PARTS, *_GROUPS)))
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2_000, help="of the endurance part")
    parser.add_argument(
        "--files", type=int, default=10_000, help="committed before a restart, of the files part"
    )
    parser.add_argument("--state-mib", type=int, default=1024, help="of the savepoints part")
    parser.add_argument(
        "--paced", type=int, default=50_000, help="records a second, of the savepoints part"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="of the rolling part")
    parser.add_argument(
        "--engine", choices=_ENGINES, default="micro-batch", help=f"of {', '.join(_BY_ENGINE)}"
    )
    parser.add_argument(
        "--results", type=Path, default=PARTS_RESULTS, help="JSON lines, appended to"
    )
    _add_regions(parser)
    return parser


def _add_regions(parser: argparse.ArgumentParser) -> None:
    """Options of the parts in the group ``regions``."""
    parser.add_argument("--seconds", type=float, default=120.0, help="of kills of regions, twice")
    parser.add_argument(
        "--regions",
        type=int,
        choices=range(2, region_kills.PARTITIONS + 1),
        metavar="2..16",
        help="one is killed; default: 8, continuous: 16",
    )
    parser.add_argument(
        "--rate", type=float, default=100_000.0, help="records a second, of the region-cpu part"
    )
    parser.add_argument(
        "--window", type=float, default=30.0, help="seconds, of region-cpu and coordinator-cost"
    )
    parser.add_argument(
        "--backlog", type=int, default=4_000_000, help="records, of the balancing part"
    )
    parser.add_argument("--kills", type=int, default=9, help="of tasks, of the single-point part")


if __name__ == "__main__":
    main()
