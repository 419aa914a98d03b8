"""Wrong variants of the product: what a patch file says, and how it is applied.

::

    Rule: 5
    Wrong: what the variant does, in a sentence.
    Caught by: tests/unit/test_verdicts.py
    Caught by: tests/property/test_committer.py::test_rule_5_…
    --- a/connectors/kafka/sink/committer/commit_outcomes.py
    +++ b/connectors/kafka/sink/committer/commit_outcomes.py
    @@ -1,3 +1,3 @@
    …

A hunk is found by its text, which must stand there exactly once; its line numbers are for ``patch``
and for people, so a change elsewhere in the file does no harm.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DIRECTORY", "Edit", "Mutant", "PatchError", "apply", "chosen", "load", "load_all"]

DIRECTORY = Path(__file__).parent

_PART = re.compile(r"(\d+)/(\d+)")
_FIELD = re.compile(r"(Rule|Wrong|Caught by): (.+)")


class PatchError(Exception):
    """A patch cannot be read, or does not fit the tree."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One hunk: ``old`` stands in the file once, and becomes ``new``."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong variant.

    Attributes:
        name: of its file, without the suffix.
        rules: of `docs/protocol.md` that it breaks.
        wrong: what it does.
        catchers: test files and ids, of which some test must fail.
        edits: in order.
    """

    name: str
    rules: tuple[int, ...]
    wrong: str
    catchers: tuple[str, ...]
    edits: tuple[Edit, ...]


def load_all(directory: Path = DIRECTORY) -> list[Mutant]:
    """Every patch of a directory, in the order of their names."""
    return [load(path) for path in sorted(directory.glob("*.patch"))]


def chosen(asked: Sequence[str], known: Sequence[Mutant]) -> list[Mutant]:
    """Those that are asked for by name, by number, or as a part of all (``2/4``: each fourth from
    the second one on), in that order; all where nothing is asked for.

    Raises:
        PatchError: there is none of a name, or no such part.
    """
    by_name = {name: [each] for each in known for name in (each.name, each.name.partition("-")[0])}
    for name in asked:
        if match := _PART.fullmatch(name):
            first, step = int(match[1]), int(match[2])
            by_name[name] = list(known[first - 1 :: step]) if 1 <= first <= step else []
    unknown = [name for name in asked if not by_name.get(name)]
    if unknown:
        there = ", ".join(each.name for each in known)
        raise PatchError(f"no such mutant: {', '.join(unknown)}; there are {there}")
    return [each for name in asked for each in by_name[name]] or list(known)


def load(path: Path) -> Mutant:
    """The mutant in a patch file.

    Raises:
        PatchError: it lacks a field, or a hunk that changes something.
    """
    head, mark, diff = path.read_text("utf-8").partition("\n--- ")
    said: dict[str, list[str]] = {"Rule": [], "Wrong": [], "Caught by": []}
    for line in head.splitlines():
        match = _FIELD.fullmatch(line)
        if match is None:
            raise PatchError(f"{path.name}: not a field of the head: {line!r}")
        said[match[1]].append(match[2])
    edits = tuple(_edits(f"--- {diff}".splitlines() if mark else ()))
    missing = [name for name, values in said.items() if not values]
    if missing or not edits or any(edit.old == edit.new for edit in edits):
        raise PatchError(f"{path.name}: no {', '.join(missing) or 'hunk that changes something'}")
    return Mutant(
        name=path.stem,
        rules=tuple(int(number) for each in said["Rule"] for number in each.split(",")),
        wrong=" ".join(said["Wrong"]),
        catchers=tuple(said["Caught by"]),
        edits=edits,
    )


def apply(mutant: Mutant, root: Path) -> None:
    """Change the files below ``root``.

    Raises:
        PatchError: a hunk's text is not there, or more than once.
    """
    for edit in mutant.edits:
        file = root / edit.path
        text = file.read_text("utf-8") if file.is_file() else ""
        if text.count(edit.old) != 1:
            raise PatchError(f"{mutant.name}: stands {text.count(edit.old)} times in {edit.path}")
        file.unlink()  # it may be a link to the tree's own
        file.write_text(text.replace(edit.old, edit.new), "utf-8")


def _edits(lines: Iterable[str]) -> Iterable[Edit]:
    path = ""
    old: list[str] = []
    new: list[str] = []
    for line in (*lines, "@@"):
        if line.startswith(("--- ", "@@")):
            if old or new:
                yield Edit(path, _text(old), _text(new))
            old, new = [], []
        elif line.startswith("+++ "):
            path = line.removeprefix("+++ b/").split("\t")[0]
        else:
            if line[:1] in ("", " ", "-"):
                old.append(line[1:])
            if line[:1] in ("", " ", "+"):
                new.append(line[1:])


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
