"""Which versions are tried together, with which tests, and what a run has shown. Values only."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = [
    "CELLS",
    "RUNS",
    "TESTS",
    "Cell",
    "CellRun",
    "newest_runs",
    "read_runs",
    "versions_table",
]

RUNS = Path(__file__).with_name("cells.jsonl")  # committed: a cell takes minutes

TESTS = (
    "tests/contract/test_committer.py",
    "tests/contract/test_native_clients.py",
    "tests/contract/test_wire.py",
    "tests/integration/test_continuous.py",
    "tests/integration/test_drop_in_sink.py",
    "tests/integration/test_hot_path.py",
    "tests/integration/test_job.py",
    "tests/integration/test_keyed_state.py",
    "tests/integration/test_state_rows.py",
)
"""Both engines, both ways in, keyed state, Spark's state, and all Kafka clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Versions that are tried together.

    Attributes:
        python, java: without the patch number, as Debian's packages are named.
        pyspark, kafka: releases.
    """

    python: str
    java: int
    pyspark: str
    kafka: str

    @property
    def name(self) -> str:
        """Argument of the command."""
        return f"python{self.python}-java{self.java}-pyspark{self.pyspark}-kafka{self.kafka}"


CELLS = (
    Cell(python="3.11", java=17, pyspark="4.3.0", kafka="4.3.1"),
    Cell(python="3.11", java=17, pyspark="4.3.0", kafka="3.9.1"),
    Cell(python="3.11", java=17, pyspark="4.2.1", kafka="4.0.2"),
    Cell(python="3.12", java=17, pyspark="4.3.0", kafka="4.1.2"),
    Cell(python="3.12", java=17, pyspark="4.2.1", kafka="4.3.1"),
    Cell(python="3.13", java=21, pyspark="4.3.0", kafka="4.3.1"),
    Cell(python="3.13", java=21, pyspark="4.2.1", kafka="3.9.1"),
    Cell(python="3.13", java=21, pyspark="4.3.0", kafka="4.2.1"),
)
"""Each version at least once, and both releases of PySpark with each Python and Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """One run of a cell's tests.

    Attributes:
        python, java, pyspark, kafka: with all numbers, as the run itself has found them.
        system: name of the Linux distribution.
        passed, skipped: tests.
        failed: names of tests.
        elapsed_s: of the tests, without the installation.
        on: the day, UTC.
        commit: of the checkout, short, with ``+`` if files differ from it.
    """

    cell: str
    python: str
    java: str
    pyspark: str
    kafka: str
    system: str
    passed: int
    skipped: int
    failed: tuple[str, ...]
    elapsed_s: float
    on: str
    commit: str

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self)) + "\n"


def read_runs(path: Path = RUNS) -> list[CellRun]:
    """All runs, oldest first."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    found = (json.loads(line) for line in lines)
    return [CellRun(**{**entry, "failed": tuple(entry["failed"])}) for entry in found]


def newest_runs(runs: Iterable[CellRun]) -> dict[str, CellRun]:
    """The last run of each cell that `CELLS` still has."""
    newest = {run.cell: run for run in runs}
    return {cell.name: newest[cell.name] for cell in CELLS if cell.name in newest}


def versions_table(runs: Iterable[CellRun]) -> list[tuple[str, ...]]:
    """A row for each cell: versions, result, day; a cell without a run says so."""
    newest = newest_runs(runs)
    return [_row(cell, newest.get(cell.name)) for cell in CELLS]


def _row(cell: Cell, run: CellRun | None) -> tuple[str, ...]:
    if run is None:
        return (cell.python, str(cell.java), cell.pyspark, cell.kafka, "", "not run", "")
    failed = f", {len(run.failed)} failed: {', '.join(run.failed)}" if run.failed else ""
    skipped = f", {run.skipped} skipped" if run.skipped else ""
    result = f"{run.passed} passed{failed}{skipped}"
    return (run.python, run.java, run.pyspark, run.kafka, run.system, result, run.on)
