"""``docs/research/mutants.md``: which test caught which mutant."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.running import Outcome, Verdict
from tests.simulation.continuous_mutations import CONTINUOUS_MUTATIONS
from tests.simulation.file_mutations import FILE_MUTATIONS
from tests.simulation.mutations import MUTATIONS

PAGE = Path(__file__).parents[2] / "docs" / "research" / "mutants.md"

_PAGE = """\
# Mutants

`make mutants` breaks each rule of the [protocol](../internals/protocol.md) on purpose and checks that a test
fails. A mutant replaces a few lines of the product while Python imports it (`tests/mutants`).

A mutant is *caught* if a test fails by an assertion, or by a typed error of the product. Any other
exception, a failed import and a timeout are *no proof*. The same tests pass without a mutant, and
they need no server but that of S3, which runs in their process.

`make check` verifies that every mutant fits the source, that this page lists it, and that each rule
of the classes *C* and *H* has a mutant. `make mutants` writes this page.

{caught} of {count} mutants are caught.

| mutant | rule | the error in it | caught by | how |
| --- | --- | --- | --- | --- |
{mutants}

## Broken in the simulator

`tests/simulation/mutations.py`, `file_mutations.py` and `continuous_mutations.py` break the
coordinator, its sinks and its tasks in memory. At least one of 200 random schedules must break the
promise of the mutation. `make check` runs the tests:

- `tests/simulation/test_worlds.py::test_worlds_notice_a_broken_rule`
- `tests/simulation/test_files.py::test_worlds_notice_a_broken_rule_about_files`
- `tests/simulation/test_continuous.py::test_worlds_notice_a_broken_rule_about_continuous_tasks`

| mutation | the broken rule |
| --- | --- |
{simulated}
"""


def write_page(outcomes: Sequence[Outcome]) -> None:
    """Write the page of all mutants."""
    PAGE.write_text(page(outcomes), "utf-8")


def page(outcomes: Sequence[Outcome]) -> str:
    """The text of the page."""
    return _PAGE.format(
        caught=sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes),
        count=len(outcomes),
        mutants="\n".join(map(_row, outcomes)),
        simulated="\n".join(_simulated_rows()),
    )


def _row(outcome: Outcome) -> str:
    mutant = outcome.mutant
    test = f"`{outcome.test}`" if outcome.test else outcome.verdict.value
    cells = (f"`{mutant.name}`", ", ".join(mutant.rules), mutant.wrong, test, outcome.kind)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _simulated_rows() -> Iterator[str]:
    for mutations in (MUTATIONS, FILE_MUTATIONS, CONTINUOUS_MUTATIONS):
        for name, (broken, *_) in mutations.items():
            yield f"| {name} | {' '.join((inspect.getdoc(broken) or '').split())} |"
