"""Mutants of the drop-in sink."""

from tests.mutants.model import Edit, Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        name="drop-in-replay-written",
        rules=("batch-identity",),
        wrong="A task of the drop-in sink writes a decided batch again.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in_tasks.py::test_batch_identity_a_task_of_a_decided_batch_reads_its_rows_to_the_end_and_writes_none",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_writer:DropInStreamWriter.write",
                old="""
                if coordinator.is_decided(batch):
                    for _ in iterator:
                        pass
                    return _PreCommitted(self._run.run_id, self._run.attempt_id)
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="abort-without-reading-the-store",
        rules=("drop-in-abort",),
        wrong="The drop-in's abort discards a batch without checking whether it is decided.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in_queries.py::test_drop_in_abort_an_abort_after_a_commit_that_raised_leaves_the_decision_alone",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_run:DropInRun.abort",
                old="""
                if self.coordinator.is_decided(self.batch(batch_id)):
                    return
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="constructor-sweeps",
        rules=("drop-in-abort",),
        wrong="Each construction of the drop-in writer begins a new run, which fences and sweeps the batch under way.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in_queries.py::test_drop_in_abort_the_constructor_aborts_nothing",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_queries:DropInQueries._begin",
                old="if run is None or run.active.run_id != active.run_id:",
                new="if run is None or run.active.is_active():",
            ),
        ),
    ),
    Mutant(
        name="previous-run-continues",
        rules=("callback-after-commit",),
        wrong="The next run of a drop-in query begins while the coordinator of the previous run can still sweep.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in_runs.py::test_the_run_before_has_ended_when_the_next_one_of_its_query_has_begun",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_queries:DropInQueries._begin",
                old="""
                if run is not None:
                    run.began.stop()
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="earlier-runs-batch-committed",
        rules=("callback-after-commit",),
        wrong="The drop-in commits a batch that an earlier run of the query wrote.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in.py::test_callback_after_commit_an_earlier_runs_batch_is_neither_committed_nor_aborted_as_this_ones",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_writer:DropInStreamWriter._is_of_another_run",
                old="return any((each.run_id, each.attempt_id) != present for each in _written(messages))",
                new="return any((each.run_id, each.attempt_id) > present for each in _written(messages))",
            ),
        ),
    ),
    Mutant(
        name="sink-without-service",
        rules=("coordinator-in-driver",),
        wrong="The drop-in sink uses its working directory if the checkpoint location is missing.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in_queries.py::test_coordinator_in_driver_the_sink_says_what_it_needs",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_writer:DropInStreamWriter.__init__",
                old='location = options.get("checkpointLocation")',
                new='location = options.get("checkpointLocation", ".")',
            ),
        ),
    ),
    Mutant(
        name="failed-task-leaves-it-open",
        rules=("abort-before-skip",),
        wrong="A failing task of the drop-in sink leaves its transaction open, so readers wait for it.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_drop_in_tasks.py::test_a_task_that_fails_closes_what_it_has_open",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.drop_in_writer:_write_all",
                old="writer.abort()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="frame-left-out-by-options",
        rules=("batch-identity",),
        wrong="A second frame of a written batch is left out if it goes to the same sink.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_frame_writes.py::test_a_second_write_of_one_batch_is_refused",
            "tests/unit/runtime/spark/drop_in/test_frame_writes.py::test_batch_identity_two_writes_of_threads_without_a_query",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.written_batches:BatchWrite.has_rows_of",
                old="return frame is not None and frame is earlier.frame() and self.sink == earlier.sink",
                new="return self.sink == earlier.sink",
            ),
        ),
    ),
    Mutant(
        name="failed-write-not-noted",
        rules=("batch-identity",),
        wrong="A write that raised after its decision is not noted, so the next frame is left out.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_frame_writes.py::test_batch_identity_other_rows_after_a_write_that_may_be_decided_are_refused",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.frame_writes:FrameWrites._write",
                old="self._written.begin(call.store, batch_id, written)",
                new="",
            ),
            Edit(
                function="sluice.runtime.spark.drop_in.frame_writes:FrameWrites._write",
                old="self._written.complete(call.store, batch_id)",
                new="self._written.begin(call.store, batch_id, written)",
            ),
        ),
    ),
    Mutant(
        name="threads-batch-of-any-query",
        rules=("batch-identity",),
        wrong="A batch that a thread without a query wrote is taken for that of any query.",
        catchers=(
            "tests/unit/runtime/spark/drop_in/test_frame_writes.py::test_batch_identity_a_thread_of_another_query_repeats_no_batch",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.drop_in.frame_writes:FrameWrites._require_repeated",
                old="_require_runs(earlier, call)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="target-as-spelled",
        rules=("batch-identity",),
        wrong="The target of a frame's files is known by the spelling of its path.",
        catchers=(
            "tests/unit/connectors/hdfs/test_file_drop_in.py::test_batch_identity_a_target_is_known_however_it_is_spelled",
        ),
        edits=(
            Edit(
                function="sluice.connectors.hdfs.file_drop_in:_DropInSink.target",
                old="return (canonical_uri(self.options.target, default_fs=self.options.default_fs),)",
                new="return (self.options.target,)",
            ),
        ),
    ),
)
