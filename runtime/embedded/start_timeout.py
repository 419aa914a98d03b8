"""How long a server that is starting is waited for: by its silence, not by its slowness.

On a machine that is busy with other things a start may take minutes, and nothing is wrong. What is
stuck says nothing any more.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["FORMAT_TIMEOUT_S", "LONGEST_S", "SILENCE_S", "StartTimeout"]

SILENCE_S = 120.0
"""A log without a new line for so long belongs to a server that is stuck."""

LONGEST_S = 900.0
"""Bound of any start, also of one that goes on talking."""

FORMAT_TIMEOUT_S = 600.0
"""Bound of the short program that formats a data directory; it says nothing before its end."""


class StartTimeout:
    """Watches the logs of one start; used by one thread, asked at each look.

    Args:
        logs: files that the starting processes append to; one that does not exist yet is empty.
        silence_s: bound since any of them last grew.
        longest_s: bound of it all.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        logs: Sequence[Path],
        *,
        silence_s: float = SILENCE_S,
        longest_s: float = LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs = tuple(logs)
        self._silence_s = silence_s
        self._longest_s = longest_s
        self._clock = clock
        self._began_s = self._heard_s = clock()
        self._bytes = self._said()

    @property
    def elapsed_s(self) -> float:
        """Since the start was begun."""
        return self._clock() - self._began_s

    def end(self) -> str | None:
        """Why the start is given up now, for people; None: it is waited for."""
        now_s, said = self._clock(), self._said()
        if said != self._bytes:
            self._bytes, self._heard_s = said, now_s
        if now_s - self._began_s > self._longest_s:
            return f"was not ready after {self._longest_s:.0f} s"
        if now_s - self._heard_s > self._silence_s:
            return f"was not ready, and its log was silent for {self._silence_s:.0f} s"
        return None

    def _said(self) -> tuple[int, ...]:
        return tuple(log.stat().st_size if log.exists() else 0 for log in self._logs)
