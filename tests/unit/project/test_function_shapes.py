"""How long modules and functions are, how deep their blocks, and why a tool is kept quiet."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
TREES = ("runtime", "connectors", "benchmarks", "examples", "tools")
MOST_LINES = 600
MOST_FUNCTION_LINES = 60
MOST_LEVELS = 3

_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.TryStar, ast.Match)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The body, without the docstring; a signature of many arguments has no logic to follow."""
    end = function.end_lineno or function.lineno
    is_documented = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if is_documented else function.body
    return end - body[0].lineno + 1 if body else 0


def levels(node: ast.AST) -> int:
    """Blocks within blocks; an ``elif`` is no deeper than its ``if``, a nested function counts by
    itself."""
    return max((_levels_of(part, child, node) for part, child in _children(node)), default=0)


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for part in _PARTS:
        for child in getattr(node, part, ()):
            if not isinstance(child, _SCOPES):
                yield part, child


def _levels_of(part: str, child: ast.AST, parent: ast.AST) -> int:
    is_elif = part == "orelse" and isinstance(parent, ast.If) and isinstance(child, ast.If)
    return levels(child) + (isinstance(child, _BLOCKS) and not is_elif)


def misshapen(source: str) -> list[str]:
    lines = len(source.splitlines())
    found = [f"{lines} lines"] if lines > MOST_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (length := function_lines(node)) > MOST_FUNCTION_LINES:
                found.append(f"{node.name}: {length} lines")
            if (depth := levels(node)) > MOST_LEVELS:
                found.append(f"{node.name}: {depth} levels")
    return found


@pytest.mark.parametrize("tree", TREES)
def test_modules_and_functions_are_short_and_flat(tree: str) -> None:
    """See the limits above."""
    modules = sorted((ROOT / tree).rglob("*.py"))
    assert modules
    found = {str(path.relative_to(ROOT)): misshapen(path.read_text("utf-8")) for path in modules}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_modules_of_tests_are_no_longer() -> None:
    counts = {path: len(path.read_text("utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    assert {str(path): lines for path, lines in counts.items() if lines > MOST_LINES} == {}


_FLAT = """
def f(a):
    \"\"\"One.

    Two.
    \"\"\"
    for b in a:
        if b:
            pass
        elif a:
            with b:
                pass
"""


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (_FLAT, []),
        (_FLAT + " " * 16 + "while a: pass\n", ["f: 4 levels"]),
        ("a = 1\n" * 600, []),
        ("a = 1\n" * 601, ["601 lines"]),
        ("def f():\n" + "    a = 1\n" * 60, []),
        ("def f():\n" + "    a = 1\n" * 61, ["f: 61 lines"]),
        ("def f():\n    '''\n" + "\n" * 60 + "    '''\n    a = 1\n", []),
        ("class A:\n  def f():\n" + "    a = 1\n" * 61, ["f: 61 lines"]),
    ],
)
def test_what_is_too_long_or_too_deep_is_found(source: str, wrong: list[str]) -> None:
    assert misshapen(source) == wrong


_IGNORE = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:\s*no cover)\b")
_WITH_A_REASON = re.compile(
    r"#\s*noqa: [A-Z]+\d+(, [A-Z]+\d+)* - \S|#\s*type: ignore\[[a-z-]+(, [a-z-]+)*\]\s+# \S"
)


def unexplained(source: str) -> list[int]:
    """Lines that keep a tool quiet without its code and a reason."""
    return [
        number
        for number, line in enumerate(source.splitlines(), start=1)
        if _IGNORE.search(line) and not _WITH_A_REASON.search(line)
    ]


@pytest.mark.parametrize("tree", TREES)
def test_an_ignore_names_its_code_and_its_reason(tree: str) -> None:
    """That it is needed at all, Ruff (RUF100) and mypy (strict) see to."""
    texts = {path: path.read_text("utf-8") for path in (ROOT / tree).rglob("*.py")}
    found = {str(path): unexplained(text) for path, text in texts.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["a  # noqa", "a  # noqa: F401", "a  # type: ignore", "a  # type: ignore[misc]"]
)
def test_an_ignore_without_a_reason_is_found(line: str) -> None:
    assert unexplained(f"b\n{line}\n") == [2]
    assert unexplained("a  # noqa: F401 - made\na  # type: ignore[misc]  # made\n") == []
