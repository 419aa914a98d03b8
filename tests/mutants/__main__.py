"""``python -m tests.mutants [NAME …|2/4]``: some test must catch every mutant. A run of all mutants
writes the page, too."""

import sys
from collections.abc import Sequence

from tests.mutants.catalog import ALL_MUTANTS
from tests.mutants.model import Mutant, chosen
from tests.mutants.running import Outcome, Verdict, import_dependencies, require_green, run_mutant


def main(names: Sequence[str]) -> int:
    """0 if every mutant was caught."""
    try:
        mutants = chosen(names, ALL_MUTANTS)
    except ValueError as err:
        _print(str(err))
        return 2
    import_dependencies()
    require_green([catcher for mutant in mutants for catcher in mutant.catchers])
    outcomes = [_run(mutant) for mutant in mutants]
    if not names:
        from tests.mutants.page import write_page

        write_page(outcomes)
    caught = sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes)
    _print(f"{caught} of {len(outcomes)} mutants caught")
    return 0 if caught == len(outcomes) else 1


def _run(mutant: Mutant) -> Outcome:
    outcome = run_mutant(mutant)
    _print(f"{outcome.verdict.value:9} {mutant.name}  {outcome.test} {outcome.kind}")
    if outcome.verdict is not Verdict.CAUGHT:
        _print(outcome.text)
    return outcome


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
