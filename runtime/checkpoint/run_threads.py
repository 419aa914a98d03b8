"""The threads of a started run: begun together, told to end together, settled in between."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from runtime.checkpoint.attempts import AttemptBook
from runtime.checkpoint.core import CoordinatorCore
from runtime.checkpoint.housekeeping import Housekeeper
from runtime.checkpoint.loop import CoreLoop, StepThread
from runtime.checkpoint.messages import Action, CoreEvent, OrphansSwept, StepFailed, StopAsked
from runtime.checkpoint.ownership import OwnerWatch
from runtime.checkpoint.plan import CheckpointSettings
from runtime.checkpoint.progress import ListenerThread
from runtime.checkpoint.routes import ActionRoutes
from runtime.checkpoint.steps import Hands, drive
from runtime.checkpoint.waiting import BatchWaiters, WakeUp
from runtime.contracts import Clock, SinkCoordinator, SweepReport
from runtime.errors import FencedError

__all__ = ["RunThreads"]

log = logging.getLogger(__name__)

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
        owners: the owner records.
        attempts: of tasks, as they were registered.
        waiters: threads that wait for their batch.
        wake: told of every change.
        listeners: told of progress.
        clock: monotonic seconds.
        core_clock, ages: see `runtime.checkpoint.loop.CoreLoop`.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        hands: Hands,
        *,
        job: str,
        job_uid: str,
        sinks: Mapping[str, SinkCoordinator],
        settings: CheckpointSettings,
        owners: OwnerWatch,
        attempts: AttemptBook,
        waiters: BatchWaiters,
        wake: WakeUp,
        listeners: ListenerThread,
        clock: Clock,
        core_clock: Clock,
        ages: Clock,
    ) -> None:
        self._hands = hands
        self._job = job
        self._job_uid = job_uid
        self._attempts = attempts
        self._wake = wake
        self._steps = StepThread(hands, self._post, overdue_s=settings.overdue_s, clock=clock)
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
        self._owners = owners
        self._housekeeper = Housekeeper(
            sweep=self._sweep, interval_s=settings.sweep_interval_s, clock=clock
        )

    def start(self) -> None:
        """Begin; the first tick may trigger a checkpoint."""
        self._owners.look_next()
        for thread in (self._steps, self._loop, self._housekeeper):
            thread.start()
        self._owners.tell(lambda err: self._post(StepFailed(checkpoint_id=0, error=err)))

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
        self._loop.step(StopAsked())
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
        self._owners.require()
        view = self.ask(
            lambda core: core.sweep_view(self._job_uid, self._attempts.orphans(core.fate))
        )
        swept = drive(self._hands.sweep(view))
        if swept.aborted:
            log.info("orphans aborted: job=%s swept=%d", self._job, swept.aborted)
        return swept
