"""Passes each action of the core to the I/O thread, to a waiting thread, or to a listener."""

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import (
    Action,
    EndJob,
    FailBatches,
    PollAnswer,
    Progress,
    RegionRestarted,
    RegionSuspended,
    RemoteAction,
    RequestEnded,
    ReturnBatches,
    SweepOrphans,
    TriggerBarrier,
    Triggered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RestartedRegion
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.core_loop import StepThread
from sluice.runtime.coordinator.shell.request_thread import CopyDue
from sluice.runtime.errors import (
    FencedError,
    StorageError,
    StreamError,
    UnreachableError,
    WaitedTooLongError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.at_most_once import named, offsets_in
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import BatchKey

__all__ = ["ActionDispatcher", "BatchWaiters", "ListenerThread", "ProgressListener", "WakeUp"]

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

_MOST_WAITING = 1_000
_CHECK_S = 5.0  # also for a new connection
_SWEEP_AGAIN_S = 1.0
_LOG_EVERY_S = 30.0


class ProgressListener(Protocol):
    """Is notified of every state change of a checkpoint. Driver, in a thread of its own."""

    def on_progress(self, progress: Progress) -> None:
        """Receive one change. May be slow, and may raise: neither affects the job."""
        ...


class ListenerThread:
    """Passes progress to listeners, one at a time. If they are too slow, it drops progress."""

    def __init__(self, listeners: Sequence[ProgressListener]) -> None:
        self._listeners: tuple[ProgressListener, ...] = ()
        self._waiting: queue.Queue[Progress | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="sluice-progress", daemon=True)
        for listener in listeners:
            self.add(listener)

    def add(self, listener: ProgressListener) -> None:
        """Add a listener. Called by one thread at a time."""
        self._listeners = (*self._listeners, listener)
        if len(self._listeners) == 1:
            self._thread.start()

    def publish(self, progress: Progress) -> None:
        """Queue progress for all listeners. Never blocks."""
        if not self._listeners:
            return
        try:
            self._waiting.put_nowait(progress)
        except queue.Full:
            log.debug("progress dropped: checkpoint_id=%d", progress.checkpoint_id)

    def stop(self, *, timeout_s: float) -> None:
        """Pass queued progress to the listeners, then end the thread."""
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=timeout_s)
            except queue.Full:
                return  # a listener hangs; its thread is a daemon
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (progress := self._waiting.get()) is not None:
            for listener in self._listeners:
                try:
                    listener.on_progress(progress)
                except Exception:  # a listener is user code: its errors are its own
                    log.exception("progress listener failed: listener=%r", listener)


class Waiter:
    """One thread's wait for one batch."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def resolve(self, error: BaseException | None) -> None:
        """Wake the thread; with ``error`` it raises."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float | None) -> bool:
        """True once the batch is committed, False if time is up; raises the batch's error."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True


class BatchWaiters:
    """The waits for each batch. Any thread; it keeps only batches with a wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[BatchKey, list[Waiter]] = {}

    def add(self, batch: BatchKey) -> Waiter:
        """Add a wait; `remove` it afterwards."""
        waiter = Waiter()
        with self._lock:
            self._waiting.setdefault(batch, []).append(waiter)
        return waiter

    def remove(self, batch: BatchKey, waiter: Waiter) -> None:
        """Remove a wait; once for each `add`."""
        with self._lock:
            waiters = self._waiting[batch]
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[batch]

    def resolve(self, batches: Iterable[BatchKey], error: BaseException | None) -> None:
        """Wake all threads that wait for these batches."""
        with self._lock:
            found = [waiter for batch in batches for waiter in self._waiting.get(batch, [])]
        for waiter in found:
            waiter.resolve(error)


class WakeUp:
    """Counts changes, so that a poller misses no change between its poll and its wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0

    @property
    def version(self) -> int:
        """Changes so far."""
        with self._changed:
            return self._version

    def notify(self) -> None:
        """Count a change and wake all pollers."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until something has changed since ``version``, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)


class ActionDispatcher:
    """Carries out the core's actions. `carry_out` runs in the loop thread and never blocks."""

    def __init__(
        self,
        *,
        steps: StepThread,
        waiters: BatchWaiters,
        wake: WakeUp,
        listeners: ListenerThread,
        sinks: Mapping[str, SerialSink],
        sweep: Callable[[int], None],
        sweep_whole: Callable[[], bool],
        visible_timeout_s: float,
        clock: Clock,
    ) -> None:
        self._steps = steps
        self._waiters = waiters
        self._wake = wake
        self._listeners = listeners
        self._sinks = sinks
        self._sweep_whole = sweep_whole
        self._visible_timeout_s = visible_timeout_s
        self._clock = clock
        self._routes: Mapping[type[Action], Callable[[Any], object]] = {
            TriggerBarrier: self._trigger,
            ReturnBatches: self._return,
            FailBatches: lambda action: waiters.resolve(action.batches, action.error),
            SweepOrphans: lambda action: sweep(action.checkpoint_id),
            Triggered: self._triggered,
            RequestEnded: lambda action: self.answer_request(action.error),
            RegionRestarted: self._restarted,
            Progress: self._report_progress,
            RegionSuspended: _log_suspended,
            EndJob: self._end,
        }
        self._lock = threading.Lock()
        self._restarts: dict[str, list[Future[RestartedRegion]]] = defaultdict(list)
        self._triggers: dict[CheckpointKind, list[Future[int]]] = defaultdict(list)
        self._request: Future[CopyDue | None] | None = None
        self._done = threading.Event()
        self._given_up = threading.Event()
        self._error: BaseException | None = None

    # --- answers for other threads ----------------------------------------------------------------

    def expect_restart(self, region: str) -> Future[RestartedRegion]:
        """The answer to a `RestartRequested` that follows."""
        answer: Future[RestartedRegion] = Future()
        with self._lock:
            self._restarts[region].append(answer)
        return answer

    def expect_trigger(self, kind: CheckpointKind) -> Future[int]:
        """The answer to a `TriggerRequested` that follows."""
        answer: Future[int] = Future()
        with self._lock:
            self._triggers[kind].append(answer)
        return answer

    def expect_request(self) -> Future[CopyDue | None]:
        """The answer to a `CheckpointRequested` that follows."""
        with self._lock:
            answer = self._request = Future()
        return answer

    def answer_request(self, found: CopyDue | BaseException | None) -> None:
        """Answer the last `CheckpointRequested`, if it waits. Any thread."""
        with self._lock:
            answer, self._request = self._request, None
        if isinstance(found, BaseException) and answer is not None:
            answer.set_exception(found)
        elif not isinstance(found, BaseException) and answer is not None:
            answer.set_result(found)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the job has ended; raises its error."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def give_up(self) -> None:
        """The job is being stopped: do not wait until readers see its end."""
        self._given_up.set()

    # --- the loop thread --------------------------------------------------------------------------

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Pass each action to its receiver, in order."""
        for action in actions:
            if isinstance(action, RemoteAction):
                self._steps.put(action)
            elif type(action) in self._routes:
                self._routes[type(action)](action)
        self._steps.log_overdue()
        if any(not isinstance(action, PollAnswer) for action in actions) or not actions:
            self._wake.notify()

    def _trigger(self, _: TriggerBarrier) -> None:
        failpoint("before-trigger")
        self._wake.notify()
        failpoint("after-trigger")

    def _return(self, action: ReturnBatches) -> None:
        failpoint("before-return")
        self._waiters.resolve(action.batches, None)
        failpoint("after-return")

    def _triggered(self, action: Triggered) -> None:
        for answer in self._waiting(self._triggers, action.kind):
            answer.set_result(action.checkpoint_id)

    def _restarted(self, action: RegionRestarted) -> None:
        restarted = RestartedRegion(attempt_id=action.attempt_id, restored=action.restored)
        for answer in self._waiting(self._restarts, action.region):
            answer.set_result(restarted)

    def _waiting(self, requests: dict[K, list[Future[T]]], key: K) -> list[Future[T]]:
        with self._lock:
            return requests.pop(key, [])

    def _report_progress(self, progress: Progress) -> None:
        self._listeners.publish(progress)
        if progress.state is State.MARKED:
            log.info(
                "checkpoint committed: checkpoint_id=%d kind=%s regions=%d skipped=%s records=%d "
                "decided_s=%.3f elapsed_s=%.3f",
                progress.checkpoint_id,
                progress.kind.value,
                progress.regions,
                ",".join(progress.skipped) or "none",
                progress.records,
                progress.decided_s or 0.0,
                progress.marked_s or 0.0,
            )
            _log_failures(progress)
        elif progress.state is State.ABORTED:
            log.log(
                logging.WARNING if progress.regions else logging.INFO,
                "checkpoint aborted: checkpoint_id=%d reason=%s",
                progress.checkpoint_id,
                progress.reason,
            )

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, action: EndJob) -> None:
        reason = action.error or FencedError(
            "the job has ended", {}, "Start the job again; it resumes from the last checkpoint."
        )
        with self._lock:
            waiting: list[Future[RestartedRegion] | Future[int]] = [
                *(answer for found in self._restarts.values() for answer in found),
                *(answer for found in self._triggers.values() for answer in found),
            ]
            self._restarts.clear()
            self._triggers.clear()
        for answer in waiting:
            answer.set_exception(reason)
        self.answer_request(reason)
        if action.finished:
            self._steps.call(lambda: self._finish_visible(action.error))
        else:
            self._finish(action.error)

    def _finish(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()

    def _finish_visible(self, error: BaseException | None) -> None:
        """A job has ended well once readers can see all of it (`commit-acknowledged`), also without
        its suspended regions. Runs in the I/O thread, after all other steps."""
        invisible: BaseException | None
        try:
            invisible = self._await_visible()
        except Exception as err:  # noqa: BLE001 - raised again in the thread that waits
            invisible = err
        self._finish(error or invisible)

    def _await_visible(self) -> StreamError | None:
        began_s = logged_s = self._clock()
        for what, is_done in self._last_checks():
            while not is_done():
                now_s = self._clock()
                if self._given_up.is_set() or now_s >= began_s + self._visible_timeout_s:
                    return WaitedTooLongError(
                        "the last transactions are committed, but readers cannot see them yet",
                        {"missing": what, "waited_s": round(now_s - began_s)},
                        "Check that all brokers of the output's partitions run; nothing is lost.",
                    )
                if now_s >= logged_s + _LOG_EVERY_S:
                    logged_s = now_s
                    log.warning(
                        "job has ended and waits until readers see all of it: missing=%s "
                        "waited_s=%.0f timeout_s=%.0f",
                        what,
                        now_s - began_s,
                        self._visible_timeout_s,
                    )
        return None

    def _last_checks(self) -> list[tuple[str, Callable[[], bool]]]:
        """The conditions of a good end, with their checks; a failed check waits a little."""
        visible = [
            (operator_id, partial(sink.await_visible, timeout_s=_CHECK_S))
            for operator_id, sink in self._sinks.items()
        ]
        # Open work of failed attempts comes first: readers stop before it.
        return [("orphans", self._is_swept), *visible]

    def _is_swept(self) -> bool:
        try:
            if self._sweep_whole():
                return True
        except (StorageError, UnreachableError) as err:
            log.warning("last sweep failed, trying again: error=%s", err)
        self._given_up.wait(_SWEEP_AGAIN_S)
        return False


def _log_suspended(action: RegionSuspended) -> None:
    """Report a suspended region: the job still runs, but reads less."""
    log.error(
        "region suspended, the job continues without it: region=%s splits=%s cause=%s: %s. "
        "Remove the cause, then run `sluice job restart PATH --region %s`, or restart the job. "
        "Until then the region reads nothing, and retention may delete its records.",
        action.region,
        ",".join(f"{split.name}:{split.end_offset}" for split in action.positions),
        type(action.cause).__name__,
        action.cause,
        action.region,
    )


def _log_failures(progress: Progress) -> None:
    """Report records for which functions failed."""
    for operator, counts in progress.counts.items():
        if counts.failed:
            log.warning(
                "records failed in a function: checkpoint_id=%d operator=%s read=%d skipped=%d "
                "dead_lettered=%d",
                progress.checkpoint_id,
                operator,
                counts.read,
                counts.skipped,
                counts.dead_lettered,
            )
    if progress.dropped:
        log.warning(
            "records dropped by approximate recovery: checkpoint_id=%d offsets=%d ranges=%s",
            progress.checkpoint_id,
            offsets_in(progress.dropped),
            named(progress.dropped),
        )
