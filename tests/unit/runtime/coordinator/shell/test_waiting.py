"""Who waits for the coordinator: for a batch, for an answer, for the end of an old life."""

import copy
import pickle
import threading
from concurrent.futures import Future

import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import RestartedRegion
from sluice.runtime.coordinator.shell.action_dispatcher import BatchWaiters
from sluice.runtime.coordinator.shell.restart_waits import RequestedRestart, result_within
from sluice.runtime.errors import StreamError, UnreachableError, WaitedTooLongError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey
from tests.kit.fakes import ManualClock

BATCH = BatchKey(region="main", attempt_id=0, batch_id=1)
BEGINS = RestartedRegion(attempt_id=7, restored=RegionRecord(region="main", attempt_id=7))


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
    with pytest.raises(WaitedTooLongError, match=r"waits_for=trigger waited_s=0\.0"):
        result_within(Future[int](), 0.0, {"waits_for": "trigger"})


def test_an_answer_that_is_a_wait_of_its_own_is_told_as_it_is() -> None:
    """It is no wait for the answer, though both are time-outs."""
    answer: Future[int] = Future()
    error = WaitedTooLongError("a checkpoint could not be settled in time", {}, "Start it again.")
    answer.set_exception(error)
    with pytest.raises(WaitedTooLongError) as raised:
        result_within(answer, 1.0, {"waits_for": "trigger"})
    assert raised.value is error


def test_a_wait_that_took_too_long_is_one_error_everywhere_a_stream_error_and_a_time_out() -> None:
    """Whoever retries what is unreachable retries it, whoever catches Python's time-outs has it;
    and it crosses processes whole."""
    error = WaitedTooLongError("nobody came", {"waited_s": 3.0, "who": "main"}, "Ask again.")
    for found in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(found, StreamError)
        assert isinstance(found, UnreachableError)
        assert isinstance(found, TimeoutError)
        assert found.args == ("nobody came", {"waited_s": 3.0, "who": "main"}, "Ask again.")
        assert str(found) == "nobody came [waited_s=3.0 who=main]. Ask again."
        assert (found.errno, found.filename) == (None, None), "no number, and no path"


def test_abort_before_skip_a_new_life_does_not_begin_between_its_answer_and_its_sweep() -> None:
    """Who polls in this very moment has to come again: nothing says yet that it was swept."""
    answer: Future[RestartedRegion] = Future()
    seen: list[RestartedRegion | None] = []
    swept = threading.Event()
    answer.add_done_callback(lambda _: seen.append(asked.poll()))
    asked = RequestedRestart(answer, sweep=lambda: swept, sweep_limit_s=10.0, clock=ManualClock())
    answer.set_result(BEGINS)
    assert seen == [None]
    assert asked.poll() is None
    swept.set()
    assert asked.poll() == BEGINS
