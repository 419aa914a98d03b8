"""``docs/protocol.md`` names real tests, and every rule that is built has one; the failures that
``docs/architecture.md`` lists have, too."""

import ast
import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
NOT_BUILT: set[int] = set()
FENCING = "test_one_decision_when_a_paused_coordinator_goes_on"
FROM_THE_DECISION_ON = "test_copy_survives_a_kill_at_each_step_from_the_decision_on"
ALL_CELLS_MARKED = "test_rules_6_and_11_a_stale_coordinator_wakes_behind_a_kill_in_a_repair"
REFERENCE = re.compile(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`")


def sections() -> dict[int, str]:
    """The text of each rule that loses, doubles, wedges or blocks, by number."""
    parts = re.split(r"^### ([0-9, ]+)\. ", PAGE, flags=re.MULTILINE)[1:]
    return {
        int(number): text
        for numbers, text in zip(parts[::2], parts[1::2], strict=True)
        for number in numbers.split(",")
    }


@pytest.mark.parametrize("reference", sorted(set(REFERENCE.findall(PAGE + ARCHITECTURE))))
def test_every_test_that_the_pages_name_exists(reference: tuple[str, str]) -> None:
    path, name = reference
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert not name or name in names


def test_every_failure_that_is_listed_is_shown_by_a_test() -> None:
    """The table of what fails, who notices, what restarts and what a user sees."""
    table = ARCHITECTURE.split("## What fails")[1].split("## Invariants")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    assert [row for row in rows if not REFERENCE.search(row)] == []


def test_every_rule_that_is_built_has_a_proof() -> None:
    """Rules 1 to 22 are those whose breach loses, doubles, wedges or blocks."""
    found = sections()
    assert set(found) == set(range(1, 23))
    unproven = {number for number, text in found.items() if not REFERENCE.search(text)}
    assert unproven == NOT_BUILT


def is_left_out(marks: Iterable[pytest.Mark | pytest.MarkDecorator]) -> bool:
    """Whether one of these takes out of ``make test`` what bears it."""
    return any(mark.name in {"extended", "long"} for mark in marks)


def marks_of(owner: object) -> list[pytest.Mark]:
    """Of a module, a function or a class."""
    found = getattr(owner, "pytestmark", [])
    return [getattr(one, "mark", one) for one in (found if isinstance(found, list) else [found])]


def has_daily_cells(mark: pytest.Mark) -> bool:
    """Whether a mark leaves a test some cells: of parameters not each one is left out."""
    if mark.name != "parametrize":
        return not is_left_out([mark])
    _, cells = mark.args
    return any(not is_left_out(getattr(cell, "marks", ())) for cell in cells)


def is_daily(reference: tuple[str, str]) -> bool:
    """Whether ``make test`` runs it, or a cell of it; of a module: a test of it."""
    path, name = reference
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    named = (
        [name] if name else [each for each in vars(module) if each.startswith(("test_", "Test"))]
    )
    return not is_left_out(marks_of(module)) and any(
        all(map(has_daily_cells, marks_of(getattr(module, each)))) for each in named
    )


def test_what_is_marked_is_not_daily() -> None:
    """A function, a module, and a function each of whose cells is."""
    assert is_daily(("tests/chaos/test_fencing.py", FENCING))
    assert not is_daily(("tests/chaos/test_failpoints.py", FROM_THE_DECISION_ON))
    assert not is_daily(("tests/containers/test_pipeline.py", ""))
    assert not is_daily(("tests/chaos/test_fencing.py", ALL_CELLS_MARKED))


@pytest.mark.parametrize("number", sorted(set(range(1, 23)) - NOT_BUILT))
def test_every_rule_has_a_proof_for_every_day(number: int) -> None:
    """What takes too long for `make test` is never the only one."""
    assert any(map(is_daily, REFERENCE.findall(sections()[number])))


def text_of(reference: tuple[str, str]) -> str:
    """A test's name and docstring, with what its module says of all its tests."""
    path, name = reference
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    found = [ast.get_docstring(tree) or ""]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            found += [node.name, ast.get_docstring(node) or ""]
    return " ".join(found)


@pytest.mark.parametrize("number", sorted(set(range(1, 23)) - NOT_BUILT))
def test_a_proof_names_the_number_of_its_rule(number: int) -> None:
    """So that who breaks the test finds the rule, and the other way round."""
    said = [text_of(reference) for reference in REFERENCE.findall(sections()[number])]
    named = rf"[Rr]ules?[ _](?:\d+(?:, | and ))*{number}(?!\d)"
    assert any(re.search(named, text) for text in said), said
