"""``python -m tests.mutants [NAME or NUMBER ...]``: every mutant must be caught; without names all
are run, and the page is written, too."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.page import PAGE, page
from tests.mutants.patches import Mutant, PatchError, chosen, load_all
from tests.mutants.running import Fate, Nursery, Outcome, copy_tree, require_green, run
from tests.simulation.continuous_mutations import CONTINUOUS_MUTATIONS
from tests.simulation.file_mutations import FILE_MUTATIONS
from tests.simulation.mutations import MUTATIONS

_ROOT = Path(__file__).parents[2]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _run_all(mutants: Sequence[Mutant]) -> list[Outcome]:
    workspace = Path(tempfile.mkdtemp(prefix="sluice-mutants-"))
    try:
        tree = copy_tree(_ROOT, workspace / "tree")
        with Nursery(workspace, warm=True) as nursery:
            catchers = [catcher for mutant in mutants for catcher in mutant.catchers]
            require_green(nursery, catchers, tree)
            return [_told(run(nursery, mutant, tree, workspace)) for mutant in mutants]
    finally:
        shutil.rmtree(workspace)


def _told(outcome: Outcome) -> Outcome:
    _say(f"{outcome.fate.value:9} {outcome.mutant.name}  {outcome.test} {outcome.kind}")
    if outcome.fate is not Fate.CAUGHT:
        _say(outcome.text)
    return outcome


def main(names: Sequence[str]) -> int:
    """0 when every mutant was caught."""
    try:
        mutants = chosen(names, load_all())
    except PatchError as err:
        _say(str(err))
        return 2
    outcomes = _run_all(mutants)
    missed = [outcome.mutant.name for outcome in outcomes if outcome.fate is not Fate.CAUGHT]
    if not names:
        simulated = (
            *MUTATIONS.items(),
            *FILE_MUTATIONS.items(),
            *CONTINUOUS_MUTATIONS.items(),
        )
        PAGE.write_text(page(outcomes, {name: broken for name, (broken, *_) in simulated}))
    _say(f"{len(outcomes) - len(missed)} of {len(outcomes)} mutants caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
