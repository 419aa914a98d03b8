"""Logs what a run waits for, so that a wait is not taken for a hang."""

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["WaitLog"]

_FIRST_S = 2.0  # a shorter wait is not logged
_EVERY_S = 10.0


class WaitLog:
    """Logs a long wait every ten seconds, and its end. Thread-safe.

    Args:
        log: of the module that waits.
        clock: monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}

    def waits(self, what: str, why: object) -> None:
        """The wait continues: another try failed."""
        with self._lock:
            now_s = self._clock()
            since_s = self._since_s.setdefault(what, now_s)
            if now_s < self._due_s.setdefault(what, since_s + _FIRST_S):
                return
            self._due_s[what] = now_s + _EVERY_S
        self._log.warning("waiting for %s since %.0f s: why=%s", what, now_s - since_s, why)

    def is_over(self, what: str) -> None:
        """The wait has ended; logged only if `waits` has logged it."""
        with self._lock:
            since_s, due_s = self._since_s.pop(what, None), self._due_s.pop(what, None)
        if since_s is not None and due_s is not None and due_s > since_s + _FIRST_S:
            waited_s = self._clock() - since_s
            self._log.warning("no longer waiting for %s: waited_s=%.0f", what, waited_s)
