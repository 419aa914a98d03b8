"""Notes of the data files that are being written, so that a sweep finds those of dead attempts.

A note is written before the first file that it names is made, and deleted after a snapshot names
the files, before their checkpoint is committed on record. So a note whose checkpoint is committed
on record never names a file of the table. No listing of the table's data is needed.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sluice.connectors.iceberg.table.table_store import TableStore
from sluice.connectors.iceberg.written_files import WriteAttempt
from sluice.runtime.model.json_text import parsed_json

__all__ = ["WriteNote", "note_name", "noted_attempts", "noted_files"]

_SUFFIX = ".json"


def note_name(attempt: WriteAttempt) -> str:
    """Name of an attempt's note below the root of its sink."""
    return f"{attempt.path}{_SUFFIX}"


@dataclass(slots=True, kw_only=True)
class WriteNote:
    """The note of one attempt. Task, one thread.

    Attributes:
        store: of the sink.
        attempt: that writes.
    """

    store: TableStore
    attempt: WriteAttempt
    _files: list[str] = field(default_factory=list)

    def announce(self, location: str) -> None:
        """Keep the location of a file on record; StorageError if that is not certain."""
        self._files.append(location)
        self.store.write(note_name(self.attempt), json.dumps({"files": self._files}).encode())


def noted_attempts(names: Iterable[str]) -> Iterator[WriteAttempt]:
    """The attempts whose notes are among the files of a sink's store."""
    for name in names:
        attempt = WriteAttempt.parse(name.removesuffix(_SUFFIX))
        if attempt is not None and name.endswith(_SUFFIX):
            yield attempt


def noted_files(store: TableStore, attempt: WriteAttempt) -> list[str] | None:
    """The files that a note names; None: it is gone, or was not written whole."""
    data = store.read(note_name(attempt))
    try:
        found = {} if data is None else parsed_json(data)
        return [str(name) for name in found["files"]] if isinstance(found, dict) else None
    except (ValueError, LookupError, TypeError):
        return None
