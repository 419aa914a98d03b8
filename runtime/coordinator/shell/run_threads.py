"""The threads of a started run: begun together, told to end together, settled in between.

What a running job does now and then, and at once where readers wait: sweep orphans.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from sluice.runtime.contracts import Clock, SinkCoordinator, SweepReport
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Action,
    CoreEvent,
    OrphansSwept,
    StepFailed,
    StopRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.shell.action_dispatcher import ActionRoutes
from sluice.runtime.coordinator.shell.attempts import AttemptBook
from sluice.runtime.coordinator.shell.core_loop import CoreLoop, StepThread
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.shell.progress import ListenerThread
from sluice.runtime.coordinator.shell.restart_waits import BatchWaiters, WakeUp
from sluice.runtime.errors import FencedError, StreamError
from sluice.runtime.ownership.lease_watch import LeaseWatch

__all__ = ["Housekeeper", "RunThreads"]

log = logging.getLogger(__name__)


class Housekeeper:
    """A thread that sweeps until it is stopped.

    Args:
        sweep: one sweep; must not raise for an unreachable remote.
        interval_s: between two sweeps that nobody asked for.
        clock: monotonic seconds.
    """

    def __init__(self, *, sweep: Callable[[], object], interval_s: float, clock: Clock) -> None:
        self._sweep = sweep
        self._interval_s = interval_s
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._asked: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="sluice-housekeeper", daemon=True)

    def start(self) -> None:
        """Begin; the first sweep was part of the job's start."""
        self._thread.start()

    def sweep_soon(self, then: Callable[[], None]) -> None:
        """Do not wait for the interval: a region was stopped, its readers shall not wait.

        ``then`` is called, in this thread, once that sweep or the thread itself is over.
        """
        self._asked.append(then)
        self._wake.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._keep_house()
        finally:
            self._answer(len(self._asked))

    def _keep_house(self) -> None:
        sweep_s = self._clock() + self._interval_s
        while not self._stopping:
            self._wake.wait(max(sweep_s - self._clock(), 0.0))
            self._wake.clear()
            asked = len(self._asked)
            if not self._stopping and (asked or self._clock() >= sweep_s):
                sweep_s = self._clock() + self._interval_s
                self._sweep_once()
                self._answer(asked)

    def _answer(self, count: int) -> None:
        for _ in range(count):
            self._asked.popleft()()

    def _sweep_once(self) -> None:
        try:
            self._sweep()
        except StreamError as err:  # the next sweep comes in any case
            log.warning("sweep failed: error=%s", err)
        except Exception:  # a client's own bug must not end sweeping for the rest of the run
            log.exception("sweep failed; the next one tries again")


T = TypeVar("T")

_STOP_S = 15.0
_JOIN_S = 5.0


class RunThreads:
    """One thread owns the core, one does its remote steps in order, one sweeps.

    Driver; every method may be called from every thread, `stop` once.

    Args:
        core: of this run.
        hands: do its remote steps.
        job, job_uid: whose run it is.
        sinks: by operator id.
        settings: of the job.
        leases: of the sinks.
        attempts: of tasks, as they were registered.
        waiters: threads that wait for their batch.
        wake: told of every change.
        listeners: told of progress.
        clock: monotonic seconds.
        core_clock, ages: see `sluice.runtime.coordinator.shell.core_loop.CoreLoop`.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        io_executor: IoExecutor,
        *,
        job: str,
        job_uid: str,
        sinks: Mapping[str, SinkCoordinator],
        settings: CheckpointSettings,
        leases: LeaseWatch,
        attempts: AttemptBook,
        waiters: BatchWaiters,
        wake: WakeUp,
        listeners: ListenerThread,
        clock: Clock,
        core_clock: Clock,
        ages: Clock,
    ) -> None:
        self._io_executor = io_executor
        self._job = job
        self._job_uid = job_uid
        self._attempts = attempts
        self._wake = wake
        self._steps = StepThread(io_executor, self._post, overdue_s=settings.overdue_s, clock=clock)
        self.routes = ActionRoutes(
            steps=self._steps,
            waiters=waiters,
            wake=wake,
            listeners=listeners,
            sinks=sinks,
            sweep=self._sweep_for,
            sweep_whole=self._sweep_whole,
            visible_timeout_s=settings.settle_timeout_s,
            clock=clock,
        )
        self._loop = CoreLoop(core, clock=core_clock, ages=ages, on_actions=self.routes.carry_out)
        self._leases = leases
        self._housekeeper = Housekeeper(
            sweep=self._sweep, interval_s=settings.sweep_interval_s, clock=clock
        )

    def start(self) -> None:
        """Begin; the first tick may trigger a checkpoint."""
        self._leases.expire()
        for thread in (self._steps, self._loop, self._housekeeper):
            thread.start()
        self._leases.report_loss(lambda err: self._post(StepFailed(checkpoint_id=0, error=err)))

    def step(self, event: CoreEvent) -> list[Action]:
        """Give the core an event; the actions it answered with, which are carried out anyway."""
        return self._loop.step(event)

    def ask(self, question: Callable[[CoordinatorCore], T]) -> T:
        """Run a question in the thread that owns the core; its answer, or its error."""
        return self._loop.ask(question)

    def sweep_soon(self) -> threading.Event:
        """Abort orphans now; set once that was tried, or will not be."""
        swept = threading.Event()
        self._housekeeper.sweep_soon(swept.set)
        return swept

    def cancel(self) -> None:
        """End the job now: wake every callback and poller; nothing is waited for."""
        self.routes.give_up()
        self._loop.step(StopRequested())
        self._wake.notify()

    def stop(self) -> None:
        """Settle what is decided within a bound, sweep what is not, end the threads."""
        with contextlib.ExitStack() as stack:  # from its end; one failure hinders no other
            stack.callback(self._loop.stop, timeout_s=_JOIN_S)
            stack.callback(self._steps.stop, timeout_s=_JOIN_S)
            stack.callback(self._sweep_last)
            stack.callback(self._settle_last)
            self._housekeeper.stop(timeout_s=_JOIN_S)

    def _settle_last(self) -> None:
        deadline_s = time.monotonic() + _STOP_S
        version = self._wake.version
        while not self.ask(lambda core: core.is_idle):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                log.warning("job stops with a checkpoint open; the next start settles it")
                return
            self._wake.wait(version, min(left_s, _JOIN_S))
            version = self._wake.version

    def _sweep_last(self) -> None:
        """What was given up must not hold back readers until the next start."""
        try:
            self._sweep()
        except Exception:  # a stop goes on: connections have to be closed
            log.exception("the last sweep failed, the next start repeats it")

    def _post(self, event: CoreEvent) -> None:
        self._loop.post(event)

    def _sweep_for(self, checkpoint_id: int) -> None:
        swept = OrphansSwept(checkpoint_id=checkpoint_id)
        self._housekeeper.sweep_soon(lambda: self._post(swept))

    def _sweep_whole(self) -> bool:
        """Whether nothing is open any more that holds back readers. Raises as a sweep does."""
        try:
            return self._sweep().is_complete
        except FencedError:
            return True  # what is open now is another run's

    def _sweep(self) -> SweepReport:
        """Raises FencedError where another run has the sinks: what is old here may be decided
        there, as when that one goes on from a copy of the checkpoint directory."""
        if self.ask(lambda core: core.is_fenced):
            return SweepReport(aborted=0)
        self._leases.require()
        view = self.ask(
            lambda core: core.sweep_view(self._job_uid, self._attempts.orphans(core.fate))
        )
        swept = drive(self._io_executor.sweep(view))
        if swept.aborted:
            log.info("orphans aborted: job=%s swept=%d", self._job, swept.aborted)
        return swept
