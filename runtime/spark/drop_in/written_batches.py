"""Frames that this process has written as batches: the rows of another one are never left out."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

__all__ = ["BatchWrite", "Runs", "WrittenBatches"]

Runs = frozenset[tuple[str, str]]
"""Queries that a write may belong to: each one's id, with the id of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWrite:
    """A write with ``batchId``.

    Attributes:
        frame: the user's object. Two objects may have one plan and other rows: a directory that
            both read may have been overwritten in between.
        sink: name and options.
        runs: the query of its callback. If the thread does not tell it, all that have a callback.
    """

    frame: "weakref.ref[DataFrame]"
    sink: tuple[str, Mapping[str, str]]
    runs: Runs

    def has_rows_of(self, earlier: "BatchWrite") -> bool:
        """Whether these rows are certainly those of an earlier write of the batch.

        The user's code repeats a write of the same frame, or Spark repeats the batch in a new run.
        """
        if self._is_of_new_runs(earlier.runs):
            return True
        frame = self.frame()
        return frame is not None and frame is earlier.frame() and self.sink == earlier.sink

    def _is_of_new_runs(self, earlier: Runs) -> bool:
        before, now = ({query_id for query_id, _ in runs} for runs in (earlier, self.runs))
        return bool(now) and before == now and not earlier & self.runs


class WrittenBatches:
    """The writes of this process, by store and batch. Driver, one thread at a time for a store."""

    def __init__(self) -> None:
        self._by_store: dict[str, dict[int, BatchWrite]] = {}

    def find(self, store: str, batch_id: int) -> BatchWrite | None:
        """The last write of the batch, also if it raised an error: it may be decided."""
        return self._by_store.get(store, {}).get(batch_id)

    def begin(self, store: str, batch_id: int, write: BatchWrite) -> None:
        """Note a write before its first task."""
        self._by_store.setdefault(store, {})[batch_id] = write

    def complete(self, store: str, batch_id: int) -> None:
        """Forget the other batches, which this one has made older or undecided."""
        self._by_store[store] = {batch_id: self._by_store[store][batch_id]}
