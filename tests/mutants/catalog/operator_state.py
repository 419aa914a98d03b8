"""Mutants of operator state and of broadcast streams."""

from tests.mutants.model import Edit, Mutant

_EPOCHS = "tests/unit/runtime/continuous/test_epoch_inputs.py"
_STATE = "tests/unit/runtime/functions/test_operator_state.py"
_DEALT = "tests/property/test_operator_state.py"
_VERSIONS = "tests/unit/runtime/coordinator/core/test_broadcasts.py"

MUTANTS = (
    Mutant(
        name="operator-state-kept-by-a-rewound-epoch",
        rules=("state-with-output",),
        wrong="An epoch that is read again begins with the operator state of its first reading.",
        catchers=(f"{_EPOCHS}::test_an_epoch_that_is_read_again_counts_its_records_once",),
        edits=(
            Edit(
                function="sluice.runtime.continuous.task_loop:TaskLoop._read_again",
                old="self._states.rollback()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="operator-state-changed-in-place-lost",
        rules=("state-with-output",),
        wrong="A row of operator state that a function changes in place is not saved.",
        catchers=(f"{_STATE}::test_a_row_that_is_changed_in_place_is_saved",),
        edits=(
            Edit(
                function="sluice.runtime.functions.operator_state:StateList._used",
                old="self._is_used = True",
                new="",
            ),
        ),
    ),
    Mutant(
        name="operator-state-lost-by-fewer-regions",
        rules=("state-with-output",),
        wrong="The rows of regions that vanish are dropped.",
        catchers=(f"{_DEALT}::test_split_lists_survive_two_starts_with_other_regions",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.rescaling:_with_states",
                old="found |= _with_lists(operator_id, found, record, plan)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="epoch-with-two-broadcast-versions",
        rules=("state-with-output",),
        wrong="A task that began its epoch with another version of a broadcast table keeps its output.",
        catchers=(f"{_EPOCHS}::test_an_epoch_that_began_with_another_version_is_read_again",),
        edits=(
            Edit(
                function="sluice.runtime.continuous.task_loop:TaskLoop._adopt",
                old="if self._client.has_read:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="broadcast-version-chosen-for-each-region",
        rules=("state-with-output",),
        wrong="Each barrier of a checkpoint chooses the versions of broadcast streams by itself.",
        catchers=(f"{_VERSIONS}::test_the_first_barrier_decides_for_all_regions",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.broadcasts:broadcasts_in",
                old="if reads and checkpoint.broadcasts is None:",
                new="if reads:",
            ),
        ),
    ),
)
