"""The pages on the protocol, the invariants and reliability name tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "internals" / "protocol.md").read_text("utf-8")
INVARIANTS = (DOCS / "internals" / "invariants.md").read_text("utf-8")
FAILURES = (DOCS / "research" / "reliability.md").read_text("utf-8")

_NAMED = re.compile(r"`(test_\w+|[A-Z]\w+Machine)`")
RULES = re.findall(r"^### ([a-z-]+)$", PROTOCOL, re.MULTILINE)
STRICT = RULES[: RULES.index("transaction-timeout")]
"""The rules whose breach loses, doubles, wedges or blocks."""


@cache
def known_tests() -> frozenset[str]:
    """Names of all functions and classes in the tests."""
    return frozenset(
        node.name
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


def sections(page: str, heading: str) -> dict[str, str]:
    """The text of each section, by its heading."""
    parts = re.split(rf"^{heading}$", page, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_test_that_the_pages_name_exists() -> None:
    named = set(_NAMED.findall(PROTOCOL + INVARIANTS + FAILURES))
    assert len(named) > 100
    assert sorted(named - known_tests()) == []


def test_every_rule_is_in_the_table_and_has_a_section() -> None:
    assert re.findall(r"^\| \[`([a-z-]+)`\]\(#", PROTOCOL, re.MULTILINE) == RULES
    assert len(RULES) == 34


@pytest.mark.parametrize("rule", STRICT)
def test_a_rule_has_a_test_that_is_named_after_it(rule: str) -> None:
    named = _NAMED.findall(sections(PROTOCOL, r"### ([a-z-]+)")[rule])
    assert named
    assert any(rule.replace("-", "_") in name for name in known_tests())


def test_every_invariant_names_tests() -> None:
    found = sections(INVARIANTS, r"## (\d+\. .*)")
    assert len(found) == 10
    assert [name for name, text in found.items() if not _NAMED.search(text)] == []
