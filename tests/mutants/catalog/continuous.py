"""Mutants of continuous tasks."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="state-of-an-epoch-read-again-kept",
        rules=("state-with-output",),
        wrong="A task that reads an epoch again keeps what the aborted epoch has changed, so its records count twice.",
        catchers=(
            "tests/unit/runtime/continuous/test_keyed_loop.py::test_state_with_output_records_that_are_read_again_count_once",
        ),
        edits=(
            Edit(
                function="sluice.runtime.continuous.task_loop:TaskLoop._read_again",
                old="self._keyed.rollback()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="returning-split-keeps-its-old-state",
        rules=("state-with-output",),
        wrong="A split that comes back keeps the state that this task had of it.",
        catchers=(
            "tests/unit/runtime/continuous/test_keyed_loop.py::test_state_with_output_a_split_that_comes_back_has_the_state_of_its_last_reader",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.keyed_task:KeyedTask.adopt",
                old="kept = self._closed_ms.keys() & (wanted.keys() - given)",
                new="kept = self._closed_ms.keys() & wanted.keys()",
            ),
        ),
    ),
    Mutant(
        name="kept-state-of-another-try",
        rules=("state-with-output",),
        wrong="A Python worker uses the state that it kept for a batch that is tried again.",
        catchers=(
            "tests/unit/runtime/keyed/test_kept_state.py::test_state_with_output_a_batch_that_is_tried_again_uses_no_state_of_the_first_try",
        ),
        edits=(
            Edit(
                function="sluice.runtime.keyed.kept_state:KeptTasks.open",
                old="is_same = self._owner == owner and self._kept_state.sections() == batch.state.sections()",
                new="is_same = self._owner == owner",
            ),
        ),
    ),
    Mutant(
        name="answer-of-another-sink-trusted",
        rules=("outcome-from-broker",),
        wrong="If a task has committed the transaction of one sink, all transactions of its epoch count as committed.",
        catchers=(
            "tests/unit/runtime/continuous/test_native_commits.py::test_outcome_from_broker_a_commit_that_was_not_acknowledged_is_settled_by_the_verdict",
        ),
        edits=(
            Edit(
                function="sluice.runtime.continuous.native_commits:NativeCommits.report",
                old="attempt.committed |= {e for e in entries if e.operator_id in epoch.operators}",
                new="attempt.committed |= set(entries)",
            ),
        ),
    ),
    Mutant(
        name="ended-epoch-aborted-by-its-task",
        rules=("continuous-order",),
        wrong="A task that fails aborts its acknowledged epoch, which the coordinator may decide.",
        catchers=(
            "tests/unit/runtime/continuous/test_task_loop.py::test_an_error_aborts_the_epoch_that_is_written_and_not_the_one_that_has_ended",
        ),
        edits=(
            Edit(
                function="sluice.runtime.continuous.task_loop:TaskLoop._end",
                old='failpoint("after-epoch-begun")',
                new="""
                self._epoch = epoch
                failpoint("after-epoch-begun")
                """,
            ),
        ),
    ),
    Mutant(
        name="regions-without-a-core",
        rules=("continuous-order",),
        wrong="Continuous regions start although there is not a core for each of them.",
        catchers=(
            "tests/unit/runtime/spark/run/test_layout.py::test_continuous_order_no_region_waits_for_a_core_for_ever",
        ),
        edits=(
            Edit(
                function="sluice.runtime.spark.run.engine_choice:_require",
                old="if needed > slots:",
                new="if slots < 1:",
            ),
        ),
    ),
    Mutant(
        name="continuous-records-not-renewed",
        rules=("lease-guards-outputs",),
        wrong="The coordinator does not renew the leases of its sinks, so another job takes the name of a running one.",
        catchers=("tests/unit/runtime/continuous/test_native_commits.py",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.committing.sink_committer:SerialSink.renew",
                old="self._sink.renew()",
                new="return",
            ),
        ),
    ),
)
