"""Leaders that die and hosts that stay: real HTTP and store, a played broker and played tasks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.leading.led_job import LedJob
from tests.kit.waiting import wait_for


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LedJob]:
    made = LedJob(tmp_path / "checkpoint")
    yield made
    made.close()


def seen_all(job: LedJob) -> None:
    wait_for(lambda: job.is_all_seen, poll_s=0.02)


def test_tasks_continue_under_the_next_leader(job: LedJob) -> None:
    """No attempt restarts, and each record is seen once."""
    host = job.host()
    leader = job.lead()
    job.write(30)
    seen_all(job)
    for _ in range(3):
        leader.die()
        job.write(30)  # they are written by tasks without a leader
        leader = job.lead()
        leader.await_lead()
        seen_all(job)
    job.require_exact()
    assert host.begun == [("left", 0), ("right", 0)]
    assert job.attempts() == {"left": 0, "right": 0}
