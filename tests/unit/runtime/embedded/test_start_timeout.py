"""A server that is slow is waited for; one that is stuck is given up."""

from pathlib import Path

import pytest

from sluice.runtime.embedded.start_timeout import StartTimeout
from tests.kit.fakes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _patience(clock: ManualClock, *logs: Path) -> StartTimeout:
    return StartTimeout(logs, log_timeout_s=90.0, longest_s=600.0, clock=clock)


def _say(log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write("a line\n")


def test_slow_start_that_says_something_is_waited_for(tmp_path: Path, clock: ManualClock) -> None:
    """A line now and then, for longer than any silence may last."""
    log = tmp_path / "log"
    patience = _patience(clock, log)
    for _ in range(9):
        clock.advance(60.0)
        _say(log)
        assert patience.end() is None
    assert patience.elapsed_s == 540.0


def test_silent_start_is_given_up(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "log"
    _say(log)
    patience = _patience(clock, log)
    clock.advance(90.0)
    assert patience.end() is None
    clock.advance(1.0)
    assert "silent for 90 s" in str(patience.end())


def test_any_of_the_logs_breaks_the_silence(tmp_path: Path, clock: ManualClock) -> None:
    """Two servers make one HDFS."""
    first, second = tmp_path / "first", tmp_path / "second"
    patience = _patience(clock, first, second)
    for log in (first, second, first):
        clock.advance(80.0)
        _say(log)
        assert patience.end() is None


def test_start_that_talks_for_ever_is_given_up(tmp_path: Path, clock: ManualClock) -> None:
    """A loop of warnings is no start."""
    log = tmp_path / "log"
    patience = _patience(clock, log)
    for _ in range(10):
        clock.advance(60.0)
        _say(log)
        assert patience.end() is None
    clock.advance(1.0)
    _say(log)
    assert "not ready after 600 s" in str(patience.end())
