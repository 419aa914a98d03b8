"""Threads of several processes in virtual time, one at a time: every run of a plan is the same.

A process may be stopped or killed, or its host sleep, at any moment; its threads hang then,
and what they have sent lands all the same.
"""

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Self
from unittest.mock import patch

from tests.kit.threads.baton import Actor, EndedError, take


class Process:
    """One driver on a host of its own."""

    def __init__(self, timeline: "Timeline") -> None:
        self._timeline = timeline
        self._slept_s = 0.0
        self.frozen_until_s = 0.0
        self.is_killed = False

    def monotonic(self) -> float:
        """Seconds; they hang while the host sleeps."""
        return self._timeline.now_s - self._slept_s

    def slept(self) -> float:
        """Seconds that the host has slept."""
        return self._slept_s

    def age(self) -> float:
        """Seconds, on while the host sleeps."""
        return self._timeline.now_s

    def freeze(self, seconds: float, *, is_asleep: bool) -> None:
        """SIGSTOP from now on, or a host that sleeps; a process that is stopped stays so."""
        until_s = self._timeline.now_s + seconds
        added_s = until_s - max(self.frozen_until_s, self._timeline.now_s)
        if added_s > 0:
            self.frozen_until_s = until_s
            self._slept_s += added_s if is_asleep else 0.0

    def sleep(self, seconds: float) -> None:
        """By the clock that hangs with the host."""
        until_s = self.monotonic() + seconds
        while (left_s := until_s - self.monotonic()) > 0:
            self._timeline.wait(left_s)

    def spawn(self, body: Callable[[], None]) -> "_Thread":
        """A thread of this process."""
        return self._timeline.spawn(body, process=self)


class _Thread(Actor):
    """One of a process, or of the world."""

    def __init__(
        self, timeline: "Timeline", body: Callable[[], None], process: Process | None
    ) -> None:
        super().__init__(timeline, body)
        self.process = process
        self.waits = 0  # how often it has waited; an older wake-up is none
        self.is_on_its_way = False  # what is not held up by its process
        self._timeline = timeline

    def start(self) -> None:
        """Begin, once it is its turn."""
        self._timeline.started(self)
        self.begin()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        assert self.process is not None
        until_s = self.process.monotonic() + timeout_s
        while self._is_alive and self.process.monotonic() < until_s:
            self._timeline.wait(0.25)


class _Condition:
    """`threading.Condition`: nobody else runs between two waits, so there is nothing to lock."""

    def __init__(self, timeline: "Timeline") -> None:
        self._timeline = timeline
        self._waiting: list[_Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Wake all that wait."""
        for thread in self._waiting:
            self._timeline.wake(thread)

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Until it is true, or time is up."""
        me = self._timeline.running
        assert me.process is not None
        until_s = me.process.monotonic() + timeout_s
        while not predicate():
            left_s = until_s - me.process.monotonic()
            if left_s <= 0:
                return False
            self._waiting.append(me)
            try:
                self._timeline.wait(left_s)
            finally:
                self._waiting.remove(me)
        return True


class Timeline:
    """Whose turn it is, and what time it is. Call `run` once, when all has been spawned."""

    def __init__(self, *, until_s: float) -> None:
        self.now_s = 0.0
        self.is_over = False
        self.failed: BaseException | None = None
        self._until_s = until_s
        self._due: list[tuple[float, int, _Thread, int]] = []
        self._order = 0
        self._living: list[_Thread] = []
        self._done = threading.Semaphore(0)
        self.running: _Thread

    def spawn(self, body: Callable[[], None], *, process: Process | None = None) -> _Thread:
        """A thread that runs from now on; without a process it is the world's."""
        thread = _Thread(self, body, process)
        thread.start()
        return thread

    def run(self) -> None:
        """Until time is up, or nobody waits for anything; raises what a thread has raised."""
        threads = self._living
        self._pass_on()
        take(self._done)
        self.is_over = True
        while threads:
            self.running = threads[-1]
            self.running.go.release()
            take(self._done)
        if self.failed is not None:
            raise self.failed

    def wait(self, seconds: float) -> None:
        """Let time pass; called by a thread. Its process may hold it up for longer."""
        me = self.running
        if self.is_over:
            raise EndedError
        self._push(me, self.now_s + seconds)
        self._switch(me)
        if self.is_over or (me.process is not None and me.process.is_killed):
            raise EndedError

    def land(self, seconds: float) -> None:
        """Time in which a request is on its way: nothing that happens to its process stops it."""
        me = self.running
        if self.is_over:
            raise EndedError
        me.is_on_its_way = True
        self._push(me, self.now_s + seconds)
        self._switch(me)
        me.is_on_its_way = False
        if self.is_over:
            raise EndedError

    def started(self, thread: _Thread) -> None:
        """It has its turn now."""
        self._living.append(thread)
        self._push(thread, self.now_s)

    def wake(self, thread: _Thread) -> None:
        """It need wait no longer."""
        self._push(thread, self.now_s)

    def leave(self, thread: _Thread) -> None:
        """It has ended; the next one continues."""
        self._living.remove(thread)
        if self.is_over:
            self._done.release()
        else:
            self._pass_on()

    @contextmanager
    def in_module(self, module: str) -> Iterator[None]:
        """Its ``threading`` and ``time`` are of this timeline."""

        def thread(*, target: Callable[[], None], name: str, daemon: bool) -> _Thread:
            del name, daemon
            return _Thread(self, target, self.running.process)

        def monotonic() -> float:
            assert self.running.process is not None
            return self.running.process.monotonic()

        threads = SimpleNamespace(
            Thread=thread, Condition=lambda: _Condition(self), Lock=threading.Lock
        )
        with (
            patch(f"{module}.threading", threads),
            patch(f"{module}.time", SimpleNamespace(monotonic=monotonic)),
        ):
            yield

    def _push(self, thread: _Thread, at_s: float) -> None:
        self._order += 1
        thread.waits += 1
        heapq.heappush(self._due, (at_s, self._order, thread, thread.waits))

    def _next(self) -> _Thread | None:
        while self._due:
            at_s, _, thread, waits = heapq.heappop(self._due)
            if waits != thread.waits:
                continue
            process = thread.process
            if process is not None and not thread.is_on_its_way and process.frozen_until_s > at_s:
                self._push(thread, process.frozen_until_s)
                continue
            if at_s > self._until_s or self.failed is not None:
                return None
            self.now_s = at_s
            return thread
        return None

    def _switch(self, me: _Thread) -> None:
        chosen = self._next()
        if chosen is me:
            return
        self._hand_to(chosen)
        take(me.go)

    def _pass_on(self) -> None:
        self._hand_to(self._next())

    def _hand_to(self, chosen: _Thread | None) -> None:
        if chosen is None:
            self._done.release()
            return
        self.running = chosen
        chosen.go.release()
