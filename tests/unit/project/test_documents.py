"""Markdown pages: links lead to files and headings, tables list the options that the code has, and
Python examples use names and arguments that exist."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import sluice
from sluice import HdfsSink, Job, PartitionCommit, PidRateLimit
from sluice.connectors.kafka.source.source_options import SOURCE_OPTIONS
from tools.reference import metric_families, query_metric_families

ROOT = Path(__file__).parents[3]
CODE = ("connectors", "examples", "runtime")
TREES = (*CODE, "benchmarks", "docker", "docs", "tests", "tools")
PUBLIC = {
    name: getattr(sluice, each) for each in sluice.__all__ for name in (each, f"sluice.{each}")
}
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = sorted(
    {*ROOT.glob("*.md"), *(page for tree in TREES for page in (ROOT / tree).rglob("*.md"))}
)

_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^ *\2[`~]* *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^()\s>]+(?:\([^()\s]*\)[^()\s>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINED = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
_NAMED_ID = re.compile(r"\{\s*#([\w-]+)[^}]*\}|<a id=\"([\w-]+)\"")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_PAGE_NAME = re.compile(r"docs/[\w/-]+\.md")
_TABLE = re.compile(r"^\|.*\n\|[ |:-]+\n((?:\|.*\n?)*)", re.MULTILINE)
_PYTHON = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_OURS = re.compile(r"(connectors|runtime|sluice)\b")
_PUBLIC = re.compile(r"sluice(\.(?!connectors|runtime)\w+)?$")


def of(page: Path) -> str:
    """The name of a page in the report of a test."""
    return str(page.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Targets of links and images; text in code is no link."""
    prose = _CODE.sub("", _FENCE.sub("", text))
    return _LINK.findall(prose) + _DEFINED.findall(prose)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings, a repeated one with a number; and those given by name."""
    prose = _FENCE.sub("", text)
    found = {name for names in _NAMED_ID.findall(prose) for name in names if name}
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(prose):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", _NAMED_ID.sub("", heading)).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        times = seen.get(name, 0)
        seen[name] = times + 1
        found.add(f"{name}-{times}" if times else name)
    return found


def broken(page: Path) -> Iterator[str]:
    """Relative links of a page without a file or a heading."""
    for link in links(page.read_text("utf-8")):
        if _SCHEME.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if path.startswith("/") or not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_page_that_the_code_names_exists() -> None:
    """Error messages send users to these pages."""
    modules = [path for tree in CODE for path in (ROOT / tree).rglob("*.py")]
    named = {name for path in modules for name in _PAGE_NAME.findall(path.read_text("utf-8"))}
    assert named
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    """One of each kind; a link in code is no link."""
    page = tmp_path / "guide" / "page.md"
    page.parent.mkdir()
    (tmp_path / "other.md").write_text(
        "# One `two`, three\n\n## Again\n\n## Again\n\n## Long {#short}\n"
    )
    page.write_text(
        "# Here\n[a](../other.md) [b](../other.md#one-two-three) [c](#here) ![d](gone.svg)\n"
        "[e](../other.md#again-1) [f](../other.md#again-2) [g](#nowhere) [h](https://a.test/x#y)\n"
        "[i](/other.md) `[j](code.md)` ``[k](`code`.md)`` [o](../other.md#short)\n\n"
        "```md\n[l](fence.md)\n# Fence\n```\n[m](#fence)\n\n[n]: defined.md\n"
    )
    assert sorted(each.partition(":")[0] for each in broken(page)) == [
        "#fence",
        "#nowhere",
        "../other.md#again-2",
        "/other.md",
        "defined.md",
        "gone.svg",
    ]


Table = Mapping[str, str]
"""Names in code in the first cells of a table, each with the text of its second cell."""


def tables() -> Iterator[Table]:
    for page in DOCS:
        for body in _TABLE.findall(_FENCE.sub("", page.read_text("utf-8"))):
            rows = [
                [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:]]
                for row in body.splitlines()
            ]
            yield {name: row[1] for row in rows for name in re.findall(r"`([\w.]+)[^`]*`", row[0])}


def table_of(names: Collection[str]) -> Table:
    """The table that has most of these names, and the fewest others."""
    return max(tables(), key=lambda table: len(table.keys() & names) - len(table.keys() - names))


def arguments_of(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or a class, by name."""
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}


@pytest.mark.parametrize("described", [Job, HdfsSink, PartitionCommit, PidRateLimit])
def test_a_table_lists_the_arguments_and_no_others(described: type) -> None:
    arguments = arguments_of(described)
    assert set(table_of(arguments)) == set(arguments)


def test_the_table_of_a_job_has_the_defaults() -> None:
    arguments = arguments_of(Job)
    expected = {
        name: "required" if each.default in (inspect.Parameter.empty, "") else repr(each.default)
        for name, each in arguments.items()
    }
    written = {name: text.strip("`") for name, text in table_of(arguments).items()}
    assert {name: text.replace('"', "'") for name, text in written.items()} == expected


def test_every_option_of_the_source_is_described() -> None:
    described = "\n".join(page.read_text("utf-8") for page in DOCS)
    assert [option for option in SOURCE_OPTIONS if f"`{option}`" not in described] == []


@pytest.mark.parametrize("families", [metric_families, query_metric_families])
def test_a_table_lists_the_metrics_and_no_others(families: Callable[[], Iterable[Any]]) -> None:
    exposed = {name for name, _, _ in families()}
    assert len(exposed) >= 10
    assert set(table_of(exposed)) == exposed


def examples(page: Path) -> Iterator[ast.Module]:
    """Python of a page; an ``…`` in it stands for what a user fills in."""
    for code in _PYTHON.findall(page.read_text("utf-8")):
        yield ast.parse(dedent(code).replace("…", "..."))


def imported(tree: ast.AST) -> dict[str, Any]:
    """The names that an example imports from the product, with their objects."""
    return {
        name.asname or name.name: getattr(importlib.import_module(node.module), name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and _OURS.match(node.module)
        for name in node.names
    }


def wrong_arguments(tree: ast.AST, names: Mapping[str, Any]) -> Iterator[str]:
    """Calls of these names with arguments that they do not take."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = names.get(ast.unparse(call.func))
        if callable(called) and called.__module__.split(".")[0] == "sluice":
            given = {keyword.arg for keyword in call.keywords if keyword.arg}
            if not given <= arguments_of(called).keys():
                yield ast.unparse(call)


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_an_example_imports_names_and_gives_arguments_that_exist(page: Path) -> None:
    """A name that an example does not import is one of the public interface."""
    names = dict(PUBLIC)
    for tree in examples(page):
        names |= imported(tree)
        assert list(wrong_arguments(tree, names)) == []


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_an_example_imports_the_public_interface_only(page: Path) -> None:
    for tree in examples(page):
        modules = re.findall(r"^ *(?:from|import) ([\w.]+)", ast.unparse(tree), re.MULTILINE)
        assert [each for each in modules if _OURS.match(each) and not _PUBLIC.match(each)] == []


def test_a_wrong_import_and_a_wrong_argument_are_found() -> None:
    code = "from sluice import KafkaSink as Sink\nSink(topics=1)\nsluice.install(s, host=1)"
    tree = ast.parse(code)
    assert list(wrong_arguments(tree, {**PUBLIC, **imported(tree)})) == ["Sink(topics=1)"]
    with pytest.raises(AttributeError):
        imported(ast.parse("from sluice import Sink"))
    assert not _PUBLIC.match("sluice.runtime.job")
    assert not _PUBLIC.match("sluice.connectors")
