"""Runs the tests that must catch a mutant, in a fork that imports the mutated product.

Imports of other packages take two seconds for a test file. So the parent process imports those
once, and never a module of the product; each fork imports that with the edits of its mutant.
"""

import enum
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.model import Edit, Mutant
from tests.mutants.rewriting import mutate_imports

_DEPENDENCIES = (
    "pytest",
    "_pytest.python",
    "_pytest.unraisableexception",
    "hypothesis.stateful",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pandas",
    "fastavro",
    "starlette.applications",
    "prometheus_client",
    "uvicorn.protocols.http.httptools_impl",
    "typer",
    "rich.console",
    "psutil",
    "urllib3",
    "confluent_kafka.admin",
    "kafka.protocol.admin",
    "pyspark.sql.datasource",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.functions",
)
_OPTIONS = (
    *("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-m", "not integration and not containers and not chaos"),
    # The parent has imported plugins before pytest could rewrite their assertions.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *(
        option
        for name in ("hypothesispytest", "sluice.connectors.testing.plugin", "timeout", "xdist")
        for option in ("-p", name)
    ),
)
_TIMEOUT_S = 900.0
_PASSED, _FAILED = 0, 1  # pytest's exit codes
_ROOT = Path(__file__).parents[2]


class Verdict(enum.Enum):
    """Whether the tests noticed a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    NO_PROOF = "no proof"  # the program broke before a test checked anything, or did not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one mutant's tests.

    Attributes:
        mutant, verdict: as their types say.
        test: the first test that failed; "" if none did.
        kind: how it failed, see `tests.mutants.failure_report.kind_of`.
        text: the error, or the end of pytest's output.
    """

    mutant: Mutant
    verdict: Verdict
    test: str = ""
    kind: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Finished:
    """A pytest run: its exit code (None: killed after the timeout), output and failures."""

    code: int | None
    output: str
    failures: list[dict[str, str]]


def import_dependencies() -> None:
    """Import what the forks need of other packages."""
    for name in _DEPENDENCIES:
        importlib.import_module(name)


def run_mutant(mutant: Mutant, root: Path = _ROOT) -> Outcome:
    """Run the catchers of a mutant until one fails.

    Args:
        mutant: its modules are not imported in this process.
        root: the directory of the tests; first in the import path.
    """
    finished = _run_tests(mutant.catchers, mutant.edits, root)
    if finished.code == _PASSED:
        return Outcome(mutant=mutant, verdict=Verdict.SURVIVED)
    if finished.code != _FAILED or not finished.failures:
        text = finished.output[-1500:]
        return Outcome(mutant=mutant, verdict=Verdict.NO_PROOF, kind="crash", text=text)
    first = finished.failures[0]
    is_proof = first["kind"] not in ("crash", "timeout")
    return Outcome(mutant=mutant, verdict=Verdict.CAUGHT if is_proof else Verdict.NO_PROOF, **first)


def require_green(catchers: Sequence[str], root: Path = _ROOT) -> None:
    """Check that the catchers pass without a mutant; a test that fails anyway catches nothing.

    Raises:
        RuntimeError: with the end of pytest's output.
    """
    finished = _run_tests(sorted(set(catchers)), (), root)
    if finished.code != _PASSED:
        raise RuntimeError(f"the catchers fail without a mutant:\n{finished.output[-3000:]}")


def _run_tests(tests: Sequence[str], edits: Sequence[Edit], root: Path) -> _Finished:
    with tempfile.TemporaryDirectory(prefix="sluice-mutant-") as name:
        directory = Path(name)
        process = multiprocessing.get_context("fork").Process(
            target=_run_pytest, args=(tests, edits, root, directory)
        )
        process.start()
        process.join(_TIMEOUT_S)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        output = (directory / "output").read_text("utf-8", errors="replace")
        failures = (directory / "failures").read_text("utf-8").splitlines()
        return _Finished(code, output, list(map(json.loads, failures)))


def _run_pytest(tests: Sequence[str], edits: Sequence[Edit], root: Path, directory: Path) -> None:
    """In the fork. It ends at once, for threads of a failed test may run for ever."""
    (directory / "failures").touch()
    output = os.open(directory / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(root)
    sys.path.insert(0, str(root))
    # Otherwise pytest itself imports the product, which has a plugin, and rewrites its assertions.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    mutate_imports(edits)

    import pytest
    from hypothesis.configuration import set_hypothesis_home_dir

    from tests.mutants.failure_report import FailureReport

    # A failing example of one mutant must not be tried on the next one.
    set_hypothesis_home_dir(directory)
    code = pytest.main([*_OPTIONS, *tests], plugins=[FailureReport(directory / "failures")])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
