"""Runs the tests that are expected to catch a mutant, over a copy of the tree with it."""

import enum
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.mutants.patches import Mutant, apply
from tests.mutants.witness import REPORT

__all__ = ["Fate", "Nursery", "Outcome", "copy_tree", "require_green", "run"]

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "*.egg-info", ".*_cache", ".hypothesis", "spark-warehouse", "*.log"
)
_NO_SERVERS = "not integration and not containers and not chaos"
_TIMEOUT_S = 900.0
_PASSED, _FAILED = 0, 1  # pytest's exit codes
_ROOT = Path(__file__).parents[2]


class Fate(enum.Enum):
    """What became of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    NOT_RUN = "not run yet"
    NO_PROOF = "no proof"  # the program broke, before or instead of what the tests check


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one mutant.

    Attributes:
        mutant, fate: which, and what became of it.
        test: that failed first; "" where none did.
        kind: how, see `tests.mutants.witness.kind_of`.
        text: the error, or the end of pytest's output.
    """

    mutant: Mutant
    fate: Fate
    test: str = ""
    kind: str = ""
    text: str = ""


def copy_tree(source: Path, target: Path) -> Path:
    """The tree without what is not a part of it; compiled modules stay valid."""
    shutil.copytree(source, target, ignore=_LEFT_OUT)
    return target


class Nursery:
    """Runs pytest in forks of one process, see `tests.mutants.nursery`.

    Args:
        workspace: for the output of the runs.
        warm: whether to import first what the product's tests need.
    """

    def __init__(self, workspace: Path, *, warm: bool) -> None:
        self._workspace = workspace
        self._output = workspace / "output"
        program = Path(__file__).with_name("nursery.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), *(["--warm"] if warm else [])],
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def pytest(self, catchers: Sequence[str], tree: Path, report: Path) -> tuple[int | None, str]:
        """Exit code, None where it did not end by itself; and the output.

        Raises:
            RuntimeError: the process is gone.
        """
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", _NO_SERVERS]
        # Plugins that the process has imported already are as good as new.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        seeded = ["--hypothesis-seed=0", "-p", "tests.mutants.witness"]
        request = {
            # The copy first; the plugin may stand in this tree alone.
            "path": [str(tree), str(_ROOT)],
            "environment": {REPORT: str(report)},
            "arguments": [*options, *seeded, *catchers],
            "output": str(self._output),
            "timeout_s": _TIMEOUT_S,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs tests has ended: {self._process.wait()}")
        return json.loads(answer), self._output.read_text("utf-8", errors="replace")


def run(nursery: Nursery, mutant: Mutant, tree: Path, workspace: Path) -> Outcome:
    """Apply a mutant to a copy of ``tree``, and run its catchers until one fails.

    Raises:
        PatchError: it does not fit the tree.
    """
    copy = workspace / mutant.name
    # Links: `apply` makes files of its own, and so does Python for what it compiles.
    shutil.copytree(tree, copy, copy_function=os.link)
    try:
        apply(mutant, copy)
        report = workspace / f"{mutant.name}.jsonl"
        code, output = nursery.pytest(mutant.catchers, copy, report)
        return _judged(mutant, code, output, report)
    finally:
        shutil.rmtree(copy)


def require_green(nursery: Nursery, catchers: Sequence[str], tree: Path) -> None:
    """What fails without a mutant would catch every one.

    Raises:
        RuntimeError: with the end of pytest's output.
    """
    code, output = nursery.pytest(sorted(set(catchers)), tree, Path(os.devnull))
    if code != _PASSED:
        raise RuntimeError(f"the catchers fail without a mutant, too:\n{output[-3000:]}")


def _judged(mutant: Mutant, code: int | None, output: str, report: Path) -> Outcome:
    lines = report.read_text("utf-8").splitlines() if report.exists() else []
    if code == _PASSED:
        return Outcome(mutant=mutant, fate=Fate.SURVIVED)
    if code != _FAILED or not lines:
        return Outcome(mutant=mutant, fate=Fate.NO_PROOF, kind="crash", text=output[-1500:])
    first = json.loads(lines[0])
    is_proof = first["kind"] not in ("crash", "timeout")
    return Outcome(
        mutant=mutant,
        fate=Fate.CAUGHT if is_proof else Fate.NO_PROOF,
        test=first["test"],
        kind=first["kind"],
        text=first["text"],
    )
