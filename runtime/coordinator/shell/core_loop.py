"""Threads around the core: one owns it, one does its remote steps in order."""

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
    StepFailed,
    StopRequested,
    Tick,
)
from sluice.runtime.coordinator.shell.io_executor import IoExecutor, RemoteStep
from sluice.runtime.errors import CoordinatorLostError, FencedError, StreamError

__all__ = ["CoreLoop", "StepThread"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_LONGEST_WAIT_S = 1.0


class CoreLoop:
    """Owns the core: events in through a queue, actions out to ``on_actions``, all in one thread.

    `ask` may be called from every thread. ``on_actions`` must not block: it hands remote steps to
    another thread.

    Args:
        core: the loop's, from here on.
        clock: of waits; it may stand still while nobody listens (`pause_tolerant_clock`).
        ages: the same where that did not; of what must be decided before it is too old.
        on_actions: carries them out.
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
        """Run a question in the loop's thread; its answer, or its error."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question(self._core))
            except BaseException as err:  # noqa: BLE001 - raised again in the asking thread
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
        """Give the core an event; the actions it answered with, which are carried out anyway."""
        return self.ask(lambda core: self._step_asked(core, event))

    def post(self, event: CoreEvent) -> None:
        """Give the core an event and do not wait; for the step thread."""
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
        # Looked at behind the clock: a sleep between the two makes nothing younger than it is.
        actions = core.step(event, now_s, missed_s=self._ages() - now_s)
        self._on_actions(actions)
        return actions

    def _step_asked(self, core: CoordinatorCore, event: CoreEvent) -> list[Action]:
        try:
            return self._step(core, event)
        except StreamError:
            raise  # the core refuses the event
        except Exception as err:
            # Half of the step was done, and what it asked for is lost: nothing may go on from here.
            self._stop_by(err, where=type(event))
            raise

    def _post(self, event: CoreEvent) -> None:
        try:
            self._step(self._core, event)
        except Exception as err:  # noqa: BLE001 - logged with the stop
            self._stop_by(err, where=type(event))

    def _stop_by(self, error: Exception, *, where: object) -> None:
        log.error("coordinator stops by an error of its own: event=%s", where, exc_info=error)
        try:
            self._step(self._core, StopRequested(error=error))
        except Exception:
            log.exception("coordinator could not stop in order; the next start recovers")

    def _run(self) -> None:
        try:
            while (task := self._next_task()) is not None:
                task()
        except BaseException as err:  # noqa: BLE001 - logged with the stop
            self._stop_by(_thread_lost(err), where=threading.current_thread().name)
        finally:
            self._answer_left()

    def _answer_left(self) -> None:
        """Nobody waits for a thread that is over: the job has ended, and its core answers so."""
        with self._gate:
            self._ended = True
        while not self._inbox.empty():
            task = self._inbox.get_nowait()
            if task is not None:
                task()

    def _next_task(self) -> Callable[[], None] | None:
        """What to do next; None: the end."""
        if self._clock() - self._stepped_s >= _LONGEST_WAIT_S:
            return lambda: self._post(Tick())  # questions alone may keep the queue full for ever
        try:
            return self._inbox.get(timeout=self._wait_s())
        except queue.Empty:
            return lambda: self._post(Tick())

    def _wait_s(self) -> float:
        try:
            deadline_s = self._core.deadline_s()
        except Exception as err:  # noqa: BLE001 - logged with the stop
            # A user's handler is asked in there; of a job that has ended it is not.
            self._stop_by(err, where="deadline")
            return _LONGEST_WAIT_S
        if deadline_s is None:
            return _LONGEST_WAIT_S
        return min(max(deadline_s - self._clock(), 0.0), _LONGEST_WAIT_S)


def _thread_lost(cause: BaseException) -> StreamError:
    error = CoordinatorLostError(
        "the coordinator's thread was ended",
        {"cause": repr(cause)},
        "The job stops; start it again, it goes on from the last checkpoint.",
    )
    error.__cause__ = cause
    return error


@dataclass(slots=True)
class _Running:
    """A remote step that has not returned. Written by both threads, each its own part.

    Attributes:
        step: what it does.
        checkpoint_id: of what; None: of no checkpoint.
        began_s: when.
        tell_s: when it is worth a line in the log, or another one.
        is_told: whether there was one.
    """

    step: str
    checkpoint_id: int | None
    began_s: float
    tell_s: float
    is_told: bool = False


class StepThread:
    """Does remote steps one after the other, outside every lock, and tells the core.

    Args:
        hands: do them.
        tell: takes their answers.
        overdue_s: a step that runs for longer is told in the log, again and again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        io_executor: IoExecutor,
        tell: Callable[[CoreEvent], None],
        *,
        overdue_s: float = 30.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._io_executor = io_executor
        self._tell = tell
        self._overdue_s = overdue_s
        self._clock = clock
        self._running: _Running | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sluice-steps", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, action: RemoteStep) -> None:
        """Do it after all that were put before."""
        self._inbox.put(lambda: self._perform(action))

    def call(self, work: Callable[[], None]) -> None:
        """Run something between the steps, in their order; it must not raise."""
        self._inbox.put(work)

    def stop(self, *, timeout_s: float) -> None:
        """End after what is in the queue now."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def say_overdue(self) -> None:
        """Say so if the step under way does not return; from the loop's thread, at every tick."""
        running = self._running
        now_s = self._clock()
        if running is None or now_s < running.tell_s:
            return
        running.tell_s, running.is_told = now_s + self._overdue_s, True
        log.warning(
            "remote step has not returned: step=%s checkpoint_id=%s running_s=%.0f",
            running.step,
            running.checkpoint_id,
            now_s - running.began_s,
        )

    def _perform(self, action: RemoteStep) -> None:
        began_s = self._clock()
        running = self._running = _Running(
            step=type(action).__name__,
            checkpoint_id=getattr(action, "checkpoint_id", None),
            began_s=began_s,
            tell_s=began_s + self._overdue_s,
        )
        try:
            self._answer(action)
        finally:
            self._running = None
        if running.is_told:
            log.warning(
                "remote step has returned: step=%s checkpoint_id=%s elapsed_s=%.0f",
                running.step,
                running.checkpoint_id,
                self._clock() - began_s,
            )

    def _answer(self, action: RemoteStep) -> None:
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
            self._tell(event)

    def _run(self) -> None:
        while (task := self._inbox.get()) is not None:
            task()
