"""A job's progress on the terminal: one line that is rewritten, from the checkpoints themselves."""

import sys
import time
from typing import TextIO

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.functions.at_most_once import offsets_in

__all__ = ["ConsoleProgress"]

_REDRAW_S = 0.2


class ConsoleProgress:
    """A `ProgressListener` that draws. Driver, the listeners' thread.

    Args:
        job_name: shown first.
        out: a terminal; without one this class is not used.
    """

    def __init__(self, job_name: str, out: TextIO | None = None) -> None:
        self._job_name = job_name
        self._out = out or sys.stderr
        self._began_s = time.monotonic()
        self._drawn_s = 0.0
        self._records = 0
        self._epochs = 0
        self._aborted = 0
        self._failed = 0
        self._dropped = 0
        self._late = 0

    def on_progress(self, progress: Progress) -> None:
        """Count the records committed on record, and redraw at most a few times a second."""
        if progress.state is State.MARKED:
            self._records += progress.records
            self._epochs += 1
            self._failed += sum(counts.failed for counts in progress.counts.values())
            self._dropped += offsets_in(progress.dropped)
            self._late += sum(counts.late for counts in progress.counts.values())
        elif progress.state is State.ABORTED:
            self._aborted += 1
        now_s = time.monotonic()
        if now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            self._draw(progress, now_s - self._began_s)

    def close(self) -> None:
        """Keep the last line on the terminal."""
        if self._drawn_s:
            self._out.write("\n")
            self._out.flush()

    def _draw(self, progress: Progress, elapsed_s: float) -> None:
        rate = self._records / elapsed_s if elapsed_s > 0 else 0.0
        aborted = f", {self._aborted} aborted" if self._aborted else ""
        failed = f", {self._failed:,} skipped or dead letters" if self._failed else ""
        failed += f", {self._dropped:,} dropped" if self._dropped else ""
        failed += f", {self._late:,} late" if self._late else ""
        self._out.write(
            f"\r\x1b[K{self._job_name}: checkpoint {progress.checkpoint_id} "
            f"{progress.state.value}{aborted}; {self._records:,} records committed{failed}, "
            f"{rate:,.0f}/s"
        )
        self._out.flush()
