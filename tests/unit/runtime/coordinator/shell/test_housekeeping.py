"""The thread that sweeps: it continues through whatever one of its rounds meets."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sluice.runtime.coordinator.shell.run_threads import Housekeeper
from sluice.runtime.errors import UnreachableError
from tests.kit.waiting import PATIENCE_S, wait_for

AWAY = UnreachableError("no broker answers", {}, "Start one.")
BUG = ValueError("a client's own bug")


class Rounds:
    """What each round of one kind meets; after the last one nothing any more."""

    def __init__(self, *errors: Exception) -> None:
        self.met = 0
        self._errors = list(errors)

    def __call__(self) -> None:
        self.met += 1
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture
def started() -> Iterator[Callable[..., Housekeeper]]:
    """Starts housekeepers; each is stopped."""
    stops: list[Housekeeper] = []

    def start(*, sweep: Rounds, interval_s: float = 60.0) -> Housekeeper:
        made = Housekeeper(sweep=sweep, interval_s=interval_s, clock=time.monotonic)
        stops.append(made)
        made.start()
        return made

    yield start
    for each in stops:
        each.stop(timeout_s=PATIENCE_S)


def test_ids_never_reused_a_sweep_that_fails_is_repeated_at_its_interval(
    started: Callable[..., Housekeeper], caplog: pytest.LogCaptureFixture
) -> None:
    """Also after an error of a client: readers would wait for orphans as long as the job runs."""
    sweep = Rounds(AWAY, BUG)
    started(sweep=sweep, interval_s=0.01)
    wait_for(lambda: sweep.met >= 3, poll_s=0.002)
    levels = [entry.levelno for entry in caplog.records if "sweep failed" in entry.message]
    assert levels == [logging.WARNING, logging.ERROR]


def test_abort_before_skip_who_waits_for_a_sweep_continues_though_it_failed(
    started: Callable[..., Housekeeper],
) -> None:
    """A new attempt waits for one try: the next sweep comes in any case."""
    keeper = started(sweep=Rounds(BUG))
    tried = threading.Event()
    keeper.sweep_soon(tried.set)
    assert tried.wait(PATIENCE_S)


def test_a_housekeeper_that_was_not_begun_can_be_stopped() -> None:
    """The job was interrupted between the two."""
    sweep = Rounds()
    Housekeeper(sweep=sweep, interval_s=0.0, clock=time.monotonic).stop(timeout_s=PATIENCE_S)
    assert sweep.met == 0
