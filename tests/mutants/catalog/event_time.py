"""Mutants of event time: watermarks, idle splits and alignment."""

from tests.mutants.model import Edit, Mutant

_JOB_TIME = "tests/unit/runtime/coordinator/core/test_job_time.py"
_TASK_TIME = "tests/unit/runtime/continuous/test_task_time.py"
_CLOCKS = "tests/unit/runtime/functions/test_split_clocks.py"

MUTANTS = (
    Mutant(
        name="watermark-goes-back",
        rules=("late-by-barrier",),
        wrong="A split that returns after it was idle moves the watermark back.",
        catchers=(
            f"{_JOB_TIME}::test_an_idle_split_does_not_hold_the_job_back_and_never_moves_it_back",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.job_time:JobTime._announce",
                old="latest_ms = later(self.watermarks_ms.get(source_id), watermark_ms)",
                new="latest_ms = watermark_ms",
            ),
        ),
    ),
    Mutant(
        name="watermark-forgotten-by-a-restart",
        rules=("late-by-barrier",),
        wrong="A run begins without the watermark that closed windows on record.",
        catchers=(
            f"{_JOB_TIME}::test_late_by_barrier_a_restart_goes_on_with_the_watermark_that_barriers_had",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.job_time:JobTime.restored",
                old="made.note_ended(split for record in records for split in record.splits)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="watermark-of-the-fastest-region",
        rules=("late-by-barrier",),
        wrong="The watermark of a source is the greatest of its splits.",
        catchers=(
            f"{_JOB_TIME}::test_late_by_barrier_a_barrier_has_the_least_watermark_of_the_decided_epochs",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.job_time:JobTime.advance",
                old="self._announce(source_id, least_of(found))",
                new="self._announce(source_id, max((ms for ms in found if ms), default=None))",
            ),
        ),
    ),
    Mutant(
        name="new-split-passed-over",
        rules=("late-by-barrier",),
        wrong="A new split does not hold the watermark back, so its first rows are late.",
        catchers=(f"{_JOB_TIME}::test_a_new_split_holds_the_watermark_where_it_is",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.job_time:JobTime._counting",
                old="for split in (*region.record.splits, *region.discovered.values()):",
                new="for split in (s for s in region.record.splits if s.watermark_ms):",
            ),
        ),
    ),
    Mutant(
        name="idle-split-holds-back",
        rules=("late-by-barrier",),
        wrong="An idle split counts for ever.",
        catchers=(
            f"{_JOB_TIME}::test_an_idle_split_does_not_hold_the_job_back_and_never_moves_it_back",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.job_time:JobTime._counting",
                old="if split.source_id in self.times and not self.is_idle(split.key):",
                new="if split.source_id in self.times:",
            ),
        ),
    ),
    Mutant(
        name="idle-although-nothing-looks",
        rules=("late-by-barrier",),
        wrong="An idle split stays idle while its region is down, so rows that come meanwhile are late.",
        catchers=(
            f"{_JOB_TIME}::test_an_idle_split_of_a_region_without_attempt_counts_until_a_look_finds_it_idle",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.job_time:JobTime.note_unwatched",
                old="self._empty_s.pop(key, None)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="rows-read-again-keep-their-watermark",
        rules=("late-by-barrier",),
        wrong="A task keeps the watermark of rows that it has read and that another task reads now.",
        catchers=(
            f"{_TASK_TIME}::test_rows_of_an_epoch_that_is_read_again_leave_no_watermark",
            f"{_CLOCKS}::test_a_restart_forgets_the_rows_of_the_epoch_and_keeps_what_is_on_record",
        ),
        edits=(
            Edit(
                function="sluice.runtime.functions.split_clocks:SplitClocks.forget",
                old="self._clocks.clear()",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="far-future-moves-the-watermark",
        rules=("late-by-barrier",),
        wrong="A time beyond max_future is counted, and moves the watermark.",
        catchers=(f"{_CLOCKS}::test_a_time_beyond_max_future_is_counted_and_moves_nothing",),
        edits=(
            Edit(
                function="sluice.runtime.functions.split_clocks:SplitClocks._within_reach",
                old="return values, _both(is_near, is_known), too_far",
                new="return values, is_known, too_far",
            ),
        ),
    ),
    Mutant(
        name="no-split-waits",
        rules=("late-by-barrier",),
        wrong="A split that is too far ahead is read on.",
        catchers=(
            f"{_TASK_TIME}::test_a_split_that_is_too_far_ahead_waits_for_the_slowest_one",
            f"{_TASK_TIME}::test_a_split_waits_for_those_of_other_regions",
        ),
        edits=(
            Edit(
                function="sluice.runtime.continuous.task_time:TaskTime.align",
                old="self._stream.pause(paused)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="paused-split-is-unreachable",
        rules=("late-by-barrier",),
        wrong="A task ends because of a split that it has paused itself.",
        catchers=(
            f"{_TASK_TIME}::test_a_paused_split_is_reported_and_neither_unreachable_nor_waited_for",
        ),
        edits=(
            Edit(
                function="sluice.runtime.continuous.task_loop:TaskLoop._require_progress",
                old="elif before != at[split.key] or split.key in active or split.key in self._time.paused:",
                new="elif before != at[split.key] or split.key in active:",
            ),
        ),
    ),
    Mutant(
        name="key-forgotten-at-a-barrier-only",
        rules=("state-with-output",),
        wrong="A row is dropped long after its key's time, because no barrier has come.",
        catchers=(
            "tests/unit/runtime/keyed/test_deduplicate.py::test_by_processing_time_a_key_is_forgotten_in_time_although_no_barrier_comes",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.deduplicate:_ByProcessingTime.apply",
                old="self._forget_until(split, now_ms)",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="key-remembered-by-its-latest-time-alone",
        rules=("state-with-output",),
        wrong="A row passes twice: after it, a later row of its key has passed.",
        catchers=(
            "tests/unit/runtime/keyed/test_deduplicate.py::test_by_event_time_rows_that_are_far_apart_pass_wherever_an_epoch_ends",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.deduplicate:_ByEventTime._first_rows",
                old="is_odd |= is_known[codes[far]] & (times[far] < last[codes[far]])",
                new="",
            ),
        ),
    ),
    Mutant(
        name="key-forgotten-before-rows-near-it-are-late",
        rules=("state-with-output",),
        wrong="A row passes that is near one that has passed before a barrier.",
        catchers=(
            "tests/unit/runtime/keyed/test_deduplicate.py::test_by_event_time_a_row_passes_so_long_after_one_that_has_passed",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.operators.deduplicate:_ByEventTime._keep_until",
                old="until = [time_ms + 2 * self._within_ms for time_ms in times]",
                new="until = [time_ms + self._within_ms for time_ms in times]",
            ),
            Edit(
                function="sluice.runtime.keyed.operators.deduplicate:_ByEventTime._forget_until",
                old="kept = self._kept(known, watermark_ms - 2 * self._within_ms)",
                new="kept = self._kept(known, watermark_ms - self._within_ms)",
            ),
        ),
    ),
)
