"""The mutants fit the tree, break every rule, and are judged by what tests check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.errors import ConfigError
from tests.mutants.page import PAGE, page
from tests.mutants.patches import DIRECTORY, Mutant, PatchError, apply, chosen, load, load_all
from tests.mutants.running import Fate, Nursery, Outcome, require_green, run
from tests.mutants.witness import kind_of
from tests.simulation.continuous_mutations import CONTINUOUS_MUTATIONS
from tests.simulation.file_mutations import FILE_MUTATIONS
from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
MUTANTS = load_all()


def copy_touched(mutant: Mutant, target: Path) -> None:
    """The files that a mutant changes."""
    for path in {edit.path for edit in mutant.edits}:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text((ROOT / path).read_text("utf-8"), "utf-8")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_tree_and_is_a_program(mutant: Mutant, tmp_path: Path) -> None:
    """Whoever changes a line that a mutant breaks changes the mutant, too."""
    copy_touched(mutant, tmp_path)
    apply(mutant, tmp_path)
    for path in {edit.path for edit in mutant.edits}:
        compile((tmp_path / path).read_text("utf-8"), path, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_catcher_exists(mutant: Mutant) -> None:
    for catcher in mutant.catchers:
        path, _, name = catcher.partition("::")
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        names = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        assert not name or name in names


def test_every_rule_whose_breach_matters_has_a_mutant() -> None:
    """Rules 1 to 22 are those whose breach loses, doubles, wedges or blocks."""
    assert set(range(1, 23)) <= {rule for mutant in MUTANTS for rule in mutant.rules}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_the_page_knows_every_mutant_and_none_is_known_to_survive() -> None:
    """Who adds one runs the command, which writes the page."""
    text = PAGE.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [mutant.name for mutant in MUTANTS]
    assert [row for row in rows if "`tests/" not in row and "not run yet" not in row] == []
    assert all(mutant.wrong in row for mutant, row in zip(MUTANTS, rows, strict=True))
    # A program that broke, or did not end, has a test beside it, too, and is no proof.
    assert [row for row in rows if row.endswith(("| crash |", "| timeout |"))] == []
    caught = sum("`tests/" in row for row in rows)
    assert f"\n{caught} of {len(MUTANTS)} mutants are caught.\n" in text
    simulated = (*MUTATIONS, *FILE_MUTATIONS, *CONTINUOUS_MUTATIONS)
    assert all(f"| {name} |" in text for name in simulated)


PATCH = """\
Rule: 7
Wrong: two is three.
Caught by: checks/test_it.py
--- a/it.py
+++ b/it.py
@@ -1,2 +1,2 @@
 def two():
-    return 2
+    return 3
"""


def tiny(directory: Path, program: str, *, patch: str = PATCH) -> tuple[Mutant, Path]:
    """A mutant, and a tree for it whose one test checks the program."""
    tree = directory / "tree"
    (tree / "checks").mkdir(parents=True)
    (tree / "it.py").write_text(program)
    (tree / "checks" / "test_it.py").write_text(
        "from it import two\n\n\ndef test_two():\n    assert two() == 2\n"
    )
    (directory / "07-three.patch").write_text(patch)
    return load(directory / "07-three.patch"), tree


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """One that has imported nothing: a tiny tree needs nothing."""
    with Nursery(tmp_path, warm=False) as made:
        yield made


TWO = "def two():\n    return 2\n"


@pytest.mark.extended
def test_a_mutant_that_a_test_checks_is_caught_and_the_tree_is_left_alone(
    tmp_path: Path, nursery: Nursery
) -> None:
    mutant, tree = tiny(tmp_path, TWO)
    require_green(nursery, mutant.catchers, tree)
    outcome = run(nursery, mutant, tree, tmp_path)
    assert (outcome.fate, outcome.kind) == (Fate.CAUGHT, "assertion")
    assert outcome.test == "checks/test_it.py::test_two"
    assert (tree / "it.py").read_text() == TWO


@pytest.mark.extended
@pytest.mark.parametrize(
    ("becomes", "fate"),
    [
        ("    return 1 + 1", Fate.SURVIVED),
        ("    return nobody", Fate.NO_PROOF),
        ("import nobody", Fate.NO_PROOF),
        ("    return (", Fate.NO_PROOF),
    ],
)
def test_a_broken_program_is_no_proof(
    tmp_path: Path, nursery: Nursery, becomes: str, fate: Fate
) -> None:
    """Neither a name that is unknown, nor a module that cannot be imported or read."""
    patch = PATCH.replace("+    return 3", f"+{becomes}")
    assert run(nursery, *tiny(tmp_path, TWO, patch=patch), tmp_path).fate is fate


@pytest.mark.extended
def test_tests_that_fail_anyway_catch_nothing(tmp_path: Path, nursery: Nursery) -> None:
    mutant, tree = tiny(tmp_path, "def two():\n    return 22\n")
    with pytest.raises(RuntimeError, match="without a mutant"):
        require_green(nursery, mutant.catchers, tree)


@pytest.mark.parametrize("program", ["", TWO + TWO], ids=["absent", "twice"])
def test_a_hunk_stands_in_the_file_exactly_once(tmp_path: Path, program: str) -> None:
    mutant, tree = tiny(tmp_path, program)
    with pytest.raises(PatchError, match=r"times in it\.py"):
        apply(mutant, tree)


@pytest.mark.parametrize(
    "patch",
    [
        PATCH.replace("Wrong: two is three.\n", ""),
        PATCH.replace("Rule: 7", "rule 7"),
        PATCH.replace("return 3", "return 2"),
        PATCH.partition("---")[0],
    ],
)
def test_a_patch_says_what_it_breaks_and_changes_something(tmp_path: Path, patch: str) -> None:
    with pytest.raises(PatchError):
        tiny(tmp_path, TWO, patch=patch)


def test_a_mutant_is_asked_for_by_its_name_or_by_its_number() -> None:
    """Where nothing is asked for, all are meant; a misspelt one is not left out."""
    first, second = MUTANTS[0], MUTANTS[1]
    assert chosen([second.name, first.name.partition("-")[0]], MUTANTS) == [second, first]
    assert chosen([], MUTANTS) == MUTANTS
    parts = [chosen([f"{first}/4"], MUTANTS) for first in range(1, 5)]
    assert sorted(each.name for part in parts for each in part) == [one.name for one in MUTANTS]
    with pytest.raises(PatchError, match="no such mutant: 1; there are 01-"):
        chosen(["1"], MUTANTS)


def test_how_a_test_failed_is_told_apart() -> None:
    failed = pytest.fail.Exception
    typed = ConfigError("a", {}, "b")
    assert kind_of(AssertionError()) == kind_of(failed("DID NOT RAISE")) == "assertion"
    assert kind_of(failed("Timeout (>5.0s) from pytest-timeout.")) == "timeout"
    assert kind_of(typed) == "ConfigError"
    assert kind_of(NameError()) == kind_of(ImportError()) == "crash"
    assert kind_of(BaseExceptionGroup("two", [typed, AssertionError()])) == "ConfigError"
    assert kind_of(BaseExceptionGroup("two", [typed, KeyError()])) == "crash"


def test_a_test_that_counts_by_unpacking_checks_something() -> None:
    """In the product the same error is a broken program."""
    with pytest.raises(ValueError, match="unpack") as here:
        (_,) = [1, 2]
    assert kind_of(here.value) == "assertion"
    with pytest.raises(ValueError, match="unpack") as elsewhere:
        exec(compile("(_,) = [1, 2]", "product.py", "exec"), {})
    assert kind_of(elsewhere.value) == "crash"


def test_the_page_tells_of_each_mutant_what_caught_it() -> None:
    mutant = load(sorted(DIRECTORY.glob("*.patch"))[0])
    caught = Outcome(mutant=mutant, fate=Fate.CAUGHT, test="tests/a.py::b[x|y]", kind="assertion")
    lost = Outcome(mutant=mutant, fate=Fate.SURVIVED)
    text = page([caught, lost], {"no seal": load})
    assert "1 of 2 mutants are caught." in text
    assert f"| `{mutant.name}` | 1 | {mutant.wrong} | `tests/a.py::b[x\\|y]` | assertion |" in text
    assert f"{mutant.wrong} | survived |" in text
    assert "| no seal | The mutant in a patch file. Raises:" in text
