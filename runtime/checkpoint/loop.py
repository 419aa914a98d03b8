"""Threads around the core: one owns it, one does its remote steps in order."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from runtime.checkpoint.core import CoordinatorCore
from runtime.checkpoint.messages import (
    Action,
    CoreEvent,
    StepFailed,
    StopAsked,
    Tick,
)
from runtime.checkpoint.steps import Hands, RemoteStep, drive
from runtime.contracts import Clock
from runtime.errors import FencedError, StreamError

__all__ = ["CoreLoop", "StepThread"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_LONGEST_WAIT_S = 1.0


class CoreLoop:
    """Owns the core: events in through a queue, actions out to ``on_actions``, all in one thread.

    `ask` may be called from every thread. ``on_actions`` must not block: it hands remote steps to
    another thread.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        *,
        clock: Clock,
        on_actions: Callable[[Sequence[Action]], None],
    ) -> None:
        self._core = core
        self._clock = clock
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
            if not self._ended:
                self._inbox.put(run)
            else:
                self._thread.join(_LONGEST_WAIT_S)
                run()  # the thread is over: the gate alone guards the core now
        return answer.result()

    def step(self, event: CoreEvent) -> list[Action]:
        """Give the core an event; the actions it answered with, which are carried out anyway."""
        return self.ask(lambda core: self._step(core, event))

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
        actions = core.step(event, now_s)
        self._on_actions(actions)
        return actions

    def _post(self, event: CoreEvent) -> None:
        try:
            self._step(self._core, event)
        except Exception as err:
            log.exception("coordinator stops by an error of its own: event=%s", type(event))
            try:
                self._step(self._core, StopAsked(error=err))
            except StreamError:
                log.exception("coordinator could not stop in order; the next start recovers")

    def _run(self) -> None:
        while True:
            if self._clock() - self._stepped_s >= _LONGEST_WAIT_S:
                self._post(Tick())  # questions alone may keep the queue from ever being empty
            try:
                task = self._inbox.get(timeout=self._wait_s())
            except queue.Empty:
                self._post(Tick())
                continue
            if task is None:
                return
            task()

    def _wait_s(self) -> float:
        deadline_s = self._core.deadline_s()
        if deadline_s is None:
            return _LONGEST_WAIT_S
        return min(max(deadline_s - self._clock(), 0.0), _LONGEST_WAIT_S)


class StepThread:
    """Does remote steps one after the other, outside every lock, and tells the core."""

    def __init__(self, hands: Hands, tell: Callable[[CoreEvent], None]) -> None:
        self._hands = hands
        self._tell = tell
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

    def _perform(self, action: RemoteStep) -> None:
        try:
            event = drive(self._hands.perform(action))
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
