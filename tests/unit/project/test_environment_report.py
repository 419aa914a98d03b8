"""The report of the chaos bed counts what was judged, and nothing else."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.environment.journal import FaultEntry, Journal, RoundEntry, commit_of, read_journal
from tests.environment.plan import KINDS
from tests.environment.report import summary, table

_FAULT = FaultEntry(
    seed=1,
    number=0,
    pipeline="copy",
    kind="kill",
    name="kafka-1",
    hold_s=1.0,
    outage_s=4.0,
    checkpoint_s=2.0,
    visible_s=3.0,
    restarts=("driver-1 ended with 1, started again",),
)
_ROUND = RoundEntry(
    seed=1, pipeline="copy", faults=2, planned=2, records=100, outputs=2, elapsed_s=36.0
)


def _row(text: str, kind: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {kind} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Line by line, over several runs."""
    journal = Journal(tmp_path / "deep" / "faults.jsonl")
    journal.write(_FAULT)
    journal.write(_ROUND)
    assert read_journal([tmp_path / "deep" / "faults.jsonl"]) == [_FAULT, _ROUND]


def test_faults_of_clean_rounds_are_counted_with_median_and_longest() -> None:
    later = replace(_FAULT, number=1, outage_s=6.0, checkpoint_s=2.5, visible_s=9.0)
    shown = table([_FAULT, later, _ROUND])
    assert _row(shown, "kill")[2:] == ["2", "0", "5.0 (6.0)", "2.2 (2.5)", "6.0 (9.0)"]
    assert all(_row(shown, name)[2] == "0" for name in KINDS if name != "kill")
    assert "faults survived: 2" in summary([_FAULT, later, _ROUND])
    assert "records checked in topics and files: 200" in summary([_FAULT, later, _ROUND])


def test_seconds_are_those_of_faults_that_came_alone() -> None:
    beside = replace(_FAULT, number=1, outage_s=60.0, together=3)
    shown = table([_FAULT, beside, _ROUND])
    assert _row(shown, "kill")[2:] == ["2", "1", "4.0 (4.0)", "2.0 (2.0)", "3.0 (3.0)"]
    assert _row(table([beside, _ROUND]), "kill")[2:] == ["1", "1", "-", "-", "-"]


def test_a_round_that_lost_something_counts_for_nothing_and_is_named() -> None:
    """Not even its other faults."""
    entries = [_FAULT, replace(_ROUND, wrong="lost 1 (e.g. in-0@7)\nmore", lost=1)]
    assert _row(table(entries), "kill")[2] == "0"
    assert "seed 1 (copy) ended after 2 of 2 faults: lost 1 (e.g. in-0@7)" in summary(entries)
    assert "lost 0" not in summary(entries)


@pytest.mark.parametrize("name", ["lost", "doubled", "reordered", "foreign", "torn"])
def test_what_a_round_has_found_is_in_the_sum_over_all(name: str) -> None:
    ended = replace(_ROUND, records=0, wrong="not within 600 s")
    broken = replace(_ROUND, wrong=f"{name} 3", **{name: 3})
    clean, found = summary([_ROUND, ended]), summary([_ROUND, ended, broken])
    counts = "lost 0, doubled 0, reordered 0, foreign 0, torn 0"
    assert f"- rounds judged: 1, 0 of them not clean: {counts}" in clean
    assert (
        f"- rounds judged: 2, 1 of them not clean: {counts}".replace(f"{name} 0", f"{name} 3")
        in found
    )


def test_a_commit_with_changes_beside_it_is_reported_from_the_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    for words in (
        ("init", "--quiet"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-ma"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    head = commit_of(tmp_path)
    assert head is not None
    (tmp_path / "journal").write_text("line\n", encoding="utf-8")
    assert commit_of(tmp_path, besides=["journal"]) == head
    assert commit_of(tmp_path) == f"{head}+"


def test_faults_without_a_verdict_do_not_count_for_a_later_round() -> None:
    """The bed was killed in the middle; the same seed was then run to its end."""
    killed = [replace(_FAULT, number=number) for number in range(5)]
    again = [_FAULT, replace(_FAULT, number=1), _ROUND]
    assert _row(table([*killed, *again]), "kill")[2] == "2"
    assert _row(table([replace(_FAULT, seed=9), *again]), "kill")[2] == "2"
    assert _row(table([*killed, replace(_ROUND, seed=2)]), "kill")[2] == "0"
