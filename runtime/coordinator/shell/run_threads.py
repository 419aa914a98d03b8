"""The threads of a started run: started together, stopped together. One of them sweeps orphans."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from sluice.runtime.contracts import Clock, SweepReport
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    OrphansSwept,
    StepFailed,
    StopRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.shell.action_dispatcher import (
    ActionDispatcher,
    BatchWaiters,
    ListenerThread,
    WakeUp,
)
from sluice.runtime.coordinator.shell.core_loop import CoreLoop, StepThread
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.election.leader_election import LeaderElection
from sluice.runtime.errors import FencedError, StorageError, StreamError, UnreachableError
from sluice.runtime.ownership.lease_watch import LeaseWatch

__all__ = ["Housekeeper", "RunThreads"]

log = logging.getLogger(__name__)


class Housekeeper:
    """A thread that sweeps until it is stopped.

    Args:
        sweep: one sweep; must not raise for an unreachable remote.
        interval_s: between two sweeps without a request.
        clock: monotonic seconds.
    """

    def __init__(self, *, sweep: Callable[[], object], interval_s: float, clock: Clock) -> None:
        self._sweep = sweep
        self._interval_s = interval_s
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._requests: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="sluice-housekeeper", daemon=True)

    def start(self) -> None:
        """Start the thread; the job's start has made the first sweep."""
        self._thread.start()

    def sweep_soon(self, then: Callable[[], None]) -> None:
        """Sweep now: a region was stopped, and its open work blocks readers.

        The thread calls ``then`` once that sweep, or the thread itself, is over.
        """
        self._requests.append(then)
        self._wake.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._sweep_until_stopped()
        finally:
            self._answer(len(self._requests))

    def _sweep_until_stopped(self) -> None:
        sweep_s = self._clock() + self._interval_s
        while not self._stopping:
            self._wake.wait(max(sweep_s - self._clock(), 0.0))
            self._wake.clear()
            requests = len(self._requests)
            if not self._stopping and (requests or self._clock() >= sweep_s):
                sweep_s = self._clock() + self._interval_s
                self._sweep_once()
                self._answer(requests)

    def _answer(self, count: int) -> None:
        for _ in range(count):
            self._requests.popleft()()

    def _sweep_once(self) -> None:
        try:
            self._sweep()
        except StreamError as err:  # the next sweep tries again
            log.warning("sweep failed: error=%s", err)
        except Exception:  # a bug in a client must not end all sweeps of the run
            log.exception("sweep failed, the next one tries again")


T = TypeVar("T")

_STOP_S = 15.0
_JOIN_S = 5.0


class RunThreads:
    """One thread owns the core, one runs its remote steps in order, one sweeps.

    Driver; any thread may call any method, `stop` once.

    ``core_clock``, ``ages``: see `sluice.runtime.coordinator.shell.core_loop.CoreLoop`.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        io_executor: IoExecutor,
        *,
        job: str,
        job_uid: str,
        sinks: Mapping[str, SerialSink],
        settings: CheckpointSettings,
        leases: LeaseWatch,
        election: LeaderElection | None,
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
        self._wake = wake
        self._steps = StepThread(io_executor, overdue_s=settings.overdue_s, clock=clock)
        self.dispatcher = ActionDispatcher(
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
        self.loop = CoreLoop(
            core, clock=core_clock, ages=ages, on_actions=self.dispatcher.carry_out
        )
        self._leases = leases
        self._election = election
        self._housekeeper = Housekeeper(
            sweep=self._sweep, interval_s=settings.sweep_interval_s, clock=clock
        )

    def start(self) -> None:
        """Start the threads; the first tick may trigger a checkpoint."""
        self._leases.expire()
        self._steps.start(self.loop.post)
        self.loop.start()
        self._housekeeper.start()
        self._leases.report_loss(self._end_by)
        if self._election is not None:
            self._election.report_loss(self._end_by)

    def _end_by(self, error: FencedError) -> None:
        self.loop.post(StepFailed(checkpoint_id=0, error=error))

    def sweep_soon(self) -> threading.Event:
        """Abort orphans now; the event is set after that attempt, or when the thread ends."""
        swept = threading.Event()
        self._housekeeper.sweep_soon(swept.set)
        return swept

    def end_if_replaced(self) -> None:
        """End the job by `FencedError` if another run has taken over.

        For a permanent error of a region: the other run deletes files of older attempts, and an
        error about a missing file would hide the cause.
        """
        with contextlib.suppress(FencedError):
            self._require_newest()

    def require_newest(self) -> None:
        """Raise FencedError if another run has taken over, StorageError if nobody can say."""
        self._io_executor.require_newest()

    def cancel(self) -> None:
        """End the job now and wake every callback and poller; do not wait."""
        self.dispatcher.give_up()
        self.loop.step(StopRequested())
        self._wake.notify()

    def stop(self) -> None:
        """Settle decided checkpoints within a bound, sweep the rest, end the threads."""
        with contextlib.ExitStack() as stack:  # run in reverse; one failure prevents no other
            stack.callback(self.loop.stop, timeout_s=_JOIN_S)
            stack.callback(self._steps.stop, timeout_s=_JOIN_S)
            stack.callback(self._sweep_last)
            stack.callback(self._settle_last)
            self._housekeeper.stop(timeout_s=_JOIN_S)

    def _settle_last(self) -> None:
        deadline_s = time.monotonic() + _STOP_S
        version = self._wake.version
        while not self.loop.ask(lambda core: core.is_idle):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                log.warning("job stops with an open checkpoint, the next start settles it")
                return
            self._wake.wait(version, min(left_s, _JOIN_S))
            version = self._wake.version

    def _sweep_last(self) -> None:
        """Sweep once more: abandoned work must not block readers until the next start."""
        try:
            self._sweep()
        except Exception:  # the stop continues: it has to close connections
            log.exception("last sweep failed, the next start repeats it")

    def _sweep_for(self, checkpoint_id: int) -> None:
        swept = OrphansSwept(checkpoint_id=checkpoint_id)
        self._housekeeper.sweep_soon(lambda: self.loop.post(swept))

    def _sweep_whole(self) -> bool:
        """Whether no open work blocks readers any more. Raises as a sweep does."""
        try:
            return self._sweep().is_complete
        except FencedError:
            return True  # open work belongs to another run now

    def _sweep(self) -> SweepReport:
        """Raises FencedError if another run holds a lease. That run may have decided work that is
        outdated here, for example if it resumed from a copy of the checkpoint directory."""
        if self.loop.ask(lambda core: core.is_fenced):
            return SweepReport(aborted=0)
        self._leases.require()
        self._require_newest()
        view = self.loop.ask(lambda core: core.sweep_view(self._job_uid))
        swept = drive(self._io_executor.sweep(view))
        if swept.is_complete:
            self.loop.ask(lambda core: core.swept())
        if swept.aborted:
            log.info("orphans aborted: job=%s swept=%d", self._job, swept.aborted)
        return swept

    def _require_newest(self) -> None:
        """A run that has nothing to decide learns here that another run has taken over. Without a
        lease it would find no other sign of that, and its tasks would keep their cores for ever."""
        try:
            self._io_executor.require_newest()
        except FencedError as err:
            self._end_by(err)
            raise
        except (StorageError, UnreachableError) as err:
            log.info("store did not return the newest run: job=%s error=%s", self._job, err)
