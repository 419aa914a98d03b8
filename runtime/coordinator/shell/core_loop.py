"""The thread that owns the core, and the thread that runs its remote steps in order."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Action,
    CoreEvent,
    RemoteAction,
    StepFailed,
    StopRequested,
    Tick,
)
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.errors import CoordinatorLostError, FencedError, StreamError
from sluice.runtime.process.host_clock import wall_ms

__all__ = ["CoreLoop", "StepThread"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_LONGEST_WAIT_S = 1.0


class CoreLoop:
    """Owns the core: takes events from a queue, passes actions to ``on_actions``, in one thread.

    Any thread may call `ask`. ``on_actions`` must not block: it passes remote steps to another
    thread.

    Args:
        core: owned by the loop from now on.
        clock: for waits; it may stop while the process is paused (`pause_tolerant_clock`).
        ages: a clock that does not stop; for work that must be decided before it is too old.
        on_actions: carries out the actions.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        *,
        clock: Clock,
        ages: Clock | None = None,
        on_actions: Callable[[Sequence[Action]], None],
    ) -> None:
        self._core = core
        self._clock = clock
        self._ages = ages or clock
        self._on_actions = on_actions
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sluice-coordinator", daemon=True)
        self._gate = threading.Lock()  # between `ask` and the end of the thread
        self._ended = False
        self._stepped_s = clock()

    def start(self) -> None:
        """Begin; the first tick may trigger a checkpoint."""
        self._thread.start()

    def ask(self, question: Callable[[CoordinatorCore], T]) -> T:
        """Run a query in the loop's thread; returns its result, or raises its error."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question(self._core))
            except BaseException as err:  # noqa: BLE001 - raised again in the calling thread
                answer.set_exception(err)

        with self._gate:
            has_ended = self._ended
            if not has_ended:
                self._inbox.put(run)
        if has_ended:
            self._thread.join(_LONGEST_WAIT_S)  # without the gate, which its end may need
            with self._gate:
                run()  # the thread is over: the gate alone guards the core now
        return answer.result()

    def step(self, event: CoreEvent) -> list[Action]:
        """Pass an event to the core; returns its actions, which the dispatcher carries out."""
        return self.ask(lambda core: self._step_or_stop(core, event))

    def post(self, event: CoreEvent) -> None:
        """Pass an event to the core and do not wait; for the I/O thread."""
        with self._gate:
            if not self._ended:
                self._inbox.put(lambda: self._post(event))

    def stop(self, *, timeout_s: float) -> None:
        """End the thread after everything that is in the queue now."""
        with self._gate:
            self._ended = True
            self._inbox.put(None)
        self._thread.join(timeout_s)

    def _step(self, core: CoordinatorCore, event: CoreEvent) -> list[Action]:
        self._stepped_s = now_s = self._clock()
        # Read after the clock: if the host is suspended in between, ages must not be too small.
        slept_s = self._ages() - now_s
        actions = core.step(event, now_s, slept_s=slept_s, wall_ms=wall_ms())
        self._on_actions(actions)
        return actions

    def _step_or_stop(self, core: CoordinatorCore, event: CoreEvent) -> list[Action]:
        try:
            return self._step(core, event)
        except StreamError:
            raise  # the core refuses the event
        except Exception as err:
            # Half of the step was done and its actions are lost: the job must stop.
            self._stop_by(err, where=type(event))
            raise

    def _post(self, event: CoreEvent) -> None:
        try:
            self._step(self._core, event)
        except Exception as err:  # noqa: BLE001 - logged with the stop
            self._stop_by(err, where=type(event))

    def _stop_by(self, error: Exception, *, where: object) -> None:
        log.error("coordinator stops after an internal error: event=%s", where, exc_info=error)
        try:
            self._step(self._core, StopRequested(error=error))
        except Exception:
            log.exception("coordinator could not stop in order, the next start recovers")

    def _run(self) -> None:
        try:
            while (task := self._next_task()) is not None:
                task()
        except BaseException as err:  # noqa: BLE001 - logged with the stop
            self._stop_by(_thread_lost(err), where=threading.current_thread().name)
        finally:
            self._answer_left()

    def _answer_left(self) -> None:
        """Answer all queued queries: the job has ended, and its core reports it."""
        with self._gate:
            self._ended = True
        while not self._inbox.empty():
            task = self._inbox.get_nowait()
            if task is not None:
                task()

    def _next_task(self) -> Callable[[], None] | None:
        """The next task; None ends the thread."""
        if self._clock() - self._stepped_s >= _LONGEST_WAIT_S:
            return lambda: self._post(Tick())  # queries alone could keep the queue full
        try:
            return self._inbox.get(timeout=self._wait_s())
        except queue.Empty:
            return lambda: self._post(Tick())

    def _wait_s(self) -> float:
        try:
            deadline_s = self._core.deadline_s()
        except Exception as err:  # noqa: BLE001 - logged with the stop
            # It may call a user's handler, except for a job that has ended.
            self._stop_by(err, where="deadline")
            return _LONGEST_WAIT_S
        if deadline_s is None:
            return _LONGEST_WAIT_S
        return min(max(deadline_s - self._clock(), 0.0), _LONGEST_WAIT_S)


def _thread_lost(cause: BaseException) -> StreamError:
    error = CoordinatorLostError(
        "the coordinator's thread was ended",
        {"cause": repr(cause)},
        "Start the job again: it resumes from the last checkpoint.",
    )
    error.__cause__ = cause
    return error


@dataclass(slots=True)
class _Running:
    """A remote step that has not returned. Each of both threads writes its own fields.

    Attributes:
        step: type of its action.
        checkpoint_id: of the action, if any.
        began_s: time of its start.
        log_s: time of the next log line.
        is_logged: whether there was a log line.
    """

    step: str
    checkpoint_id: int | None
    began_s: float
    log_s: float
    is_logged: bool = False


class StepThread:
    """The I/O thread: runs remote steps one after the other, and posts their results to the core.

    Args:
        io_executor: runs the steps.
        overdue_s: time after which a running step is logged, repeatedly.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        io_executor: IoExecutor,
        *,
        overdue_s: float = 30.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._io_executor = io_executor
        self._overdue_s = overdue_s
        self._clock = clock
        self._running: _Running | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def start(self, post: Callable[[CoreEvent], None]) -> None:
        """Start the thread; ``post`` takes the results of its steps."""
        self._post = post
        self._thread = threading.Thread(target=self._run, name="sluice-steps", daemon=True)
        self._thread.start()

    def put(self, action: RemoteAction) -> None:
        """Run an action after all earlier ones."""
        self._inbox.put(lambda: self._perform(action))

    def call(self, work: Callable[[], None]) -> None:
        """Run ``work`` after all earlier steps; it must not raise."""
        self._inbox.put(work)

    def stop(self, *, timeout_s: float) -> None:
        """End the thread after everything that is in the queue now."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def log_overdue(self) -> None:
        """Log a step that does not return. The loop's thread calls this at every tick."""
        running = self._running
        now_s = self._clock()
        if running is None or now_s < running.log_s:
            return
        running.log_s, running.is_logged = now_s + self._overdue_s, True
        log.warning(
            "remote step has not returned: step=%s checkpoint_id=%s running_s=%.0f",
            running.step,
            running.checkpoint_id,
            now_s - running.began_s,
        )

    def _perform(self, action: RemoteAction) -> None:
        began_s = self._clock()
        running = self._running = _Running(
            step=type(action).__name__,
            checkpoint_id=getattr(action, "checkpoint_id", None),
            began_s=began_s,
            log_s=began_s + self._overdue_s,
        )
        try:
            self._answer(action)
        finally:
            self._running = None
        if running.is_logged:
            log.warning(
                "remote step has returned: step=%s checkpoint_id=%s elapsed_s=%.0f",
                running.step,
                running.checkpoint_id,
                self._clock() - began_s,
            )

    def _answer(self, action: RemoteAction) -> None:
        try:
            event = drive(self._io_executor.perform(action))
        except Exception as err:
            if not isinstance(err, FencedError):
                log.exception(
                    "step failed: step=%s checkpoint_id=%s",
                    type(action).__name__,
                    getattr(action, "checkpoint_id", None),
                )
            event = StepFailed(checkpoint_id=getattr(action, "checkpoint_id", 0), error=err)
        if event is not None:
            self._post(event)

    def _run(self) -> None:
        while (task := self._inbox.get()) is not None:
            task()
