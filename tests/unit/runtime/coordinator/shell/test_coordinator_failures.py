"""The coordinator with its threads, on fakes: what fails, who hears of it, and what continues."""

import threading
from dataclasses import replace

import pytest

from sluice.runtime.contracts import SweepReport, SweepView
from sluice.runtime.coordinator.policy.checkpoint_plan import OnRegionFailure
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    FencedError,
    SourceChangedError,
    StorageError,
    UnreachableError,
    UnreadSplitsLostError,
)
from sluice.runtime.model.checkpoint_record import RegionStatus, Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.coordinated_job import QUICK, Job, restart
from tests.kit.fakes import FakeSink, transactional_id
from tests.kit.waiting import PATIENCE_S, wait_for


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def _await_committed(coordinator: BarrierCoordinator, checkpoint_id: int) -> None:
    wait_for(lambda: coordinator.last_committed >= checkpoint_id, poll_s=0.002)


def test_abort_before_skip_nothing_of_a_failed_attempt_is_open_when_the_next_one_begins(
    job: Job,
) -> None:
    coordinator, started = job.started()

    def die(barrier: Barrier) -> None:
        raise UnreachableError("an executor went away", {}, "Try again.")

    region = job.region(coordinator, before_ack=die)
    job.source.ends[0] = 3
    region.join()
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    late = job.broker.init(transactional_id(started.job_uid, batch, "late"))
    job.broker.append(late, 0, (0, "never"))
    restart(coordinator, "main")
    assert not job.broker.ongoing()
    coordinator.cancel()


def test_a_source_whose_topic_is_gone_stops_the_job_at_discovery_too(job: Job) -> None:
    coordinator, _ = job.started()
    job.source.discovery_error = SourceChangedError("no such topic", {"topic": "t"}, "Look.")
    region = job.region(coordinator)
    with pytest.raises(SourceChangedError, match="no such topic"):
        coordinator.wait(PATIENCE_S)
    region.join()


def test_what_no_region_reads_yet_suspends_no_region_that_looks_for_it(job: Job) -> None:
    job.regions = ("left", "right", "other")
    suspending = replace(QUICK, on_region_failure=OnRegionFailure.SUSPEND)
    coordinator, _ = job.started(suspending)
    job.source.discovery_error = SourceChangedError("is gone", {"partitions": "t-9"}, "Look.")
    regions = [job.region(coordinator, name) for name in job.regions]
    with pytest.raises(UnreadSplitsLostError, match="is gone"):
        coordinator.wait(PATIENCE_S)
    assert not [name for name in job.regions if coordinator.is_suspended(name)]
    for region in regions:
        region.join()


def test_what_a_region_reads_and_is_gone_suspends_it_alone(job: Job) -> None:
    job.regions = ("left", "right")
    coordinator, _ = job.started(replace(QUICK, on_region_failure=OnRegionFailure.SUSPEND))
    job.source.error = SourceChangedError("is gone", {"partitions": "t-0"}, "Look.")
    left = job.region(coordinator, "left")
    left.join()
    assert coordinator.is_suspended("left")
    job.source.error = None
    right = job.region(coordinator, "right")
    job.source.ends[1] = 4
    wait_for(lambda: job.visible()[1] == job.expected()[1], poll_s=0.01)
    assert not coordinator.is_over
    coordinator.cancel()
    right.stop()


def test_an_error_of_a_run_that_was_replaced_is_that_another_run_has_the_job(job: Job) -> None:
    """The other run deletes files of older attempts. A run that was paused finds one missing."""
    old, started = job.started()
    job.started()
    gone = DamagedCheckpointError("Spark's offset log does not hold it", {}, "Restore it.")
    old.fail("main", started.attempt_id, gone)
    with pytest.raises(FencedError, match="taken over"):
        old.wait(PATIENCE_S)


def test_a_permanent_error_of_the_newest_run_ends_the_job_with_it(job: Job) -> None:
    """Also where the store does not answer whether it is the newest."""
    coordinator, started = job.started()

    def refuse(name: str) -> None:
        raise StorageError("no answer", {"call": name}, "Wait.")

    job.store.on_call = refuse
    gone = DamagedCheckpointError("Spark's offset log does not hold it", {}, "Restore it.")
    coordinator.fail("main", started.attempt_id, gone)
    job.store.on_call = lambda _: None
    with pytest.raises(DamagedCheckpointError):
        coordinator.wait(PATIENCE_S)


def test_a_store_that_refuses_ends_the_job_with_its_error(job: Job) -> None:
    coordinator, _ = job.started()

    def refuse(name: str) -> None:
        raise ConfigError("the store cannot promise it", {"call": name}, "Use another.")

    job.store.on_call = refuse
    job.source.ends[0] = 4
    region = job.region(coordinator)
    with pytest.raises(ConfigError):
        coordinator.wait(PATIENCE_S)
    coordinator.stop()
    region.stop()
    job.store.on_call = lambda _: None


def test_lost_answers_of_the_store_are_settled_by_asking_again(job: Job) -> None:
    """One record for each place, byte for byte the same at every try."""
    answers = iter([True, False, True, True, False])
    coordinator, _ = job.started()
    job.store.lose_answer = lambda: next(answers, False)
    job.source.ends[0] = 4
    region = job.region(coordinator)
    wait_for(lambda: job.visible()[0] == [0, 1, 2, 3], poll_s=0.01)
    assert [record.checkpoint_id for record in job.store.history] == [0, 1]
    coordinator.cancel()
    region.stop()


def test_abort_before_skip_a_failed_region_is_swept_before_the_decision_that_carries_it(
    job: Job,
) -> None:
    job.regions = ("left", "right")
    settings = replace(QUICK, handler=RegionalCheckpointHandler(), sweep_interval_s=600.0)
    coordinator, _ = job.started(settings)

    def fail(barrier: Barrier) -> None:
        raise UnreachableError("a broker went away", {}, "Try again.")

    left = job.region(coordinator, "left", before_ack=fail)
    job.source.ends[0] = 7
    left.join()
    right = job.region(coordinator, "right")
    job.source.ends[1] = 4
    wait_for(lambda: job.visible()[1] == list(range(4)), poll_s=0.002)
    assert job.broker.ongoing() == [], "the failed region's transaction is open after a decision"
    newest = max(i for i, found in job.store.records.items() if found.verdict is Verdict.DECIDED)
    skipped = {r.region: r.status for r in job.store.records[newest].regions}
    assert skipped == {"left": RegionStatus.SKIPPED, "right": RegionStatus.COMPLETED}
    restarted = restart(coordinator, "left")
    again = job.region(coordinator, "left", attempt_id=restarted.attempt_id)
    wait_for(lambda: job.visible() == job.expected(), poll_s=0.01)
    assert right.error is None
    coordinator.cancel()
    right.stop()
    again.stop()


def test_a_stop_closes_everything_though_one_client_fails_to(job: Job) -> None:
    class Stuck(FakeSink):
        def close(self) -> None:
            raise ValueError("a client's own bug")

    coordinator = job.coordinator(sink=Stuck(job.broker))
    coordinator.start(300.0)
    coordinator.stop()
    assert job.source.closed


def test_a_last_sweep_that_fails_does_not_keep_a_job_from_stopping(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """The next start repeats it; connections are closed all the same."""

    class Broken(FakeSink):
        is_broken = False

        def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
            if self.is_broken:
                raise ValueError("a client's own bug")
            return super().sweep(view, timeout_s=timeout_s)

    sink = Broken(job.broker)
    coordinator = job.coordinator(replace(QUICK, sweep_interval_s=600.0), sink=sink)
    coordinator.start(300.0)
    sink.is_broken = True
    coordinator.stop()
    assert sink.closed
    assert "last sweep failed, the next start repeats it" in caplog.text


def _with_a_hanging_store(
    job: Job, coordinator: BarrierCoordinator
) -> tuple[threading.Thread, threading.Event]:
    """A region of the job, at a step that hangs until the event is set."""
    hangs, answers = threading.Event(), threading.Event()

    def hang(name: str) -> None:
        hangs.set()
        assert answers.wait(PATIENCE_S)

    job.store.on_call = hang
    job.source.ends[0] = 4
    region = job.region(coordinator)
    _wait(hangs)
    return region, answers


def test_a_job_whose_store_hangs_for_good_ends_by_itself(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sluice.runtime.coordinator.shell.run_threads._STOP_S", 0.05)
    monkeypatch.setattr("sluice.runtime.coordinator.shell.run_threads._JOIN_S", 0.05)
    coordinator = job.coordinator(replace(QUICK, call_timeout_s=0.02, settle_timeout_s=1.0))
    coordinator.start(300.0)
    region, answers = _with_a_hanging_store(job, coordinator)
    with pytest.raises(UnreachableError, match="has not returned"):
        coordinator.wait(PATIENCE_S)
    coordinator.stop()
    region.join()
    assert "remote step has not returned: step=Publish checkpoint_id=1" in caplog.text
    answers.set()
    wait_for(lambda: job.store.records.get(1), poll_s=0.002)
    job.store.on_call = lambda _: None
    job.started()
    assert job.visible()[0] == [0, 1, 2, 3]
