"""Rule `fence-first`: the start of an elected leader fences no leader that was elected later."""

from collections.abc import Callable

import pytest

from sluice.runtime.errors import LeadershipLostError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import Job, aborted, record


def _lost() -> LeadershipLostError:
    return LeadershipLostError("another process leads this job now", {}, "Wait.")


def _losing(*, at_call: int) -> Callable[[], None]:
    """Another process is elected before this call."""
    calls = []

    def require() -> None:
        calls.append(1)
        if len(calls) >= at_call:
            raise _lost()

    return require


@pytest.mark.parametrize("records", [(), (record(0),)], ids=["new job", "restart"])
def test_fence_first_a_start_that_lost_its_election_writes_no_record(
    records: tuple[CheckpointRecord, ...],
) -> None:
    job = Job(*records)
    job.require_elected = _losing(at_call=1)
    before = dict(job.store.records)
    with pytest.raises(LeadershipLostError):
        job.start()
    assert job.store.records == before


def test_fence_first_a_start_checks_its_election_after_each_reading_of_the_slots() -> None:
    """A later leader fences between the check and the record: the slot is taken. The second check
    comes after the second reading, so it finds the later leader."""
    job = Job(record(0))
    job.require_elected = _losing(at_call=2)

    def later_leader(point: str) -> None:
        if point == "before-fencing" and 1 not in job.store.records:
            job.store.records[1] = aborted(1, leader_session_id="later", requested_by="recovery")

    with pytest.raises(LeadershipLostError):
        job.start(at=later_leader)
    assert sorted(job.store.records) == [0, 1]
    assert job.points.count("before-fencing") == 1


def test_fence_first_a_start_checks_its_election_after_it_has_read_the_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it, another process could be elected, fence, and be read as an older run."""
    job, reads, checks = Job(record(0)), list[int](), list[int]()
    read = FakeStore.read

    def noted(store: FakeStore, checkpoint_id: int) -> CheckpointRecord | None:
        reads.append(checkpoint_id)
        return read(store, checkpoint_id)

    monkeypatch.setattr(FakeStore, "read", noted)
    job.require_elected = lambda: checks.append(len(reads))
    job.start(at=lambda point: checks.append(-len(reads)) if point == "before-fencing" else None)
    assert checks[0] > 0
    assert checks[1] == -checks[0], "no slot is read between the check and the record"
