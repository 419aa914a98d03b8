"""A lock that its waiters have in the order in which they came."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Turns"]


class Turns:
    """As `threading.RLock`, and fair: who comes often does not come before who waits.

    Python's own are taken by whoever is there when they are free. A caller that holds one for
    seconds, and comes again at once, would keep others out for ever that wait for a while each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Whether this thread has it now; None: wait for as long as it takes."""
        me, turn = threading.get_ident(), threading.Event()
        with self._lock:
            if self._owner in (me, None):
                self._owner = me
                self._depth += 1
                return True
            self._waiting.append((me, turn))
        try:
            if turn.wait(timeout_s):
                return True
        except BaseException:  # Ctrl-C: nobody would give back what this thread does not take
            if not self._leave(me, turn):
                self.release()
            raise
        return not self._leave(me, turn)

    def _leave(self, me: int, turn: threading.Event) -> bool:
        """Wait no more; False: it has its turn since a moment ago."""
        with self._lock:
            if turn.is_set():
                return False
            self._waiting.remove((me, turn))
            return True

    def release(self) -> None:
        """Give it to the next one."""
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """For as long as it takes."""
        self.acquire()
        try:
            yield
        finally:
            self.release()
