"""``python -m tools.versions``: list and run cells."""

import datetime
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Annotated

import typer

from tools.versions.cells import CELLS, RUNS, TESTS, Cell, CellRun
from tools.versions.places import NoPlaceError, Place, place_for

_ROOT = Path(__file__).parents[2]
_WRITTEN = ["tools/versions/cells.jsonl", "docs/reference/versions.md"]  # by each run
_KAFKA = "SLUICE_TEST_KAFKA"  # read by the tests' fixtures
_SHOW = "import platform, pyspark; print(platform.python_version(), pyspark.__version__)"

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command("list")
def list_cells() -> None:
    """Print the names of all cells."""
    for cell in CELLS:
        typer.echo(cell.name)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="of cells; none: all")] = None,
    turn: Annotated[int | None, typer.Option(help="run one cell: this number modulo all")] = None,
    tests: Annotated[str, typer.Option(help="paths, comma-separated; none: all of a cell")] = "",
    keep: Annotated[bool, typer.Option(help="add the result to cells.jsonl")] = True,
) -> None:
    """Run cells; a cell whose Python or Java is not here is reported, and not run."""
    chosen = [cell for cell in CELLS if not names or cell.name in names]
    if turn is not None:
        chosen = [CELLS[turn % len(CELLS)]]
    paths = [path for path in tests.split(",") if path] or list(TESTS)
    failed = [cell.name for cell in chosen if not _run(cell, paths, keep=keep and not tests)]
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _run(cell: Cell, tests: list[str], *, keep: bool) -> bool:
    try:
        place = place_for(cell)
        python, path = place.environment(cell.pyspark)
    except NoPlaceError as error:
        typer.echo(f"{cell.name}: not run: {error}")
        return True
    typer.echo(f"{cell.name} on {place.system}")
    with tempfile.TemporaryDirectory(dir=place.cache) as scratch:
        report = Path(scratch) / "tests.xml"
        command = [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "-m", "not extended", *tests]
        code = place.call(command, PYTHONPATH=path, **{_KAFKA: cell.kafka})
        if not report.exists():
            typer.echo(f"{cell.name}: pytest ended with code {code} and no report")
            return False
        made = _result(cell, place, report, versions=_versions(place, python, path, scratch))
    typer.echo(made.to_line().strip())
    if keep:
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(made.to_line())
    return code == 0 and made.passed > 0


def _versions(place: Place, python: str, path: str, scratch: str) -> tuple[str, str, str]:
    """The versions of Python, PySpark and Java, as the cell itself finds them."""
    found = Path(scratch) / "versions"
    script = f"{{ {python} -c '{_SHOW}'; java -version 2>&1; }} >{found}"
    place.call(["sh", "-c", script], PYTHONPATH=path)
    first, *rest = found.read_text("utf-8").splitlines()
    python_version, _, pyspark = first.partition(" ")
    return python_version, pyspark, next(line.split('"')[1] for line in rest if '"' in line)


def _result(cell: Cell, place: Place, report: Path, *, versions: tuple[str, str, str]) -> CellRun:
    suite = ET.parse(report).getroot()[0]
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "skipped")}
    return CellRun(
        cell=cell.name,
        python=versions[0],
        java=versions[2],
        pyspark=versions[1],
        kafka=cell.kafka,
        system=place.system,
        passed=counts["tests"] - counts["skipped"] - len(failed),
        skipped=counts["skipped"],
        failed=tuple(failed),
        elapsed_s=round(float(suite.get("time", 0)), 1),
        on=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
    )


def _commit() -> str:
    left_out = [f":(exclude){path}" for path in _WRITTEN]
    changes = _git("status", "--porcelain", "--", ".", *left_out)
    return _git("rev-parse", "--short", "HEAD") + ("+" if changes else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    app()
