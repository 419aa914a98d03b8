"""The thread that owns the core, and the one that does its remote steps: what they survive."""

import logging
from collections.abc import Callable, Iterator, Sequence

import pytest

from runtime.checkpoint.loop import CoreLoop, StepThread
from runtime.checkpoint.messages import (
    Action,
    CoreEvent,
    EndJob,
    Published,
    RegionFailed,
    StepFailed,
    StopAsked,
)
from runtime.contracts import PublishOutcome
from runtime.errors import FencedError, UnreachableError
from runtime.model import Verdict
from tests.core_driver import FAST, CoreDriver
from tests.fake_store import FakeStore
from tests.run_hands import hands_of
from tests.unit.test_owner_watch import fenced, publish
from tests.waiting import PATIENCE_S, wait_for

_FAILED = RegionFailed(region="main", generation=0, error=RuntimeError("a task failed"))


class Bench:
    """A loop around a core with one region, whose actions go to ``carry_out``."""

    def __init__(self) -> None:
        driver = CoreDriver(FAST)
        self.core, self.clock = driver.core, driver.clock
        self.done: list[Action] = []
        self.carry_out: Callable[[Sequence[Action]], None] = self.done.extend
        self.loop = CoreLoop(
            self.core, clock=self.clock, on_actions=lambda actions: self.carry_out(actions)
        )
        self.loop.start()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.stop(timeout_s=PATIENCE_S)


def test_an_answer_that_comes_behind_the_end_changes_nothing(bench: Bench) -> None:
    """Of a remote that the stop has not waited for; the next start finds out itself."""
    bench.loop.stop(timeout_s=PATIENCE_S)
    bench.loop.post(_FAILED)
    assert bench.loop.ask(lambda core: core.is_live("main", 0))


def test_questions_do_not_keep_the_core_from_hearing_the_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the regions asks several times a second, so the queue is never empty for long;
    regions that ask for nothing are found by time alone."""
    stepped: list[CoreEvent] = []

    def step(event: CoreEvent, now_s: float) -> list[Action]:
        del now_s
        stepped.append(event)
        return []

    monkeypatch.setattr(bench.core, "step", step)
    for _ in range(8):
        bench.clock.advance(0.5)
        bench.loop.ask(lambda core: core.is_over)
    assert len(stepped) >= 3


def test_an_error_of_the_core_ends_the_job_with_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for this event, so nobody else would hear of it: a job that only looks well."""
    bench.loop.post(Published(checkpoint_id=99, outcome=PublishOutcome.OURS))
    assert bench.loop.ask(lambda core: core.is_over)
    (end,) = [action for action in bench.done if isinstance(action, EndJob)]
    assert isinstance(end.error, KeyError)
    assert "stops by an error of its own" in caplog.text


def test_a_stop_that_cannot_be_carried_out_leaves_the_loop_able_to_answer(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Else whoever stops the job would wait for ever."""

    def refuse(actions: Sequence[Action]) -> None:
        raise UnreachableError("a thread is gone", {}, "Start again.")

    bench.carry_out = refuse
    bench.loop.post(StopAsked())
    assert bench.loop.ask(lambda core: core.is_over)
    assert "could not stop in order" in caplog.text


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_step_that_fails_is_told_and_only_a_bug_is_logged(
    is_fenced: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A takeover is no error of this process: the core says so once, without a traceback."""
    store = FakeStore()

    def crash(name: str) -> None:
        raise ValueError(name)

    store.on_call = crash
    told: list[CoreEvent] = []
    thread = StepThread(hands_of(store, before_decision=fenced), told.append)
    thread.start()
    thread.put(publish(Verdict.DECIDED if is_fenced else Verdict.ABORTED))
    wait_for(lambda: told, poll_s=0.001)
    thread.stop(timeout_s=PATIENCE_S)
    (failed,) = told
    assert isinstance(failed, StepFailed)
    assert failed.checkpoint_id == 1
    assert isinstance(failed.error, FencedError if is_fenced else ValueError)
    errors = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert bool(errors) is not is_fenced
