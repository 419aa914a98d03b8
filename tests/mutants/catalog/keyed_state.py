"""Mutants of keyed state in checkpoints: retention, copies, restores and recomputed groups."""

from tests.mutants.model import Edit, Mutant

_FILES = "tests/unit/runtime/checkpoint/test_state_files.py"
_MATCHING = "tests/unit/runtime/coordinator/start/test_keyed_matching.py"
_RECOMPUTE = "tests/unit/runtime/savepoint/test_keyed_recompute.py"

MUTANTS = (
    Mutant(
        name="state-file-of-a-kept-record-deleted",
        rules=("retire-after-commit",),
        wrong="A retirement deletes files of keyed state that a retained record names, too.",
        catchers=(f"{_FILES}::TestRetirement::test_files_of_retired_records_alone_are_deleted",),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.retained_states:KeptStates._drop",
                old="if not self._names[path]:",
                new="if True:",
            ),
            Edit(
                function="sluice.runtime.checkpoint.retained_states:KeptStates.unnamed_files",
                old="return sorted(each for each in self._unnamed if each not in self._names)",
                new="return sorted(self._unnamed)",
            ),
        ),
    ),
    Mutant(
        name="copied-record-retired",
        rules=("copy-protected",),
        wrong="A checkpoint is retired while its files are being copied into a savepoint.",
        catchers=(f"{_FILES}::TestRetirement::test_a_record_that_is_being_copied_keeps_its_files",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._retire",
                old="retired = [each for each in found if each != action.copied]",
                new="retired = found",
            ),
        ),
    ),
    Mutant(
        name="state-files-deleted-after-a-takeover",
        rules=("retire-after-commit",),
        wrong="A run that was taken over while it retired deletes files of keyed state.",
        catchers=(
            f"{_FILES}::TestRetirement::test_a_run_that_was_taken_over_meanwhile_deletes_no_file",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._retire",
                old="""
                self._store.retire(retired)
                yield "before-state-files"
                if self._is_taken_over():
                """,
                new="""
                self._store.retire(retired)
                yield "before-state-files"
                if False:
                """,
            ),
        ),
    ),
    Mutant(
        name="state-file-of-a-running-attempt-swept",
        rules=("fence-first",),
        wrong="A start deletes files of attempts that may still acknowledge them.",
        catchers=(
            f"{_FILES}::TestSweepOfAStart::test_files_of_attempts_that_may_still_decide_stay",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.retained_states:left_by_attempts_before",
                old="return made is not None and int(made[1]) < attempt_id",
                new="return made is not None",
            ),
        ),
    ),
    Mutant(
        name="state-files-swept-beside-a-damaged-record",
        rules=("retire-after-commit",),
        wrong="A start deletes files that a damaged record may name.",
        catchers=(f"{_FILES}::TestSweepOfAStart::test_a_damaged_record_protects_all_files",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence._sweep_files",
                old="if kept.has_damaged:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="start-without-its-state-files",
        rules=("state-with-output",),
        wrong="A start does not notice that files of its keyed state are missing.",
        catchers=(
            f"{_FILES}::TestSweepOfAStart::test_a_start_without_its_files_is_refused_before_anything_is_written",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence._fence",
                old="self.store.require_files(record, whole=resume_id == restore_from)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="damaged-state-file-saved",
        rules=("copy-protected",),
        wrong="A savepoint is made of a damaged file of keyed state, with the digest of the damage.",
        catchers=(
            "tests/unit/runtime/savepoint/test_savepoints_on_disk.py::TestRefusals::test_no_savepoint_is_made_of_a_damaged_file_of_keyed_state",
        ),
        edits=(
            Edit(
                function="sluice.runtime.savepoint.savepoint_writer:self_contained",
                old="if (copy.length_bytes, copy.sha256) != (file.length_bytes, file.sha256):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="keyed-state-of-a-lost-function-dropped",
        rules=("state-with-output",),
        wrong="A start without a function of the checkpoint silently drops its keyed state.",
        catchers=(f"{_MATCHING}::TestSameJob::test_a_function_that_is_gone_is_named",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.keyed_matching:verify_keyed_state",
                old="    if lost:",
                new="    if False:",
            ),
        ),
    ),
    Mutant(
        name="number-of-a-dropped-state-reused",
        rules=("state-with-output",),
        wrong="A new state gets the number of a dropped one, and finds its entries.",
        catchers=(
            f"{_MATCHING}::TestSameJob::test_a_new_state_does_not_get_the_entries_of_another_one",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.keyed_matching:verify_keyed_state",
                old="_require_free_numbers(record, declared, names)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="key-of-another-type-restored",
        rules=("state-with-output",),
        wrong="A function with another key takes over state, and never finds its entries.",
        catchers=(f"{_MATCHING}::TestSameJob::test_another_key_is_refused_with_both_types",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.keyed_matching:_require_same",
                old="if before.key_schema and now.key_schema and _types(before) != _types(now):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="entry-in-the-split-of-its-old-group",
        rules=("state-with-output",),
        wrong="A recomputed savepoint has entries in splits that never read their keys.",
        catchers=(f"{_RECOMPUTE}::test_every_entry_is_in_the_split_of_its_key_and_unchanged",),
        edits=(
            Edit(
                function="sluice.runtime.savepoint.state_redistribution:KeyGroups.partitions_of",
                old="key_groups(keys.cast(pa.large_binary()), self.max_parallelism),",
                new="key_groups(keys.cast(pa.large_binary()), self.max_parallelism) * 0,",
            ),
        ),
    ),
    Mutant(
        name="recomputed-state-not-compared",
        rules=("state-with-output",),
        wrong="A recomputed savepoint lacks entries, and nothing notices.",
        catchers=(f"{_RECOMPUTE}::test_entries_that_differ_afterwards_leave_no_savepoint",),
        edits=(
            Edit(
                function="sluice.runtime.savepoint.state_redistribution:Redistribution.require_same",
                old="if self._after != self._before:",
                new="if False:",
            ),
        ),
    ),
)
