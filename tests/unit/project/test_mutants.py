"""The mutants fit the source, break every critical rule, and are judged by what tests check."""

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.errors import ConfigError
from tests.kit.waiting import PATIENCE_S
from tests.mutants.catalog import ALL_MUTANTS
from tests.mutants.failure_report import kind_of
from tests.mutants.model import CRITICAL_RULES, OTHER_RULES, Edit, Mutant, chosen
from tests.mutants.page import PAGE, page
from tests.mutants.rewriting import EditError, mutate_imports, mutated
from tests.mutants.running import Outcome, Verdict, require_green, run_mutant

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("mutant", ALL_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_source_and_is_a_program(mutant: Mutant) -> None:
    """A change of lines that a mutant breaks changes the mutant, too."""
    for module in {edit.module for edit in mutant.edits}:
        source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")
        edits = [edit for edit in mutant.edits if edit.module == module]
        wrong = ast.parse(mutated(source, edits))
        assert ast.dump(wrong) != ast.dump(ast.parse(source))


@functools.cache
def definitions(path: str) -> set[str]:
    """Names of the functions and classes of a test module."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_catcher_exists() -> None:
    catchers = [catcher for mutant in ALL_MUTANTS for catcher in mutant.catchers]
    assert all(mutant.catchers for mutant in ALL_MUTANTS)
    for path, *names in (catcher.split("::") for catcher in catchers):
        assert set(names) <= definitions(path)


def test_every_critical_rule_has_a_mutant_and_no_name_is_misspelt() -> None:
    broken = {rule for mutant in ALL_MUTANTS for rule in mutant.rules}
    assert set(CRITICAL_RULES) <= broken <= {*CRITICAL_RULES, *OTHER_RULES}
    assert len({mutant.name for mutant in ALL_MUTANTS}) == len(ALL_MUTANTS)


def test_the_page_lists_every_mutant_and_the_test_that_caught_it() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|.* (`tests/.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == [mutant.name for mutant in ALL_MUTANTS]
    assert [name for name, end in rows if end.endswith(("| crash", "| timeout"))] == []


THREE = Edit(function="it:two", old="return 2", new="return 3")
MUTANT = Mutant(
    name="three",
    rules=("publish-whole",),
    wrong="two() is 3.",
    catchers=("checks/test_it.py",),
    edits=(THREE,),
)
TWO = "def two():\n    return 2\n"


class TestEdits:
    """How lines of a function are replaced."""

    def test_a_block_keeps_the_indentation_and_the_rest_of_the_module(self) -> None:
        source = (
            "class A:\n    @property\n    def a(self):\n        if self:  # why\n"
            "            return 1\n\n    def b(self):\n        return 1\n\n\nx = 1\n"
        )
        edits = [
            Edit(
                function="m:A.a",
                old="""
                if self:
                    return 1
                """,
                new="""
                while self:
                    return 2
                return 3
                """,
            ),
            Edit(function="m:A.b", old="return 1", new="return 4"),
            Edit(function="m:A", old="@property", new=""),
            Edit(function="m:", old="x = 1", new="y = 1"),
        ]
        assert mutated(source, edits) == (
            "class A:\n\n    def a(self):\n        while self:\n            return 2\n"
            "        return 3\n\n    def b(self):\n        return 4\n\n\ny = 1\n"
        )

    @pytest.mark.parametrize(
        "source",
        [
            "def one():\n    return 2\n",
            "def two():\n    return 22\n",
            "def two():\n    return 2\n    return 2\n",
            TWO + TWO,
        ],
        ids=["no function", "no line", "two lines", "two functions"],
    )
    def test_an_edit_that_does_not_fit_exactly_once_is_refused(self, source: str) -> None:
        with pytest.raises(EditError, match="it:two"):
            mutated(source, [THREE])

    def test_a_module_that_is_imported_already_cannot_be_mutated(self) -> None:
        edit = Edit(function="sluice.runtime.errors:StreamError", old="pass", new="")
        with pytest.raises(RuntimeError, match=r"runtime\.errors"):
            mutate_imports([edit])


@pytest.fixture
def in_new_process() -> Iterator[Callable[..., Any]]:
    """Calls a function in a process that has imported nothing of the product."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield lambda *call: executor.submit(*call).result()


def tiny(directory: Path, program: str = TWO) -> Path:
    """A directory with a module, and a test of it."""
    (directory / "checks").mkdir()
    (directory / "it.py").write_text(program)
    (directory / "checks" / "test_it.py").write_text(
        "from it import two\n\n\ndef test_two():\n    assert two() == 2\n"
    )
    return directory


@pytest.mark.extended
def test_a_mutant_is_caught_and_no_file_changes(
    tmp_path: Path, in_new_process: Callable[..., Any]
) -> None:
    root = tiny(tmp_path)
    in_new_process(require_green, MUTANT.catchers, root)
    outcome = in_new_process(run_mutant, MUTANT, root)
    assert (outcome.verdict, outcome.kind) == (Verdict.CAUGHT, "assertion")
    assert outcome.test == "checks/test_it.py::test_two"
    assert (root / "it.py").read_text() == TWO


@pytest.mark.extended
@pytest.mark.parametrize(
    ("edit", "verdict"),
    [
        (replace(THREE, new="return 1 + 1"), Verdict.SURVIVED),
        (replace(THREE, new="return unknown"), Verdict.NO_PROOF),
        (
            Edit(function="it:", old="def two():", new="import unknown\ndef two():"),
            Verdict.NO_PROOF,
        ),
        (replace(THREE, new="return ("), Verdict.NO_PROOF),
        (replace(THREE, old="return 22"), Verdict.NO_PROOF),
    ],
    ids=["right", "unknown name", "failed import", "no program", "does not fit"],
)
def test_a_broken_program_is_no_proof(
    tmp_path: Path, in_new_process: Callable[..., Any], edit: Edit, verdict: Verdict
) -> None:
    outcome = in_new_process(run_mutant, replace(MUTANT, edits=(edit,)), tiny(tmp_path))
    assert outcome.verdict is verdict


@pytest.mark.extended
def test_a_test_that_fails_anyway_catches_nothing(
    tmp_path: Path, in_new_process: Callable[..., Any]
) -> None:
    root = tiny(tmp_path, "def two():\n    return 22\n")
    with pytest.raises(RuntimeError, match="without a mutant"):
        in_new_process(require_green, MUTANT.catchers, root)


def test_mutants_are_chosen_by_name_or_as_a_part_of_all() -> None:
    first, second = ALL_MUTANTS[:2]
    assert chosen([second.name, first.name], ALL_MUTANTS) == [second, first]
    assert chosen([], ALL_MUTANTS) == list(ALL_MUTANTS)
    parts = [mutant for part in range(1, 5) for mutant in chosen([f"{part}/4"], ALL_MUTANTS)]
    assert sorted(each.name for each in parts) == sorted(each.name for each in ALL_MUTANTS)
    for unknown in ("1", "5/4", "0/4"):
        with pytest.raises(ValueError, match=f"no such mutant: {unknown}; there are {first.name},"):
            chosen([unknown], ALL_MUTANTS)


def test_a_failure_is_an_assertion_a_typed_error_a_timeout_or_a_crash() -> None:
    failed = pytest.fail.Exception
    typed = ConfigError("a", {}, "b")
    assert kind_of(AssertionError()) == kind_of(failed("DID NOT RAISE")) == "assertion"
    assert kind_of(failed("Timeout (>5.0s) from pytest-timeout.")) == "timeout"
    assert kind_of(typed) == "ConfigError"
    assert kind_of(NameError()) == kind_of(ImportError()) == "crash"
    assert kind_of(BaseExceptionGroup("two", [typed, AssertionError()])) == "ConfigError"
    assert kind_of(BaseExceptionGroup("two", [typed, KeyError()])) == "crash"


def test_a_test_that_counts_by_unpacking_checks_something() -> None:
    with pytest.raises(ValueError, match="unpack") as here:
        (_,) = [1, 2]
    assert kind_of(here.value) == "assertion"
    with pytest.raises(ValueError, match="unpack") as elsewhere:
        exec(compile("(_,) = [1, 2]", "product.py", "exec"), {})
    assert kind_of(elsewhere.value) == "crash"


def test_the_page_has_a_row_for_each_outcome() -> None:
    test = "tests/a.py::b[x|y]"
    caught = Outcome(mutant=MUTANT, verdict=Verdict.CAUGHT, test=test, kind="assertion")
    text = page([caught, Outcome(mutant=MUTANT, verdict=Verdict.SURVIVED)])
    start = "| `three` | publish-whole | two() is 3. |"
    assert f"{start} `tests/a.py::b[x\\|y]` | assertion |\n{start} survived |  |\n" in text
    assert "1 of 2 mutants are caught." in text


def test_the_product_is_mutated_in_the_tests_of_a_mutant() -> None:
    """Also now that the product has a pytest plugin: pytest imports such packages itself."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "registry-down-is-a-bad-record"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "1 of 1 mutants caught")
