"""A signal ends a job where it may be left in order, never in the middle of a call into the JVM."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from sluice.runtime.spark.session.interrupts import ended_by_signals
from tests.kit.waiting import join


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    """As in a fresh Python process, whatever the tests' own process has."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_block_with_the_shells_code(number: int, code: int) -> None:
    """At once where none is held; the program's handlers are back afterwards."""
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, ended_by_signals():
        send(number)
    assert ended.value.code == code
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_held_signal_is_reported_at_the_next_check(number: int, code: int) -> None:
    """A call that is under way is finished first: PySpark's connection survives no exception."""
    steps: list[str] = []

    def run() -> None:
        with ended_by_signals() as interrupts, interrupts.held():
            send(number)
            steps.append("the call")
            interrupts.check()
            steps.append("never")

    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == code
    assert steps == ["the call"]


def test_a_second_ctrl_c_waits_for_nothing() -> None:
    def run() -> None:
        with ended_by_signals() as interrupts, interrupts.held():
            send(signal.SIGINT)
            send(signal.SIGINT)
            pytest.fail("it was held, too")

    with pytest.raises(SystemExit):
        run()


def test_a_programs_own_handler_is_left_alone() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    with ended_by_signals() as interrupts, interrupts.held():
        send(signal.SIGINT)
    assert seen == [signal.SIGINT]


def test_nothing_is_taken_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def run() -> None:
        with ended_by_signals():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    join(thread)
    assert found == [before]
