"""The handle of a job that runs in a thread of its own: its status, its end, and its stop."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its end is registered before ours
import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass
from itertools import product
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from sluice.runtime.coordinator.region.status_views import (
    JobStatus,
    RegionStatusView,
    WaitingForResources,
)
from sluice.runtime.errors import ConfigError, FencedError, WaitedTooLongError
from sluice.runtime.job.notebook_view import live_line, table
from sluice.runtime.spark.session.interrupts import (
    StopRequest,
    StopRequestedError,
    ended_by_signals,
    waiting,
)

__all__ = ["JobHandle", "RunStatus"]

if TYPE_CHECKING:
    from sluice.runtime.coordinator.shell.request_thread import RequestedCheckpoint
    from sluice.runtime.spark.run.spark_engine import JobResult, JobRun

log = logging.getLogger(__name__)

_REDRAW_S = 0.5
_AT_WORK = ("running", "WAITING_FOR_RESOURCES")
_EXIT_S = 300.0  # longer than the bounds of a stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run of a job, at one moment. A notebook shows it as a table.

    Attributes:
        name: of the job.
        state: ``standby`` (another process leads the job), ``starting``, ``running``,
            ``WAITING_FOR_RESOURCES`` (it has too few cores), ``stopping``, then ``finished`` (each
            bounded source has reached its end), ``stopped``, ``failed``, or ``fenced`` (another
            run took over).
        checkpoint_id: newest checkpoint that is committed on record; None before the start is over.
        records: committed on record by this run.
        lag_records: records that the job has not read yet; None: not known for any region.
        elapsed_s: from the start to the end, or to now.
        regions: the regions, each with its attempts, lag and pressure.
        last_failure: the error that ended the job, else that of the newest attempt of a region.
        waiting_for_resources: the cores that it needs and has, if these are too few.
    """

    name: str
    state: str
    checkpoint_id: int | None
    records: int
    lag_records: int | None
    elapsed_s: float
    regions: tuple[RegionStatusView, ...]
    last_failure: str | None
    waiting_for_resources: WaitingForResources | None = None

    def __str__(self) -> str:
        lag = "" if self.lag_records is None else f", lag {self.lag_records:,}"
        failure = "" if self.last_failure is None else f", last failure: {self.last_failure}"
        waiting = self.waiting_for_resources
        cores = "" if waiting is None else f" (needs {waiting.needed}, has {waiting.present})"
        return (
            f"{self.name}: {self.state}{cores} for {self.elapsed_s:.0f} s, checkpoint "
            f"{self.checkpoint_id}, {self.records:,} records committed{lag}{failure}"
        )

    def _repr_html_(self) -> str:
        return table(
            {
                "job": self.name,
                "state": f"{self.state}, {self.elapsed_s:.0f} s",
                "checkpoint": self.checkpoint_id,
                "records committed": f"{self.records:,}",
                "last failure": self.last_failure,
            },
            [
                {
                    "region": region.region,
                    "state": _state_of(region),
                    "lag": region.lag_records,
                    "pressure": region.pressure,
                    "ended attempts": region.ended,
                }
                for region in self.regions
            ],
        )


def _state_of(region: RegionStatusView) -> str:
    if region.suspended is not None:
        return "suspended"
    return "running" if region.is_open else "restarting"


class JobHandle:
    """A job that `Job.start` has started. Driver; any thread.

    The job runs in a thread of its own. At the end of the program it is stopped in order. In a
    ``with`` statement, the end of the block stops it, and raises the error of a job that failed
    unless the block has it from `wait` or `exception`. A handle cannot be pickled.
    """

    def __init__(self, name: str, checkpoint_dir: str, run: JobRun) -> None:
        self._name = name
        self._checkpoint_dir = checkpoint_dir
        self._run = run
        self._stop = StopRequest()
        self._checked = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._is_error_read = False
        self._refusal: BaseException | None = None
        self._requested_stop: tuple[object, RequestedCheckpoint] | None = None

    def start(self) -> None:
        """Run the job in a thread; return after its checks. Called once, by `Job.start`.

        Raises:
            StreamError: the checks failed; nothing was changed.
        """
        thread = threading.Thread(
            target=self._run_job, name=f"sluice-job-{self._name}", daemon=True
        )
        with waiting():
            try:
                thread.start()
                self._checked.wait()
            except BaseException:  # the caller never gets this handle
                self._stop.request()
                if thread.ident is not None:  # otherwise it changes nothing before its first check
                    self.stop()
                raise
        if self._refusal is not None:
            raise self._refusal

    def _run_job(self) -> None:
        with _lock:
            _active.append(self)
        try:
            self._run.check()
            self._stop.check()
            self._stop_earlier()
            self._run.run(self._stop, on_step=self._checked.set)
        except StopRequestedError:
            log.info("job stopped: job=%s", self._name)
        except BaseException as err:  # noqa: BLE001 - raised in the threads that wait
            self._error = err
            if self._checked.is_set():
                log.error("job failed: job=%s error=%s: %s", self._name, type(err).__name__, err)
            else:
                self._refusal = err
        finally:
            with _lock:
                _active.remove(self)
            self._ended.set()
            self._checked.set()

    def _stop_earlier(self) -> None:
        """As Spark with ``spark.sql.streaming.stopActiveRunOnRestart``: stop the active run of the
        same job in order. Without this, the new run would fence the earlier one."""
        with _lock:
            earlier = [
                handle
                for handle in _active[: _active.index(self)]
                if (handle.name, handle.checkpoint_dir) == (self.name, self.checkpoint_dir)
            ]
        for handle in earlier:
            log.warning("an earlier start of this job is stopped first: job=%s", self._name)
            handle.stop()

    # --- what users read --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    @property
    def checkpoint_dir(self) -> str:
        """Its checkpoint directory, as an absolute URI."""
        return self._checkpoint_dir

    @property
    def metrics_address(self) -> str | None:
        """``http://host:port`` of the read-only port; None: it has none, or not yet."""
        return self._run.metrics_address

    @property
    def is_active(self) -> bool:
        """Whether the job runs: it has neither ended nor failed."""
        return not self._ended.is_set()

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the job; None: it runs, finished, or was stopped."""
        self._is_error_read |= not self.is_active
        return self._error if self._is_error_read else None

    @property
    def result(self) -> JobResult | None:
        """The result after the job has finished or was stopped; None: it runs, failed, or was
        stopped before its first checkpoint could begin."""
        return self._run.result() if self._ended.is_set() and self._error is None else None

    def status(self) -> RunStatus:
        """The state of the job now, or at its end. Returns within milliseconds."""
        found = self._run.status()
        regions = () if found is None else found.regions
        lags = [each.lag_records for each in regions if each.lag_records is not None]
        return RunStatus(
            name=self._name,
            state=self._state(found),
            checkpoint_id=None if found is None else found.last_committed,
            records=self._run.totals.records,
            lag_records=sum(lags) if lags else None,
            elapsed_s=self._run.elapsed_s,
            regions=regions,
            last_failure=self._last_failure(regions),
            waiting_for_resources=None if found is None else found.waiting_for_resources,
        )

    def _state(self, found: JobStatus | None) -> str:
        if not self.is_active:
            if self._error is not None:
                return "fenced" if isinstance(self._error, FencedError) else "failed"
            return "stopped" if found is None else found.state
        if self._stop.is_requested or (found is not None and found.state not in _AT_WORK):
            return "stopping"
        if found is None:
            return "standby" if self._run.is_standby else "starting"
        return found.state

    def _last_failure(self, regions: tuple[RegionStatusView, ...]) -> str | None:
        if not self.is_active and self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        ended = [attempt for region in regions for attempt in region.attempts]
        return max(ended, key=lambda each: each.ended_ms).why if ended else None

    def __repr__(self) -> str:
        return f"<JobHandle {self.status()}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "a job handle belongs to the driver and cannot be pickled",
            {"job": self._name},
            "Read values of the handle first, and use those in the function.",
        )

    # --- the end ----------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended; as Spark's ``StreamingQuery.awaitTermination``.

        A notebook or a terminal shows progress in one line. An interrupt (Ctrl-C) ends only the
        wait: the job continues.

        Args:
            timeout: seconds; None: no limit.
        Returns:
            Whether the job has ended.
        Raises:
            StreamError: the error that ended the job.
            KeyboardInterrupt: the wait was interrupted.
        """
        try:
            has_ended = self._await_end(timeout)
        except KeyboardInterrupt:
            if not self.is_active:
                raise
            raise KeyboardInterrupt(
                f"the wait ended, and job {self._name} continues; handle.stop() stops it"
            ) from None
        if has_ended and self.exception is not None:
            raise self.exception
        return has_ended

    def savepoint(self, to: str | None = None, timeout: float | None = None) -> str:
        """Write a savepoint while the job runs; returns its path.

        Args:
            to: directory or URI to write it below; None: ``savepoints`` in the checkpoint
                directory.
            timeout: seconds to wait; None: no limit. The checkpoint itself has ``timeout_s``.
        Raises:
            WaitedTooLongError: it is not complete yet, or its checkpoint was not committed in time.
            StreamError: there is no savepoint; the job continues.
        """
        with waiting():
            request = self._run.commands(timeout).savepoint("savepoint", to=to)
            return request.result(timeout).uri

    def stop(
        self,
        timeout: float | None = None,
        *,
        savepoint: bool | str = False,
        drain: bool = False,
    ) -> str | None:
        """Stop the job, and wait until nothing of it is open. The next start resumes. Repeatable;
        after the end it does nothing. It does not raise the error of a job that failed: see
        `exception`.

        By default decided checkpoints are committed and all other work is aborted. With a savepoint
        or a drain, the last epoch is read to its barrier and committed first. If that fails, the
        job continues; then stop it without both.

        Args:
            timeout: seconds; None: no limit. With a savepoint or a drain also for the last
                checkpoint.
            savepoint: write a savepoint before the end, below this directory or URI; True: below
                ``savepoints`` in the checkpoint directory.
            drain: first read to the present end offsets of all sources.
        Returns:
            The savepoint's path, if there is one.
        Raises:
            WaitedTooLongError: the job still stops; or the last checkpoint was not committed in
                time, and the job continues.
            StreamError: the savepoint or the drain failed, and the job continues.
        """
        path = None
        known = self._known_stop(savepoint, drain=drain)
        if (self.is_active or known) and (savepoint is not False or drain):
            path = self._stop_in_order(timeout, savepoint, drain=drain)
        else:
            self._stop.request()
        with waiting():
            has_ended = self._ended.wait(timeout)
        if not has_ended:
            raise WaitedTooLongError(
                "the job has not stopped in time",
                {"job": self._name, "waited_s": timeout},
                "Call stop() again to wait longer: the job continues to stop.",
            )
        return path

    def _stop_in_order(
        self, timeout: float | None, savepoint: bool | str, *, drain: bool
    ) -> str | None:
        with waiting():
            request = self._known_stop(savepoint, drain=drain) or self._run.commands(timeout).stop(
                drain=drain,
                savepoint=savepoint is not False,
                to=savepoint if isinstance(savepoint, str) else None,
                limit_s=timeout,
            )
            self._requested_stop = (savepoint, drain), request
            return request.result(timeout).uri or None

    def _known_stop(self, savepoint: bool | str, *, drain: bool) -> RequestedCheckpoint | None:
        """An earlier call's request, unless it failed: a second one would end the job at once."""
        wanted, request = self._requested_stop or (None, None)
        if request is None or wanted != (savepoint, drain):
            return None
        has_failed = request.answer.done() and request.answer.exception() is not None
        return None if has_failed else request

    def run_to_end(self) -> JobResult:
        """`Job.run` in a notebook: an interrupt stops the job in order before it ends the cell."""
        try:
            self._await_end(None)
        except BaseException as err:
            self.stop()
            if self._error is None and isinstance(err, KeyboardInterrupt):
                raise KeyboardInterrupt(
                    f"job {self._name} has stopped in order; the next start resumes"
                ) from None
            if not isinstance(err, KeyboardInterrupt):
                raise
        if self._error is not None:
            raise self._error
        result = self.result
        assert result is not None  # it has started, and ended without an error
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if kind is None and self._error is not None and not self._is_error_read:
            raise self._error

    def _await_end(self, timeout: float | None) -> bool:
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        with waiting(), live_line(self._run.totals.line) as redraw:
            while True:
                left_s = deadline_s - time.monotonic()
                if self._ended.wait(min(_REDRAW_S, max(0.0, left_s))):
                    return True
                if left_s <= 0:
                    return False
                redraw()


_lock = threading.Lock()
_active: list[JobHandle] = []  # in the order of their starts


def _stop_all() -> None:
    """At the end of the program's main thread. A signal waits for it, a second one does not."""
    with _lock:
        handles = list(_active)
    with contextlib.suppress(SystemExit), ended_by_signals() as interrupts, interrupts.held():
        for timeout_s, handle in product((0.0, _EXIT_S), handles):  # request all ends first
            with contextlib.suppress(WaitedTooLongError):
                handle.stop(timeout_s)


# Like the executors of `concurrent.futures`, and before them: sinks use such executors. `atexit` is
# too late: threads cannot begin any more.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
