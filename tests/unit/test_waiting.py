"""Who waits for the coordinator: for a batch, for an answer, for the end of an old life."""

import threading
from concurrent.futures import Future

import pytest

from runtime.checkpoint.asked_restart import AskedRestart
from runtime.checkpoint.plan import RestartedRegion
from runtime.checkpoint.waiting import BatchWaiters, result_within
from runtime.errors import UnreachableError
from runtime.model import BatchKey, RegionRecord
from tests.fakes import ManualClock

BATCH = BatchKey(region="main", generation=0, batch_id=1)
BEGINS = RestartedRegion(generation=7, restored=RegionRecord(region="main", generation=7))


def test_a_wait_that_is_given_up_leaves_the_others_of_its_batch_waiting() -> None:
    """A callback and a drained pipeline may wait for one batch, each with a bound of its own."""
    waiters = BatchWaiters()
    short, long = waiters.add(BATCH), waiters.add(BATCH)
    waiters.remove(BATCH, short)
    waiters.resolve([BATCH], None)
    assert long.wait(0.0)
    assert not short.wait(0.0)
    waiters.remove(BATCH, long)


def test_an_answer_that_does_not_come_in_time_is_an_error_that_says_what_was_asked() -> None:
    """A savepoint behind a slow checkpoint: whoever asked may ask again."""
    with pytest.raises(UnreachableError, match=r"waits_for=trigger timeout_s=0\.0"):
        result_within(Future[int](), 0.0, {"waits_for": "trigger"})


def test_rule_17_a_new_life_does_not_begin_between_its_answer_and_its_sweep() -> None:
    """Who polls in this very moment has to come again: nothing says yet that it was swept."""
    answer: Future[RestartedRegion] = Future()
    seen: list[RestartedRegion | None] = []
    swept = threading.Event()
    answer.add_done_callback(lambda _: seen.append(asked.poll()))
    asked = AskedRestart(answer, sweep=lambda: swept, sweep_limit_s=10.0, clock=ManualClock())
    answer.set_result(BEGINS)
    assert seen == [None]
    assert asked.poll() is None
    swept.set()
    assert asked.poll() == BEGINS
