"""Writers of a query besides the one that writes a batch. Driver.

The sink of ``writeStream`` and each sink of a callback keep their decisions apart. If the program
gets another writer between two starts, the newest batch of Spark's log may be decided under the
former one, and the new one does not know it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.checkpoint_opening import DROP_IN
from sluice.runtime.contracts import DropInSink
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["BESIDE", "FRAMES", "OtherWriter", "writer_at", "writers_at"]

BESIDE = "beside "
"""Before the ids of the queries that had a callback when a thread of no query wrote a batch."""
FRAMES = "sluice-writes"
"""Directory of the decisions about frames, below a checkpoint location."""

_OF_BATCHES = re.compile(r"batches-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWriter:
    """A writer and its newest decision.

    Attributes:
        store: URI of its decisions.
        place: the checkpoint location that the store is below.
        is_of_callback: a callback may have several writers, ``writeStream`` has one.
    """

    store: str
    place: str
    is_of_callback: bool
    record: CheckpointRecord

    @property
    def newest_batch(self) -> int | None:
        """Id of the last decided batch."""
        return self.record.regions[0].batch_id

    def has_decided(self, batch_id: int, query_id: str) -> bool:
        """Whether a batch of the query is decided there."""
        newest = self.newest_batch
        owners = self.record.regions[0].query_id.removeprefix(BESIDE).split(",")
        return newest is not None and newest >= batch_id and query_id in owners

    def may_share_output(self, sink: DropInSink) -> bool:
        """Whether its output may be that of a sink."""
        (node,) = self.record.graph
        mark = f"{node.name}."
        settings = self.record.settings.items()
        return sink.may_share_output(
            {name.removeprefix(mark): value for name, value in settings if name.startswith(mark)}
        )


def writer_at(
    store: str, open_at: Callable[[str], FileSystem], *, place: str, is_of_callback: bool = True
) -> OtherWriter | None:
    """The writer whose decisions are at this URI; None if it has decided nothing.

    Raises:
        DamagedCheckpointError, UnsupportedFormatError: its newest record cannot be read.
        StorageError: the file system does not answer.
    """
    found = CheckpointStore(open_at(store))
    for checkpoint_id in reversed(found.slots()):
        record = found.read(checkpoint_id)
        if record is not None and record.verdict is Verdict.DECIDED and record.regions:
            return OtherWriter(
                store=store, place=place, is_of_callback=is_of_callback, record=record
            )
    return None


def writers_at(place: str, open_at: Callable[[str], FileSystem]) -> Iterator[OtherWriter]:
    """The writers with decisions below a checkpoint location; see `writer_at`."""
    of_query = writer_at(f"{place}/{DROP_IN}", open_at, place=place, is_of_callback=False)
    if of_query is not None:
        yield of_query
    for name in sorted(open_at(place).names(FRAMES, _OF_BATCHES)):
        found = writer_at(f"{place}/{FRAMES}/{name}", open_at, place=place)
        if found is not None:
            yield found
