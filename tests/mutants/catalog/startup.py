"""Mutants of a start: fencing, recovery and settlement."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="newest-decision-not-settled",
        rules=("outcome-from-broker",),
        wrong="A start does not commit the newest decision that has no completion marker, and continues.",
        catchers=("tests/unit/runtime/coordinator/start/test_recovery.py",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.recovery:to_settle",
                old="found = (slot for slot in reversed(history.slots) if slot.is_decided)",
                new="found = (slot for slot in reversed(history.slots[1:]) if slot.is_decided)",
            ),
        ),
    ),
    Mutant(
        name="tasks-before-recovery",
        rules=("outcome-from-broker",),
        wrong="The regions start at once, while the start still commits decided transactions.",
        catchers=(
            "tests/unit/runtime/coordinator/shell/test_coordinator.py::test_no_region_begins_before_what_is_decided_is_committed",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.shell.coordinator:BarrierCoordinator.start",
                old="log.info(",
                new="""
                settling = sequence.run.__globals__["settling"]
                threading.Thread(target=drive, args=(settling,), daemon=True).start()
                log.info(
                """,
            ),
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence.run",
                old="yield from self._settle(history, attempt_id, kept, resumed_from=resume_id)",
                new="globals()['settling'] = self._settle(history, attempt_id, kept, resumed_from=resume_id)",
            ),
        ),
    ),
    Mutant(
        name="operator-overrules-the-broker",
        rules=("outcome-from-broker",),
        wrong="A transaction that an operator has declared committed counts as committed, although its broker reports it aborted.",
        catchers=(
            "tests/unit/runtime/coordinator/policy/test_accepted_losses.py::test_outcome_from_broker_what_is_certainly_lost_is_not_taken_for_committed",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.settlement:Settlement._without_words",
                old="unknown = [e for e, report in answers if report.outcome is CommitOutcome.UNKNOWN]",
                new="unknown = [e for e, report in answers if report.outcome is not CommitOutcome.COMMITTED]",
            ),
        ),
    ),
    Mutant(
        name="fencing-record-below-a-taken-slot",
        rules=("fence-first",),
        wrong="A fencing record counts although a higher slot is taken.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_recovery.py::test_a_seal_below_a_taken_place_does_not_count",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence._fence",
                old="elif outcome is PublishOutcome.OURS and is_last:",
                new="elif outcome is PublishOutcome.OURS:",
            ),
        ),
    ),
    Mutant(
        name="positions-of-another-source",
        rules=("restore-by-attempt",),
        wrong="A source resumes at the positions of other sources, too, so a partition that only another source reads is never discovered.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_restore.py::test_restore_by_attempt_a_source_continues_at_its_own_positions_alone",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.recovery:positions_of",
                old="if split.source_id == source_id",
                new="if True",
            ),
        ),
    ),
    Mutant(
        name="repaired-without-permission",
        rules=("two-phase-repair",),
        wrong="A start writes lost records again although the job must stop at a loss.",
        catchers=("tests/unit/runtime/coordinator/start/test_recovery.py",),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.settlement:Settlement._can_repair",
                old="if heir is None or not heir.can_repair or self.settings.on_lost is not OnLost.REPAIR:",
                new="if heir is None or not heir.can_repair:",
            ),
        ),
    ),
    Mutant(
        name="every-loss-accepted",
        rules=("two-phase-repair",),
        wrong="After an accepted loss, a start also continues without the records that were lost later.",
        catchers=(
            "tests/unit/runtime/coordinator/policy/test_accepted_losses.py::test_two_phase_repair_what_is_lost_after_an_acceptance_stops_the_job_again",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.settlement:Settlement._lose",
                old="outcomes = yield from self._repair_each(record, filter(self._can_repair, by_region))",
                new="""
                if self.store.accepted(record.checkpoint_id):
                    self._left_out |= set(map(digest_of, lost))
                    self._committers = SharedCommitters(self.sinks, self.plan)
                    return True
                outcomes = yield from self._repair_each(record, filter(self._can_repair, by_region))
                """,
            ),
        ),
    ),
    Mutant(
        name="taken-over-run-continues",
        rules=("lease-guards-outputs",),
        wrong="A start does not check whether another start has written a fencing record after its own.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_interrupted_starts.py::test_lease_guards_outputs_a_start_that_slept_after_its_seal_leaves_the_lease_alone",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence.run",
                old="""
                    raise taken_over(attempt_id + 1)
                if self.takeover is not None:
                """,
                new="""
                    pass
                if self.takeover is not None:
                """,
            ),
        ),
    ),
    Mutant(
        name="topics-of-other-sources-given-up",
        rules=("restore-by-attempt",),
        wrong="A start gives up a topic's positions of every source, not only of the one that names the topic.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_rescaling.py::test_a_topic_that_its_source_gives_up_leaves_the_record_and_the_others_continue",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.policy.assignment:without_topics",
                old="return key[:2] not in forgotten",
                new="return key[1] not in {topic for _, topic in forgotten}",
            ),
        ),
    ),
    Mutant(
        name="restored-record-not-read-after-the-fence",
        rules=("retire-after-commit",),
        wrong="A start goes back to a checkpoint that an older run has retired before the fencing record.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_restore.py::test_retire_after_commit_a_start_reads_again_what_it_goes_back_to_after_its_fencing_record",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.startup:StartSequence._fence",
                old="if self._slots.is_gone(resume_id):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="return-to-a-retired-checkpoint",
        rules=("retire-after-commit",),
        wrong="A start returns to the checkpoint of a fencing record, although an older run has retired it.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_restore.py::test_retire_after_commit_a_start_returns_to_no_record_that_an_older_run_retired_late",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.slot_reader:SlotReader._slot",
                old="is_void=recovery.may_be_void(record, above) and self.is_gone(record.restored_from),",
                new="is_void=False,",
            ),
        ),
    ),
    Mutant(
        name="repeated-restore-not-recorded",
        rules=("restore-by-attempt",),
        wrong="A start repeats the restore of a run that decided nothing, and does not record it, so that run's program goes back once more.",
        catchers=(
            "tests/unit/runtime/coordinator/start/test_restore.py::test_a_restore_that_another_start_has_carried_out_is_not_done_again_by_a_restart",
        ),
        edits=(
            Edit(
                function="sluice.runtime.coordinator.start.recovery:recorded_wish",
                old="return slot.resumed_from if is_restore else None",
                new="return None",
            ),
        ),
    ),
)
