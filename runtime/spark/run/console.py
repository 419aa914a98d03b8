"""A job's progress in one line, from the checkpoints themselves; a terminal rewrites it."""

import sys
import time
from typing import TextIO

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.functions.at_most_once import offsets_in

__all__ = ["ConsoleProgress", "RunTotals"]

_REDRAW_S = 0.2


class RunTotals:
    """A `ProgressListener` that counts what a run commits. Driver, the listeners' thread; any
    thread may read.

    Args:
        job_name: shown first.
    """

    def __init__(self, job_name: str) -> None:
        self._job_name = job_name
        self._began_s = time.monotonic()
        self._last: Progress | None = None
        self._waits_for = ""
        self.records = 0
        self._aborted = 0
        self._failed = 0
        self._dropped = 0
        self._late = 0

    def on_progress(self, progress: Progress) -> None:
        """Count the records of a checkpoint once it is committed on record."""
        self._last = progress
        if progress.state is State.MARKED:
            self.records += progress.records
            self._failed += sum(counts.failed for counts in progress.counts.values())
            self._dropped += offsets_in(progress.dropped)
            self._late += sum(counts.late for counts in progress.counts.values())
        elif progress.state is State.ABORTED:
            self._aborted += 1

    def wait_for(self, text: str) -> None:
        """Show what the job waits for before its start; empty: nothing any more."""
        self._waits_for = text

    def line(self) -> str:
        """The newest checkpoint, and the counts."""
        if self._last is None:
            return f"{self._job_name}: {self._waits_for or 'starting'}"
        elapsed_s = time.monotonic() - self._began_s
        rate = self.records / elapsed_s if elapsed_s > 0 else 0.0
        aborted = f", {self._aborted} aborted" if self._aborted else ""
        failed = f", {self._failed:,} skipped or dead letters" if self._failed else ""
        failed += f", {self._dropped:,} dropped" if self._dropped else ""
        failed += f", {self._late:,} late" if self._late else ""
        return (
            f"{self._job_name}: checkpoint {self._last.checkpoint_id} {self._last.state.value}"
            f"{aborted}; {self.records:,} records committed{failed}, {rate:,.0f}/s"
        )

    def close(self) -> None:
        """After the last progress."""


class ConsoleProgress(RunTotals):
    """Counts, and draws on a terminal.

    Args:
        job_name: shown first.
        out: a terminal; without one this class is not used.
    """

    def __init__(self, job_name: str, out: TextIO | None = None) -> None:
        super().__init__(job_name)
        self._out = out or sys.stderr
        self._drawn_s = 0.0

    def on_progress(self, progress: Progress) -> None:
        """Count, and redraw at most a few times a second."""
        super().on_progress(progress)
        if time.monotonic() - self._drawn_s >= _REDRAW_S:
            self._draw()

    def wait_for(self, text: str) -> None:
        """Show it at once, also its end."""
        super().wait_for(text)
        self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._out.write(f"\r\x1b[K{self.line()}")
        self._out.flush()

    def close(self) -> None:
        """Keep the last line on the terminal."""
        if self._drawn_s:
            self._out.write("\n")
            self._out.flush()
