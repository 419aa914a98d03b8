"""Threads of several processes, one at a time, which change at each lock, wait and named point,
and at each line where a test wants that.

Whose turn it is next, a plan says: the same plan gives the same run. Time is virtual, and passes
where nobody can continue, or the plan lets it. A process may be stopped, or killed, between any two
points.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import FrameType, SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

from tests.kit.threads.baton import Actor, EndedError, take
from tests.kit.threads.switched_queues import SwitchedFuture, SwitchedQueue

_STEP_S = 0.001


@dataclass(eq=False)
class Process:
    """What is stopped or killed as a whole.

    Attributes:
        name: for people.
        stopped_until_s: none of its threads moves before that.
    """

    name: str
    stopped_until_s: float = 0.0
    is_killed: bool = False
    threads: "list[Thread]" = field(default_factory=list)

    @property
    def alive(self) -> "list[Thread]":
        """Threads that have begun, and have not ended."""
        return [thread for thread in self.threads if thread.is_alive()]


class Thread(Actor):
    """As `threading.Thread`, as far as it is needed here.

    Attributes:
        stopped_until_s: it does not move before that.
        raises: where it is, when it moves next.
    """

    def __init__(
        self, world: "Switched", process: Process, target: Callable[[], object], name: str
    ) -> None:
        super().__init__(world, target)
        self.process = process
        self.name = f"{process.name}/{name}"
        self.is_ready: Callable[[], bool] = lambda: True
        self.until_s: float | None = None
        self.stopped_until_s = 0.0
        self.at = ""
        self.raises: BaseException | None = None
        self._world = world

    def start(self) -> None:
        """It has its turn from now on."""
        self.process.threads.append(self)
        self._world.living.append(self)
        self.begin()
        self._world.point("start")

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end."""
        self._world.block(lambda: not self._is_alive, timeout_s, at=f"join {self.name}")

    def can_go_on(self, now_s: float) -> bool:
        """Whether it may have its turn."""
        if self.process.is_killed:
            return True  # it has ended, and lets go of its turn
        if max(self.stopped_until_s, self.process.stopped_until_s) > now_s:
            return False
        return self.is_ready() or (self.until_s is not None and now_s >= self.until_s)

    def is_wanted(self) -> bool:
        """See `Actor.is_wanted`."""
        return super().is_wanted() and not self.process.is_killed


class _Lock:
    def __init__(self, world: "Switched") -> None:
        self._world = world
        self._owner: Thread | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._world.running
        if self._owner is me and me is not None:
            self.depth += 1
            return True
        self._world.point("lock")
        if not blocking and self._owner is not None:
            return False
        limit_s = None if timeout < 0 else timeout
        if not self._world.block(lambda: self._owner is None, limit_s, at="a lock"):
            return False
        self._owner, self.depth = me, 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if not self.depth:
            self._owner = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition(_Lock):
    def __init__(self, world: "Switched") -> None:
        super().__init__(world)
        self._told = 0

    def notify_all(self) -> None:
        self._told += 1

    def wait(self, timeout: float | None = None) -> bool:
        told, depth = self._told, self.depth
        self.depth, self._owner = 0, None
        try:
            return self._world.block(lambda: self._told != told, timeout, at="a condition")
        finally:
            self.acquire()
            self.depth = depth

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until_s = None if timeout is None else self._world.now_s + timeout
        while not predicate():
            left_s = None if until_s is None else until_s - self._world.now_s
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True


class _Event:
    def __init__(self, world: "Switched") -> None:
        self._world = world
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.block(self.is_set, timeout, at="an event")


class Switched:
    """Whose turn it is, and what time it is. The thread that calls `run` is none of them.

    Args:
        choose: a number below the one that it is given: whose turn is next.
    """

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.now_s = 1000.0
        self.is_over = False
        self.failed: BaseException | None = None
        self.running: Thread | None = None
        self.living: list[Thread] = []
        self.turns = 0
        self._choose = choose
        self._until: Callable[[], bool] = lambda: True
        self._last_turn = 0
        self._done = threading.Semaphore(0)

    def require(self, holds: bool, what: str) -> None:
        """The run fails unless it is so, whoever catches what is raised here."""
        if not holds:
            self.failed = self.failed or AssertionError(what)
            raise AssertionError(what)

    def clock(self) -> float:
        """Seconds."""
        return self.now_s

    def spawn(self, target: Callable[[], object], *, process: Process, name: str) -> Thread:
        """A thread that has its turn from now on."""
        thread = Thread(self, process, target, name)
        thread.start()
        return thread

    def spawn_here(self, target: Callable[[], object], name: str = "beside") -> Thread:
        """As `spawn`, in the process that runs."""
        assert self.running is not None
        return self.spawn(target, process=self.running.process, name=name)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.block(lambda: False, seconds, at="sleep")

    def point(self, at: str = "a point") -> None:
        """Others may have their turn."""
        self.block(lambda: True, None, at=at)

    def block(self, is_ready: Callable[[], bool], timeout_s: float | None, *, at: str) -> bool:
        """Until it is so, or time is up; whether it is."""
        me = self.running
        if me is None:
            assert is_ready(), f"nobody else can run: {at}"
            return True
        if self.is_over or me.process.is_killed:
            raise EndedError
        me.is_ready, me.at = is_ready, at
        me.until_s = None if timeout_s is None else self.now_s + timeout_s
        self._pass_on(me)
        if self.is_over or me.process.is_killed:
            raise EndedError
        if me.raises is not None:
            err, me.raises = me.raises, None
            raise err
        return is_ready()

    def run(self, until: Callable[[], bool], *, most_turns: int) -> bool:
        """Turn by turn until it is so; whether it is. Raises what a thread has raised."""
        self._until, self._last_turn = until, self.turns + most_turns
        self._pass_on(None)
        take(self._done)
        self.running = None
        if self.failed is not None:
            raise self.failed
        return until()

    def end(self) -> None:
        """All threads end where they are."""
        self.is_over = True
        while self.living:
            self.running = self.living[-1]
            self.running.go.release()
            take(self._done)
        self.running = None

    def leave(self, thread: Thread) -> None:
        """It has ended; another one continues."""
        self.living.remove(thread)
        if self.is_over:
            self._done.release()
        else:
            self._pass_on(None)

    def _pass_on(self, me: Thread | None) -> None:
        try:
            chosen = self._next()
        except BaseException as err:  # noqa: BLE001 - reported where the run ends
            self.failed, chosen = self.failed or err, None
        if chosen is not None:
            self.running = chosen
        if chosen is me and me is not None:
            return
        (self._done if chosen is None else chosen.go).release()
        if me is not None:
            take(me.go)

    def _next(self) -> Thread | None:
        """None: the run pauses here."""
        while self.failed is None and self.turns < self._last_turn and not self._until():
            able = [thread for thread in self.living if thread.can_go_on(self.now_s)]
            if not able:
                self._pass_time()
                continue
            self.turns += 1
            self.now_s += _STEP_S
            if self.running in able and self._choose(2):
                return self.running
            return able[self._choose(len(able))]
        return None

    def _pass_time(self) -> None:
        moments = [
            moment
            for thread in self.living
            for moment in (thread.until_s, thread.stopped_until_s, thread.process.stopped_until_s)
            if moment is not None and moment > self.now_s
        ]
        if not moments:
            raise AssertionError(f"a deadlock: {[(t.name, t.at) for t in self.living]}")
        self.now_s = min(moments)

    @contextmanager
    def in_modules(self, *modules: str) -> Iterator[None]:
        """Their ``threading``, ``time``, ``queue`` and ``Future`` are of this world."""

        def thread(*, target: Callable[[], object], name: str = "", daemon: bool = True) -> Thread:
            del daemon
            assert self.running is not None
            return Thread(self, self.running.process, target, name)

        threads = SimpleNamespace(
            Thread=thread,
            Lock=lambda: _Lock(self),
            Condition=lambda: _Condition(self),
            Event=lambda: _Event(self),
            get_ident=lambda: id(self.running),
            current_thread=lambda: self.running,
        )
        queues = SimpleNamespace(
            SimpleQueue=lambda: SwitchedQueue(self),
            Queue=lambda _=0: SwitchedQueue(self),
            Empty=queue.Empty,
            Full=queue.Full,
        )
        ours = {
            "threading": threads,
            "time": SimpleNamespace(monotonic=self.clock, sleep=self.sleep),
            "queue": queues,
            "Future": lambda: SwitchedFuture(self),
        }
        with ExitStack() as stack:
            for module in modules:
                for name in ours.keys() & vars(import_module(module)).keys():
                    stack.enter_context(patch(f"{module}.{name}", ours[name]))
            yield

    @contextmanager
    def at_each_line(self, *modules: str, pauses_s: Callable[[], float]) -> Iterator[None]:
        """Threads that begin meanwhile change also before each line of these modules, and are kept
        from continuing for so long: what a lock is for comes up without it. Slow."""
        files = {import_module(module).__file__ for module in modules}

        def trace_line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                self.block(lambda: False, pauses_s(), at=f"line {frame.f_lineno}")
            return trace_line

        def trace_call(frame: FrameType, *_: Any) -> Any:
            return trace_line if frame.f_code.co_filename in files else None

        before = threading.gettrace()
        threading.settrace(trace_call)
        try:
            yield
        finally:
            threading.settrace(before)
