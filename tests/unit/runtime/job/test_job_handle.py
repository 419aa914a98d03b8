"""A handle at each state of its job, over a run that the test leads; and what a notebook shows."""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import (
    AttemptView,
    JobStatus,
    RegionStatusView,
    SuspendedView,
    WaitingForResources,
)
from sluice.runtime.coordinator.shell.request_thread import RequestedCheckpoint, RequestView
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    StreamError,
    UnreachableError,
    WaitedTooLongError,
)
from sluice.runtime.job import job_handle
from sluice.runtime.job.job_handle import JobHandle
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.spark.run.console import RunTotals
from sluice.runtime.spark.run.spark_engine import JobResult, JobRun
from sluice.runtime.spark.session.interrupts import EndRequests, is_interactive
from tests.kit.waiting import PATIENCE_S, join, wait_for

FAILED = UnreachableError("no broker answers", {"servers": "here:1"}, "Start one.")
RESULT = JobResult(job_uid="uid", restored_from=None, last_checkpoint_id=7, elapsed_s=1.5)


def region(**changes: Any) -> RegionStatusView:
    values: dict[str, Any] = {
        "region": "orders",
        "attempt_id": 1,
        "is_open": True,
        "batch_id": 3,
        "splits": {},
        "begins_ms": None,
        "ended": 0,
        "attempts": (),
        "pending_ratio": None,
        "pressure": None,
        "rate_limit": None,
        "dropped": 0,
        "late_rows": 0,
        "lag_records": 5,
    }
    return RegionStatusView(**values | changes)


class LedRun:
    """A run that does what the test says, when it says so."""

    def __init__(self, *regions: RegionStatusView) -> None:
        self.totals = RunTotals("orders")
        self.elapsed_s, self.is_standby = 1.5, False
        self.regions = regions
        self.state: str | None = None  # of its coordinator, once that has started
        self.waiting: WaitingForResources | None = None
        self.has_begun = threading.Event()
        self._next: list[Callable[[EndRequests, Callable[[], None]], None]] = []
        self._has_next = threading.Semaphore(0)
        self.refusal: BaseException | None = None
        self.stops: list[RequestedCheckpoint] = []

    def commands(self, _: float | None) -> Self:
        return self

    def stop(self, **_: object) -> RequestedCheckpoint:
        view = RequestView(request_id="0a1b2c", kind="stop")
        self.stops.append(RequestedCheckpoint(CheckpointKind.FINAL, None, True, False, 0, 0, view))
        return self.stops[-1]

    def do(self, step: Callable[[EndRequests, Callable[[], None]], None]) -> None:
        self._next.append(step)
        self._has_next.release()

    def pass_checks(self) -> None:
        self.do(lambda _, on_step: on_step())

    def end(self, state: str, error: BaseException | None = None) -> None:
        def last(_: EndRequests, __: Callable[[], None]) -> None:
            self.state = state
            raise error or EOFError

        self.do(last)

    def settle(self) -> None:
        """Let it stop, as its coordinator does."""

        def last(ends: EndRequests, _: Callable[[], None]) -> None:
            self.state = "stopped"
            ends.check()

        self.do(last)

    def do_when(self, condition: Callable[[], object], then: Callable[[], None]) -> None:
        def wait() -> None:
            wait_for(condition)
            then()

        threading.Thread(target=wait).start()

    def settle_when(self, condition: Callable[[], object]) -> None:
        self.do_when(condition, self.settle)

    def status(self) -> JobStatus | None:
        if self.state is None:
            return None
        return JobStatus(
            state=self.state,
            drop_limit=None,
            error="",
            last_decided=8,
            last_committed=7,
            pending=(),
            regions=self.regions,
            waiting_for_resources=self.waiting,
        )

    def result(self) -> JobResult | None:
        return None if self.state is None else RESULT

    def check(self) -> None:
        self.has_begun.set()
        if self.refusal is not None:
            raise self.refusal

    def run(self, ends: EndRequests, *, on_step: Callable[[], None]) -> None:
        while True:
            assert self._has_next.acquire(timeout=PATIENCE_S)
            try:
                self._next.pop(0)(ends, on_step)
            except EOFError:
                return


def handle_of(run: LedRun, name: str = "orders", directory: str = "file:///here") -> JobHandle:
    return JobHandle(name, directory, cast(JobRun, run))


def started(run: LedRun) -> JobHandle:
    run.pass_checks()
    handle = handle_of(run)
    handle.start()
    return handle


@pytest.fixture
def run() -> LedRun:
    return LedRun(region())


@pytest.fixture(autouse=True)
def _all_end() -> Iterator[None]:
    """A handle that has not ended would be stopped at the end of the tests' process."""
    yield
    assert job_handle._active == []  # noqa: SLF001 - no other way to see all


@pytest.fixture
def _usual_handlers() -> Iterator[None]:
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt_when(condition: Callable[[], object], number: int = signal.SIGINT) -> None:
    def send() -> None:
        wait_for(condition, what="a wait of the main thread")
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def is_waiting() -> bool:
    """Whether the main thread waits for an event of a handle."""
    main = threading.main_thread().ident or 0
    frame = sys._current_frames()[main]  # noqa: SLF001 - documented
    files = []
    while frame.f_back is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
        files.append(frame.f_code.co_filename)
    return bool(files) and files[-1].endswith("/runtime/job/job_handle.py") and len(files) > 1


class TestStates:
    def test_a_job_starts_runs_and_finishes(self, run: LedRun) -> None:
        handle = started(run)
        assert (handle.is_active, handle.status().state) == (True, "starting")
        assert handle.status().checkpoint_id is None
        run.is_standby = True
        assert handle.status().state == "standby"
        run.state = "running"
        status = handle.status()
        assert (status.state, status.checkpoint_id, status.lag_records) == ("running", 7, 5)
        run.state = "WAITING_FOR_RESOURCES"
        run.waiting = WaitingForResources(needed=3, present=1, since_ms=0)
        assert "WAITING_FOR_RESOURCES (needs 3, has 1) for" in str(handle.status())
        run.state, run.waiting = "running", None
        assert (handle.result, handle.exception) == (None, None)
        assert not handle.wait(timeout=0)
        run.end("finished")
        assert handle.wait(timeout=PATIENCE_S)
        assert (handle.is_active, handle.status().state) == (False, "finished")
        assert (handle.name, handle.result, handle.exception) == ("orders", RESULT, None)

    def test_a_job_that_ends_is_not_shown_as_running(self, run: LedRun) -> None:
        """Its coordinator has ended, and its regions still stop."""
        handle = started(run)
        run.state = "failed"
        assert handle.status().state == "stopping"
        run.end("failed", FAILED)
        with pytest.raises(UnreachableError):
            handle.wait()

    def test_a_refused_job_raises_from_its_start_alone(
        self, run: LedRun, caplog: pytest.LogCaptureFixture
    ) -> None:
        run.refusal = ConfigError("no", {}, "Change it.")
        handle = handle_of(run)
        with pytest.raises(ConfigError):
            handle.start()
        assert (handle.is_active, handle.status().state) == (False, "failed")
        assert caplog.records == []

    def test_a_later_error_is_logged_and_raised_from_each_wait(
        self, run: LedRun, caplog: pytest.LogCaptureFixture
    ) -> None:
        handle = started(run)
        run.end("failed", FAILED)
        for _ in range(2):
            with pytest.raises(UnreachableError) as raised:
                handle.wait()
            assert raised.value is FAILED
        assert (handle.exception, handle.result) == (FAILED, None)
        assert handle.status().last_failure == f"UnreachableError: {FAILED}"
        assert "no broker answers" in caplog.text
        handle.stop()  # raises nothing: the job is over

    def test_a_fenced_job_says_so(self, run: LedRun) -> None:
        handle = started(run)
        run.end("fenced", FencedError("a newer run", {}, "Let this one end."))
        with pytest.raises(FencedError):
            handle.wait()
        assert handle.status().state == "fenced"

    def test_the_last_failure_is_that_of_the_newest_attempt(self) -> None:
        attempts = [
            AttemptView(attempt_id=n, ended_ms=n, why=f"failure {n}", committed_after_s=None)
            for n in range(3)
        ]
        run = LedRun(region(attempts=tuple(attempts[::2])), region(attempts=(attempts[1],)))
        handle = started(run)
        run.state = "running"
        assert handle.status().last_failure == "failure 2"
        run.end("finished")
        assert handle.wait()
        assert handle.status().last_failure == "failure 2"

    def test_an_unknown_lag_is_not_zero(self) -> None:
        run = LedRun(region(lag_records=None))
        handle = started(run)
        run.state = "running"
        assert handle.status().lag_records is None
        run.end("finished")
        assert handle.wait()


class TestStop:
    def test_a_stop_waits_until_nothing_is_open(self, run: LedRun) -> None:
        handle = started(run)
        run.state = "running"
        with pytest.raises(WaitedTooLongError) as raised:
            handle.stop(timeout=0)
        assert "Call stop() again" in str(raised.value)
        assert (handle.is_active, handle.status().state) == (True, "stopping")
        run.settle()
        handle.stop()
        handle.stop()
        assert (handle.is_active, handle.status().state) == (False, "stopped")
        assert (handle.wait(), handle.exception, handle.result) == (True, None, RESULT)

    def test_a_repeated_stop_waits_for_the_same_savepoint(self, run: LedRun) -> None:
        handle = started(run)
        run.state = "running"
        with pytest.raises(WaitedTooLongError):
            handle.stop(timeout=0, savepoint=True)
        run.stops[0].answer.set_result(replace(run.stops[0].view, uri="file:///s"))
        run.end("stopped")
        assert handle.stop(savepoint=True, timeout=PATIENCE_S) == "file:///s"
        assert len(run.stops) == 1  # a second one would end the job at once

    def test_a_stop_before_the_start_is_over_has_no_result(self, run: LedRun) -> None:
        handle = started(run)
        run.do(lambda ends, _: ends.check())  # between two steps of the start
        with pytest.raises(WaitedTooLongError):
            handle.stop(timeout=0)
        run.do(lambda ends, _: ends.check())
        handle.stop()
        assert (handle.status().state, handle.result) == ("stopped", None)

    def test_a_failure_while_it_stops_is_no_stop(self, run: LedRun) -> None:
        handle = started(run)
        with pytest.raises(WaitedTooLongError):
            handle.stop(timeout=0)
        run.end("failed", FAILED)
        handle.stop()
        assert handle.exception is FAILED
        with pytest.raises(UnreachableError):
            handle.wait()

    def test_a_block_stops_its_job(self, run: LedRun) -> None:
        with started(run) as handle:
            run.settle_when(lambda: handle.status().state == "stopping")
        assert handle.status().state == "stopped"

    def test_a_block_raises_a_failure_that_it_does_not_know(self, run: LedRun) -> None:
        def block() -> None:
            with started(run) as handle:
                run.end("failed", FAILED)
                wait_for(lambda: not handle.is_active)
                assert handle.status().state == "failed"

        with pytest.raises(UnreachableError):
            block()

    @pytest.mark.parametrize("is_waited_for", [False, True])
    def test_a_block_does_not_raise_a_known_failure_again(
        self, run: LedRun, *, is_waited_for: bool
    ) -> None:
        with started(run) as handle:
            run.end("failed", FAILED)
            wait_for(lambda: not handle.is_active)
            if is_waited_for:
                with pytest.raises(UnreachableError):
                    handle.wait()
            else:
                assert handle.exception is FAILED

    def test_a_block_keeps_its_own_error(self, run: LedRun) -> None:
        def block() -> None:
            with started(run) as handle:
                run.end("failed", FAILED)
                wait_for(lambda: not handle.is_active)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            block()

    @pytest.mark.parametrize("is_begun", [False, True])
    def test_an_interrupt_of_the_thread_s_start_leaves_no_job(
        self, run: LedRun, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
    ) -> None:
        """The caller gets no handle that could stop it."""
        start = threading.Thread.start

        def interrupted(thread: threading.Thread) -> None:
            if is_begun:
                start(thread)
            raise KeyboardInterrupt

        handle = handle_of(run)
        if is_begun:
            run.settle_when(lambda: handle.status().state == "stopping")
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.start()
        monkeypatch.undo()
        assert handle.is_active is not is_begun

    def test_waits_of_other_threads_end_with_a_stop(self, run: LedRun) -> None:
        handle = started(run)
        found: list[bool] = []
        waits = threading.Thread(target=lambda: found.append(handle.wait()))
        waits.start()
        with pytest.raises(WaitedTooLongError):
            handle.stop(timeout=0)
        run.settle()
        join(waits)
        assert found == [True]

    def test_a_second_start_stops_the_first_before_it_fences(self, run: LedRun) -> None:
        first, run.state = started(run), "running"
        second_run = LedRun()
        second_run.pass_checks()
        second = handle_of(second_run)
        starts = threading.Thread(target=second.start)
        starts.start()
        wait_for(lambda: first.status().state == "stopping")
        assert second.status().state == "starting"
        run.settle()
        join(starts)
        assert (first.status().state, second.is_active) == ("stopped", True)
        second_run.end("finished")
        assert second.wait()

    @pytest.mark.parametrize(
        ("name", "directory"), [("other", "file:///here"), ("orders", "file:///there")]
    )
    def test_another_job_stops_nothing(self, run: LedRun, name: str, directory: str) -> None:
        first, other_run = started(run), LedRun()
        other_run.pass_checks()
        other = handle_of(other_run, name, directory)
        other.start()
        assert first.status().state == "starting"
        for each, handle in ((run, first), (other_run, other)):
            each.end("finished")
            assert handle.wait()

    def test_the_end_of_the_program_stops_all(self, run: LedRun) -> None:
        handle = started(run)
        ends = threading.Thread(target=job_handle._stop_all)  # noqa: SLF001 - Python calls it
        ends.start()
        wait_for(lambda: handle.status().state == "stopping")
        run.settle()
        join(ends)
        assert not handle.is_active


@pytest.mark.usefixtures("_usual_handlers")
class TestInterrupts:
    def test_an_interrupt_ends_the_wait_and_not_the_job(self, run: LedRun) -> None:
        handle = started(run)
        interrupt_when(is_waiting)
        with pytest.raises(
            KeyboardInterrupt,
            match=r"the wait ended, and job orders continues; handle\.stop\(\) stops",
        ):
            handle.wait()
        assert handle.is_active
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        run.end("finished")
        assert handle.wait()

    def test_pysparks_handler_does_not_cancel_the_job_of_a_wait(self, run: LedRun) -> None:
        def handler(*_: object) -> None:
            pytest.fail("PySpark's own handler cancels all jobs")

        handler.__module__ = "pyspark.core.context"
        signal.signal(signal.SIGINT, handler)
        handle = started(run)
        interrupt_when(is_waiting)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        assert signal.getsignal(signal.SIGINT) is handler
        run.end("finished")
        assert handle.wait()

    def test_sigterm_leaves_a_wait_with_the_shells_code(self, run: LedRun) -> None:
        """The end of the program then stops the job."""
        handle = started(run)
        interrupt_when(is_waiting, signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            handle.wait()
        assert ended.value.code == 143
        run.end("finished")
        assert handle.wait()

    def test_an_interrupt_of_a_run_stops_the_job_in_order(self, run: LedRun) -> None:
        handle = started(run)
        interrupt_when(is_waiting)
        run.settle_when(lambda: handle.status().state == "stopping")
        with pytest.raises(KeyboardInterrupt, match="has stopped in order; the next start resumes"):
            handle.run_to_end()
        assert handle.status().state == "stopped"

    def test_a_job_that_fails_while_it_is_interrupted_raises_its_error(self, run: LedRun) -> None:
        handle = started(run)
        interrupt_when(is_waiting)
        run.do_when(lambda: handle.status().state == "stopping", lambda: run.end("failed", FAILED))
        with pytest.raises(UnreachableError):
            handle.run_to_end()

    def test_an_interrupt_of_a_start_leaves_no_job(self, run: LedRun) -> None:
        handle = handle_of(run)
        interrupt_when(lambda: run.has_begun.is_set() and is_waiting())
        run.settle_when(lambda: handle.status().state == "stopping")
        with pytest.raises(KeyboardInterrupt):
            handle.start()
        assert not handle.is_active

    def test_a_run_raises_the_jobs_error_and_returns_its_result(self, run: LedRun) -> None:
        handle = started(run)
        run.end("finished")
        assert handle.run_to_end() == RESULT
        failing = LedRun()
        handle = started(failing)
        failing.end("failed", FAILED)
        with pytest.raises(UnreachableError):
            handle.run_to_end()


class TestViews:
    def test_a_handle_cannot_be_sent_to_an_executor(self, run: LedRun) -> None:
        handle = started(run)
        with pytest.raises(ConfigError, match="cannot be pickled"):
            pickle.dumps(handle)
        assert pickle.loads(pickle.dumps(handle.status())) == handle.status()
        run.end("finished")
        assert handle.wait()

    def test_a_table_has_the_regions_and_escapes_texts(self) -> None:
        suspended = SuspendedView(since_ms=0, why="no")
        run = LedRun(
            region(region="<a>", suspended=suspended), region(lag_records=None, is_open=False)
        )
        handle = started(run)
        run.state = "running"
        shown = handle._repr_html_()
        assert "<td>running, 2 s</td>" in shown
        assert "<tr><td>&lt;a&gt;</td><td>suspended</td><td>5</td>" in shown
        assert "<tr><td>orders</td><td>restarting</td><td>-</td>" in shown
        assert "last failure" not in shown
        assert "orders: running for 2 s, checkpoint 7, 0 records committed, lag 5" in repr(handle)
        run.end("failed", StreamError("<b>", {}, "Stop."))
        with pytest.raises(StreamError):
            handle.wait()
        assert "<td>StreamError: &lt;b&gt; []. Stop.</td>" in handle._repr_html_()

    def test_a_line_counts_what_is_committed(self) -> None:
        totals = RunTotals("orders")
        assert totals.line() == "orders: starting"
        for state in (State.DECIDED, State.MARKED, State.ABORTED):
            totals.on_progress(
                Progress(
                    checkpoint_id=4,
                    kind=CheckpointKind.CHECKPOINT,
                    requested_by="timer",
                    state=state,
                    records=1000,
                )
            )
        assert totals.records == 1000
        assert totals.line().startswith(
            "orders: checkpoint 4 aborted, 1 aborted; 1,000 records committed, "
        )

    def test_a_cell_gets_a_line_that_is_rewritten(
        self, run: LedRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only in a kernel: IPython on a terminal would print each line again."""
        shown: list[str] = []

        class Shown:
            def display(self, data: dict[str, str], *, raw: bool) -> None:
                shown.append("begin")

            def update(self, data: dict[str, str], *, raw: bool) -> None:
                shown.append(data["text/plain"])

        shell = SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(DisplayHandle=Shown))
        handle = started(run)
        assert not handle.wait(timeout=0)
        assert shown[:2] == ["begin", "orders: starting"]
        del shell.kernel
        shown.clear()
        assert not handle.wait(timeout=0)
        assert shown == []
        run.end("finished")
        assert handle.wait()

    def test_a_terminal_gets_one_too(
        self,
        run: LedRun,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        handle = started(run)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert not handle.wait(timeout=0)
        assert capsys.readouterr().err.endswith("\r\x1b[Korders: starting\n")
        run.end("finished")
        assert handle.wait()

    def test_only_a_shell_is_interactive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(sys, "ps1", raising=False)
        assert not is_interactive()
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        assert is_interactive()
