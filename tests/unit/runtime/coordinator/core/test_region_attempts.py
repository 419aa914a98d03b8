"""How regions fail, come back, end and get new splits, on a manual clock."""

import dataclasses

import pytest

from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Acknowledged,
    BarrierPolled,
    EndJob,
    FailBatches,
    FetchBarrierOffsets,
    NothingDue,
    Publish,
    RegionBarrierOffsets,
    RegionFailed,
    RegionRegistered,
    RegionRestarted,
    RestartRequested,
    SplitsDiscovered,
    StepFailed,
)
from sluice.runtime.coordinator.policy.assignment import hand_over
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import Fate, RegionState
from sluice.runtime.errors import FencedError, WrongJobError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import Assignment, CheckpointKind, RegionRecord, Verdict
from sluice.runtime.model.splits import BatchKey, SplitKey
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, committable, split

# --- failures and new attempts --------------------------------------------------------------------


def test_a_new_attempt_waits_until_the_old_one_is_settled() -> None:
    """Rule `callback-after-commit`: a decided checkpoint is committed before any task of the next
    attempt starts."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    driver.answer(driver.held.pop(0))
    driver.tell(RestartRequested(region="main"))
    assert not driver.seen(RegionRestarted)
    driver.auto = True
    for step in list(driver.held):
        driver.answer(step)
    (restarted,) = driver.seen(RegionRestarted)
    assert [s.end_offset for s in restarted.restored.splits] == [3]


def test_a_restart_wakes_the_callback_that_waits() -> None:
    """Rule `callback-after-commit`: also when its batch is decided already; raising is always
    safe."""
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    driver.tell(RestartRequested(region="main"))
    (failed,) = driver.seen(FailBatches)
    assert failed.batches == (batch,)
    assert isinstance(failed.error, FencedError)


def test_other_regions_of_an_aborted_checkpoint_come_back_as_well() -> None:
    """Their batches were part of it; a region without a batch in it continues undisturbed."""
    third = RegionPlan(name="idle", source_ids=("source",))
    driver = CoreDriver(FAST, regions=(*TWO, third))
    driver.tick()
    driver.ack(driver.poll(3))
    driver.poll(0, region="idle")
    driver.poll(3, region="side")
    driver.tell(RegionFailed(region="side", attempt_id=0, error=RuntimeError("failed")))
    is_open = {view.region: view.is_open for view in driver.status().regions}
    assert is_open == {"main": False, "side": False, "idle": True}


def test_abort_before_skip_a_failed_regions_work_is_aborted_before_the_next_decision() -> None:
    third = RegionPlan(name="idle", source_ids=("source",))
    driver = CoreDriver(FAST, regions=(*TWO, third))
    driver.tick()
    batch = driver.ack(driver.poll(3))
    driver.poll(3, region="side")
    driver.auto = False
    driver.tell(RegionFailed(region="side", attempt_id=0, error=RuntimeError("failed")))
    driver.answer(driver.held.pop(0))
    (aborting,) = driver.held
    assert isinstance(aborting, AbortWork)
    assert aborting.committables == (committable(f"main.0.{batch.batch_id}"),)
    driver.tick(1.0)
    driver.ack(driver.poll(3, region="idle"), region="idle")
    assert [published.verdict for published in driver.seen(Publish)] == [Verdict.ABORTED]
    driver.auto = True
    driver.answer(aborting)
    attempts = {"main": driver.restart("main"), "side": driver.restart("side"), "idle": 0}
    driver.tick(1.0)
    for region, attempt in attempts.items():
        driver.ack(
            driver.poll(6, region=region, attempt_id=attempt), region=region, attempt_id=attempt
        )
    assert driver.seen(Publish)[-1].verdict is Verdict.DECIDED


def test_the_echo_of_a_failure_is_not_counted_twice() -> None:
    """Callback, query and engine all report it."""
    driver = CoreDriver(dataclasses.replace(FAST, tolerable_failures=1))
    driver.tick()
    for _ in range(5):
        driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("failed")))
    assert not driver.seen(EndJob)


def test_a_step_that_can_not_succeed_ends_the_job() -> None:
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    error = WrongJobError("another job's directory", {}, "Choose another.")
    driver.tell(StepFailed(checkpoint_id=1, error=error))
    assert driver.seen(EndJob)[0].error is error
    assert driver.core.is_idle


# --- stopping and ending --------------------------------------------------------------------------


def test_a_bounded_job_ends_with_a_final_checkpoint() -> None:
    """The last epoch's checkpoint is the final one."""
    driver = CoreDriver(FAST)
    driver.tick()
    driver.ack(driver.poll(3, finished=True))
    (published,) = driver.seen(Publish)
    assert (published.kind, published.requested_by) == (CheckpointKind.FINAL, "end")
    assert driver.seen(EndJob) == [EndJob(error=None, finished=True)]
    assert isinstance(driver.tell_poll()[0], NothingDue)


# --- splits and sweeps ----------------------------------------------------------------------------


def test_a_region_has_passed_nothing_that_a_split_found_since_its_cut_has_not() -> None:
    (old, new), plan = (split(0, 0, 4), split(7, 0, 0)), TWO[0]
    known = RegionRecord(region="main", attempt_id=0, splits=(old,), least_watermark_ms=7)
    region = RegionState(plan=plan, attempt_id=0, record=known, pace=Pace(limit=10))
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    read = dataclasses.replace(known, batch_id=1, splits=(split(0, 4, 9),), least_watermark_ms=9)
    ack = Acknowledgement(batch=batch, checkpoint_id=1, region=read)
    for discovered, expected in (({}, [9, 7, 7]), ({new.key: new}, [None, None, None])):
        region.discovered = discovered
        records = (region.record_with(ack), region.record_with(None), region.skipped_record())
        assert [each.least_watermark_ms for each in records] == expected
        assert all(len(each.splits) == 1 + len(discovered) for each in records)


def test_a_region_has_passed_nothing_that_a_split_given_to_it_has_not() -> None:
    given, kept = dataclasses.replace(split(1, 0, 4), watermark_ms=3), split(0, 0, 4)
    main = RegionRecord(region="main", attempt_id=0, splits=(kept,), least_watermark_ms=7)
    side = RegionRecord(region="side", attempt_id=0, splits=(given,), least_watermark_ms=3)
    owners = {"main": frozenset({kept.key, given.key}), "side": frozenset[SplitKey]()}
    target_region, _ = hand_over((main, side), Assignment(version=2, regions=owners))
    assert target_region.least_watermark_ms == 3


def test_a_cut_that_knows_nothing_of_a_new_split_does_not_end_a_bounded_job() -> None:
    """Another region's poll has discovered it while this one's source was cut up to its end."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    (ask,) = (a for a in driver.tell(BarrierPolled(region="side", attempt_id=0)))
    assert isinstance(ask, FetchBarrierOffsets)
    driver.ack(driver.poll(3, finished=True))
    new = (split(7, 0, 0), split(8, 0, 0))
    driver.tell(SplitsDiscovered(source_id="source", splits=new))
    stale = RegionBarrierOffsets(
        checkpoint_id=ask.checkpoint_id,
        region="side",
        attempt_id=0,
        splits=(split(1, 0, 0),),
        finished=True,
    )
    assert driver.tell(stale) == [NothingDue()]
    for _ in range(3):
        for region in ("main", "side"):
            barrier = driver.poll(3, region=region, finished=True)
            if barrier is not None:
                driver.ack(barrier, region=region)
        driver.tick(1.0)
    assert driver.core.is_over
    read = {s.partition: s.end_offset for r in driver.seen(Publish)[-1].regions for s in r.splits}
    assert read == {0: 3, 1: 3, 7: 3, 8: 3}


def test_splits_of_another_source_are_nobodys() -> None:
    driver = CoreDriver(FAST)
    driver.tell(SplitsDiscovered(source_id="other", splits=(split(7, 0, 0, source_id="other"),)))
    assert driver.status().regions[0].splits == {"input-0": 0}


def test_a_sweep_leaves_open_batches_alone() -> None:
    """Rule `ids-never-reused`: open, decided and unmarked; settled ones may be swept, and
    discarded ones."""
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    assert driver.core.fate(batch) is Fate.OPEN
    driver.answer(driver.held.pop(0))
    view = driver.core.sweep_view("job")
    assert driver.core.fate(batch) is Fate.OPEN
    assert view.protected == (committable("main.0.1"),)
    driver.auto = True
    driver.answer(driver.held.pop(0))
    assert driver.core.fate(batch) is Fate.SETTLED
    assert driver.core.sweep_view("job").protected == ()
    later = dataclasses.replace(batch, batch_id=2)
    assert driver.core.fate(later) is Fate.OPEN
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("failed")))
    assert driver.core.fate(later) is Fate.DISCARDED
    driver.tell(RestartRequested(region="main"))
    assert driver.core.fate(later) is Fate.OUTDATED
    assert driver.core.fate(dataclasses.replace(later, region="gone")) is Fate.OUTDATED


def test_memory_stays_flat_over_hundreds_of_checkpoints() -> None:
    driver = CoreDriver(FAST)
    for number in range(500):
        driver.epoch(3 * (number + 1))
        driver.tick(1.0)
        driver.log.clear()
    assert driver.core.last_committed == 500
    assert driver.core.settled_through >= 500
    assert len(driver.status().pending) <= 1


# --- registrations --------------------------------------------------------------------------------


def _told(batch: BatchKey, *names: str) -> RegionRegistered:
    work = OpenWork(batch=batch, committables=tuple(committable(name) for name in names))
    return RegionRegistered(
        registration=RegionRegistration(
            region=batch.region, attempt_id=batch.attempt_id, open=(work,)
        )
    )


def _aborted(driver: CoreDriver) -> list[bytes]:
    return [entry.payload for each in driver.seen(AbortWork) for entry in each.committables]


def test_abort_before_skip_what_an_attempt_left_open_is_aborted_before_its_region_is_skipped() -> (
    None
):
    """It had flushed, and failed before it could acknowledge: no checkpoint knows of it."""
    driver = CoreDriver(dataclasses.replace(FAST, handler=RegionalCheckpointHandler()), regions=TWO)
    driver.tick()
    driver.poll(3)
    other = driver.poll(3, region="side")
    left = BatchKey(region="main", attempt_id=0, batch_id=1)
    driver.tell(_told(left, "living"))
    assert not _aborted(driver), "it may still be acknowledged"
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("failed")))
    driver.tell(_told(left, "left"))
    driver.ack(other, region="side")
    (decided,) = driver.seen(Publish)
    assert decided.verdict is Verdict.DECIDED
    assert _aborted(driver) == [b"left"]
    aborted = next(each for each in driver.log if isinstance(each, AbortWork))
    assert driver.log.index(aborted) < driver.log.index(decided)
    driver.tell(_told(left, "left"))
    assert _aborted(driver) == [b"left", b"left"], "reported again, it is aborted again"


def test_abort_before_skip_what_a_decision_or_an_open_checkpoint_has_is_not_aborted_by_what_is_reported() -> (
    None
):
    """The committer, or the checkpoint's own abort, ends it in its own time."""
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    named = f"main.0.{batch.batch_id}"
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("failed")))
    driver.tell(_told(batch, named))
    assert not _aborted(driver), "its decision is being published"
    driver.auto = True
    for step in list(driver.held):
        driver.answer(step)
    driver.tell(_told(batch, named))
    assert not _aborted(driver), "it is committed"


def test_callback_after_commit_a_registration_of_a_superseded_attempt_is_refused() -> None:
    driver = CoreDriver(FAST)
    driver.epoch(3)
    now = driver.restart()
    for attempt_id in (0, now + 1):
        late = BatchKey(region="main", attempt_id=attempt_id, batch_id=9)
        with pytest.raises(FencedError, match="newer attempt"):
            driver.tell(_told(late, "late"))
    with pytest.raises(WrongJobError):
        driver.tell(_told(BatchKey(region="other", attempt_id=now, batch_id=1), "x"))
    assert not _aborted(driver)
    driver.tell(_told(BatchKey(region="main", attempt_id=now, batch_id=1)))


def test_batch_identity_an_acknowledgement_that_is_repeated_while_it_waits_counts_once() -> None:
    """The answer to the first was lost; no checkpoint is open that it could have joined."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=2))
    for _ in range(2):
        driver.tell(Acknowledged(ack=ack))
    driver.tick(1.0)
    assert [found.regions[0].batch_id for found in driver.seen(Publish)] == [1, 2]
    assert not driver.seen(FailBatches)
