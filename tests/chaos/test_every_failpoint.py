"""Tests kill at every failpoint of the source, in all ways that its place allows.

The ways: twice in a row, beside a stale coordinator, with a job that stays away, and as a hang. The
kills are taken from the parameters of the other tests, which fail if a failpoint is not reached
(`Scenario.kill_at`). So a new failpoint without a kill fails here, and so does a kill at a failpoint
that is gone.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.runtime.savepoint.savepoint_writer import SAVEPOINT_FAILPOINTS
from tests.chaos import (
    test_continuous,
    test_failpoints,
    test_fencing,
    test_files,
    test_keyed,
    test_lost_transactions,
    test_objects,
    test_regional,
    test_restored_jobs,
    test_stop_kills,
    test_timeouts,
)
from tests.chaos.beds import ACCEPTANCE, LOSSES, OF_STATE, REGIONAL, REPAIR, STATE_MOVES
from tests.integration import test_object_files
from tests.kit.coordinator.coordinator_failpoints import FAILPOINTS

pytestmark = pytest.mark.chaos

_ROOT = Path(__file__).parents[2]
_LITERAL = re.compile(r'(?:\bfailpoint\(\s*|\byield )"([a-z-]+)"')
_OTHER = re.compile(r"\bfailpoint\((?![\s\"])[^)]*\)")

_TWICE = [
    test_failpoints.test_copy_survives_two_kills_in_a_row_at_every_failpoint,
    test_failpoints.test_a_start_without_an_answer_survives_two_kills_in_a_row,
    test_continuous.test_continuous_copy_survives_two_kills_in_a_row_at_every_failpoint,
    test_files.test_both_survive_two_kills_in_a_row,
    test_files.test_held_files_survive_two_kills_in_a_row,
    test_files.test_marks_survive_two_kills_in_a_row,
    test_keyed.test_state_with_output_two_kills_in_a_row_at_every_step_of_a_state_file,
    test_keyed.test_state_with_output_two_kills_in_a_row_where_a_split_comes_with_its_state,
    test_lost_transactions.test_two_phase_repair_two_kills_in_a_row_in_a_repair,
    test_objects.test_a_copy_survives_two_kills_in_a_row_on_an_object_store,
    test_objects.test_restore_by_attempt_spark_s_state_lies_beside_the_object_store,
    test_object_files.test_upload_settled_each_record_is_seen_once_after_kills,
    test_object_files.test_upload_settled_a_kill_in_the_look_of_a_restart_changes_nothing,
    test_regional.test_restore_by_attempt_and_abort_before_skip_two_kills_in_a_row_at_every_regional_step,
    test_restored_jobs.test_a_restore_survives_two_kills_in_a_row,
    test_stop_kills.test_copy_protected_two_kills_in_a_row_in_a_savepoint,
]
_STALE = [
    test_fencing.test_fence_first_a_stale_coordinator_wakes_after_a_kill_at_every_failpoint,
    test_fencing.test_fence_first_and_files_with_decision_a_stale_coordinator_wakes_after_a_kill_at_every_step_of_files,
    test_fencing.test_fence_first_and_abort_before_skip_a_stale_coordinator_wakes_after_a_kill_at_every_regional_step,
    test_fencing.test_fence_first_and_two_phase_repair_a_stale_coordinator_wakes_after_a_kill_in_a_repair,
    test_fencing.test_fence_first_a_stale_coordinator_wakes_after_a_kill_in_a_start_without_an_answer,
]
_AWAY = [
    test_timeouts.test_two_phase_repair_killed_and_away_beyond_the_transaction_timeout,
    test_timeouts.test_two_phase_repair_what_was_written_again_is_lost_again,
    test_timeouts.test_two_phase_repair_away_beyond_the_timeout_at_every_regional_step,
]
_PAUSED = [test_timeouts.test_two_phase_repair_paused_beyond_the_transaction_timeout]

_FIRST_RECORD = {"before-first", "after-first"}  # a stale coordinator has written it before
_NO_ANSWER = {"publish-retry", "settle-retry"}  # a start that tries again has opened nothing yet
_LOST_SPLIT = {"after-epoch-rewound"}  # what its task had open is aborted already
# After lost transactions, and where regions fail or exchange splits: killed, and never paused.
_OF_A_FAILURE = {*REPAIR, *REGIONAL}
# Before checkpoint 0 there is no coordinator to be stale, and nothing is open; the checkpoint of a
# savepoint is committed, so its copy opens nothing either.
_OF_A_COPY = {*test_restored_jobs.RESTORE, *SAVEPOINT_FAILPOINTS}
# Steps of a command, of `sluice serve` and of a job's registration: no transaction is open then. The
# integration tests of savepoints, of the service and of the repartition kill there.
_OF_A_COMMAND = {
    *("before-dispose-metadata", "after-dispose-metadata"),
    *("before-registration", "after-registration", "before-submit", "after-submit"),
    *("before-repartition", "after-repartition-copy", "after-repartition"),
    *("before-repartition-record", "after-repartition-record"),
    *("before-recompute", "after-recompute-copy", "after-recompute"),
    # A start makes and fills repartition topics before it opens anything; their tests end there.
    *("before-topic-creation", "after-topic-creation"),
    *("before-topic-copy", "before-topic-copy-commit", "after-topic-copy"),
    # And before that a driver draws the uid that their names have: `test_job_topics` ends there.
    *("before-job-uid", "after-job-uid"),
}
# Steps of tasks with keyed state: transactions are open as at the steps beside them, and a file that
# no record names changes nothing. `test_keyed` pauses in one of them.
_OF_KEYED_STATE = {*OF_STATE, *STATE_MOVES}
# On an object store they stand where `after-link` and the end of a deletion stand on a local disk;
# `test_objects` also pauses before the put. Uploads open no transaction.
_OF_OBJECTS = {
    *test_objects.OF_OBJECTS,
    *test_objects.OF_SPARK_FILES,
    *test_object_files.OF_UPLOADS,
}
# Steps of an Iceberg sink, which opens no transaction: `tests.integration.test_iceberg_kills` kills at
# each, once and twice, and `tests.contract.test_iceberg_commits` has the stale coordinator.
_OF_ICEBERG = {
    *("before-data-file", "after-data-file", "after-data-files", "before-evolve", "after-evolve"),
    *("before-lookup", "after-lookup", "before-append", "after-append"),
    *("before-notes-deleted", "after-notes-deleted"),
}
# Steps of an election, before a start opens anything, and beside a run: `test_elected_processes` kills
# at each, and pauses leaders.
_OF_AN_ELECTION = {"before-lease", "after-lease", "before-address", "after-address"}
# Steps of a leader that takes tasks over: `tests.unit.runtime.leading.test_leader` ends one at each,
# twice in a row, and the simulator between any two, also beside a stale leader.
_OF_A_TAKEOVER = {
    *("before-reports", "after-reports"),
    *("before-attempts-listed", "after-attempts-listed"),
}
# One test kills at each: these writes are small, happen or do not, and open nothing.
_OF_A_LOSS = {*LOSSES, *ACCEPTANCE}


def _sources() -> Iterator[tuple[str, str]]:
    for package in ("runtime", "connectors"):
        for file in sorted((_ROOT / package).rglob("*.py")):
            yield str(file.relative_to(_ROOT)), file.read_text("utf-8")


def _in_the_source() -> set[str]:
    named = {name for _, text in _sources() for name in _LITERAL.findall(text)}
    return {*named, *FAILPOINTS}


def _cells(test: Callable[..., None]) -> set[str]:
    """The failpoints that a test is parametrised with."""
    found: set[str] = set()
    for mark in test.pytestmark:
        if mark.name != "parametrize":
            continue
        names, cells = mark.args
        names = [names] if isinstance(names, str) else [*names]
        if "failpoint" in names:
            given = (cell.values if hasattr(cell, "values") else cell for cell in cells)
            rows = ([one] if isinstance(one, str) else one for one in given)
            found |= {row[names.index("failpoint")] for row in rows}
    assert found, f"{test.__name__} has no cells"
    return found


@pytest.mark.parametrize(
    ("tests", "absent"),
    [
        (_TWICE, _OF_A_LOSS),
        (_STALE, _OF_A_LOSS | _FIRST_RECORD | _OF_A_COPY | _OF_KEYED_STATE | _OF_OBJECTS),
        (
            _AWAY,
            _OF_A_LOSS | _NO_ANSWER | _LOST_SPLIT | _OF_A_COPY | _OF_KEYED_STATE | _OF_OBJECTS,
        ),
        (
            _PAUSED,
            _OF_A_LOSS
            | _NO_ANSWER
            | _LOST_SPLIT
            | _OF_A_FAILURE
            | _OF_A_COPY
            | _OF_KEYED_STATE
            | _OF_OBJECTS,
        ),
    ],
    ids=["twice in a row", "with a stale coordinator", "away", "paused"],
)
def test_every_failpoint_of_the_source_is_killed(
    tests: list[Callable[..., None]], absent: set[str]
) -> None:
    """But for those that there is a reason for, and these are left out indeed."""
    killed = set().union(*map(_cells, tests))
    elsewhere = _OF_A_COMMAND | _OF_ICEBERG | _OF_AN_ELECTION | _OF_A_TAKEOVER
    assert _in_the_source() - killed == absent | elsewhere
    assert killed <= _in_the_source()


def test_failpoints_are_named_where_they_are_reached() -> None:
    """Else the search above would pass over them; what a generator yields is taken at one place,
    and a name that it makes is one of `FAILPOINTS`. The steps of a cleaning have names of their own,
    and its property test ends between any two."""
    found = [(file, call) for file, text in _sources() for call in _OTHER.findall(text)]
    assert found == [
        ("runtime/checkpoint/inspect/clean_command.py", "failpoint(step)"),
        ("runtime/coordinator/committing/commit_steps.py", "failpoint(name)"),
        ("runtime/failpoints.py", "failpoint(name: str)"),
    ]
