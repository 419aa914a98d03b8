"""Queues and futures of threads that change when they are reported; see `tests.kit.threads.switched_threads`."""

import queue
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.kit.threads.switched_threads import Switched


class SwitchedQueue:
    """As `queue.SimpleQueue`, and as much of `queue.Queue` as is needed here."""

    def __init__(self, world: "Switched") -> None:
        self._world = world
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """There is room."""
        self._world.point("put")
        self._items.append(item)

    def put_nowait(self, item: Any) -> None:
        """There is room."""
        self._items.append(item)

    def get(self, timeout: float | None = None) -> Any:
        """The first one; `queue.Empty` when time is up."""
        if not self._world.block(self._has_any, timeout, at="a queue"):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """The first one; `queue.Empty` where there is none."""
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """Whether there is none."""
        return not self._items

    def _has_any(self) -> bool:
        return bool(self._items)


class SwitchedFuture:
    """As `concurrent.futures.Future`."""

    def __init__(self, world: "Switched") -> None:
        self._world = world
        self._is_done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._then: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        """Whether there is an answer."""
        return self._is_done

    def set_result(self, result: Any) -> None:
        """The answer."""
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        """The answer is an error."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._is_done = True
        for then in self._then:
            then(self)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it; `TimeoutError` when time is up."""
        self._await(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Its error, if it is one."""
        self._await(timeout)
        return self._error

    def _await(self, timeout: float | None) -> None:
        if not self._is_done and not self._world.block(self.done, timeout, at="a future"):
            raise TimeoutError

    def add_done_callback(self, then: Callable[[Any], object]) -> None:
        """In the thread that answers, or here."""
        if self._is_done:
            then(self)
        else:
            self._then.append(then)
