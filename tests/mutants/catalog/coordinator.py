"""Mutants of the coordinator while a job runs."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="settled-by-an-older-attempt",
        rules=("ids-never-reused",),
        wrong="Decisions of an older attempt of a region settle batches of the present attempt, so the sweep takes staged work of the present one.",
        catchers=("tests/unit/runtime/checkpoint/test_retention.py",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.core:CoordinatorCore.sweep_view",
                old="and batch.attempt_id == r.attempt_id",
                new="",
            ),
        ),
    ),
    Mutant(
        name="marked-while-pending",
        rules=("outcome-from-broker",),
        wrong="A checkpoint is marked as committed although its commits were not answered.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_decided_commits.py::test_commit_is_tried_until_everything_is_committed",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:commit_reported",
                old="entry for entry, report in answers if report.outcome is not CommitOutcome.COMMITTED",
                new="entry for entry, report in answers if report.outcome is CommitOutcome.ABORTED",
            ),
        ),
    ),
    Mutant(
        name="handle-dropped",
        rules=("outcome-from-broker",),
        wrong="The decision leaves out one of the committables that a region acknowledged.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_decided_commits.py::test_a_checkpoint_takes_its_steps_in_order",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:published",
                old="checkpoint.remaining = committables_of(checkpoint.regions)",
                new="checkpoint.remaining = committables_of(checkpoint.regions)[1:]",
            ),
        ),
    ),
    Mutant(
        name="loss-of-a-committed-decision",
        rules=("outcome-from-broker",),
        wrong="A run takes its decision for lost, and does not check whether a later start has committed it.",
        catchers=(
            "tests/unit/runtime/coordinator/committing/test_racing_starts.py::test_outcome_from_broker_what_a_start_has_marked_is_not_lost_to_the_run_that_decided_it",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._commit",
                old="""
                if any(report.outcome in _FINAL for report in reports):
                    reports = self._unless_taken_over(action.checkpoint_id, reports)
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="slots-out-of-order",
        rules=("fence-first",),
        wrong="A coordinator publishes slot n+1 before slot n holds a record of its own.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_lost_transactions.py::test_a_place_is_published_only_after_a_place_of_our_own",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:_drive_one",
                old="is_next_slot = checkpoint.checkpoint_id == state.last_slot + 1",
                new="is_next_slot = True",
            ),
        ),
    ),
    Mutant(
        name="fencing-ignored",
        rules=("fence-first",),
        wrong="A coordinator that finds its slot taken still commits the transactions of its own decision.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_lost_transactions.py::test_a_taken_place_stops_everything",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:published",
                old="""
                if event.outcome is PublishOutcome.TAKEN or is_late:
                    state.move(checkpoint, Event.SLOT_TAKEN, now_s)
                    state.fence(taken_over(event.checkpoint_id))
                    return
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="ours-after-newer-runs",
        rules=("fence-first",),
        wrong="A record in its slot counts as our decision, although later runs have retired it.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_interrupted_starts.py::test_fence_first_a_decision_that_was_followed_and_retired_is_not_decided_again",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._unless_overtaken",
                old="return PublishOutcome.TAKEN if self._is_taken_over() else outcome",
                new="return outcome",
            ),
        ),
    ),
    Mutant(
        name="commit-before-decision",
        rules=("fence-first",),
        wrong="The transactions of a checkpoint are committed before its decision is published.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_decided_commits.py::test_no_step_begins_before_the_one_before_is_answered",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:_start_deciding",
                old="_publish(state, checkpoint, Verdict.DECIDED)",
                new="""
                checkpoint.remaining = committables_of(checkpoint.regions)
                state.out.append(
                    Commit(
                        checkpoint_id=checkpoint.checkpoint_id,
                        committables=checkpoint.remaining,
                        after_crash=checkpoint.after_crash,
                        regions=checkpoint.regions,
                    )
                )
                _publish(state, checkpoint, Verdict.DECIDED)
                """,
            ),
        ),
    ),
    Mutant(
        name="unknown-publish-taken-for-published",
        rules=("publish-whole",),
        wrong="A publish without an answer counts as published.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_lost_transactions.py::test_an_unanswered_publish_is_repeated_and_never_aborted",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:published",
                old="""
                if event.outcome is PublishOutcome.UNKNOWN:
                    retry(state, checkpoint, now_s)
                    return
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="acknowledged-without-state",
        rules=("state-with-output",),
        wrong="A batch of a keyed region is decided with the state of other splits.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_keyed_regions.py::TestAnAcknowledgementIsRefused",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.acknowledgements:_require_state",
                old="if region.plan.keyed is (state is not None) and (state is None or found == read):",
                new="if True:",
            ),
        ),
    ),
    Mutant(
        name="returning-split-without-its-state",
        rules=("state-with-output",),
        wrong="A region whose split left and came back without a barrier in between does not get its new state.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_keyed_regions.py::TestASplitThatMoves",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.region_state:RegionState.decided",
                old="self.held &= own",
                new="",
            ),
        ),
    ),
    Mutant(
        name="state-left-behind",
        rules=("state-with-output",),
        wrong="A split moves without its keyed state.",
        catchers=(
            "tests/property/test_assignment.py::test_restore_by_attempt_regions_continue_where_the_record_says_with_what_it_assigns",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.policy.assignment:_with_own",
                old="keyed_state=keyed_state_of(regions, own) or _without_splits([region]),",
                new="keyed_state=region.keyed_state,",
            ),
        ),
    ),
    Mutant(
        name="source-goes-back",
        rules=("batch-identity",),
        wrong="A source may go back to any offset, not only over transaction markers.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_lost_transactions.py::test_batch_identity_a_range_that_a_decided_checkpoint_contains_is_refused",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.region.region_state:RegionState.require_new_ranges",
                old="if split.start_offset < end:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="split-with-two-positions",
        rules=("restore-by-attempt",),
        wrong="A record with two positions of one split is accepted, so the records between them are doubled or lost.",
        catchers=(
            "tests/property/test_assignment.py::test_positions_and_assignment_that_do_not_fit_are_damage",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.policy.assignment:_require_whole",
                old="if not is_once or assigned != standing.keys() or names != assignment.regions.keys():",
                new="if assigned != standing.keys() or names != assignment.regions.keys():",
            ),
        ),
    ),
    Mutant(
        name="any-function-repaired",
        rules=("two-phase-repair",),
        wrong="A repair writes the records of a non-deterministic function again.",
        catchers=(
            "tests/unit/runtime/job/test_job_pieces.py::test_a_function_declared_non_deterministic_makes_its_region_beyond_repair",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.policy.checkpoint_plan:RegionPlan.can_repair",
                old="return self.chained and self.deterministic and not self.keyed",
                new="return self.chained and not self.keyed",
            ),
        ),
    ),
    Mutant(
        name="neighbours-of-a-loss-left-open",
        rules=("two-phase-repair",),
        wrong="A run ends as soon as it knows of a loss, and leaves the transactions open that are still pending.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_lost_transactions.py::test_two_phase_repair_what_is_not_lost_is_committed_before_the_job_ends",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.failed_steps:_has_open_rest",
                old="return any(report.outcome is CommitOutcome.PENDING for report in event.reports)",
                new="return False",
            ),
        ),
    ),
    Mutant(
        name="topic-name-instead-of-id",
        rules=("two-phase-repair",),
        wrong="A repair compares the name of a topic and not its id, so records of a recreated topic replace the lost ones.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_lost_at_a_start.py::test_two_phase_repair_nothing_is_written_again_from_another_log_of_the_same_name",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.committing.repairs:Repairs._write",
                old="self._require_readable(action.checkpoint_id, repairer.ranges(lost))",
                new="pass",
            ),
        ),
    ),
    Mutant(
        name="skipped-without-a-sweep",
        rules=("abort-before-skip",),
        wrong="A decision skips a suspended region before the open transactions of that region are aborted.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_suspended_regions.py::test_abort_before_skip_what_a_suspended_region_left_open_is_swept_before_the_first_decision_without_it",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:_start_deciding",
                old="if checkpoint.must_sweep or unswept:",
                new="if checkpoint.must_sweep:",
            ),
        ),
    ),
    Mutant(
        name="swept-before-the-mark",
        rules=("abort-before-skip",),
        wrong="A decision skips a failed region after a sweep that came before the mark of the region's last batch, so open transactions of that batch's failed tasks stay.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_regional_failure_policy.py::test_abort_before_skip_the_sweep_waits_for_the_mark_of_the_failed_regions_last_batch",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:_start_deciding",
                old="if _has_unmarked_batch(state, checkpoint.skipped):",
                new="if not checkpoint.skipped:",
            ),
        ),
    ),
    Mutant(
        name="repair-beside-a-running-task",
        rules=("continuous-order",),
        wrong="A continuous task continues after a repair, so the repaired records come after its own.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_following_regions.py::test_two_phase_repair_a_repair_ends_the_attempt_that_has_written_on",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.failed_steps:_abort_later",
                old="if state.regions[name].plan.follows:",
                new="if state.is_over:",
            ),
        ),
    ),
    Mutant(
        name="skipped-files-published",
        rules=("files-with-decision",),
        wrong="A checkpoint publishes the files that a region holds, although that region did not complete it.",
        catchers=(
            "tests/contract/test_shared_committer.py::test_failed_regions_work_is_held_until_their_next_good_checkpoint",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.committing.commit_ledger:decided",
                old="if epoch.checkpoint_id <= checkpoint_id and epoch.region not in regions",
                new="if epoch.checkpoint_id <= checkpoint_id",
            ),
        ),
    ),
    Mutant(
        name="lease-not-checked-before-a-decision",
        rules=("lease-guards-outputs",),
        wrong="A run decides a checkpoint although another run has taken its prefix.",
        catchers=(
            "tests/unit/runtime/ownership/test_lease_watch.py::test_lease_guards_outputs_nothing_is_decided_under_a_prefix_that_another_job_has",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._publish",
                old="self._before_decision()",
                new="",
            ),
        ),
    ),
    Mutant(
        name="pending-batch-without-deadline",
        rules=("transaction-timeout",),
        wrong="A batch that waits for the next checkpoint sets no deadline for the decision of that checkpoint.",
        catchers=("tests/unit/runtime/coordinator/core/test_lost_transactions.py",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.coordinator_state:CoordinatorState.begin",
                old="checkpoint.decide_by(region.decide_by_s)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="newest-transaction-sets-the-deadline",
        rules=("transaction-timeout",),
        wrong="A batch may be decided until its newest transaction is too old, instead of its oldest.",
        catchers=(
            "tests/unit/runtime/spark/microbatch/test_region_query.py::test_transaction_timeout_a_batch_must_be_decided_before_its_first_transaction_grows_old",
        ),
        edits=(
            Edit(
                function="sluice.runtime.model.timestamps:earliest",
                old="return min((each for each in moments if each is not None), default=None)",
                new="return max((each for each in moments if each is not None), default=None)",
            ),
        ),
    ),
    Mutant(
        name="late-decision-aborted",
        rules=("transaction-timeout",),
        wrong="A decision that landed before its withdrawal counts as withdrawn.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_remote_steps.py::test_transaction_timeout_a_withdrawal_finds_the_decision_that_landed_before_it",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.committing.commit_steps:publish_record",
                old="return PublishOutcome.DECIDED if is_decided else PublishOutcome.TAKEN",
                new="return PublishOutcome.OURS if is_decided else PublishOutcome.TAKEN",
            ),
        ),
    ),
    Mutant(
        name="end-over-an-orphan",
        rules=("commit-acknowledged",),
        wrong="A run reports a good end while an open transaction of a dead attempt hides the last records from readers.",
        catchers=(
            "tests/unit/runtime/coordinator/shell/test_action_dispatcher.py::test_commit_acknowledged_what_failed_attempts_left_open_is_swept_before_a_good_end",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.action_dispatcher:ActionDispatcher._last_checks",
                old='return [("orphans", self._is_swept), *visible]',
                new="return visible",
            ),
        ),
    ),
    Mutant(
        name="retired-after-a-takeover",
        rules=("retire-after-commit",),
        wrong="A run that was taken over retires records that the newer run may have started from.",
        catchers=("tests/unit/runtime/coordinator/core/test_remote_steps.py",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._retire",
                old="""
                if self._is_taken_over():
                    return
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="successor-of-an-unanswered-put-not-seen",
        rules=("fence-first", "retire-after-commit"),
        wrong="A run looks for its successor only in the slot after its last answered record. That slot is empty once the successor has retired an unanswered decision there.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_state_files.py::TestRetirementAfterAnUnansweredPut",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._is_taken_over",
                old="has_open_put = self._tried > self._last",
                new="has_open_put = False",
            ),
        ),
    ),
    Mutant(
        name="abort-forgets-at-once",
        rules=("retire-after-commit",),
        wrong="An abort forgets all files that the decision in its slot keeps, before the coordinator knows which record is in the slot.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_remote_steps.py::test_retire_after_commit_a_withdrawal_forgets_nothing_that_a_landed_decision_keeps",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.io_executor:IoExecutor._publish",
                old="""
                    self._kept.note(record)
                outcome = publish_record(self._store, record, timeout_s=self._settings.call_timeout_s)
                """,
                new="""
                self._kept.note(record)
                outcome = publish_record(self._store, record, timeout_s=self._settings.call_timeout_s)
                """,
            ),
        ),
    ),
    Mutant(
        name="copied-batch-deleted",
        rules=("copy-protected",),
        wrong="A region runs on while its batch is being copied, until Spark deletes that.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_requested_checkpoint.py::TestProtection",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.requested_checkpoint:is_withheld",
                old="return last + 1 - named >= kept - _SPARE_BATCHES",
                new="return False",
            ),
        ),
    ),
    Mutant(
        name="protected-after-the-marker",
        rules=("copy-protected",),
        wrong="Spark may delete a batch between the decision of a savepoint and its copy.",
        catchers=(
            "tests/unit/runtime/coordinator/core/test_requested_checkpoint.py::TestProtection",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.core.post_commit:published",
                old="note_decided(state, checkpoint)",
                new="",
            ),
        ),
    ),
)
