"""Rules of the code: shapes of functions, tests that prove each rule, lists that must agree."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice import KafkaSink
from sluice.connectors.hdfs.file_drop_in import FileDropIn
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee
from sluice.connectors.kafka.source.enumerator.topic_compression import CODECS, prevailing
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.checkpoint.checkpoint_store import STORE_FAILPOINTS
from tests.kit.coordinator.coordinator_failpoints import FAILPOINTS
from tests.mutants.model import CRITICAL_RULES, OTHER_RULES

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
    texts = {path: path.read_text("utf-8") for path in (ROOT / tree).rglob("*.py")}
    found = {str(path): unexplained(text) for path, text in texts.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["a  # noqa", "a  # noqa: F401", "a  # type: ignore", "a  # type: ignore[misc]"]
)
def test_an_ignore_without_a_reason_is_found(line: str) -> None:
    assert unexplained(f"b\n{line}\n") == [2]
    assert unexplained("a  # noqa: F401 - made\na  # type: ignore[misc]  # made\n") == []


TESTS_RULES = Path(__file__).parents[2]
RULES = (*CRITICAL_RULES, *OTHER_RULES)


def rules_of(test: str) -> Iterator[str]:
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
    modules = TESTS_RULES.rglob("test_*.py")
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


TESTS_TESTS = Path(__file__).parents[2]


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
    modules = {path: path.read_text("utf-8") for path in TESTS_TESTS.rglob("*.py")}
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


_KAFKA = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}


def _modules(*trees: str) -> Iterator[ast.Module]:
    for tree in trees:
        for path in (ROOT / tree).rglob("*.py"):
            yield ast.parse(path.read_text("utf-8"))


def _texts(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _failpoints(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoint":
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def test_every_failpoint_is_armed_by_a_test() -> None:
    reached = {name for module in _modules("runtime", "connectors") for name in _failpoints(module)}
    armed = {
        text for module in _modules("tests/chaos", "tests/integration") for text in _texts(module)
    }
    assert len(reached) > 40
    assert reached - armed - set(FAILPOINTS) - set(STORE_FAILPOINTS) == set()
    assert set(STORE_FAILPOINTS) <= reached


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_of_a_source_may_be_the_prevailing_one(codec: str) -> None:
    assert prevailing([codec]) == codec


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_source_knows_every_guarantee_of_a_sink(guarantee: Guarantee) -> None:
    SourceOptions.of({**_KAFKA, "guarantee": guarantee.value}, bounded=False, stream=True)


@pytest.mark.parametrize("name", ["checkpointLocation", "outputMode", "queryName"])
def test_what_spark_hands_to_every_sink_is_taken_by_both(name: str) -> None:
    kafka = {"kafka.bootstrap.servers": "h:1", "topic": "t", "transactionalIdPrefix": "p"}
    KafkaSink.from_options({**kafka, name: "x"})
    FileDropIn.from_options({"path": "/data/rows", name: "x"}, session_zone="UTC")
