"""Mutants of regions in Spark: batches, logs and replays."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="spark-log-not-compared",
        rules=("batch-identity",),
        wrong="A drop-in query continues although Spark's log lacks the last decided batch.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_query_logs.py::test_a_decided_batch_that_spark_has_forgotten_is_not_run_with_other_records",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.query_logs:require_logged",
                old="""
                if not fs.exists(f"offsets/{record.batch_id}"):
                    raise _not_the_same(record.batch_id, {"path": f"offsets/{record.batch_id}"})
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="replay-written",
        rules=("batch-identity",),
        wrong="A decided batch is written again when Spark replays it.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_batch_identity_and_stateful_replay_a_replay_of_a_decided_batch_writes_nothing",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_query:RegionQuery._run_batch",
                old="if offsets.is_initial(offset) or self._coordinator.is_decided(batch):",
                new="if offsets.is_initial(offset):",
            ),
        ),
    ),
    Mutant(
        name="rest-of-another-batch-read",
        rules=("restore-by-attempt",),
        wrong="The remaining part of a batch that Spark runs again is also read instead of the batches after it.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_query_logs.py::test_a_batch_that_is_run_once_more_reads_what_the_driver_found_left_of_it",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.job_source:SourcePlan.left_of",
                old="""
                if again is None or (again.attempt_id, again.checkpoint_id) != (
                    batch.attempt_id,
                    batch.checkpoint_id,
                ):
                """,
                new="if again is None:",
            ),
        ),
    ),
    Mutant(
        name="logs-not-rewound",
        rules=("restore-by-attempt",),
        wrong="An undecided batch stays in Spark's log, and the next attempt replays it.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_restore_by_attempt_a_stateful_regions_logs_are_rewound_to_the_decision",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.query_logs:rewind",
                old='fs.delete(f"{directory}/{name}")',
                new='fs.exists(f"{directory}/{name}")',
            ),
        ),
    ),
    Mutant(
        name="older-attempt-written",
        rules=("restore-by-attempt",),
        wrong="The present attempt of a region writes a batch that an earlier attempt planned.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_restore_by_attempt_an_undecided_batch_of_an_earlier_attempt_is_never_written",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_query:RegionQuery._run_batch",
                old="if barrier.attempt_id != tasks.attempt_id:",
                new="if barrier.attempt_id > tasks.attempt_id:",
            ),
        ),
    ),
    Mutant(
        name="tasks-from-start",
        rules=("restore-by-attempt",),
        wrong="The tasks of a batch are read from its start as well as from its end.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_query_logs.py::test_restore_by_attempt_the_tasks_of_a_batch_follow_from_its_end_alone",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.job_source:JobStreamReader.partitions",
                old="barrier = offsets.decode(end)",
                new="barrier = offsets.decode(end if offsets.is_initial(start) else {**end, **start})",
            ),
        ),
    ),
    Mutant(
        name="newer-attempts-deleted",
        rules=("restore-by-attempt",),
        wrong="A run that was taken over deletes the logs of the newer run's attempts.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_restore_by_attempt_a_run_that_was_taken_over_deletes_older_lives_alone",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_start:delete_attempts",
                old="if newest <= attempt_id:",
                new="if newest <= attempt_id + 1:",
            ),
        ),
    ),
    Mutant(
        name="newer-state-rewound",
        rules=("restore-by-attempt",),
        wrong="A run that was taken over rewinds the newer run's state.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_restore_by_attempt_a_run_that_was_taken_over_leaves_the_newer_ones_state_alone",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_start:make_ready",
                old="if max(_attempts(fs, region.name).values(), default=-1) > attempt_id:",
                new="if max(_attempts(fs, region.name).values(), default=-1) < -1:",
            ),
        ),
    ),
    Mutant(
        name="callback-does-not-wait",
        rules=("callback-after-commit",),
        wrong="The batch callback returns once its batch is acknowledged, so Spark logs an undecided batch.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_callback_after_commit_the_callback_raises_when_its_batch_is_not_committed",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_query:RegionQuery._run_batch",
                old="self._coordinator.await_committed(batch)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="replay-returns-after-a-newer-run",
        rules=("callback-after-commit",),
        wrong="The replay of a stateful batch returns after a newer run has begun, which may have another batch there.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_callback_after_commit_no_replay_of_state_returns_after_a_newer_run_has_begun",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_query:RegionQuery._replay_state",
                old="self._coordinator.require_newest()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="open-work-of-a-dead-attempt-unreported",
        rules=("abort-before-skip",),
        wrong="An ended attempt does not report its open transactions, so readers wait for them until a sweep.",
        catchers=(
            "tests/unit/runtime/coordinator/shell/test_attempts.py::test_abort_before_skip_an_attempt_that_is_over_says_what_it_left_open",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.run.attempt_supervisor:RegionAttempts._restart",
                old="self._register(watched)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="chained-rows-written-twice",
        rules=("stateful-replay",),
        wrong="Rows that chained tasks have already written are written by the same sinks again on the way into files.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_rows_on_their_way_into_files_are_written_by_the_other_sinks_once",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.batch_strategies:ChainedBatch.rows_for_files",
                old="return frame",
                new="return frame.mapInArrow(output.deliver, frame.schema)",
            ),
        ),
    ),
    Mutant(
        name="state-not-replayed",
        rules=("stateful-replay",),
        wrong="The replay of a decided batch of a stateful region runs nothing, so its state version is missing.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_batch_identity_and_stateful_replay_a_replay_of_a_decided_batch_writes_nothing",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.microbatch.region_query:RegionQuery._replay_state",
                old="if self._spec.stateful:",
                new="if not self._spec.stateful:",
            ),
        ),
    ),
    Mutant(
        name="random-state-accepted",
        rules=("stateful-replay",),
        wrong="A non-deterministic function with state is accepted.",
        catchers=(
            "tests/unit/runtime/job/test_job_pieces.py::test_a_job_that_cannot_be_exact_is_refused",
        ),
        edits=(
            Edit(
                function="sluice.runtime.graph.job_graph:_require_runnable",
                old="if random and (stateful or len(pipeline.sinks) > 1):",
                new="if random and len(pipeline.sinks) > 1:",
            ),
        ),
    ),
    Mutant(
        name="retry-without-records-drops-windows",
        rules=("state-with-output",),
        wrong="A second attempt of a task without records leaves out its windows and timers.",
        catchers=(
            "tests/unit/runtime/spark/tasks/test_keyed_retry.py::test_the_end_of_the_input_ends_windows_in_any_attempt",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.tasks.region_tasks:Chain._writing",
                old="if 0 < offsets_in(splits) <= self.most_dropped and _is_second_attempt():",
                new="if offsets_in(splits) <= self.most_dropped and _is_second_attempt():",
            ),
        ),
    ),
)
