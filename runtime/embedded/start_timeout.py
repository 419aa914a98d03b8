"""Timeout of a starting server: it measures the silence of its log, not the length of the start.

On a busy machine a start may take minutes without any fault. A stuck server writes nothing to its
log.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["FORMAT_TIMEOUT_S", "LOG_TIMEOUT_S", "LONGEST_S", "StartTimeout"]

LOG_TIMEOUT_S = 120.0
"""A log without a new line for so long belongs to a stuck server."""

LONGEST_S = 900.0
"""Longest start, even if the log keeps growing."""

FORMAT_TIMEOUT_S = 600.0
"""Longest run of the short program that formats a data directory; it logs only at its end."""


class StartTimeout:
    """Watches the logs of one start; used by one thread.

    Args:
        logs: files to which the starting processes append; a missing one counts as empty.
        log_timeout_s: longest time without growth of any of them.
        longest_s: longest start.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        logs: Sequence[Path],
        *,
        log_timeout_s: float = LOG_TIMEOUT_S,
        longest_s: float = LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs = tuple(logs)
        self._log_timeout_s = log_timeout_s
        self._longest_s = longest_s
        self._clock = clock
        self._started_s = self._grown_s = clock()
        self._bytes = self._log_sizes()

    @property
    def elapsed_s(self) -> float:
        """Time since the start began."""
        return self._clock() - self._started_s

    def end(self) -> str | None:
        """The reason to give up now, for people; None: keep waiting."""
        now_s, sizes = self._clock(), self._log_sizes()
        if sizes != self._bytes:
            self._bytes, self._grown_s = sizes, now_s
        if now_s - self._started_s > self._longest_s:
            return f"was not ready after {self._longest_s:.0f} s"
        if now_s - self._grown_s > self._log_timeout_s:
            return f"was not ready, and its log was silent for {self._log_timeout_s:.0f} s"
        return None

    def _log_sizes(self) -> tuple[int, ...]:
        return tuple(log.stat().st_size if log.exists() else 0 for log in self._logs)
