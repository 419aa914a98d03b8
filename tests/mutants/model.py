"""A mutant: a wrong variant of the product, and the tests that must notice it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

CRITICAL_RULES = (
    "pre-commit-confirmed",
    "endtxn-version",
    "handle-from-producer",
    "ids-never-reused",
    "outcome-from-broker",
    "fence-first",
    "publish-whole",
    "batch-identity",
    "restore-by-attempt",
    "state-with-output",
    "drop-in-abort",
    "two-phase-repair",
    "callback-after-commit",
    "abort-by-endtxn",
    "late-by-barrier",
    "coordinator-in-driver",
    "start-offsets-once",
    "trigger-is-barrier",
    "abort-before-skip",
    "continuous-order",
    "files-with-decision",
    "rename-settled",
    "upload-settled",
    "stateful-replay",
    "lease-guards-outputs",
    "copy-protected",
)
"""The rules of the classes C and H in `docs/internals/protocol.md`. A breach loses or doubles
records, or blocks the job, so each rule must have a mutant."""

OTHER_RULES = (
    "transaction-timeout",
    "commit-acknowledged",
    "read-committed-end",
    "one-batch-per-checkpoint",
    "refused-settings",
    "wait-for-all-brokers",
    "retire-after-commit",
    "produce-order",
)
"""The rules of the class N."""

_PART = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replaces lines of one function.

    Attributes:
        function: ``package.module:Class.method``; ``package.module:Class`` for statements of a
            class, ``package.module:`` for statements of a module.
        old: whole lines, which stand exactly once in the function. The indentation of the block
            does not count, nor do line breaks around it.
        new: lines instead of them; "" for none.
    """

    function: str
    old: str
    new: str

    @property
    def module(self) -> str:
        """The dotted name of the module."""
        return self.function.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong variant.

    Attributes:
        name: a unique name.
        rules: the rules that it breaks.
        wrong: its error in one sentence.
        catchers: test files and ids. One of these tests must fail.
        edits: its changes, in the order in which they are made.
    """

    name: str
    rules: tuple[str, ...]
    wrong: str
    catchers: tuple[str, ...]
    edits: tuple[Edit, ...]


def chosen(asked: Sequence[str], known: Sequence[Mutant]) -> list[Mutant]:
    """The mutants that a command names, in its order; all of them if it names none.

    Args:
        asked: names, or parts: ``2/4`` is every fourth mutant from the second one.
        known: all mutants.
    Raises:
        ValueError: there is no mutant of a name, or no such part.
    """
    found = {mutant.name: [mutant] for mutant in known}
    for part in filter(None, map(_PART.fullmatch, asked)):
        first, step = int(part[1]), int(part[2])
        found[part[0]] = list(known[first - 1 :: step]) if 1 <= first <= step else []
    unknown = [name for name in asked if not found.get(name)]
    if unknown:
        names = ", ".join(mutant.name for mutant in known)
        raise ValueError(f"no such mutant: {', '.join(unknown)}; there are {names}")
    return [mutant for name in asked for mutant in found[name]] or list(known)
