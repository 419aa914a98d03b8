"""Attempts of regions and runs: what is remembered of them, which of them waits, and their replacement."""

import threading
from concurrent.futures import Future
from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.runtime.contracts import RegionRegistration, RegisteredAttempt, SweepReport, SweepView
from sluice.runtime.coordinator.policy.checkpoint_plan import RestartedRegion
from sluice.runtime.coordinator.region.region_state import Fate, RegisteredAttempts
from sluice.runtime.coordinator.shell.action_dispatcher import BatchWaiters
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.restart_waits import RequestedRestart, result_within
from sluice.runtime.errors import (
    FencedError,
    StorageUnreachableError,
    UnreachableError,
    WaitedTooLongError,
)
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.coordinator.core_driver import FAST, CoreDriver
from tests.kit.coordinator.region_queries import ThreadQuery
from tests.kit.fakes import FakeSink, ManualClock
from tests.kit.threads.watched_attempts import Watched
from tests.kit.waiting import PATIENCE_S, wait_for

BATCH = BatchKey(region="r", attempt_id=1, batch_id=4)


def _attempt(number: int = 0, *, batch: BatchKey = BATCH) -> RegisteredAttempt:
    return RegisteredAttempt(batch=batch, operator_id="sink", resource=f"id-{number}|7|0")


def test_ids_never_reused_an_attempt_of_a_paused_worker_is_offered_for_a_quarter_of_an_hour() -> (
    None
):
    """A task that continues after its batch was committed without it opens a transaction that no
    decision names; readers must not wait for it until it times out."""
    book = RegisteredAttempts()
    book.add(_attempt())
    offered = [book.orphans(lambda _: Fate.SETTLED) for _ in range(90)]
    assert set(offered) == {(_attempt(),)}


def test_what_is_remembered_has_a_bound() -> None:
    """A job that runs for a year keeps no list of everything it ever opened."""
    book = RegisteredAttempts()
    for batch_id in range(200):
        batch = BatchKey(region="r", attempt_id=1, batch_id=batch_id)
        book.add(_attempt(batch_id, batch=batch))
        book.orphans(lambda _: Fate.SETTLED)
    assert len(book) < 100


def test_a_living_batch_is_offered_to_no_sweep() -> None:
    """Its transaction may be the one that the next decision names."""
    book = RegisteredAttempts()
    book.add(_attempt())
    assert book.orphans(lambda _: Fate.OPEN) == ()
    assert len(book) == 1


def test_ids_never_reused_a_late_attempt_of_a_decided_batch_may_not_begin() -> None:
    """Speculation, or a task that was thought lost: no decision can name what it would open."""
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    driver.core.require_wanted(batch)
    driver.ack(barrier)
    with pytest.raises(FencedError, match="decided already"):
        driver.core.require_wanted(batch)


def test_ids_never_reused_an_attempt_of_an_older_attempt_is_not_remembered() -> None:
    book = RegisteredAttempts()
    book.add(_attempt())
    assert book.orphans(lambda _: Fate.OUTDATED) == ()
    assert len(book) == 0


def end(watched: Watched) -> ThreadQuery:
    """Left's first attempt, by a failure of which the coordinator alone knows."""
    watched.begin("left")
    watched.run()
    query = watched.regions.queries["left"][0]
    error = UnreachableError("a broker went away", {}, "Wait.")
    watched.coordinator.fail("left", watched.regions.attempt_ids["left"][0], error)
    wait_for(lambda: not query.is_active, poll_s=0.005)
    return query


def test_why_an_attempt_ended_is_said_where_the_next_one_begins(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    end(watched)
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    told = [line for each in caplog.records if "restarted" in (line := each.getMessage())]
    assert len(told) == 1
    assert told[0].startswith("region restarted: region=left attempt_id=")
    assert "cause=UnreachableError: a broker went away" in told[0]


def test_abort_before_skip_an_attempt_that_is_over_says_what_it_left_open(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait in front of it, and a sweep may be far off: here there is none."""
    monkeypatch.setattr(FakeSink, "sweep", lambda *_, **__: SweepReport(aborted=0))
    watched.begin("left")
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    told, registering = list[RegionRegistration](), watched.coordinator.register_region

    def register(registration: RegionRegistration) -> None:
        told.append(registration)
        registering(registration)

    monkeypatch.setattr(watched.coordinator, "register_region", register)
    watched.run()
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    first = watched.regions.attempt_ids["left"][0]
    at_its_begin, at_its_end = [len(each.open) for each in told if each.attempt_id == first]
    assert at_its_begin <= at_its_end == 1  # it may have begun to write before it was known
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)


def test_a_file_system_that_only_a_host_has_found_away_is_waited_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, asked, looks = end(watched), list[str](), list[ThreadQuery]()
    away = StorageUnreachableError("away", {"uri": "hdfs://n/"}, "Start it.")
    query.thread.error = query.hindrance = away
    asking, looking = watched.coordinator.request_restart, ThreadQuery.require_writable

    def ask(region: str) -> RequestedRestart:
        asked.append(region)
        return asking(region)

    def look(of: ThreadQuery) -> None:
        looks.append(of)
        looking(of)

    monkeypatch.setattr(watched.coordinator, "request_restart", ask)
    monkeypatch.setattr(ThreadQuery, "require_writable", look)
    wait_for(lambda: watched.lives_of("left") and (looks or asked), poll_s=0.005)
    assert not asked
    query.hindrance = None
    watched.clock.advance(10.0)
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)


BATCH_WAITING = BatchKey(region="main", attempt_id=0, batch_id=1)
BEGINS = RestartedRegion(attempt_id=7, restored=RegionRecord(region="main", attempt_id=7))


def test_a_wait_that_is_given_up_leaves_the_others_of_its_batch_waiting() -> None:
    """A callback and a drained pipeline may wait for one batch, each with a bound of its own."""
    waiters = BatchWaiters()
    short, long = waiters.add(BATCH_WAITING), waiters.add(BATCH_WAITING)
    waiters.remove(BATCH_WAITING, short)
    waiters.resolve([BATCH_WAITING], None)
    assert long.wait(0.0)
    assert not short.wait(0.0)
    waiters.remove(BATCH_WAITING, long)


def test_an_answer_that_does_not_come_in_time_is_an_error_that_says_what_was_asked() -> None:
    with pytest.raises(WaitedTooLongError, match=r"waits_for=trigger waited_s=0\.0"):
        result_within(Future[int](), 0.0, {"waits_for": "trigger"})


def test_an_answer_that_is_a_wait_of_its_own_is_reported_as_it_is() -> None:
    """It is no wait for the answer, though both are time-outs."""
    answer: Future[int] = Future()
    error = WaitedTooLongError("a checkpoint could not be settled in time", {}, "Start it again.")
    answer.set_exception(error)
    with pytest.raises(WaitedTooLongError) as raised:
        result_within(answer, 1.0, {"waits_for": "trigger"})
    assert raised.value is error


def test_abort_before_skip_a_new_attempt_does_not_begin_between_its_answer_and_its_sweep() -> None:
    answer: Future[RestartedRegion] = Future()
    seen: list[RestartedRegion | None] = []
    swept = threading.Event()
    answer.add_done_callback(lambda _: seen.append(asked.poll()))
    asked = RequestedRestart(answer, sweep=lambda: swept, sweep_limit_s=10.0, clock=ManualClock())
    answer.set_result(BEGINS)
    assert seen == [None]
    assert asked.poll() is None
    swept.set()
    assert asked.poll() == BEGINS


FENCED = FencedError("another job uses this prefix", {}, "Stop one of them.")


class OwnedSink(FakeSink):
    """Another run may have its record; it counts its sweeps."""

    is_lost = False
    sweeps = 0

    def renew(self) -> None:
        if self.is_lost:
            raise FENCED
        super().renew()

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        self.sweeps += 1
        return super().sweep(view, timeout_s=timeout_s)


def test_lease_guards_outputs_what_a_start_has_found_is_not_enough_for_the_first_decision(
    job: Job,
) -> None:
    """Its sweep came after a look; the other start's claim may have come after that."""
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, interval_s=None, sweep_interval_s=600.0, renew_interval_s=600.0)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    sink.is_lost = True
    with pytest.raises(FencedError):
        coordinator._leases.require()  # noqa: SLF001


def test_lease_guards_outputs_a_run_that_was_replaced_sweeps_nothing_more(job: Job) -> None:
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, sweep_interval_s=0.02, renew_interval_s=0.02)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    wait_for(lambda: sink.sweeps >= 2, poll_s=0.005)
    sink.is_lost = True
    wait_for(lambda: coordinator.status().state == "fenced", poll_s=0.005)
    sweep_soon(coordinator)
    before = sink.sweeps
    for _ in range(3):
        sweep_soon(coordinator)
    coordinator.stop()
    assert sink.sweeps == before


def test_lease_guards_outputs_a_sweep_after_a_pause_looks_first(job: Job) -> None:
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, sweep_interval_s=600.0, renew_interval_s=600.0)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    before = sink.sweeps
    sink.is_lost = True
    coordinator._slept = lambda: 3_600.0  # noqa: SLF001
    sweep_soon(coordinator)
    assert sink.sweeps == before
    wait_for(lambda: coordinator.status().state == "fenced", poll_s=0.005)


def test_lease_guards_outputs_the_first_sweep_of_a_start_looks_too(job: Job) -> None:
    """It may have waited for a broker since it had the record."""
    sink = OwnedSink(job.broker)
    coordinator = job.coordinator(sink=sink)

    def claim(*_: object, **__: object) -> None:
        sink.is_lost = True
        coordinator._slept = lambda: 3_600.0  # noqa: SLF001

    with patch.object(sink, "claim", claim), pytest.raises(FencedError):
        coordinator.start(PATIENCE_S)
    assert sink.sweeps == 0


def test_lease_guards_outputs_an_end_waits_for_no_sweep_of_a_run_that_was_replaced(
    job: Job,
) -> None:
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, sweep_interval_s=600.0, renew_interval_s=600.0)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    sink.is_lost = True
    coordinator._slept = lambda: 3_600.0  # noqa: SLF001
    threads = coordinator._threads  # noqa: SLF001
    before = sink.sweeps
    assert threads._sweep_whole()  # noqa: SLF001
    assert sink.sweeps == before


def sweep_soon(coordinator: BarrierCoordinator) -> None:
    threads = coordinator._threads  # noqa: SLF001
    assert threads.sweep_soon().wait(PATIENCE_S)
