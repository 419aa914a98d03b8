"""The bed's clock: who waits for a moment of a wall clock that jumped waits no longer for that."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment.host import Clock, build_clock

pytestmark = pytest.mark.integration

# librdkafka waits in the C library's `cnd_timedwait`, by the wall clock.
_POLLS = """
import sys, time
from confluent_kafka import Consumer
consumer = Consumer({"group.id": "g", "log_level": 0})  # no brokers: nothing wakes it
for line in sys.stdin:
    print("begun", flush=True)
    began_s = time.monotonic()
    consumer.poll(float(line))
    print(time.monotonic() - began_s, flush=True)
"""


_MOST_S = 60.0  # of ten minutes
_WAITS_S = 1.0  # nothing reports when it has begun to wait


class _Poller:
    """A process that waits as it is reported, with a clock of its own."""

    def __init__(self, directory: Path) -> None:
        build_clock(directory / "clock.so")
        self.clock = Clock(directory / "its.clock")
        preload = {"LD_PRELOAD": str(directory / "clock.so")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _POLLS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **preload, "BED_CLOCK": str(directory / "its.clock")},
        )

    def begin(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        assert self._answer() == "begun"

    def took_s(self) -> float:
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def poller(tmp_path: Path) -> Iterator[_Poller]:
    made = _Poller(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("jump_s", [0, 600, -600])
def test_a_wait_after_a_jump_is_as_long_as_ever(poller: _Poller, jump_s: int) -> None:
    """Its deadline is by the clock as it is now."""
    poller.clock.jump(jump_s)
    for wait_s in (0.01, 0.3):
        poller.begin(wait_s)
        assert wait_s * 0.9 < poller.took_s() < _MOST_S


def test_a_jump_in_a_wait_changes_nothing(poller: _Poller) -> None:
    for jump_s in (600, 0):
        poller.begin(3.0)
        time.sleep(_WAITS_S)
        poller.clock.jump(jump_s)
        assert 2.5 < poller.took_s() < _MOST_S
