"""The real broker's harness leaves nothing after that continues working in this process."""

import contextlib
import gc
from pathlib import Path

import pytest

from tests.kit.kafka.kafka_fixture import BrokerByLevel
from tests.kit.kafka.transaction_harness import RealHarness
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration


def _clients() -> set[str]:
    """Main threads of the librdkafka clients of this process."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if (thread / "comm").read_text() == "rdk:main\n":
                found.add(thread.name)
    return found


def test_what_a_harness_leaves_ends_with_it(kafka_by_level: BrokerByLevel) -> None:
    """Also what a failed test still refers to, and at once: not when the collector comes by."""
    before = _clients()
    harness = RealHarness(kafka_by_level(2), 2)
    attempts = [harness.open() for _ in range(2)]
    for attempt in attempts:
        attempt.produce(1)
    assert len(_clients() - before) == 2

    gc.disable()
    try:
        harness.close()
        wait_for(lambda: not _clients() - before, what="the end of both clients")
    finally:
        gc.enable()
    assert len(attempts) == 2
