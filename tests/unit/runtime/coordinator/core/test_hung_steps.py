"""A remote step that never returns, as where a file system hangs: it is told, and ends the job."""

import logging
import threading
from dataclasses import replace

import pytest

from sluice.runtime.contracts import CommitOutcome, PublishOutcome
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Action,
    Commit,
    CoreEvent,
    EndJob,
    MarkCommitted,
    Publish,
    Published,
    Repair,
    Repaired,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import OnLost, RegionPlan
from sluice.runtime.coordinator.shell.core_loop import StepThread
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.checkpoint_record import Verdict
from tests.kit.coordinator.core_driver import FAST, CoreDriver, committable
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of
from tests.kit.fakes import ManualClock
from tests.kit.waiting import PATIENCE_S, wait_for
from tests.unit.runtime.ownership.test_lease_watch import publish

HUNG = replace(FAST, settle_timeout_s=30.0, call_timeout_s=2.0)
CHAINED = (RegionPlan(name="main", source_ids=("source",), chained=True),)


def _hanging(step: type[Action]) -> CoreDriver:
    """A run whose step of this kind is never answered."""
    driver = CoreDriver(HUNG)
    driver.auto = False
    driver.epoch(3)
    while not isinstance(driver.held[-1], step):
        driver.answer(driver.held.pop())
    return driver


def _watch(driver: CoreDriver, seconds: float) -> None:
    for _ in range(round(seconds)):
        driver.tick(1.0)


@pytest.mark.parametrize("step", [Publish, Commit, MarkCommitted])
def test_a_step_that_never_returns_ends_the_job(step: type[Action]) -> None:
    """Nothing else would: without an answer nothing is late, and nothing is tried again."""
    driver = _hanging(step)
    _watch(driver, HUNG.hung_after_s - 1.0)
    assert not driver.seen(EndJob)
    _watch(driver, 1.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, UnreachableError)
    assert "checkpoint_id=1" in str(end.error)


def test_publish_whole_the_end_of_the_job_is_no_answer_to_a_step_that_hangs() -> None:
    """It may have decided: nothing of it is aborted, and when it returns it counts as ever."""
    driver = _hanging(Publish)
    _watch(driver, 2 * HUNG.hung_after_s)
    assert driver.seen(EndJob)
    assert not driver.seen(AbortWork)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED]
    driver.auto = True
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (commit,) = driver.seen(Commit)
    assert commit.committables == (committable("main.0.1"),)
    assert driver.core.last_committed == 1


def test_each_step_has_all_the_time() -> None:
    """A store and brokers that are slow, but return."""
    driver = _hanging(Publish)
    for step in (Publish, Commit, MarkCommitted):
        _watch(driver, HUNG.hung_after_s - 1.0)
        (asked,) = driver.held
        assert isinstance(asked, step)
        driver.held.clear()
        driver.answer(asked)
    assert driver.core.last_committed == 1
    assert not driver.seen(EndJob)


def test_no_step_could_return_while_the_whole_driver_was_stopped() -> None:
    """Behind a pause it has as long as it had before."""
    driver = _hanging(Publish)
    driver.tick(10 * HUNG.hung_after_s)
    assert not driver.seen(EndJob)
    driver.auto = True
    driver.answer(driver.held.pop())
    assert driver.core.last_committed == 1


def test_two_phase_repair_a_repair_takes_as_long_as_it_takes() -> None:
    """It writes again what all tasks of a region had written, in one process."""
    driver = CoreDriver(replace(HUNG, on_lost=OnLost.REPAIR), regions=CHAINED)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    assert driver.seen(Repair)
    _watch(driver, 3 * HUNG.hung_after_s)
    assert not driver.seen(EndJob)
    replaced = {b"main.0.1": committable("replacement")}
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert driver.core.last_committed == 1


def test_a_step_that_does_not_return_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Again and again, and that it has returned."""
    caplog.set_level(logging.WARNING)
    store, clock = FakeStore(), ManualClock()
    hangs, answers = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        hangs.set()
        assert answers.wait(PATIENCE_S)

    store.on_call = hang
    told: list[CoreEvent] = []
    thread = StepThread(hands_of(store), overdue_s=30.0, clock=clock)
    thread.start(told.append)
    thread.put(publish(Verdict.ABORTED))
    assert hangs.wait(PATIENCE_S)
    for seconds, lines in ((29.0, 0), (1.0, 1), (29.0, 1), (1.0, 2)):
        clock.advance(seconds)
        thread.log_overdue()
        thread.log_overdue()
        assert len(caplog.messages) == lines
    assert caplog.messages[0] == (
        "remote step has not returned: step=Publish checkpoint_id=1 running_s=30"
    )
    answers.set()
    wait_for(lambda: told, poll_s=0.001)
    thread.stop(timeout_s=PATIENCE_S)
    thread.log_overdue()
    assert caplog.messages[2:] == [
        "remote step has returned: step=Publish checkpoint_id=1 elapsed_s=60"
    ]
