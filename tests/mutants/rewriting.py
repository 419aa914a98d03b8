"""Rewrites functions of the product while their modules are imported; no file changes.

Processes that a test starts by another program import the product as it is. No catcher needs them
mutated: tests with servers and with ``kill -9`` are left out. Forks inherit the mutation.
"""

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from textwrap import dedent, indent
from types import CodeType, ModuleType
from typing import Any

from tests.mutants.model import Edit


class EditError(Exception):
    """An edit does not fit the source."""


def mutated(source: str, edits: Iterable[Edit]) -> str:
    """The source of a module with the edits made.

    Raises:
        EditError: a function, or a block of lines in it, does not stand there exactly once.
    """
    for edit in edits:
        lines = source.splitlines(keepends=True)
        first, end = _lines_of(edit.function, source)
        function = "".join(lines[first:end])
        found = list(_block(edit.old).finditer(function))
        if len(found) != 1:
            raise EditError(f"stands {len(found)} times in {edit.function}: {edit.old}")
        new = indent(dedent(edit.new).strip("\n"), found[0][1])
        lines[first:end] = [function[: found[0].start()], new, function[found[0].end() :]]
        source = "".join(lines)
    return source


def mutate_imports(edits: Sequence[Edit]) -> None:
    """Rewrite the functions in every module that this process imports from now on.

    Raises:
        RuntimeError: a module is imported already.
    """
    modules = {edit.module for edit in edits}
    if imported := modules & set(sys.modules):
        raise RuntimeError(f"imported before it was mutated: {', '.join(sorted(imported))}")
    sys.meta_path.insert(0, _MutatedModules(edits))


def _lines_of(function: str, source: str) -> tuple[int, int]:
    """First line and end of a function's source with its decorators; lines count from 0."""
    found: list[Any] = [ast.parse(source)]
    for name in filter(None, function.partition(":")[2].split(".")):
        found = [each for scope in found for each in _definitions(scope) if each.name == name]
    if len(found) != 1:
        raise EditError(f"{len(found)} definitions of {function}")
    (node,) = found
    if isinstance(node, ast.Module):
        return 0, source.count("\n") + 1
    return min(each.lineno for each in (node, *node.decorator_list)) - 1, node.end_lineno


def _definitions(scope: ast.AST) -> list[Any]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node for node in ast.walk(scope) if isinstance(node, kinds) and node is not scope]


def _block(old: str) -> re.Pattern[str]:
    """Whole lines, with the indentation of the block before their own, and with any comment."""
    lines = [re.escape(line) + "(?:  #.*)?" for line in dedent(old).strip("\n").split("\n")]
    return re.compile("^( *)" + "\n\\1".join(lines) + "$", re.MULTILINE)


class _MutatedModules(MetaPathFinder):
    """Finds the modules that have edits. Runs in the process of the tests."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: the module has no edits, or is not there; other finders are asked."""
        edits = [edit for edit in self._edits if edit.module == fullname]
        spec = PathFinder.find_spec(fullname, path, target) if edits else None
        if spec is not None and spec.origin is not None:
            spec.loader = _MutatedLoader(fullname, spec.origin, edits)
        return spec


class _MutatedLoader(SourceFileLoader):
    """Compiles the mutated source, without the cache of compiled files."""

    def __init__(self, fullname: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(fullname, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        """See `importlib.abc.InspectLoader.get_code`."""
        source = mutated(self.get_source(fullname) or "", self._edits)
        return self.source_to_code(source.encode(), self.path)
