"""Mutants of the checkpoint store: publishing, repairs and retention."""

from tests.mutants.model import Edit, Mutant

MUTANTS = (
    Mutant(
        name="retired-is-not-committed",
        rules=("outcome-from-broker",),
        wrong="A decision counts as not committed once its checkpoint slot is retired.",
        catchers=(
            "tests/unit/runtime/coordinator/committing/test_racing_starts.py::test_outcome_from_broker_what_a_start_has_marked_and_retired_meanwhile_is_not_lost",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.succession:is_settled",
                old="""
                record = store.read(checkpoint_id)
                return record is None or record.verdict is not Verdict.DECIDED
                """,
                new="return False",
            ),
        ),
    ),
    Mutant(
        name="fencing-records-retired",
        rules=("fence-first",),
        wrong="Retention deletes fencing records, so the next slot of a paused coordinator is empty again.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_retention.py::test_newest_decisions_and_checkpoint_0_are_kept",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.retention:indispensable",
                old="needed = set(fencing_records(ordered) | unfinished(ordered))",
                new="needed = set(unfinished(ordered))",
            ),
        ),
    ),
    Mutant(
        name="later-fencing-records-retired",
        rules=("fence-first",),
        wrong="Retention keeps checkpoint 0 and deletes the fencing records.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_retention.py::test_fence_first_a_session_that_sealed_twice_keeps_both_seals",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.retention:facts_of",
                old="is_fencing_record=record.requested_by == FENCING or record.checkpoint_id == 0,",
                new="is_fencing_record=record.checkpoint_id == 0,",
            ),
        ),
    ),
    Mutant(
        name="decision-taken-for-a-fencing-record",
        rules=("retire-after-commit",),
        wrong="A fencing record names no decision below it, so the next start does not read them.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_interrupted_starts.py::test_a_start_knows_all_fencing_records_from_the_newest_one",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.retention:name_other_records",
                old='return {_OTHER_RECORDS: ",".join(str(each) for each in ids if each not in fenced)}',
                new='return {_OTHER_RECORDS: ""}',
            ),
        ),
    ),
    Mutant(
        name="stale-listing-trusted",
        rules=("fence-first",),
        wrong="An old listing decides which record is the last one.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_interrupted_starts.py::test_fence_first_a_start_that_returns_has_stopped_every_older_run",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.checkpoint_slots:KnownSlots.ids",
                old="""
                highest, listed = max(listed, default=-1), self.listed()
                if max(listed, default=-1) <= highest:
                    return present
                """,
                new="return present",
            ),
        ),
    ),
    Mutant(
        name="record-replaced",
        rules=("publish-whole",),
        wrong="A decision is published by a rename, which replaces the record of another coordinator.",
        catchers=("tests/contract/test_checkpoint_store.py::test_one_of_many_publishers_wins",),
        edits=(
            Edit(
                function="sluice.runtime.storage.local_fs:LocalFileSystem.place",
                old="target.hardlink_to(source)",
                new="source.rename(target)",
            ),
        ),
    ),
    Mutant(
        name="record-not-synced",
        rules=("publish-whole",),
        wrong="A record gets its name before its content is on the disk.",
        catchers=("tests/unit/runtime/storage/test_local_files.py",),
        edits=(
            Edit(
                function="sluice.runtime.storage.local_fs:LocalFileSystem.write_temporary",
                old="""
                file.flush()
                os.fsync(file.fileno())
                """,
                new="",
            ),
        ),
    ),
    Mutant(
        name="lost-answer-means-published",
        rules=("publish-whole",),
        wrong="A publish whose answer was lost counts as done, and the slot is not read.",
        catchers=("tests/unit/runtime/checkpoint/test_interrupted_starts.py",),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.slot_publishing:SlotPublication.run",
                old="""
                found = self._standing()
                if found is None:
                    raise
                """,
                new="found = PublishOutcome.OURS",
            ),
        ),
    ),
    Mutant(
        name="second-repair-not-on-record",
        rules=("two-phase-repair",),
        wrong="The second repair of a decision by one session is taken for the first one, so it is never on record.",
        catchers=("tests/unit/runtime/checkpoint/test_interrupted_starts.py",),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.checkpoint_store:CheckpointStore._publish_repair",
                old="if repair.leader_session_id == session and repair.replaced == wanted:",
                new="if repair.leader_session_id == session:",
            ),
        ),
    ),
    Mutant(
        name="repair-not-synced",
        rules=("two-phase-repair",),
        wrong="An existing repair record counts as ours before it is durable, so a crash can leave the loss without its committed replacement.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_interrupted_starts.py::test_two_phase_repair_a_repair_is_ours_only_once_it_is_durable",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.checkpoint_store:CheckpointStore._publish_repair",
                old='self.fs.make_durable(_path(checkpoint_id, f"_repair-{repair.number}"))',
                new="",
            ),
        ),
    ),
    Mutant(
        name="repairs-not-followed",
        rules=("two-phase-repair",),
        wrong="Recovery commits the committables of a decision and ignores the repairs that replaced them.",
        catchers=(
            "tests/contract/test_lost_committables.py::test_repair_replaces_a_lost_committable",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.checkpoint_store:CheckpointStore.effective_committables",
                old="replaced = dict(repair.replaced)",
                new="replaced: dict[bytes, StateEntry] = {}",
            ),
        ),
    ),
    Mutant(
        name="repair-in-a-retired-slot",
        rules=("two-phase-repair",),
        wrong="A repair counts although the slot that it landed in is retired.",
        catchers=(
            "tests/unit/runtime/checkpoint/test_interrupted_starts.py::test_two_phase_repair_a_repair_that_lands_in_a_retired_place_is_no_repair",
        ),
        edits=(
            Edit(
                function="sluice.runtime.checkpoint.checkpoint_store:CheckpointStore.publish_repair",
                old="return outcome if holds_decision else PublishOutcome.TAKEN",
                new="return outcome",
            ),
        ),
    ),
)
