"""Mutants of the keyed state of a task: its changes, files, merges and restores."""

from tests.mutants.model import Edit, Mutant

_TASKS = "tests/property/test_keyed_state.py"
_CONTRACT = "tests/contract/test_state_backends.py"
_FILES = "tests/unit/runtime/state/test_state_files.py"
_WRITER = "tests/unit/runtime/state/test_state_writer.py"
_CODEC = "tests/unit/runtime/state/test_row_codec.py"

MUTANTS = (
    Mutant(
        name="rolled-back-changes-stay",
        rules=("state-with-output",),
        wrong="An epoch that is read again finds what it has changed already.",
        catchers=(_TASKS, f"{_CONTRACT}::TestTables::test_a_rollback_takes_back_the_epoch_alone"),
        edits=(
            Edit(
                function="sluice.runtime.state.task_state:TaskState.rollback",
                old="self._overlays[ordinal] = _Overlay()",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="frozen-changes-go-on",
        rules=("state-with-output",),
        wrong="The next epoch changes what the file of the last one is written from.",
        catchers=(f"{_CONTRACT}::TestSplits::test_a_frozen_epoch_is_not_changed_by_the_next_one",),
        edits=(
            Edit(
                function="sluice.runtime.state.task_state:TaskState.end_epoch",
                old="self.rollback()",
                new="self.overlay_bytes = 0",
            ),
        ),
    ),
    Mutant(
        name="older-part-overrides",
        rules=("state-with-output",),
        wrong="Of several parts with a key, a restore and a merge take the oldest value.",
        catchers=(
            "tests/property/test_keyed_state.py::test_merged_streams_have_the_latest_row_of_each_place",
        ),
        edits=(
            Edit(
                function="sluice.runtime.state.state_rows:_last_of_each",
                old="rows = pa.concat_batches(batches)",
                new="rows = pa.concat_batches(batches[::-1])",
            ),
        ),
    ),
    Mutant(
        name="removal-lost-in-a-merge",
        rules=("state-with-output",),
        wrong="A merge that is no base drops removals: the base's entries come back.",
        catchers=(
            "tests/property/test_keyed_state.py::test_merged_streams_have_the_latest_row_of_each_place",
        ),
        edits=(
            Edit(
                function="sluice.runtime.state.state_rows:merged_rows",
                old="if drops is not None:",
                new="if True:",
            ),
            Edit(
                function="sluice.runtime.state.state_rows:merged_rows",
                old="rows = rows.filter(pa.array(_kept(rows, drops)))",
                new="rows = rows.filter(pa.array(_kept(rows, drops or {})))",
            ),
        ),
    ),
    Mutant(
        name="expired-too-early",
        rules=("state-with-output",),
        wrong="A base leaves out values before their time has come.",
        catchers=("tests/unit/runtime/state/test_expiry.py::test_rows_of_files_expire_alike",),
        edits=(
            Edit(
                function="sluice.runtime.state.codec.expiry:expired_rows",
                old='expired[at] = np.ascontiguousarray(heads).view(">i8").ravel() <= now_ms',
                new='expired[at] = np.ascontiguousarray(heads).view(">i8").ravel() <= now_ms + 1',
            ),
        ),
    ),
    Mutant(
        name="merge-of-a-moved-split-taken",
        rules=("state-with-output",),
        wrong="A merge of parts that a split no longer has replaces those that it has.",
        catchers=(f"{_WRITER}::test_a_merge_of_parts_that_a_split_no_longer_has_is_not_taken",),
        edits=(
            Edit(
                function="sluice.runtime.state.state_writer:_index_of",
                old="""
                if run[0] not in parts:
                    return None
                """,
                new="""
                if run[0] not in parts:
                    return 0
                """,
            ),
            Edit(
                function="sluice.runtime.state.state_writer:_index_of",
                old="at = parts.index(run[0])",
                new="return parts.index(run[0])",
            ),
        ),
    ),
    Mutant(
        name="damaged-section-restored",
        rules=("state-with-output",),
        wrong="The digest of a section is not compared.",
        catchers=(f"{_FILES}::TestDamage::test_a_changed_byte_is_found",),
        edits=(
            Edit(
                function="sluice.runtime.state.state_files:StateStore.rows",
                old="section.require_digest()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="foreign-file-restored",
        rules=("state-with-output",),
        wrong="Another file under the name is taken, for its sections are whole.",
        catchers=(f"{_FILES}::TestDamage::test_another_file_under_the_name_is_refused",),
        edits=(
            Edit(
                function="sluice.runtime.state.state_files:_require_own",
                old="if name != posixpath.basename(file.path) or not schema.equals(ROW_SCHEMA):",
                new="if not schema.equals(ROW_SCHEMA):",
            ),
        ),
    ),
    Mutant(
        name="epoch-without-its-changes",
        rules=("state-with-output",),
        wrong="An epoch whose changes the store does not take is acknowledged without them.",
        catchers=(f"{_FILES}::TestOutages::test_an_epoch_waits_for_the_store",),
        edits=(
            Edit(
                function="sluice.runtime.state.state_writer:StateWriter._write",
                old="continue",
                new="return",
            ),
        ),
    ),
    Mutant(
        name="state-of-a-split-that-came-forgotten",
        rules=("state-with-output",),
        wrong="A split that comes with state has only its later changes on record.",
        catchers=(f"{_CONTRACT}::TestSplits::test_a_split_moves_with_its_state", _TASKS),
        edits=(
            Edit(
                function="sluice.runtime.state.state_writer:StateWriter._follow_splits",
                old="known = _Split(restored.get(split.key, []))",
                new="known = _Split([])",
            ),
        ),
    ),
    Mutant(
        name="database-finds-late-timers-only",
        rules=("state-with-output",),
        wrong="A timer before those that fired is never found in RocksDB.",
        catchers=(f"{_CONTRACT}::TestTimes::test_an_earlier_entry_is_found_after_later_ones_left",),
        edits=(
            Edit(
                function="sluice.runtime.state.rocksdb_backend:RocksDbBackend.apply",
                old="self._earliest[split, table] = earliest",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="database-returns-a-forgotten-value",
        rules=("state-with-output",),
        wrong="The cache of a database keeps values of a split that left.",
        catchers=(
            f"{_CONTRACT}::TestSplits::test_a_number_of_a_split_is_used_again_without_its_values",
        ),
        edits=(
            Edit(
                function="sluice.runtime.state.rocksdb_backend:RocksDbBackend.drop_split",
                old="self._entries.forget_split(split)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="changed-schema-taken",
        rules=("state-with-output",),
        wrong="Rows are read by a schema with other columns at the front.",
        catchers=(f"{_CODEC}::TestChanges::test_other_changes_are_refused_with_both_schemas",),
        edits=(
            Edit(
                function="sluice.runtime.state.codec.schema_text:require_readable",
                old="begins_alike = new.names[: len(old)] == old.names and all(",
                new="begins_alike = all(",
            ),
        ),
    ),
    Mutant(
        name="failing-merges-in-silence",
        rules=("state-with-output",),
        wrong="Merges that keep failing end no attempt, and each epoch adds a part.",
        catchers=(
            "tests/unit/runtime/state/test_state_writer.py::test_merges_that_keep_failing_end_the_attempt",
        ),
        edits=(
            Edit(
                function="sluice.runtime.state.state_writer:StateWriter._bound_parts",
                old="if failure is None:",
                new="if True:",
            ),
        ),
    ),
)
