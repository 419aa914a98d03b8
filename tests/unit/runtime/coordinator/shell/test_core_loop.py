"""The thread that owns the core, and the one that does its remote steps: what they survive."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import pytest

from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Action,
    CoreEvent,
    EndJob,
    FailBatches,
    Published,
    RegionFailed,
    StopRequested,
    Tick,
    TriggerRequested,
)
from sluice.runtime.coordinator.policy.handlers import (
    Alignment,
    HandlerDecision,
    RegionalCheckpointHandler,
)
from sluice.runtime.coordinator.shell.core_loop import CoreLoop
from sluice.runtime.errors import CoordinatorLostError, UnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointKind
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver
from tests.kit.waiting import PATIENCE_S, join, wait_for

T = TypeVar("T")

_FAILED = RegionFailed(region="main", attempt_id=0, error=RuntimeError("a task failed"))


class Bench:
    """A loop around a core, by default one with one region; actions go to ``carry_out``."""

    def __init__(self, driver: CoreDriver | None = None) -> None:
        driver = driver or CoreDriver(FAST)
        self.core, self.clock = driver.core, driver.clock
        self.done: list[Action] = []
        self.carry_out: Callable[[Sequence[Action]], None] = self.done.extend
        self.loop = CoreLoop(
            self.core, clock=self.clock, on_actions=lambda actions: self.carry_out(actions)
        )
        self.loop.start()

    def ended_with(self) -> BaseException | None:
        """The error of the one end that was reported."""
        (end,) = (action for action in self.done if isinstance(action, EndJob))
        return end.error


class SlippingHandler(RegionalCheckpointHandler):
    """A user's, with a slip: it raises as soon as a region has failed."""

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        if alignment.failed:
            raise KeyError("a name that is misspelt")
        return super().rule(alignment, timeout_s=timeout_s)


def between_two_checkpoints() -> CoreDriver:
    """Two regions with `SlippingHandler`; the first checkpoint is committed, the next not due, and
    the main region has acknowledged one more batch, which waits for it."""
    driver = CoreDriver(replace(FAST, interval_s=30.0, handler=SlippingHandler()), regions=TWO)
    driver.tick()
    barriers = {region: driver.poll(3, region=region) for region in ("main", "side")}
    for region, barrier in barriers.items():
        driver.ack(barrier, region=region)
    assert driver.core.last_committed == 1
    driver.ack()
    return driver


def in_time(call: Callable[[], T]) -> T:
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as err:  # noqa: BLE001 - raised again where it is waited for
            answer.set_exception(err)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(PATIENCE_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.stop(timeout_s=PATIENCE_S)


def test_an_answer_that_comes_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.loop.stop(timeout_s=PATIENCE_S)
    bench.loop.post(_FAILED)
    assert bench.loop.ask(lambda core: core.is_live("main", 0))


def test_questions_do_not_keep_the_core_from_hearing_the_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[CoreEvent] = []

    def step(event: CoreEvent, now_s: float, *, slept_s: float, wall_ms: int) -> list[Action]:
        del now_s, slept_s, wall_ms
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
    bench.loop.post(Published(checkpoint_id=99, outcome=PublishOutcome.OURS))
    assert bench.loop.ask(lambda core: core.is_over)
    (end,) = [action for action in bench.done if isinstance(action, EndJob)]
    assert isinstance(end.error, KeyError)
    assert "stops after an internal error" in caplog.text


def test_a_stop_that_cannot_be_done_leaves_the_loop_able_to_answer(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(actions: Sequence[Action]) -> None:
        raise UnreachableError("a thread is gone", {}, "Start again.")

    bench.carry_out = refuse
    bench.loop.post(StopRequested())
    assert bench.loop.ask(lambda core: core.is_over)
    assert "could not stop in order" in caplog.text


def test_a_users_handler_that_raises_ends_the_job_with_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(between_two_checkpoints())
    with pytest.raises(KeyError, match="misspelt"):
        in_time(lambda: bench.loop.step(_FAILED))
    assert in_time(lambda: bench.loop.ask(lambda core: core.is_over))
    assert not in_time(lambda: bench.loop.ask(lambda core: core.is_live("side", 0)))
    assert isinstance(bench.ended_with(), KeyError)
    in_time(lambda: bench.loop.step(StopRequested()))
    bench.loop.stop(timeout_s=PATIENCE_S)
    assert "stops after an internal error" in caplog.text


def test_a_step_that_raises_still_wakes_who_waits_for_a_batch() -> None:
    """The region's attempt was over before the handler was asked; its callback would wait for ever."""
    bench = Bench(between_two_checkpoints())
    with pytest.raises(KeyError):
        in_time(lambda: bench.loop.step(_FAILED))
    woken = [b for action in bench.done if isinstance(action, FailBatches) for b in action.batches]
    assert [(batch.region, batch.batch_id) for batch in woken] == [("main", 2)]
    bench.loop.stop(timeout_s=PATIENCE_S)


def test_a_deadline_that_cannot_be_reported_ends_the_job(caplog: pytest.LogCaptureFixture) -> None:
    is_broken = threading.Event()

    class NoDeadlines(RegionalCheckpointHandler):
        def deadlines_s(self, *, timeout_s: float) -> tuple[float, ...]:
            if is_broken.is_set():
                raise ZeroDivisionError
            return super().deadlines_s(timeout_s=timeout_s)

    driver = CoreDriver(replace(FAST, handler=NoDeadlines()), regions=TWO)
    driver.tick()
    driver.poll(3)
    is_broken.set()
    bench = Bench(driver)
    wait_for(lambda: any(isinstance(action, EndJob) for action in bench.done), what="its end")
    assert isinstance(bench.ended_with(), ZeroDivisionError)
    assert in_time(lambda: bench.loop.ask(lambda core: core.is_over))
    bench.loop.stop(timeout_s=PATIENCE_S)
    assert "stops after an internal error" in caplog.text


def test_a_stop_that_meets_another_bug_leaves_the_loop_able_to_answer(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(actions: Sequence[Action]) -> None:
        raise ValueError(actions)

    bench.carry_out = refuse
    bench.loop.post(StopRequested())
    assert in_time(lambda: bench.loop.ask(lambda core: core.is_over))
    assert "could not stop in order" in caplog.text


def ending(bench: Bench) -> threading.Event:
    """The loop's thread is held, and exits in the step after that; once this is set."""
    is_entered, may_exit = threading.Event(), threading.Event()

    def leave(_: CoordinatorCore) -> None:
        is_entered.set()
        may_exit.wait(PATIENCE_S)

    def exit_thread(actions: Sequence[Action]) -> None:
        bench.carry_out = bench.done.extend
        raise SystemExit(len(actions))

    threading.Thread(target=lambda: bench.loop.ask(leave), daemon=True).start()
    assert is_entered.wait(PATIENCE_S)
    bench.carry_out = exit_thread
    bench.loop.post(Tick())
    return may_exit


def test_nobody_waits_for_a_loop_whose_thread_was_ended(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    may_exit = ending(bench)
    queued: Future[bool] = Future()

    def ask() -> None:
        queued.set_result(bench.loop.ask(lambda core: core.is_over))

    waiting = threading.Thread(target=ask, daemon=True)
    waiting.start()
    may_exit.set()
    assert queued.result(PATIENCE_S)
    assert isinstance(bench.ended_with(), CoordinatorLostError)
    assert in_time(lambda: bench.loop.ask(lambda core: core.is_over))
    with pytest.raises(CoordinatorLostError):
        in_time(
            lambda: bench.loop.step(
                TriggerRequested(kind=CheckpointKind.SAVEPOINT, requested_by="x")
            )
        )
    assert "stops after an internal error" in caplog.text


def test_what_is_queued_after_a_stop_is_answered_when_the_thread_dies(bench: Bench) -> None:
    """The stop itself is one of those that are left, and no question."""
    may_exit = ending(bench)
    stopping = threading.Thread(target=lambda: bench.loop.stop(timeout_s=PATIENCE_S), daemon=True)
    stopping.start()
    wait_for(lambda: bench.loop._inbox.qsize() == 2)  # noqa: SLF001
    may_exit.set()
    join(stopping)
    assert in_time(lambda: bench.loop.ask(lambda core: core.is_over))
