"""The lineage of a run: which committed batches of earlier runs belong to its past."""

import dataclasses

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.recovery import History, may_resume, with_lineage
from sluice.runtime.coordinator.start.slot_reader import SlotReader
from sluice.runtime.coordinator.start.startup import Found
from sluice.runtime.model.checkpoint_record import FENCING, Verdict
from sluice.runtime.model.state.batch_lineage import BatchLineage
from tests.kit.coordinator.starting_job import PLAN, Job, aborted, record

WITH_TOPIC = dataclasses.replace(
    PLAN, regions=(*PLAN.regions, RegionPlan(name="reader", upstream=("main",)))
)


def decided(job: Job, found: Found, checkpoint_id: int, batch_id: int) -> None:
    """The run's next decision, with the settings that its records have."""
    plan = with_lineage(WITH_TOPIC, found.lineage, attempt_id=found.attempt_id)
    made = record(checkpoint_id, settings=plan.settings)
    region = dataclasses.replace(made.regions[0], attempt_id=found.attempt_id, batch_id=batch_id)
    job.store.records[checkpoint_id] = dataclasses.replace(made, regions=(region,))
    job.store.committed.add(checkpoint_id)


def started() -> Job:
    return Job(record(0), record(1), record(2), committed=(0, 1, 2))


def test_a_start_from_the_newest_decision_has_no_rewind() -> None:
    assert started().start().lineage == BatchLineage()


def test_a_start_from_an_older_decision_leaves_out_later_batches() -> None:
    lineage = started().start(restore_from=1).lineage
    assert lineage.has("main", 0, 1)
    assert not lineage.has("main", 0, 2)
    assert lineage.has("main", 3, 0), "a batch of the new run"


def test_a_start_that_follows_a_crashed_rewind_leaves_them_out_too() -> None:
    """The fencing record of the first one names the older checkpoint; nothing is decided since."""
    job = started()
    first = job.start(restore_from=1)
    second = job.start(session="second")
    third = job.start(session="third")
    assert first.attempt_id < second.attempt_id < third.attempt_id
    assert not third.lineage.has("main", 0, 2)
    assert third.lineage.has("main", 0, 1)


def test_a_rewind_stays_in_the_lineage_of_later_runs() -> None:
    job = started()
    rewound = job.start(restore_from=1)
    decided(job, rewound, rewound.attempt_id + 1, batch_id=5)
    later = job.start(session="later").lineage
    assert later.has("main", rewound.attempt_id, 5)
    assert not later.has("main", 0, 2)


def test_a_start_from_before_a_rewind_has_another_past() -> None:
    job = started()
    rewound = job.start(restore_from=1)
    decided(job, rewound, rewound.attempt_id + 1, batch_id=5)
    back = job.start(session="back", restore_from=2).lineage
    assert back.has("main", 0, 2)
    assert not back.has("main", rewound.attempt_id, 5)


def test_aborted_records_after_the_newest_decision_are_no_rewind() -> None:
    job = Job(record(0), record(1), aborted(2), committed=(0, 1))
    assert job.start().lineage == BatchLineage()


def test_fencing_records_of_crashed_starts_are_no_rewind() -> None:
    job = started()
    for session in ("one", "two", "three"):
        assert job.start(session=session).lineage == BatchLineage()
    fences = [r for r in job.store.records.values() if r.requested_by == FENCING]
    assert [each.verdict for each in fences] == [Verdict.ABORTED] * 3


def test_the_settings_are_for_jobs_with_topics_alone() -> None:
    assert with_lineage(PLAN, BatchLineage(), attempt_id=3) == PLAN


def resumes(job: Job, plan: JobPlan, checkpoint_id: int) -> bool:
    """Whether attempts of the last run continue in one that resumes from a checkpoint now."""
    ids = job.store.slots()
    slots = SlotReader(job.store).newest(ids, None)
    assert slots is not None
    history = History(ids=tuple(ids), slots=tuple(slots))
    resumed = job.store.records[checkpoint_id]
    fenced = job.store.known_fencing_records()
    fences = [r for r in job.store.records.values() if r.requested_by == FENCING]
    last = max(fences, key=lambda each: each.checkpoint_id, default=job.store.records[0])
    listed = ListedAttempts(run_attempt_id=last.checkpoint_id, resumed_from=last.restored_from or 0)
    return may_resume(
        *(resumed, history, plan, fenced), listed=listed, attempt_id=history.next_slot
    )


def test_attempts_resume_while_their_rows_stay_in_the_lineage() -> None:
    job = started()
    assert resumes(job, WITH_TOPIC, 2)
    job.start()
    assert resumes(job, WITH_TOPIC, 2)


def test_no_attempt_resumes_whose_later_rows_a_rewind_leaves_out() -> None:
    """The run that went back died before its first decision; without a topic nothing is left
    out."""
    job = started()
    job.start(restore_from=1)
    assert not resumes(job, WITH_TOPIC, 1)
    assert resumes(job, PLAN, 1)


def test_attempts_resume_again_after_a_decision_with_the_rewind() -> None:
    job = started()
    rewound = job.start(restore_from=1)
    decided(job, rewound, rewound.attempt_id + 1, batch_id=5)
    assert resumes(job, WITH_TOPIC, rewound.attempt_id + 1)
