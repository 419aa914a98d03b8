"""What a test must not do, because it would pass whatever the product does."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _is_join_with_a_bound(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(call := statement.value, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "join"
        and bool(call.args or call.keywords)
    )


def silent_joins(source: str) -> list[int]:
    """Lines that wait for a thread's end, up to a bound, and do not look whether it came."""
    return [
        statement.lineno
        for block in _blocks(ast.parse(source))
        for at, statement in enumerate(block)
        if _is_join_with_a_bound(statement)
        and not any("is_alive" in ast.unparse(after) for after in block[at + 1 : at + 2])
    ]


def test_whoever_waits_for_a_thread_looks_whether_it_has_ended() -> None:
    """``Thread.join(bound)`` returns for one that hangs, too: `tests.kit.waiting.join` does not."""
    modules = {path: path.read_text("utf-8") for path in TESTS.rglob("*.py")}
    of_threads = {path: text for path, text in modules.items() if "Thread(" in text}
    found = {str(path): silent_joins(text) for path, text in of_threads.items()}
    assert len(found) > 20
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("thread.join(3)", [1]),
        ("for each in threads:\n    each.join(timeout=3)\nassert done", [2]),
        ("thread.join(3)\nassert not thread.is_alive()", []),
        ("join(thread)\nthread.join()\nname = ' '.join(names)", []),
    ],
)
def test_a_silent_join_is_found(source: str, lines: list[int]) -> None:
    assert silent_joins(source) == lines
