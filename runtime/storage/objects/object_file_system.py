"""`FileSystem` on an object store: a conditional put is the no-replace step (ADR 0025)."""

import contextlib
import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.divided_directory import holder_of
from sluice.runtime.storage.file_system import Entry, FileDigest, FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem, local_failure
from sluice.runtime.storage.objects.object_client import PART_BYTES, FoundObject, ObjectClient
from sluice.runtime.storage.objects.object_location import ObjectLocation

__all__ = ["ObjectFileSystem"]

_RECORD = "_metadata"
_CHECK = ".sluice-condition-"


class ObjectFileSystem(FileSystem):
    """`FileSystem` below one prefix of a bucket. Driver or command line; any thread.

    Directories exist only by their objects. An object is whole, durable and visible to every reader
    once its write is answered.
    """

    has_temporaries = False

    def __init__(self, location: ObjectLocation) -> None:
        self.uri = location.uri
        self.location = location
        self._client = ObjectClient(location)
        self._honours_condition = False

    def read(self, path: str) -> bytes | None:
        return self._client.read(self._key(path))

    def entries(self, path: str) -> list[Entry]:
        return sorted(self._entries(path), key=lambda entry: entry.name)

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        return [entry.name for entry in self._entries(path) if pattern.fullmatch(entry.name)]

    def _entries(self, path: str) -> Iterator[Entry]:
        objects, directories = self._client.list_directory(self._key(path))
        for each in objects:
            yield _entry(each)
        for key in directories:
            yield Entry(name=_name(key), is_directory=True, length_bytes=0, changed_ms=0)

    def exists(self, path: str) -> bool:
        key = self._key(path)
        if path and self._client.length_bytes(key) is not None:
            return True
        return any(self._client.list_directory(key))

    def write_temporary(self, path: str, data: bytes) -> None:
        self._client.put(self._key(path), data)

    def stage(self, temporary: str, data: bytes) -> None:
        """See `FileSystem.stage`: checks once that the store refuses to create an object twice."""
        if not self._honours_condition:
            self._require_condition()
            self._honours_condition = True

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        """See `FileSystem.place`: one conditional put of the whole."""
        placed = self._client.create(self._key(path), data)
        failpoint("after-put")
        return placed

    def _require_condition(self) -> None:
        key = self._key(f"{_CHECK}{uuid.uuid4().hex}")
        self._client.put(key, b"first")
        try:
            if self._client.create(key, b"second") or self._client.read(key) != b"first":
                raise ConfigError(
                    "the store ignores the condition of a put",
                    {"uri": self.uri, "header": "If-None-Match: *"},
                    "Use a store with conditional puts, or upgrade it: this one lets two "
                    "coordinators decide one checkpoint.",
                )
        finally:
            with contextlib.suppress(StreamError):
                self._client.delete([key])

    def make_durable(self, path: str) -> None:
        """See `FileSystem.make_durable`: an object that readers see is durable."""

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """See `FileSystem.replace`: the rights of the bucket decide on readers, not this call."""
        self._client.put(self._key(path), data)

    def length_bytes(self, path: str) -> int | None:
        return self._client.length_bytes(self._key(path))

    def digest(self, path: str) -> FileDigest | None:
        key = self._key(path)
        if self._client.length_bytes(key) is None:
            return None
        return _digest(self._client.parts(key))

    def copy_from(
        self, source: FileSystem, source_path: str, path: str, *, may_link: bool = False
    ) -> FileDigest:
        """See `FileSystem.copy_from`: within a bucket the store copies, and this process reads the
        copy for its digest."""
        key, source = self._key(path), holder_of(source, source_path)
        if isinstance(source, ObjectFileSystem):
            origin = source._key(source_path)  # noqa: SLF001 - its own class
            if source._is_of_bucket(self.location):  # noqa: SLF001 - its own class
                self._client.copy(origin, key)
                return _digest(self._client.parts(key))
            return self._client.put_parts(key, source._client.parts(origin))  # noqa: SLF001 - its own class
        if isinstance(source, LocalFileSystem):
            return self._client.put_parts(key, _pieces(source.host_path(source_path)))
        with tempfile.TemporaryDirectory(prefix="sluice-copy-") as scratch:
            file = Path(scratch) / "file"
            source.export(source_path, file)
            return self._client.put_parts(key, _pieces(file))

    def export(self, path: str, target: Path) -> FileDigest:
        parts = self._client.parts(self._key(path))
        try:
            target.unlink(missing_ok=True)
            with target.open("xb") as file:
                digest = _digest(_written(parts, file.write))
                file.flush()
                os.fsync(file.fileno())
                return digest
        except OSError as error:
            raise local_failure(error, "copy an object to a file", {"path": target}) from error

    def make_directories(self, path: str) -> None:
        """See `FileSystem.make_directories`: a directory is there with its first object."""

    def join(self, sources: Sequence[str], path: str) -> int:
        parts = chain.from_iterable(self._client.parts(self._key(each)) for each in sources)
        return self._client.put_parts(self._key(path), parts).length_bytes

    def move(self, source: str, path: str) -> bool:
        """See `FileSystem.move`: the store copies the object, then the source is deleted."""
        if self.length_bytes(path) is not None:
            return False
        self._client.copy(self._key(source), self._key(path))
        self._client.delete([self._key(source)])
        return True

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`: nothing is buffered."""

    def delete(self, path: str) -> None:
        """See `FileSystem.delete`: a record goes first, so that half a tree is no checkpoint."""
        key = self._key(path)
        below = [each.key for each in self._client.list_below(key)]
        record = f"{key}/{_RECORD}"
        if record in below:
            self._client.delete([record])
            failpoint("after-record-deleted")
        self._client.delete([each for each in below if each != record] if below else [key])
        if below and self.location.scheme == "abfss":
            self._client.delete_directory(key)

    def close(self) -> None:
        self._client.close()

    def _key(self, path: str) -> str:
        return f"{self.location.prefix}/{path}".strip("/")

    def _is_of_bucket(self, other: ObjectLocation) -> bool:
        mine = self.location
        return (mine.scheme, mine.bucket, mine.config) == (other.scheme, other.bucket, other.config)


def _entry(found: FoundObject) -> Entry:
    return Entry(
        name=_name(found.key),
        is_directory=False,
        length_bytes=found.length_bytes,
        changed_ms=found.changed_ms,
    )


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _digest(parts: Iterator[bytes]) -> FileDigest:
    sha256, length_bytes = hashlib.sha256(), 0
    for part in parts:
        sha256.update(part)
        length_bytes += len(part)
    return FileDigest(length_bytes=length_bytes, sha256=sha256.hexdigest())


def _pieces(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as source:
            while piece := source.read(PART_BYTES):
                yield piece
    except OSError as error:
        raise local_failure(error, "copy a file", {"path": file}) from error


def _written(parts: Iterator[bytes], write: Callable[[bytes], object]) -> Iterator[bytes]:
    for part in parts:
        write(part)
        yield part
