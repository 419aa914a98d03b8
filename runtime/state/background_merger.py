"""Merges parts of splits into a new file, in a thread, from files alone."""

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.runtime.errors import StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.state.codec.expiry import ExpiryTimes
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_parts import PlacedPart
from sluice.runtime.state.state_rows import merged_rows

__all__ = ["BackgroundMerger", "FinishedMerge", "MergeRun"]

log = logging.getLogger(__name__)

_CLOSE_S = 10.0
_LONGEST_REST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRun:
    """Adjacent parts of a split that become one.

    Attributes:
        key: the split.
        parts: oldest first.
        is_base: they begin with the split's first part.
    """

    key: SplitKey
    parts: tuple[PlacedPart, ...]
    is_base: bool


FinishedMerge = Sequence[tuple[MergeRun, PlacedPart]]
"""The new part of each run."""


class BackgroundMerger:
    """One merge at a time. Executor; the checkpoint client's thread calls it.

    A merge that fails is logged, and its parts stay. The next one may begin after a while, which
    grows with each failure.

    Attributes:
        failure: of the last merge that has ended; None: it succeeded.
        progress: rows that the merge has read so far.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.failure: Exception | None = None
        self.progress = 0
        self._thread: threading.Thread | None = None
        self._finished: FinishedMerge | None = None
        self._is_closed = threading.Event()
        self._failures = 0
        self._rest = 0

    def begin(self, path: str, runs: Sequence[MergeRun], expired: ExpiryTimes) -> None:
        """Begin to merge ``runs`` into the file ``path``. Only if `may_begin`.

        Args:
            expired: the times up to which a base leaves entries out.
        """
        self._thread = threading.Thread(
            target=self._run, args=(path, runs, expired), name="sluice-state-merge", daemon=True
        )
        self._thread.start()

    def may_begin(self) -> bool:
        """Whether no merge runs, and none failed just before; call it once for each epoch."""
        if self._thread is not None:
            return False
        self._rest -= self._rest > 0
        return not self._rest

    def take(self) -> FinishedMerge:
        """The result of a merge that has ended since the last call; empty: there is none."""
        if self._thread is None or self._thread.is_alive():
            return ()
        self._thread.join()
        self._thread, finished, self._finished = None, self._finished, None
        return finished or ()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the merge that runs, if any; whether none runs now."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        """Give up the merge that runs, if any. Safe to repeat."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self, path: str, runs: Sequence[MergeRun], expired: ExpiryTimes) -> None:
        try:
            self._finished = self._merged(path, runs, expired)
            self._failures, self.failure = 0, None
        except _GivenUpError:
            return
        except (StreamError, OSError, MemoryError, pa.ArrowException) as error:
            self._failures, self.failure = self._failures + 1, error
            self._rest = min(2**self._failures, _LONGEST_REST)
            log.warning("a merge of state files failed: path=%s error=%s", path, error)

    def _merged(self, path: str, runs: Sequence[MergeRun], expired: ExpiryTimes) -> FinishedMerge:
        failpoint("before-state-merge")
        writer = self._store.create(path)
        try:
            sections = [writer.write_section(self._rows(run, expired)) for run in runs]
            failpoint("before-merged-file")
            file = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        failpoint("after-merged-file")
        return [
            (run, PlacedPart(file=file, offset=offset, length=length, is_base=run.is_base))
            for run, (offset, length) in zip(runs, sections, strict=True)
        ]

    def _rows(self, run: MergeRun, expired: ExpiryTimes) -> Iterator[pa.RecordBatch]:
        streams = [self._store.rows(part.file, part.offset, part.length) for part in run.parts]
        for rows in merged_rows(streams, drops=expired if run.is_base else None):
            if self._is_closed.is_set():
                raise _GivenUpError
            self.progress += rows.num_rows
            yield rows


class _GivenUpError(Exception):
    """The task ends."""
