"""Places in the checkpoint directory: published in order, and decided or withdrawn for certain."""

import dataclasses

import pytest

from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Acknowledged,
    Commit,
    EndJob,
    FailBatches,
    Publish,
    Published,
    RegionFailed,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.errors import FencedError, UnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, committable

UNKNOWN = PublishOutcome.UNKNOWN


def test_a_place_is_published_only_after_a_place_of_our_own() -> None:
    """Rule `fence-first`: places are dense; n+1 waits for n, whichever is acknowledged first."""
    driver = CoreDriver(dataclasses.replace(FAST, max_concurrent=2), regions=TWO)
    driver.auto = False
    driver.tick()
    driver.ack(driver.poll(3))
    assert driver.poll(0, region="side") is None  # same offsets: checkpoint 1 is decided now
    (first,) = driver.held
    driver.tick(1.0)
    driver.ack(driver.poll(5, region="side"), region="side")
    assert driver.poll(3) is None  # and checkpoint 2 has all that it waits for
    assert driver.poll(3) is None
    assert driver.held == [first]
    driver.held.clear()
    driver.answer(first)
    assert [(type(step), step.checkpoint_id) for step in driver.held] == [(Commit, 1), (Publish, 2)]


def test_a_taken_place_stops_everything() -> None:
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN))
    (end,) = driver.seen(EndJob)
    assert [each.state for each in driver.status().pending] == ["fenced"]
    (failed,) = driver.seen(FailBatches)
    assert isinstance(end.error, FencedError)
    assert failed.batches == (batch,)
    driver.tick(3600.0)
    assert not driver.seen(Commit)
    assert not driver.seen(AbortWork)
    with pytest.raises(FencedError):
        driver.poll(9)
    with pytest.raises(FencedError):
        driver.trigger(CheckpointKind.CHECKPOINT, "user")
    with pytest.raises(FencedError):
        driver.restart()


def test_an_unanswered_publish_is_repeated_and_never_aborted() -> None:
    """Rule `publish-whole`: the record may be there; neither time nor a failure aborts a DECIDING
    checkpoint."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for _ in range(5):
        driver.held.clear()
        driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
        driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("stopped")))
        driver.tick(20.0)
        (again,) = driver.held
        assert again == driver.seen(Publish)[0]
    assert not driver.seen(AbortWork)
    driver.auto = True
    driver.answer(driver.held[-1])
    assert driver.core.last_committed == 1


def grown_old(settings: CheckpointSettings = FAST, *, within_s: float = 5.0) -> CoreDriver:
    """A decision of two regions that was not answered until it was too old; its abort is tried."""
    driver = CoreDriver(settings, regions=TWO)
    driver.auto = False
    driver.tick()
    for name in ("main", "side"):
        barrier = driver.poll(3, region=name)
        batch = BatchKey(region=name, attempt_id=0, batch_id=1)
        ack = driver.acknowledgement(batch, barrier)
        decide_by_s = driver.clock() + within_s
        driver.tell(Acknowledged(ack=dataclasses.replace(ack, decide_by_s=decide_by_s)))
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(within_s - 1.0)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED] * 2
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(1.0)
    (abort,) = driver.seen(Publish)[2:]
    assert abort.verdict is Verdict.ABORTED
    assert "too old to decide" in abort.reason
    assert not driver.seen(AbortWork)
    return driver


def test_transaction_timeout_what_grew_old_while_deciding_is_withdrawn() -> None:
    """The store was away: its transactions may be aborted when it is back."""
    driver = grown_old()
    assert not driver.seen(FailBatches)
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(1.0)
    assert driver.core.is_live("main", 0)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (aborted,) = driver.seen(AbortWork)
    assert set(aborted.committables) == {committable("main.0.1"), committable("side.0.1")}
    failed = {batch.region for each in driver.seen(FailBatches) for batch in each.batches}
    assert failed == {"main", "side"}
    assert not driver.core.is_live("main", 0)
    assert not driver.seen(Commit)


def test_transaction_timeout_the_regions_of_a_withdrawn_decision_read_again() -> None:
    """Once its abort is done; the next checkpoint is decided."""
    driver = grown_old()
    driver.auto = True
    driver.held.clear()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    for name in ("main", "side"):
        driver.tell(RestartRequested(region=name))
    assert {each.region for each in driver.seen(RegionRestarted)} == {"main", "side"}
    attempt_id = driver.seen(RegionRestarted)[0].attempt_id
    driver.tick(1.0)
    for name in ("main", "side"):
        barrier = driver.poll(3, region=name, attempt_id=attempt_id)
        driver.ack(barrier, region=name, attempt_id=attempt_id)
    assert driver.core.last_committed == driver.seen(Commit)[-1].checkpoint_id > 1


def test_a_withdrawn_decision_is_a_failed_checkpoint() -> None:
    driver = grown_old(dataclasses.replace(FAST, tolerable_failures=0))
    assert not driver.seen(EndJob)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (end,) = driver.seen(EndJob)
    assert "too old to decide" in str(end.error)


def test_transaction_timeout_a_decision_that_landed_before_its_withdrawal_stands() -> None:
    """An answer that was late: from here on there is only forward."""
    driver = grown_old()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.DECIDED))
    (commit,) = driver.seen(Commit)
    assert set(commit.committables) == {committable("main.0.1"), committable("side.0.1")}
    assert not driver.seen(AbortWork)
    assert driver.core.is_live("main", 0)


def test_transaction_timeout_a_batch_that_no_barrier_asked_for_grows_old_in_its_checkpoint() -> (
    None
):
    """As a drop-in query's, each of which begins one: its transactions are no younger for that."""
    driver = CoreDriver(CheckpointSettings(interval_s=None))
    driver.auto = False
    ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=1))
    driver.tell(Acknowledged(ack=dataclasses.replace(ack, decide_by_s=driver.clock() + 5.0)))
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(5.0)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED, Verdict.ABORTED]


def test_fence_first_a_withdrawal_in_a_place_that_is_taken_ends_the_run() -> None:
    driver = grown_old()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN))
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, FencedError)
    assert not driver.seen(AbortWork)


def test_pauses_between_tries_grow_up_to_a_bound() -> None:
    """A broken store is not hammered."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    pauses = []
    for _ in range(5):
        driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
        deadline = driver.core.deadline_s()
        assert deadline is not None
        pauses.append(round(deadline - driver.clock(), 6))
        driver.tick(1.0)
    assert pauses == [0.1, 0.2, 0.4, 0.4, 0.4]


def test_nothing_is_aborted_before_its_abort_is_on_record() -> None:
    """Section 4: the ABORTED record first, then the transactions."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.auto = False
    driver.tick()
    batch = driver.ack(driver.poll(3))
    driver.poll(3, region="side")
    driver.tick(10.1)
    assert not driver.seen(AbortWork)
    driver.answer(driver.held[0])
    (aborted,) = driver.seen(AbortWork)
    assert aborted.committables == (committable(f"main.0.{batch.batch_id}"),)


def test_an_abort_that_the_store_does_not_answer_ends_the_run_in_time() -> None:
    """Regions wait for its record to begin again; the limit counts from the first lost answer."""
    driver = CoreDriver(dataclasses.replace(FAST, settle_timeout_s=30.0), regions=TWO)
    driver.auto = False
    driver.tick()
    driver.poll(3)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("failed")))
    driver.tick(40.0)
    (publish,) = driver.held
    assert isinstance(publish, Publish)
    unanswered = Published(checkpoint_id=publish.checkpoint_id, outcome=UNKNOWN)
    driver.tell(unanswered)
    driver.tick(29.0)
    driver.tell(unanswered)
    assert not driver.seen(EndJob)
    driver.tick(2.0)
    driver.tell(unanswered)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, UnreachableError)
    assert "state=aborting" in str(end.error)
