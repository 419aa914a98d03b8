"""Worlds whose regions write files are rough, and would notice a broken rule about them."""

import pytest

from tests.simulation.file_mutations import FILE_MUTATIONS
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import Profile
from tests.simulation.profiles import PROFILES
from tests.simulation.shrink import find
from tests.simulation.world import World

MUTANT_SEEDS = 200


def test_worlds_publish_hold_and_merge_files() -> None:
    """Files are held, merged and published, renames do come late, tasks do stage in directories
    that are gone; or those worlds prove little."""
    names = ("files, many kills", "held files, many kills and lost answers")
    worlds = [World(seed, PROFILES[name]) for name in names for seed in range(20)]
    for world in worlds:
        world.run()
    watched = [world.watch.files for world in worlds]
    assert sum(files.published for files in watched) > 100
    assert sum(files.held for files in watched) > 20
    assert sum(files.merged for files in watched) > 15
    assert sum(files.late for files in watched) > 100
    assert sum(world.faults["a move of files comes late"] for world in worlds) > 5
    assert sum(world.faults["it dies while it asks to move"] for world in worlds) > 5


def test_worlds_are_cleaned_manually() -> None:
    """Commands do delete what earlier runs have left, or those worlds prove little."""
    names = ("files are cleaned manually", "held files are cleaned manually")
    worlds = [World(seed, PROFILES[name]) for name in names for seed in range(20)]
    for world in worlds:
        world.run()
    assert sum(world.cleaner.deleted for world in worlds) > 10


@pytest.mark.parametrize("name", FILE_MUTATIONS)
def test_worlds_notice_a_broken_rule_about_files(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the very promise that is broken, not only by rows that are missing in the end."""
    mutation, rough, what = FILE_MUTATIONS[name]
    mutation(monkeypatch)
    profile = Profile(**{"processes": 8, **rough})
    found = (find(seed, profile) for seed in range(MUTANT_SEEDS))
    assert any(failure is not None and failure.what == what for failure in found)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mark before commit", "marked before its files are visible"),
        ("settle nothing at start", "a decided file is deleted"),
        ("sweep open batches", "a decision names a file that is not there"),
        ("abort all that an attempt reports", "a decision names a file that is not there"),
        ("set a barrier twice", "a decision loses or doubles rows of files"),
        ("write decided batches again", "a decision loses or doubles rows of files"),
        ("end without suspended regions", "not every row is in a file in the end"),
    ],
)
def test_files_alone_tell_of_a_broken_rule_of_the_core(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation, rough, _ = MUTATIONS[name]
    mutation(monkeypatch)
    profile = Profile(**{"processes": 8, **rough, "files": True, "only_files": True})
    found = (find(seed, profile) for seed in range(MUTANT_SEEDS))
    assert any(failure is not None and failure.what == what for failure in found)
