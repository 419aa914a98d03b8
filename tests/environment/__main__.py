"""``python -m tests.environment``: chaos, soak, plan and report."""

import itertools
import math
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sluice.runtime.storage.hadoop_jvm import hadoop_jvm
from tests.environment.cluster import Bed
from tests.environment.journal import Journal, commit_of, read_journal
from tests.environment.pipeline import SHAPES
from tests.environment.plan import DRIVER, HOSTS, plan
from tests.environment.plot import draw
from tests.environment.report import put, summary, table
from tests.environment.rounds import Round, run_round
from tests.environment.soak import Sampler, growth, read_samples

_ROOT = Path(__file__).parents[2]
_BUILD = _ROOT / "build" / "chaos"
_JOURNAL = Path(__file__).with_name("faults.jsonl")  # committed: a run takes hours
_PAGE = _ROOT / "docs" / "research" / "reliability.md"
_PLOT = _BUILD / "soak.svg"
_ROUND_FAULTS = 25
_WRITTEN = ["tests/environment/faults.jsonl", "docs/research/reliability.md"]  # by each round

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

Seed = Annotated[int | None, typer.Option(help="of the first round; none: a random one")]
Kinds = Annotated[str, typer.Option(help="of faults, comma-separated; none: all")]
Pipeline = Annotated[str, typer.Option(help=f"{', '.join(SHAPES)}, or alternate")]


@app.callback()
def main() -> None:
    """SIGTERM ends the command as Ctrl-C does: it removes all containers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@app.command()
def chaos(
    faults: Annotated[int, typer.Option(help="how many, over all rounds")] = 50,
    seed: Seed = None,
    kinds: Kinds = "",
    pipeline: Pipeline = "alternate",
    together: Annotated[int, typer.Option(help="how many faults may be active at a time")] = 1,
    each: Annotated[int, typer.Option(help="how many in a round")] = _ROUND_FAULTS,
    minutes: Annotated[float, typer.Option(help="no fault starts later")] = float("inf"),
) -> None:
    """Random faults in rounds. The command checks each round at its end, and prints seeds."""
    first = seed if seed is not None else secrets.randbelow(1_000_000)
    until_s = time.monotonic() + 60 * minutes
    directory, commit = _directory(first), commit_of(_ROOT, besides=_WRITTEN)
    typer.echo(f"seed {first}, everything is kept in {directory}")
    with hadoop_jvm() as hadoop, Bed(directory) as bed:
        typer.echo("the bed is up")
        for number, (kind, count) in enumerate(_rounds(faults, pipeline, each)):
            if time.monotonic() > until_s:
                break
            planned = plan(
                first + number,
                count,
                kinds=[name for name in kinds.split(",") if name],
                without=SHAPES[kind].without,
                may_lapse=SHAPES[kind].may_lapse,
            )
            made = Round(
                seed=first + number,
                pipeline=kind,
                faults=planned,
                together=together,
                until_s=until_s,
                commit=commit,
            )
            run_round(bed, made, Journal(_JOURNAL), hadoop, typer.echo)


@app.command()
def soak(
    hours: Annotated[float, typer.Option(help="how long")] = 1.0,
    seed: Seed = None,
    pipeline: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "both",
) -> None:
    """A paced load and a fault a minute; memory, handles, threads and ids must not grow.

    No fault strikes the driver: a restart would hide its growth.
    """
    first = seed if seed is not None else secrets.randbelow(1_000_000)
    directory, commit = _directory(first), commit_of(_ROOT, besides=_WRITTEN)
    typer.echo(f"seed {first}, everything is kept in {directory}")
    with hadoop_jvm() as hadoop, Bed(directory) as bed:
        path = directory / "samples.jsonl"
        made = Round(
            seed=first,
            pipeline=pipeline,
            faults=plan(
                first, math.ceil(hours * 60), without=[DRIVER, *HOSTS, *SHAPES[pipeline].without]
            ),
            until_s=time.monotonic() + 3600 * hours,
            pace=Sampler(path),
            commit=commit,
        )
        run_round(bed, made, Journal(_JOURNAL), hadoop, typer.echo)
    samples = read_samples(path)
    minutes = samples[-1].at_s / 60
    title = f"{minutes:.0f} minutes, {samples[-1].faults} faults, {samples[-1].records} records"
    _PLOT.parent.mkdir(parents=True, exist_ok=True)
    _PLOT.write_text(draw(samples, f"Soak, pipeline {pipeline}: {title}"), encoding="utf-8")
    grown = growth(samples)
    typer.echo(f"{title}; {'; '.join(grown) or 'flat'}; plot in {_PLOT}")
    if grown:
        raise typer.Exit(1)


@app.command("plan")
def show_plan(seed: int, faults: int = _ROUND_FAULTS, pipeline: str = "copy") -> None:
    """Print the faults of a seed."""
    shape = SHAPES[pipeline]
    planned = plan(seed, faults, without=shape.without, may_lapse=shape.may_lapse)
    for number, fault in enumerate(planned):
        typer.echo(f"{number}: {fault.kind} of {fault.target} for {fault.hold_s:.1f} s")


@app.command()
def report(
    journals: Annotated[list[Path] | None, typer.Argument()] = None, *, write: bool = False
) -> None:
    """Print the tables of journals; --write puts them into docs/research/reliability.md."""
    entries = read_journal(journals or [_JOURNAL])
    text = f"{summary(entries)}\n\n{table(entries)}"
    typer.echo(text)
    if write:
        put(_PAGE, "chaos", text)


def _rounds(faults: int, pipeline: str, each: int) -> Iterator[tuple[str, int]]:
    kinds = itertools.cycle(list(SHAPES) if pipeline == "alternate" else [pipeline])
    for begun in range(0, faults, each):
        yield next(kinds), min(each, faults - begun)


def _directory(seed: int) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return _BUILD / f"{seed}-{stamp}"


if __name__ == "__main__":
    app()
