"""``python -m benchmarks steady``: latency over ten minutes, minute by minute.

It measures as the latency of `peers`, but for longer. Growth with time (memory, open transactions,
a slow reader) shows as a drift from minute to minute. The results are in the same file as those of
`peers`, and the command does not repeat them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import machine
from benchmarks.measuring.rig import open_rig
from benchmarks.peers.command import RESULTS, Runner, prepare
from benchmarks.peers.results import Log, Result
from benchmarks.peers.roster import CONTENDERS, by_name

__all__ = ["main"]

_OURS = "sluice-continuous"
_MINUTES = 10.0
_WARM_S = 30.0
_SHORT_RESULTS = Path("build") / "bench" / "steady.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print each minute, and write a line for each run."""
    args = _parser().parse_args(arguments)
    try:
        contenders = by_name(args.only)
    except ValueError as err:
        sys.exit(str(err))
    is_short = args.minutes < _MINUTES
    path = args.results or (_SHORT_RESULTS if is_short else RESULTS)
    absent = prepare(contenders)
    log = Log(path, dict(machine.describe()))
    with open_rig() as rig:
        runner = Runner(rig, log, contenders, absent, repeat=args.repeat)
        found = runner.steady(
            args.interval,
            args.per_s,
            warm_s=_WARM_S,
            seconds=60.0 * args.minutes,
            is_quick=is_short,
        )
    for result in found:
        _print(result)
    print(f"results are in {path}; `python -m benchmarks report` makes a table of them")


def _print(result: Result) -> None:
    print(f"{result.label}: commits every {result.setting.interval_s:g} s")
    for number, minute in enumerate(result.figures.get("minutes", ()), start=1):
        if minute["counted"]:
            print(
                f"  minute {number:2}  p50 {minute['p50_s']:.3f} s  p99 {minute['p99_s']:.3f} s"
                f"  max {minute['max_s']:.3f} s  of {minute['counted']:,.0f} records"
            )
        else:
            print(f"  minute {number:2}  no record was seen")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks steady", description=__doc__)
    names = ", ".join(one.name for one in CONTENDERS)
    parser.add_argument("--only", nargs="+", default=[_OURS], metavar="NAME", help=names)
    parser.add_argument("--interval", type=float, default=0.1, help="between two commits, s")
    parser.add_argument("--per-s", type=float, default=5_000.0, help="pace")
    parser.add_argument(
        "--minutes", type=float, default=_MINUTES, help="fewer are a first look, not for the docs"
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each")
    parser.add_argument(
        "--results", type=Path, help="JSON lines; runs that it holds are not repeated"
    )
    return parser


if __name__ == "__main__":
    main()
