"""Another session has taken the job over: what the old one still does, and says, once."""

from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.core.events import (
    EndJob,
    FailBatches,
    Publish,
    Published,
    StepFailed,
)
from sluice.runtime.errors import FencedError
from tests.kit.coordinator.core_driver import FAST, CoreDriver


def test_fence_first_a_takeover_that_is_found_while_the_job_stops_ends_it_no_second_time() -> None:
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    (publish,) = driver.held
    assert isinstance(publish, Publish)
    driver.stop()
    assert [end.error for end in driver.seen(EndJob)] == [None]
    driver.tell(Published(checkpoint_id=publish.checkpoint_id, outcome=PublishOutcome.TAKEN))
    failed = driver.seen(FailBatches)[-1]
    assert failed.batches == (batch,)
    assert "taken over" in str(failed.error)
    assert len(driver.seen(EndJob)) == 1
    assert driver.core.is_fenced


def test_a_takeover_that_is_found_twice_is_reported_once() -> None:
    """By the lease, and by a place that was taken meanwhile."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    fenced = FencedError("another job uses this prefix", {}, "Stop one of them.")
    driver.tell(StepFailed(checkpoint_id=0, error=fenced))
    log = list(driver.log)
    (publish,) = driver.held
    assert isinstance(publish, Publish)
    taken = Published(checkpoint_id=publish.checkpoint_id, outcome=PublishOutcome.TAKEN)
    assert driver.tell(taken) == []
    assert driver.log == log
