"""``docs/mutants.md``: which test caught which mutant."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutants.running import Outcome

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"

_HEAD = """\
# Mutants

`make mutants` breaks each rule of the [protocol](protocol.md) on purpose and looks whether a test
notices. Each mutant is a patch of a few lines in `tests/mutants`; it is applied to a copy of the
tree, and the tests that it names run over the copy until one fails. What counts is a failure of
what a test checks: an assertion, or a typed error of the product that the test did not ask for. A
module that cannot be imported, any other exception and a time-out are *no proof*. The same tests
must pass without a mutant. `make check` verifies that every patch still fits the tree, that each of
the rules 1 to 22 has one, and that this page knows them all. The tests below need no server.

This page is written by the command.

"""

_SIMULATED = """
## Broken in the simulator

`tests/simulation/mutations.py`, `file_mutations.py` and `continuous_mutations.py` break the
coordinator, its sinks and its tasks in further ways, in memory, and some of 200 random worlds must
break the very promise that is named beside the mutation:
`tests/simulation/test_worlds.py::test_worlds_notice_a_broken_rule`,
`test_files.py::test_worlds_notice_a_broken_rule_about_files` and
`test_continuous.py::test_worlds_notice_a_broken_rule_about_continuous_tasks`, in every
`make check`.

| mutation | the rule that it breaks |
| --- | --- |
"""


def page(outcomes: Sequence[Outcome], simulated: Mapping[str, object]) -> str:
    """The whole page.

    Args:
        outcomes: of every mutant.
        simulated: the simulator's mutations by name; their docstrings say the rule.
    """
    caught = sum(outcome.fate.value == "caught" for outcome in outcomes)
    lines = [f"{caught} of {len(outcomes)} mutants are caught.", ""]
    lines += [
        "| mutant | rule | what is wrong | first test that failed | how |",
        "|" + " --- |" * 5,
    ]
    lines += [_row(outcome) for outcome in outcomes]
    return _HEAD + "\n".join(lines) + "\n" + _SIMULATED + "".join(map(_line, simulated.items()))


def _row(outcome: Outcome) -> str:
    mutant = outcome.mutant
    cells = (
        f"`{mutant.name}`",
        ", ".join(map(str, mutant.rules)),
        mutant.wrong,
        f"`{outcome.test}`" if outcome.test else outcome.fate.value,
        outcome.kind,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _line(mutation: tuple[str, object]) -> str:
    name, function = mutation
    return f"| {name} | {' '.join((inspect.getdoc(function) or '').split())} |\n"
