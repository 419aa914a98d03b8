"""A job's checkpoints as lines of text, and its regions' lives at the end."""

import sys
from collections.abc import Mapping
from typing import Self, TextIO

from sluice.runtime.coordinator.core.checkpoint_states import State
from sluice.runtime.coordinator.core.events import Progress

__all__ = ["RegionLines"]


class RegionLines:
    """A `ProgressListener` for logs. Driver, the listeners' thread.

    As a context around the job's run, it says at any end how often each region was begun, and which
    checkpoint was the last.

    Args:
        out: where the lines go; None: standard output.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._attempts: Mapping[str, int] = {}
        self._last_id: int | None = None

    def on_progress(self, progress: Progress) -> None:
        """A line for each checkpoint that is committed on record."""
        self._attempts = progress.attempts or self._attempts
        if progress.state is not State.MARKED:
            return
        self._last_id = progress.checkpoint_id
        completed = [name for name in progress.attempts if name not in progress.skipped]
        self._write(
            f"checkpoint={progress.checkpoint_id} completed={_listed(completed)} "
            f"skipped={_listed(list(progress.skipped))} records={progress.records} "
            f"seconds={progress.marked_s or 0.0:.3f}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for region, attempts in self._attempts.items():
            self._write(f"region={region} attempts={attempts}")
        self._write(f"last_checkpoint={'none' if self._last_id is None else self._last_id}")

    def _write(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def _listed(names: list[str]) -> str:
    return ",".join(names) or "-"
