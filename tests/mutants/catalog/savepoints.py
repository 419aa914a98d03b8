"""Mutants of savepoints, of stops and of the last decisions of a run."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="savepoint-of-a-skipped-batch",
        rules=("copy-protected",),
        wrong="A savepoint takes a batch that an earlier decision skipped, whose sink kept files.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_requested_checkpoint.py::TestPublishesAll",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.requested_checkpoint:is_wanted",
                old="return not is_late and all(_has_drained(region, request.drain_to) for region in standing)",
                new="return all(_has_drained(region, request.drain_to) for region in standing)",
            ),
        ),
    ),
    Mutant(
        name="stop-without-its-savepoint",
        rules=("copy-protected",),
        wrong="A stop ends the job although its savepoint has failed.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_requested_checkpoint.py::TestStopWithSavepoint",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.requested_checkpoint:files_copied",
                old="if request.ends_job and event.error is None:",
                new="if request.ends_job:",
            ),
        ),
    ),
    Mutant(
        name="epochs-after-the-last-one",
        rules=("copy-protected",),
        wrong="Epochs begin while the savepoint of a stop is copied, and are aborted by its end.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_requested_checkpoint.py::TestStopWithSavepoint",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.alignment:_is_full",
                old="return state.is_held or len(state.pending) >= state.settings.max_concurrent",
                new="return len(state.pending) >= state.settings.max_concurrent",
            ),
        ),
    ),
    Mutant(
        name="files-kept-at-a-savepoint",
        rules=("copy-protected",),
        wrong="Sinks keep files at a savepoint, so its record names files outside.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_requested_checkpoint.py::TestPublishesAll",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.alignment:_give_barrier",
                old="publishes_all=is_last or checkpoint.kind in PUBLISHES_ALL,",
                new="publishes_all=is_last,",
            ),
        ),
    ),
    Mutant(
        name="savepoint-of-an-older-run",
        rules=("copy-protected",),
        wrong="A paused run completes a savepoint after another run has taken over.",
        catchers=(
            "tests/unit/runtime/coordinator/shell/test_request_thread.py::TestSavepoints::test_a_run_that_was_taken_over_leaves_none",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.request_thread:RequestThread._guard",
                old="if not self._is_newest():",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="older-run-goes-on-without-decisions",
        rules=("fence-first",),
        wrong="An older run that has nothing to decide does not look for its successor.",
        catchers=(
            "tests/unit/runtime/coordinator/shell/test_coordinator.py::test_fence_first_an_older_run_without_anything_to_decide_ends",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.run_threads:RunThreads._sweep",
                old="self._require_newest()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="load-of-a-batch-expires",
        rules=("state-with-output",),
        wrong="A checkpoint expires while a batch loads its keyed state, so the next attempt loads it again.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_timed_out_regions.py::test_a_batch_that_loads_keyed_state_may_take_long_as_long_as_it_makes_progress",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.alignment:_timeout_s",
                old="return timeout_s + max(0.0, loading_s - barrier_s)",
                new="return timeout_s",
            ),
        ),
    ),
)
