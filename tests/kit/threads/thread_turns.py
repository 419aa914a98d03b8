"""Threads that move one at a time, in an order that a test chooses: any interleaving, again."""

import threading
from collections.abc import Callable, Iterable, Sequence

from tests.kit.waiting import join

_BOUND_S = 600.0


class CallQueue:
    """Runs actors step by step. An actor calls `wait` before each step that others may precede.

    Args:
        order: whose turn it is next, as a number taken modulo the living actors; when it ends,
            the first living one continues.
        between: called after each step, while no actor runs.
    """

    def __init__(self, order: Iterable[int], *, between: Callable[[], None]) -> None:
        self._order = iter(order)
        self._between = between
        self._go: dict[int, threading.Semaphore] = {}
        self._stopped = threading.Semaphore(0)

    def wait(self) -> None:
        """Let others go first; called by an actor."""
        mine = self._go[threading.get_ident()]
        self._stopped.release()
        _acquire(mine)

    def run(self, actors: Sequence[Callable[[], None]]) -> None:
        """Run all actors to their ends."""
        threads = [threading.Thread(target=self._actor, args=(each,)) for each in actors]
        for thread in threads:
            thread.start()
            _acquire(self._stopped)  # it stands before its first step
        living = list(threads)
        while living:
            chosen = living[next(self._order, 0) % len(living)]
            assert chosen.ident is not None
            self._go[chosen.ident].release()
            _acquire(self._stopped)
            if chosen.ident not in self._go:
                join(chosen, timeout_s=_BOUND_S)
                living.remove(chosen)
            self._between()

    def _actor(self, body: Callable[[], None]) -> None:
        ident = threading.get_ident()
        self._go[ident] = threading.Semaphore(0)
        try:
            self.wait()
            body()
        finally:
            del self._go[ident]
            self._stopped.release()


def _acquire(semaphore: threading.Semaphore) -> None:
    if not semaphore.acquire(timeout=_BOUND_S):
        raise AssertionError("an actor neither moved on nor ended")
