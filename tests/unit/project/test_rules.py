"""Each rule of the protocol has a test that `make test` runs: one that names the rule, and is not
marked for another command."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.model import CRITICAL_RULES, OTHER_RULES

TESTS = Path(__file__).parents[2]
RULES = (*CRITICAL_RULES, *OTHER_RULES)


def rules_of(test: str) -> Iterator[str]:
    """The rules that a test names."""
    yield from (rule for rule in RULES if rule.replace("-", "_") in test)


def rules_tested(source: str) -> Iterator[str]:
    """The rule of each test of a module that `make test` runs."""
    tree = ast.parse(source)
    marks = " ".join(
        ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            of_test = [marks, *map(ast.unparse, node.decorator_list)]
            if not re.search(r"\bmark\.(extended|long)\b", " ".join(of_test)):
                yield from rules_of(node.name)


def test_every_rule_has_a_test_that_is_always_run() -> None:
    """A test that takes too long for `make test` is never the only one of its rule."""
    modules = TESTS.rglob("test_*.py")
    found = Counter(rule for path in modules for rule in rules_tested(path.read_text("utf-8")))
    assert [rule for rule in RULES if not found[rule]] == []


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ("def test_fence_first_a(): ...", ["fence-first"]),
        ("@pytest.mark.extended\ndef test_fence_first_a(): ...", []),
        ("pytestmark = [pytest.mark.long]\ndef test_fence_first_a(): ...", []),
        ("def test_a(): ...", []),
    ],
)
def test_marked_tests_do_not_count(source: str, rules: list[str]) -> None:
    assert list(rules_tested(source)) == rules
