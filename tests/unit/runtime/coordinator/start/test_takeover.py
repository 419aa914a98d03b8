"""Which attempts a takeover may resume: by their plan, and by the checkpoint that they follow."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.takeover import Takeover, endless_regions
from sluice.runtime.errors import DamagedCheckpointError, StorageError
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import PLAN, Job, aborted, record
from tests.kit.fakes import TransactionState
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

_WRITER = RegionPlan(name="writer")
_READER = RegionPlan(name="reader", bounded=True, upstream=("writer",))
_LAST = RegionPlan(name="last", bounded=True, upstream=("reader",))


def endless(*regions: RegionPlan) -> frozenset[str]:
    return endless_regions(JobPlan(name="job", regions=regions))


def test_a_reader_of_a_repartition_topic_ends_when_its_writers_do() -> None:
    """Its source is bounded in itself."""
    assert endless(_WRITER, _READER, _LAST) == {"writer", "reader", "last"}
    assert not endless(replace(_WRITER, bounded=True), _READER, _LAST)


def test_a_reader_ends_if_one_of_its_writers_does() -> None:
    """Else it might end before that one is read again, to a later end."""
    other = RegionPlan(name="other", bounded=True)
    join = replace(_READER, upstream=("writer", "other"))
    assert endless(_WRITER, other, join) == {"writer"}


# --- the checkpoint that attempts follow ----------------------------------------------------------


def _fence(slot: int, *, to: int) -> CheckpointRecord:
    """Of a run that resumed from ``to``, and decided nothing."""
    return aborted(slot, leader_session_id=f"run {slot}", requested_by=FENCING, restored_from=to)


_TWO = (record(0), record(1))
_FOLLOWS = replace(PLAN, regions=(replace(PLAN.regions[0], follows=True),))


def _attempts(job: Job, run: int, resumed_from: int) -> ResumableAttempts:
    """The job's next start takes over what this run has listed; it still runs."""
    attempts = ResumableAttempts(FakeFileSystem(Disk()))
    attempts.write(
        ListedAttempts(run_attempt_id=run, resumed_from=resumed_from, attempts={"main": run})
    )
    report = RegionRegistration(region="main", attempt_id=run, may_resume=True)
    job.takeover = Takeover(attempts=attempts, collect=lambda own, regions: [report])
    return attempts


@pytest.mark.parametrize(
    ("records", "superseded", "listed", "resumes"),
    [
        pytest.param((*_TWO, _fence(2, to=1)), (), (2, 1), True, id="no decision since"),
        pytest.param(
            (*_TWO, _fence(2, to=1), record(3, leader_session_id="run 2")),
            *((), (2, 1), True),
            id="own decision since",
        ),
        pytest.param(
            (*_TWO, _fence(2, to=1), _fence(3, to=1)), (), (2, 1), True, id="a start that died"
        ),
        pytest.param((*_TWO, _fence(2, to=0)), (1,), (2, 0), True, id="after a return"),
        # Its attempts read what checkpoint 1 contains.
        pytest.param(
            (*_TWO, _fence(2, to=0), _fence(3, to=1)), (1,), (2, 0), False, id="back, then forth"
        ),
        # Its attempts go on after checkpoint 1: what lies before it would be left out.
        pytest.param(
            (*_TWO, _fence(2, to=0), _fence(3, to=1), _fence(4, to=0)),
            *((1,), (3, 1), False),
            id="back, forth, and back",
        ),
        pytest.param((*_TWO, _fence(2, to=0)), (1,), (1, 1), False, id="one that died went back"),
    ],
)
def test_attempts_resume_only_from_the_checkpoint_that_they_follow(
    records: Sequence[CheckpointRecord],
    superseded: Sequence[int],
    listed: tuple[int, int],
    resumes: bool,
) -> None:
    job = Job(*records, committed=tuple(r.checkpoint_id for r in records))
    for checkpoint_id in superseded:
        job.store.mark_superseded(checkpoint_id, by=2)
    run, resumed_from = listed
    attempts = _attempts(job, run, resumed_from)
    found = job.start(plan=_FOLLOWS)
    assert bool(found.resumed) == resumes
    again = attempts.before(len(records) + 1)
    assert (again.run_attempt_id, again.resumed_from) == (len(records), found.record.checkpoint_id)
    assert again.attempts == {"main": run if resumes else len(records)}


def test_no_attempt_resumes_that_follows_a_damaged_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A person has gone back before it; the listed attempts read on from there."""
    job = Job(*_TWO, record(2), record(3), _fence(4, to=2), committed=(0, 1, 2, 3))
    _attempts(job, 0, 0)
    read = FakeStore.read

    def damaged(store: FakeStore, checkpoint_id: int) -> CheckpointRecord | None:
        if checkpoint_id == 3:
            raise DamagedCheckpointError("not JSON", {}, "Go back.")
        return read(store, checkpoint_id)

    monkeypatch.setattr(FakeStore, "read", damaged)
    found = job.start(plan=_FOLLOWS)
    assert (found.record.checkpoint_id, found.resumed) == (2, {})


def test_a_run_without_takeovers_ends_the_attempts_before_it_touches_their_work() -> None:
    job, seen = Job(*_TWO, committed=(0,)), []
    job.start(at=lambda point: seen.append((point, job.store.ended_attempts)))
    at = dict(reversed(seen))
    assert (at["after-fencing"], at["before-sweep"]) == (-1, 2)


def test_a_directory_without_attempts_gets_no_list() -> None:
    fs = FakeFileSystem(Disk())
    attempts = ResumableAttempts(fs)
    attempts.end_all(3)
    assert not fs.entries("")
    attempts.write(ListedAttempts(run_attempt_id=1, resumed_from=0, attempts={"main": 1}))
    attempts.end_all(3)
    assert not attempts.before(4).attempts
    attempts.end_all(4)
    assert len(fs.entries("")) == 2, "once is enough"


class _SilentOnce(FakeFileSystem):
    """Does not answer one read of a list."""

    is_silent = False

    def read(self, path: str) -> bytes | None:
        if self.is_silent and path.startswith("_attempts-"):
            self.is_silent = False
            raise StorageError("no answer", {"path": path}, "Ask again.")
        return super().read(path)


def test_a_run_without_takeovers_aborts_nothing_if_the_store_does_not_list_the_attempts() -> None:
    """A coordinator has died, and its task runs on. A driver with a coordinator of its own starts:
    the next coordinator must not resume a task whose work that driver has aborted."""
    fs = _SilentOnce(Disk())
    attempts = ResumableAttempts(fs)
    attempts.write(ListedAttempts(run_attempt_id=2, resumed_from=1, attempts={"main": 2}))
    job = Job(*_TWO, _fence(2, to=1), committed=(0, 1))
    transaction = job.open("of the living task", attempt_id=2)
    job.store.on_call = lambda call: attempts.end_all(3) if call == "end_attempts" else None
    fs.is_silent = True
    with pytest.raises(StorageError):
        job.start(session="driver")
    assert transaction.state is TransactionState.ONGOING
    assert attempts.before(4).attempts == {"main": 2}


def test_a_list_that_cannot_be_read_counts_as_one_of_attempts() -> None:
    """The file may be readable again later."""
    fs = FakeFileSystem(Disk())
    fs.replace("_attempts-1", b"{")
    attempts = ResumableAttempts(fs)
    attempts.end_all(3)
    assert attempts.before(4) == ListedAttempts(run_attempt_id=3)
