"""The real broker's harness leaves nothing behind that goes on working in this process."""

from pathlib import Path

import pytest

from tests.kafka_fixture import BrokerByLevel
from tests.transaction_harness import RealHarness

pytestmark = pytest.mark.integration


def _clients() -> set[str]:
    """Main threads of the librdkafka clients of this process."""
    threads = Path("/proc/self/task").iterdir()
    return {thread.name for thread in threads if (thread / "comm").read_text() == "rdk:main\n"}


def test_what_a_harness_left_behind_ends_with_it(kafka_by_level: BrokerByLevel) -> None:
    """Also what a failed test still refers to, and at once: not when the collector comes by."""
    before = _clients()
    harness = RealHarness(kafka_by_level(2), 2)
    attempts = [harness.open() for _ in range(2)]
    for attempt in attempts:
        attempt.produce(1)
    assert len(_clients() - before) == 2

    harness.close()

    assert _clients() - before == set()
    assert len(attempts) == 2
