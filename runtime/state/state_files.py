"""State files: sections of sorted rows, each checked by its own SHA-256.

A section is an Arrow IPC stream of `ROW_SCHEMA`, compressed by zstd, and then the SHA-256 of these
bytes (32 bytes). A file is its sections, one after the other; the record of a region names each by
offset and length. The schema's metadata has the format's version and the file's name, so that
another file under the name is refused. Nothing in a file names a region or a split.
"""

import contextlib
import hashlib
import io
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.runtime.errors import (
    DamagedCheckpointError,
    StorageUnreachableError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.state.state_rows import ROW_SCHEMA
from sluice.runtime.storage.task_files import TaskFile, TaskFiles

__all__ = ["DIRECTORY", "StateFileWriter", "StateStore", "state_file_name"]

DIRECTORY = "state"
"""The directory of state files in the checkpoint directory."""

_VERSION = b"1"
_VERSION_KEY = b"sluice.state"
_NAME_KEY = b"sluice.file"
_DIGEST_BYTES = 32
_READ_BYTES = 1 << 20
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))


def state_file_name(region: str, attempt_id: int, batch_id: int, kind: str) -> str:
    """A path in the checkpoint directory that no other file has; ``kind``: changes or merged."""
    unique = uuid.uuid4().hex[:8]
    return f"{DIRECTORY}/{region}/{attempt_id}-{batch_id}-{unique}.{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStore:
    """The checkpoint directory as tasks see it. Picklable; made in the driver, any thread.

    Attributes:
        files: of its store.
        root: its path, without scheme.
    """

    files: TaskFiles
    root: str

    def create(self, path: str) -> "StateFileWriter":
        """A new file; ``path`` from `state_file_name`."""
        with _outages_named(path):
            return StateFileWriter(path, self.files.create(f"{self.root}/{path}"))

    def require(self, file: FileReference) -> None:
        """Check that the file is there with its length.

        Raises:
            DamagedCheckpointError: it is not.
            StorageUnreachableError: the store does not answer.
        """
        with _outages_named(file.path):
            found = self.files.length_bytes(f"{self.root}/{file.path}")
        if found is None:
            raise _damaged("a file of keyed state is missing", file, {})
        if found != file.length_bytes:
            raise _damaged("a file of keyed state has another length", file, {"found_bytes": found})

    def rows(self, file: FileReference, offset: int, length: int) -> Iterator[pa.RecordBatch]:
        """The rows of a section. Its digest is compared after the last row: until the end,
        nothing that follows from the rows may last.

        Raises:
            DamagedCheckpointError: the section is not the one that was written.
            UnsupportedFormatError: a later version has written it.
            StorageUnreachableError: the store does not answer.
        """
        if not (offset >= 0 and _DIGEST_BYTES < length <= file.length_bytes - offset):
            raise _damaged("a file of keyed state ends before its section", file, {})
        section = _Section(self, file, offset, length)
        try:
            with pa.ipc.open_stream(pa.PythonFile(section, mode="r")) as stream:
                _require_own(stream.schema, file)
                for batch in stream:
                    batch.validate(full=True)
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=ROW_SCHEMA)
        except (pa.ArrowException, OSError, EOFError) as error:
            if section.failure is not None:
                raise section.failure from error
            raise _damaged("a file of keyed state is damaged", file, {"error": error}) from error
        section.require_digest()

    def read(self, file: FileReference, offset: int, length: int) -> bytes:
        """Bytes of a file; fewer if it is shorter."""
        with _outages_named(file.path):
            return self.files.read(f"{self.root}/{file.path}", offset, length)


class StateFileWriter:
    """One file that is being written, section after section. One thread.

    Attributes:
        path: in the checkpoint directory.
    """

    def __init__(self, path: str, file: TaskFile) -> None:
        self.path = path
        self._file = file
        self._stream = _Hashed(file)
        name = posixpath.basename(path).encode()
        self._schema = ROW_SCHEMA.with_metadata({_VERSION_KEY: _VERSION, _NAME_KEY: name})

    def write_section(self, rows: Iterable[pa.RecordBatch]) -> tuple[int, int]:
        """Write sorted rows; the section's offset and length.

        Raises:
            StorageError: the file is not whole, and nothing names it.
        """
        start = self._stream.length
        self._stream.section = hashlib.sha256()
        with _outages_named(self.path):
            with pa.ipc.new_stream(
                pa.PythonFile(self._stream, mode="w"), self._schema, options=_OPTIONS
            ) as stream:
                for batch in rows:
                    stream.write_batch(batch)
            self._stream.write(self._stream.section.digest())
        return start, self._stream.length - start

    def finish(self) -> FileReference:
        """Close the file; it is whole and durable."""
        with _outages_named(self.path):
            length = self._file.finish()
        return FileReference(
            path=self.path, length_bytes=length, sha256=self._stream.whole.hexdigest()
        )

    def abandon(self) -> None:
        """Close without a promise; a sweep deletes the file."""
        self._file.abandon()


class _Hashed(io.RawIOBase):
    """Passes bytes on to a file, and digests them."""

    def __init__(self, file: TaskFile) -> None:
        super().__init__()
        self._file = file
        self.length = 0
        self.whole = hashlib.sha256()
        self.section = hashlib.sha256()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        """All of it."""
        view = memoryview(data).cast("B")
        self._file.stream.write(view)
        self.whole.update(view)
        self.section.update(view)
        self.length += len(view)
        return len(view)


class _Section(io.RawIOBase):
    """The bytes of a section without its digest, read piece by piece."""

    def __init__(self, store: StateStore, file: FileReference, offset: int, length: int) -> None:
        super().__init__()
        self._store = store
        self._reference = file
        self._offset = offset
        self._left = length
        self._piece = memoryview(b"")
        self._digest = b""
        self._sha256 = hashlib.sha256()
        self.failure: StreamError | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """As many bytes as there are, up to ``size``."""
        wanted = self._left if size is None or size < 0 else size
        found = bytearray()
        while len(found) < wanted and (self._piece or self._left):
            if not self._piece:
                self._piece = self._next_piece()
            taken = self._piece[: wanted - len(found)]
            found += taken
            self._piece = self._piece[len(taken) :]
        return bytes(found)

    def require_digest(self) -> None:
        """Compare the digest with that of the bytes, also of those that Arrow did not need."""
        while self._left:
            self._next_piece()
        if self._sha256.digest() != self._digest:
            raise _damaged("a file of keyed state is damaged", self._reference, {})

    def _next_piece(self) -> memoryview:
        """The last piece has the digest at its end."""
        is_last = self._left <= _READ_BYTES
        length = self._left if is_last else _READ_BYTES - _DIGEST_BYTES
        try:
            piece = self._store.read(self._reference, self._offset, length)
            if len(piece) != length:
                raise _damaged("a file of keyed state is too short", self._reference, {})
        except StreamError as error:
            self.failure = error  # Arrow may raise its own error instead
            raise
        self._offset += length
        self._left -= length
        view = memoryview(piece)
        if is_last:
            view, self._digest = view[:-_DIGEST_BYTES], piece[-_DIGEST_BYTES:]
        self._sha256.update(view)
        return view


@contextlib.contextmanager
def _outages_named(path: str) -> Iterator[None]:
    """An outage of the store is the error that an engine waits for."""
    try:
        yield
    except UnreachableError as error:
        _, where, remedy = error.args
        raise StorageUnreachableError(
            "the store of keyed state does not answer", {**where, "path": path}, remedy
        ) from error


def _require_own(schema: pa.Schema, file: FileReference) -> None:
    metadata = schema.metadata or {}
    version = metadata.get(_VERSION_KEY, b"")
    if version != _VERSION and version.isdigit():
        raise UnsupportedFormatError(
            "a later version has written this file of keyed state",
            {"path": file.path, "version": version.decode(), "known": _VERSION.decode()},
            "Use the version of Sluice that wrote the checkpoint, or a later one.",
        )
    name = metadata.get(_NAME_KEY, b"").decode(errors="replace")
    if name != posixpath.basename(file.path) or not schema.equals(ROW_SCHEMA):
        raise _damaged("a file of keyed state has the content of another file", file, {"is": name})


def _damaged(what: str, file: FileReference, where: Mapping[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        what,
        {"path": file.path, "length_bytes": file.length_bytes, **where},
        "Restore from another checkpoint (sluice checkpoint list) or from a savepoint.",
    )
