"""The writers of one epoch of a task, one per sink."""

from collections.abc import Mapping
from typing import Generic, TypeVar

import pyarrow as pa

from sluice.runtime.contracts import DeadLetterWriter, SinkWriter
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.timestamps import earliest

__all__ = ["TaskWriters"]

W = TypeVar("W", bound=SinkWriter)


class TaskWriters(Generic[W]):
    """Executor; used by one thread at a time.

    Args:
        writers: by operator id of the sink.
        dead_letter_sink: operator id of the one that takes dead letters.

    Attributes:
        records_out: rows written to the sinks.
    """

    def __init__(self, writers: Mapping[str, W], *, dead_letter_sink: str | None) -> None:
        self.writers = writers
        self._dead_letter_sink = dead_letter_sink
        self.records_out = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch to every sink."""
        if batch.num_rows:
            for writer in self.writers.values():
                writer.write(batch)
            self.records_out += batch.num_rows

    def write_dead_letter(self, topic: str, letters: pa.RecordBatch) -> None:
        """Write dead letters, in the transaction of the sink that takes them."""
        writer = self.writers.get(self._dead_letter_sink or "")
        assert isinstance(writer, DeadLetterWriter)  # the start requires it
        writer.write_dead_letters(topic, letters)

    def pre_commit(self) -> tuple[StateEntry, ...]:
        """See `sluice.runtime.contracts.SinkWriter`."""
        return tuple(entry for writer in self.writers.values() for entry in writer.pre_commit())

    @property
    def decide_by_s(self) -> float | None:
        """See `sluice.runtime.contracts.SinkWriter`; the earliest of all sinks."""
        return earliest(writer.decide_by_s for writer in self.writers.values())

    def abort(self) -> None:
        """See `sluice.runtime.contracts.SinkWriter`."""
        for writer in self.writers.values():
            writer.abort()
