"""A job that begins from an older checkpoint, or from another job: its leaders die, one executes the
restore, and later ones continue from the newest decision."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.errors import ConfigError
from tests.kit.leading.led_job import LedJob
from tests.kit.waiting import wait_for


@pytest.fixture
def before(tmp_path: Path) -> Iterator[LedJob]:
    """A job that has seen some records, and whose processes are gone."""
    job = LedJob(tmp_path / "before")
    host, leader = job.host(), job.lead()
    for _ in range(3):
        job.write(10)
        wait_for(lambda: job.is_all_seen, poll_s=0.02)
    wait_for(lambda: job.store.is_committed(job.decisions()[-1][0]), poll_s=0.02)
    leader.die()
    host.host.__exit__(None, None, None)
    yield job
    job.close()


def _ends(job: LedJob, checkpoint_id: int) -> dict[int, int]:
    record = job.store.read(checkpoint_id)
    assert record is not None
    return {
        split.partition: split.end_offset for region in record.regions for split in region.splits
    }


def _write_and_see(job: LedJob, due: dict[int, list[int]]) -> None:
    """Readers see the new records, and those of each return, once."""
    before = dict(job.logs)
    job.write(10)
    for partition, offsets in due.items():
        offsets += range(before[partition], job.logs[partition])
    wait_for(lambda: all(len(job.seen(each)) >= len(due[each]) for each in due), poll_s=0.02)
    assert {each: job.seen(each) for each in due} == due


@pytest.mark.parametrize("step", ["before-fencing", "after-fencing", "after-attempts-listed"])
def test_only_the_first_leader_returns_to_an_older_checkpoint(before: LedJob, step: str) -> None:
    """Also if a leader dies before or after its fencing record."""
    job, back_to = before, before.decisions()[0][0]
    due = {each: job.seen(each) for each in job.logs}
    for partition, end in _ends(job, back_to).items():
        due[partition] += range(end, job.logs[partition])
    job.restore_from = back_to
    host = job.host()
    assert job.lead(dies_at=step).has_ended.wait(60.0)
    for _ in range(3):
        leader = job.lead()
        leader.await_lead()
        _write_and_see(job, due)
        leader.die()
    assert host.begun


@pytest.mark.parametrize(
    "step", ["before-restore-copy", "after-restore-copy", "before-first", "after-first"]
)
def test_only_the_first_leader_restores_another_job(
    before: LedJob, tmp_path: Path, step: str
) -> None:
    """It dies at a step of the restore, and the next one repeats it or finds it done."""
    uri = f"{before.store.fs.uri}/{slot_name(before.decisions()[-1][0])}"
    due = {each: before.seen(each) for each in before.logs}
    job = LedJob(tmp_path / "after", other=before, restore_from=uri)
    try:
        host = job.host()
        assert job.lead(dies_at=step).has_ended.wait(60.0)
        for _ in range(3):
            leader = job.lead()
            leader.await_lead()
            _write_and_see(job, due)
            leader.die()
        assert host.begun
    finally:
        job.close()


def test_a_driver_that_requests_a_restore_of_a_job_that_runs_is_refused(before: LedJob) -> None:
    """First the leader puts its own description back, so no later leader executes the request."""
    host = before.host()
    leader = before.lead()
    leader.await_lead()
    before.restore_from = 1
    other = before.host()
    wait_for(lambda: other.host.link.error is not None, poll_s=0.02)
    assert isinstance(other.host.link.error, ConfigError)
    assert before.refused
    assert host.host.link.error is None
