"""Leaders that die and hosts that stay: real HTTP and store, a played broker and played tasks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import (
    CoordinatorLostError,
    NotLeaderError,
    StorageUnreachableError,
)
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.leading.led_job import LedJob
from tests.kit.waiting import wait_for

_STEPS = (
    "before-fencing",
    "after-fencing",
    "before-reports",
    "after-reports",
    "before-attempts-listed",
    "after-attempts-listed",
    "before-sweep",
    "after-sweep",
)


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
    for _ in range(2):
        leader.die()
        job.write(30)  # read and written by tasks that have no leader
        leader = job.lead()
        leader.await_lead()
        seen_all(job)
    job.require_exact()
    assert host.begun == [("left", 0), ("right", 0)]
    assert job.attempts() == {"left": 0, "right": 0}


def test_tasks_continue_under_a_leader_at_the_address_of_the_last_one(job: LedJob) -> None:
    """It refuses their tokens, which are of the last one; so they ask for the newest leader."""
    (port,) = free_ports(1)
    job.ports = range(port, port + 1)
    host = job.host()
    leader = job.lead()
    for _ in range(2):
        job.write(30)
        seen_all(job)
        leader.die()
        leader = job.lead()
        leader.await_lead()
    job.write(30)
    seen_all(job)
    job.require_exact()
    assert host.begun == [("left", 0), ("right", 0)]
    assert not host.errors


@pytest.mark.parametrize(
    "step",
    [_STEPS[3], *(pytest.param(each, marks=pytest.mark.extended) for each in _STEPS)],
)
def test_a_leader_may_die_at_each_step_of_its_takeover(job: LedJob, step: str) -> None:
    """Once, and twice in a row."""
    host = job.host()
    first = job.lead()
    job.write(20)
    seen_all(job)
    first.die()
    for _ in range(2):
        job.write(20)
        killed = job.lead(dies_at=step)
        assert killed.has_ended.wait(60.0)
        assert not killed.is_leading.is_set()
    job.lead()
    seen_all(job)
    job.require_exact()
    assert host.begun == [("left", 0), ("right", 0)]


class _RefusingStore(LocalFileSystem):
    """The checkpoint directory of a store that refuses to replace some files."""

    refused = ""

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """See `FileSystem.replace`."""
        if path.startswith(self.refused):
            raise StorageUnreachableError("the store is away", {"path": path}, "Wait.")
        super().replace(path, data, is_private=is_private)


@pytest.mark.parametrize("refused", ["_hosts-", "_attempts-", "_leader"])
def test_a_takeover_that_the_store_interrupts_ends_no_task(
    job: LedJob, tmp_path: Path, refused: str
) -> None:
    """The next leader resumes them."""
    host = job.host()
    first = job.lead()
    job.write(20)
    seen_all(job)
    first.die()
    job.write(20)
    store = _RefusingStore(tmp_path / "checkpoint")
    store.refused = refused
    interrupted = job.lead(fs=store)
    assert interrupted.has_ended.wait(60.0)
    assert isinstance(interrupted.error, NotLeaderError)
    assert "the store is away" in str(interrupted.error)
    answer = host.host.link.answer()
    assert answer is None or not answer.end
    job.lead()
    seen_all(job)
    job.require_exact()
    assert host.begun == [("left", 0), ("right", 0)]


def test_a_leader_that_was_replaced_ends_and_stops_no_attempt(job: LedJob) -> None:
    host = job.host()
    old = job.lead()
    old.await_lead()
    job.write(20)
    seen_all(job)
    new = job.lead()
    new.await_lead()
    job.write(20)
    seen_all(job)
    assert old.has_ended.wait(60.0)
    assert isinstance(old.error, NotLeaderError)
    job.write(20)
    seen_all(job)
    job.require_exact()
    assert host.begun == [("left", 0), ("right", 0)]


def test_regions_of_a_dead_host_move_and_those_of_others_stay(job: LedJob) -> None:
    """Epochs of the other regions go on meanwhile."""
    hosts = [job.host(), job.host()]
    leader = job.lead(hosts=2)
    leader.await_lead()
    job.write(20)
    seen_all(job)
    assert [len(host.begun) for host in hosts] == [1, 1]
    hosts[0].die()
    (stayed,) = {region for region, _ in hosts[1].begun}
    job.write(20)
    seen_all(job)
    job.require_exact()
    assert job.attempts()[stayed] == 0
    assert [region for region, _ in hosts[1].begun][1:] == [hosts[0].begun[0][0]]


def test_a_takeover_does_not_wait_for_a_host_that_died_with_the_leader(tmp_path: Path) -> None:
    """A machine with both is lost: the first start waited for two hosts, and one is left."""
    job = LedJob(tmp_path / "checkpoint", report_timeout_s=1.0)
    try:
        hosts = [job.host(), job.host()]
        leader = job.lead(hosts=2)
        leader.await_lead()
        job.write(20)
        seen_all(job)
        hosts[0].die()
        leader.die()
        job.lead(hosts=2)
        job.write(20)
        seen_all(job)
        job.require_exact()
    finally:
        job.close()


def test_a_region_without_a_report_restarts(tmp_path: Path) -> None:
    """Its host reports after the limit: then its attempt is over."""
    job = LedJob(tmp_path / "checkpoint", report_timeout_s=0.0)
    try:
        host = job.host()
        leader = job.lead()
        leader.await_lead()
        job.write(20)
        seen_all(job)
        leader.die()
        job.write(20)
        job.lead()
        seen_all(job)
        job.require_exact()
        assert len(host.begun) == 4
        assert all(attempt_id > 0 for attempt_id in job.attempts().values())
    finally:
        job.close()


def test_tasks_end_only_after_the_lost_timeout(job: LedJob) -> None:
    job.lost_timeout_s = 1.0
    host = job.host()
    leader = job.lead()
    leader.await_lead()
    job.write(20)
    seen_all(job)
    leader.die()
    job.write(20)
    wait_for(lambda: len(host.errors) == 2, poll_s=0.05)
    assert all(isinstance(error, CoordinatorLostError) for error in host.errors)
    job.lead()
    seen_all(job)
    job.require_exact()
