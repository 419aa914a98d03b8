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
                function="sluice.runtime.coordinator.start.left_work:sweep_state_files",
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
                old="self.store.require_files(record, whole=is_checked)",
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
        name="key-groups-of-another-topic",
        rules=("state-with-output",),
        wrong="A region without splits says by how many key groups the rows of a topic are divided.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_topic_key_groups.py::test_the_number_of_a_reader_without_splits_does_not_count",
        ),
        edits=(
            Edit(
                function="sluice.runtime.model.state.keyed_state:KeyedState.key_groups_of",
                old="found = {state.max_parallelism for state in states if state.splits} - {0}",
                new="found = {max((state.max_parallelism for state in states), default=0)} - {0}",
            ),
        ),
    ),
    Mutant(
        name="state-of-other-key-groups-loaded",
        rules=("state-with-output",),
        wrong="A task loads state of keys whose rows go to other partitions.",
        catchers=(
            "tests/unit/runtime/keyed/test_keyed_task.py::test_state_of_another_number_of_key_groups_is_refused",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.keyed_task:KeyedTask.adopt",
                old="self._require_key_groups(brought.of(new))",
                new="",
            ),
        ),
    ),
    Mutant(
        name="reader-without-rows-not-recomputed",
        rules=("state-with-output",),
        wrong="A recomputed savepoint leaves out the partitions of a reader without state, and their rows in flight.",
        catchers=(f"{_RECOMPUTE}::test_a_reader_that_has_had_no_row_keeps_its_part_of_the_topic",),
        edits=(
            Edit(
                function="sluice.runtime.savepoint.keyed_recompute:Recompute._chosen",
                old="topic: [r for r in record.regions if any(s.source_id == topic for s in r.splits)]",
                new="topic: [r for r in record.regions if r.keyed_state and any(s.source_id == topic for s in r.splits)]",
            ),
        ),
    ),
    Mutant(
        name="flag-of-another-split-taken",
        rules=("state-with-output",),
        wrong="Windows without marks get the flag that they have some, and never come out.",
        catchers=(f"{_RECOMPUTE}::test_a_flag_of_some_splits_alone_is_refused",),
        edits=(
            Edit(
                function="sluice.runtime.savepoint.state_redistribution:Redistribution._require_same_flags",
                old="if known != flags:",
                new="if False:",
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
    Mutant(
        name="window-closes-early",
        rules=("state-with-output",),
        wrong="A window closes when the watermark is a millisecond before its end.",
        catchers=(
            "tests/unit/runtime/keyed/test_windows.py::TestClosing::test_a_window_closes_exactly_when_the_watermark_is_at_its_end",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.open_windows:WindowOperator._close",
                old="self._windows.due(split, now_ms - self._settings.lateness_ms)",
                new="self._windows.due(split, now_ms + 1 - self._settings.lateness_ms)",
            ),
        ),
    ),
    Mutant(
        name="late-row-opens-a-window-again",
        rules=("state-with-output",),
        wrong="A row of a closed window is not late: the window comes out twice.",
        catchers=(
            "tests/unit/runtime/keyed/test_windows.py::TestLateRows::test_a_row_is_late_only_after_the_barrier_that_closed_its_window",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.windows:_AlignedOperator._is_late",
                old="return self._last_start(times[mine]) + self._size <= passed_ms",
                new="return self._last_start(times[mine]) + self._size < passed_ms",
            ),
        ),
    ),
    Mutant(
        name="late-by-the-watermark-of-no-barrier",
        rules=("state-with-output",),
        wrong="A new attempt forgets which windows its splits have closed.",
        catchers=(
            "tests/unit/runtime/keyed/test_windows.py::TestLateRows::test_lateness_is_known_in_a_new_attempt",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.operator_memory:OperatorMemory.end_epoch",
                old="self._table.put(split, [_TIME], [stored])",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="touching-sessions-apart",
        rules=("state-with-output",),
        wrong="Sessions that touch stay apart.",
        catchers=(
            "tests/unit/runtime/keyed/test_windows.py::TestSessions::test_sessions_that_touch_merge",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.session_windows:_merged",
                old="is_first[1:] = (owner[1:] != owner[:-1]) | (begin[1:] > reached[:-1])",
                new="is_first[1:] = (owner[1:] != owner[:-1]) | (begin[1:] >= reached[:-1])",
            ),
        ),
    ),
    Mutant(
        name="session-of-another-key",
        rules=("state-with-output",),
        wrong="The end of a session reaches the sessions of the next key.",
        catchers=(
            "tests/unit/runtime/keyed/test_windows.py::TestSessions::test_sessions_of_other_keys_stay_apart",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.session_windows:_merged",
                old="largest = np.maximum.accumulate(owner * len(end) + rank) - owner * len(end)",
                new="largest = np.maximum.accumulate(rank)",
            ),
        ),
    ),
    Mutant(
        name="merged-session-forgets",
        rules=("state-with-output",),
        wrong="The state of only one of the sessions that merge survives.",
        catchers=(
            "tests/unit/runtime/keyed/test_windows.py::TestSessions::test_a_row_between_two_sessions_merges_them",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.session_windows:_combine",
                old="left = np.delete(left, first)",
                new="break",
            ),
        ),
    ),
    Mutant(
        name="timer-fires-twice",
        rules=("state-with-output",),
        wrong="A timer fires twice at its barrier.",
        catchers=(
            "tests/unit/runtime/keyed/test_process.py::TestTimers::test_event_timers_fire_in_order_once_when_the_watermark_is_there",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.process:Timers.due",
                old="found += [(ms, key) for key, _ in entries]",
                new="found += [(ms, key) for key, _ in entries] * 2",
            ),
        ),
    ),
    Mutant(
        name="deleted-timer-fires",
        rules=("state-with-output",),
        wrong="A timer fires although the call before it has deleted it.",
        catchers=(
            "tests/unit/runtime/keyed/test_process.py::TestTimers::test_deleted_timers_do_not_fire",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.process:Timers.firing",
                old='if changes.pop(timer, b"") is not None:',
                new='if changes.pop(timer, b"") is not timer:',
            ),
        ),
    ),
    Mutant(
        name="value-outlives-its-time",
        rules=("state-with-output",),
        wrong="A removed value's marker takes the value that was set after it along.",
        catchers=(
            "tests/unit/runtime/keyed/test_time_to_live.py::TestTimeToLive::test_a_value_that_was_removed_and_set_again_lives_on",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.state_handles:_Handle._expire",
                old="gone = [key for key, end in ends if end <= now]",
                new="gone = [key for key, _ in ends]",
            ),
        ),
    ),
    Mutant(
        name="key-forgotten-late",
        rules=("state-with-output",),
        wrong="A key is forgotten a millisecond after its horizon.",
        catchers=(
            "tests/unit/runtime/keyed/test_deduplicate.py::test_by_processing_time_a_key_is_forgotten_so_long_after_its_barrier",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.deduplicate:_ByProcessingTime._forget_until",
                old="for time_ms, entries in list(self._forget.due(split, now_ms)):",
                new="for time_ms, entries in list(self._forget.due(split, now_ms - 1)):",
            ),
        ),
    ),
    Mutant(
        name="expired-value-seen",
        rules=("state-with-output",),
        wrong="A call sees a value that has expired, because no barrier has removed it.",
        catchers=(
            "tests/unit/runtime/keyed/test_time_to_live.py::TestTimeToLive::test_a_value_is_gone_in_time_although_no_barrier_has_removed_it",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.state_handles:_Handle.begin_chunk",
                old="self._over = _STAMP.pack(now_ms + 1)",
                new="self._over = None",
            ),
        ),
    ),
    Mutant(
        name="expired-value-comes-back",
        rules=("state-with-output",),
        wrong="A value that one call did not see is there for a later one.",
        catchers=(
            "tests/unit/runtime/keyed/test_time_to_live.py::TestTimeToLive::test_a_value_is_gone_in_time_although_no_barrier_has_removed_it",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.state_handles:_Handle._load",
                old="self._changed.update(gone)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="rows-have-the-time-of-the-last-barrier",
        rules=("state-with-output",),
        wrong="After a quiet time, a timer of a minute fires at once.",
        catchers=(
            "tests/unit/runtime/keyed/test_process.py::TestTimers::test_a_timer_of_a_minute_fires_a_minute_after_its_row",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.process:_Operator._call_waiting",
                old="self._timers.now_ms = now_ms if last_ms is None else max(now_ms, last_ms)",
                new="self._timers.now_ms = now_ms if last_ms is None else last_ms",
            ),
        ),
    ),
    Mutant(
        name="row-accepted-after-its-partner-left",
        rules=("state-with-output",),
        wrong="A row of a join is accepted though its partners may be forgotten.",
        catchers=(
            "tests/unit/runtime/keyed/test_interval_join.py::TestLateRows::test_an_accepted_row_has_all_its_partners",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.interval_join:_Operator._on_time",
                old="late |= (rows.splits == split) & (values < watermark)",
                new="late |= (rows.splits == split) & (values + self._reach[side] < watermark)",
            ),
        ),
    ),
    Mutant(
        name="forgotten-key-passes-twice",
        rules=("state-with-output",),
        wrong="A row passes whose key a barrier has forgotten.",
        catchers=(
            "tests/unit/runtime/keyed/test_deduplicate.py::test_a_row_near_which_keys_may_be_forgotten_is_late",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.deduplicate:_ByEventTime._on_time",
                old="is_over = values + self._within_ms <= watermark",
                new="is_over = values + self._within_ms < watermark",
            ),
        ),
    ),
    Mutant(
        name="interval-without-its-bound",
        rules=("state-with-output",),
        wrong="A row at the end of the interval has no partner.",
        catchers=(
            "tests/unit/runtime/keyed/test_interval_join.py::test_rows_join_inside_the_interval_with_both_bounds",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.interval_join:_matches",
                old='end = np.searchsorted(places, codes * width + np.searchsorted(known, latest, side="right"))',
                new="end = np.searchsorted(places, codes * width + np.searchsorted(known, latest))",
            ),
        ),
    ),
    Mutant(
        name="partner-forgotten",
        rules=("state-with-output",),
        wrong="A left row that had a partner in a later epoch comes out alone, too.",
        catchers=(
            "tests/unit/runtime/keyed/test_interval_join.py::TestLeftJoin::test_a_row_with_a_partner_does_not_come_out_again",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.interval_join:_Operator._keep",
                old="is_matched = each.is_matched or at in matched",
                new="is_matched = each.is_matched",
            ),
        ),
    ),
    Mutant(
        name="rows-of-a-rollback-counted",
        rules=("state-with-output",),
        wrong="Rows of an epoch that is read again stay in the aggregates.",
        catchers=(
            "tests/unit/runtime/keyed/test_aggregate.py::test_a_rollback_forgets_the_rows_of_the_epoch",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.aggregate:_Operator.rollback",
                old="self._buffer.clear()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="sum-wraps",
        rules=("state-with-output",),
        wrong="A sum outside of int64 wraps.",
        catchers=(
            "tests/unit/runtime/keyed/test_aggregate.py::TestSumsThatOverflow::test_a_sum_outside_of_int64_is_an_error_and_does_not_wrap",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.aggregates.sums:_may_overflow",
                old="return max(-int(sums.min()), int(sums.max())) + most * len(numbers) > _LARGEST",
                new="return False",
            ),
        ),
    ),
    Mutant(
        name="keys-without-lengths",
        rules=("state-with-output",),
        wrong="Columns of a key share their bytes: two keys have one state.",
        catchers=(
            "tests/unit/runtime/keyed/test_key_encoding.py::test_several_columns_are_one_key_each_with_its_length",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.key_encoding:encode",
                old='data += [_fixed(lengths.astype(">u4").view(np.uint8).reshape(-1, 4)), one]',
                new="data += [one]",
            ),
        ),
    ),
    Mutant(
        name="keys-of-two-tasks-not-compared",
        rules=("state-with-output",),
        wrong="Two tasks have the same key, each with a state of its own, and nobody notices.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_keyed_regions.py::test_a_key_in_partitions_of_two_regions_ends_the_job_before_the_decision",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.key_samples:KeySamples.add",
                old="if known is not None and known != sample.split:",
                new="if False:",
            ),
        ),
    ),
)
