"""Who has a file sink's staging directory, where a job runs from a copy of its checkpoints, too."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, staging_root
from sluice.runtime.contracts import SinkContext, SweepView
from sluice.runtime.errors import FencedError, StorageError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.ownership.lease import RENEWAL_INTERVAL_S, WATCHED_INTERVALS, LeaseRecord
from tests.kit.fakes import ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

CONTEXT = SinkContext(
    job_uid="job",
    job_name="orders",
    operator_id="op",
    checkpoint_uri="fake:///checkpoints",
    leader_session_id="first",
)
COPY = replace(CONTEXT, checkpoint_uri="fake:///copy", leader_session_id="second")
ROOT = staging_root("orders", job_uid="job", operator_id="op")
WATCH_S = RENEWAL_INTERVAL_S * WATCHED_INTERVALS


class Runs:
    """Runs of one job, on one disk, with one clock; ``meanwhile`` happens at each nap."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.clock = ManualClock()
        self.began_s = self.clock()
        self.meanwhile: Callable[[], None] = lambda: None
        self.fault = Fault.NONE

    def sink(self) -> FileSinkCoordinator:
        """The driver's side of the sink, of another process."""
        return FileSinkCoordinator(
            "fake:///data/orders", self._open, clock=self.clock, sleep=self._nap
        )

    def claimed(self, context: SinkContext) -> FileSinkCoordinator:
        sink = self.sink()
        sink.claim(context, timeout_s=1)
        return sink

    @property
    def waited_s(self) -> float:
        return self.clock() - self.began_s

    def _open(self, uri: str) -> FakeFileSystem:
        return FakeFileSystem(self.disk, uri=uri, fault=lambda _: self.fault)

    def _nap(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.meanwhile()


@pytest.fixture
def runs() -> Runs:
    return Runs()


def test_lease_guards_outputs_a_copy_of_a_job_of_files_that_runs_is_refused(runs: Runs) -> None:
    """Before it has deleted what the other one stages: its own records do not name that."""
    first = runs.claimed(CONTEXT)
    attempt = StagingAttempt.draw(BatchKey(region="main", attempt_id=1, batch_id=1))
    staged = f"{ROOT}/{attempt.path}/part-0"
    runs.disk.write(staged, b"rows")
    runs.meanwhile = first.renew
    with pytest.raises(FencedError, match=r"staging directory.*a copy is the same job"):
        runs.claimed(COPY)
    first.renew()
    assert runs.disk.files[staged] == b"rows"
    assert first.sweep(_view(), timeout_s=1).aborted == 0


def test_lease_guards_outputs_a_copy_has_the_files_once_the_other_job_is_gone(runs: Runs) -> None:
    first = runs.claimed(CONTEXT)
    second = runs.claimed(COPY)
    assert runs.waited_s == pytest.approx(WATCH_S)
    second.renew()
    with pytest.raises(FencedError, match="another job uses this staging directory"):
        first.renew()
    first.close()
    second.renew()


def test_lease_guards_outputs_who_was_frozen_in_a_renewal_does_not_end_who_took_over(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked, hangs until another run has its files, and writes: that one writes once
    more, and the frozen one looks again before it goes by what it has written."""
    first, second = runs.claimed(CONTEXT), runs.sink()
    renewals = iter([RENEWAL_INTERVAL_S] * 3)
    replaced = FakeFileSystem.replace

    def frozen(fs: FakeFileSystem, path: str, data: bytes, *, is_private: bool = False) -> None:
        monkeypatch.setattr(FakeFileSystem, "replace", replaced)
        second.claim(COPY, timeout_s=1)
        replaced(fs, path, data, is_private=is_private)
        runs.meanwhile = second.renew

    monkeypatch.setattr(FakeFileSystem, "replace", frozen)
    with pytest.raises(FencedError, match="another job uses this staging directory"):
        first.renew()
    runs.meanwhile = lambda: None
    for waited_s in renewals:
        runs.clock.advance(waited_s)
        second.renew()
        with pytest.raises(FencedError):
            first.renew()


def test_lease_guards_outputs_a_renewal_that_lands_late_does_not_end_who_took_over(
    runs: Runs,
) -> None:
    first = runs.claimed(CONTEXT)
    runs.fault = Fault.LATE
    with pytest.raises(StorageError):
        first.renew()
    runs.fault = Fault.NONE
    second = runs.claimed(COPY)
    runs.disk.land_late_steps()
    second.renew()
    with pytest.raises(FencedError):
        first.renew()


def test_lease_guards_outputs_a_store_that_hangs_does_not_make_a_run_look_dead(runs: Runs) -> None:
    """It holds up the renewals of the one that lives as long as the other one's look."""
    first = runs.claimed(CONTEXT)
    stills = iter([WATCH_S])

    def meanwhile() -> None:
        still_s = next(stills, 0.0)
        runs.clock.advance(still_s)
        if not still_s:
            first.renew()

    runs.meanwhile = meanwhile
    with pytest.raises(FencedError, match="a copy is the same job"):
        runs.claimed(COPY)


def test_lease_guards_outputs_a_restart_waits_for_nobody(runs: Runs) -> None:
    """The same directory: the seal has stopped the run before."""
    first = runs.claimed(CONTEXT)
    runs.claimed(replace(CONTEXT, leader_session_id="second"))
    assert runs.waited_s == 0
    with pytest.raises(FencedError, match="another run of this job"):
        first.renew()


def test_lease_guards_outputs_a_run_that_ends_gives_its_files_back(runs: Runs) -> None:
    """The next one may have its directory somewhere else. Whose they were stays on record."""
    runs.claimed(CONTEXT).close()
    left = LeaseRecord.decode(runs.disk.files[f"{ROOT}/.sluice-lease"].decode())
    assert (left.is_ended, left.session, left.checkpoint_uri) == (
        True,
        "first",
        "fake:///checkpoints",
    )
    runs.claimed(COPY)
    assert runs.waited_s == 0


def test_lease_guards_outputs_other_jobs_write_into_the_same_directory(runs: Runs) -> None:
    sinks = [
        runs.claimed(CONTEXT),
        runs.claimed(replace(COPY, job_uid="other")),
        runs.claimed(replace(CONTEXT, operator_id="op-2")),
    ]
    assert runs.waited_s == 0
    for sink in sinks:
        sink.renew()


def test_before_its_claim_a_sink_has_nothing_to_renew(runs: Runs) -> None:
    """The thread that renews begins with the run."""
    runs.sink().renew()
    assert runs.disk.files == {}


def test_a_store_that_fails_at_the_end_leaves_the_record_to_be_watched(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    first = runs.claimed(CONTEXT)
    runs.fault = Fault.REFUSED
    with caplog.at_level(logging.INFO):
        first.close()
    assert "lease was not released: target=fake:///data/orders" in caplog.text
    runs.fault = Fault.NONE
    runs.claimed(COPY)
    assert runs.waited_s == pytest.approx(WATCH_S)


def test_a_record_that_cannot_be_read_has_no_owner(runs: Runs) -> None:
    runs.disk.write(f"{ROOT}/.sluice-lease", b"\xff\x00{")
    runs.claimed(CONTEXT).renew()
    assert runs.waited_s == 0


def _view() -> SweepView:
    return SweepView(job_uid="job", attempt_ids={"main": 1}, protected=(), orphans=())
