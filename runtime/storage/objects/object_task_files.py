"""Files that a task writes to and reads from an object store."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, cast

from sluice.runtime.errors import StorageError
from sluice.runtime.storage.local_fs import local_failure
from sluice.runtime.storage.objects.object_client import PART_BYTES, ObjectClient
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.task_files import TaskFile, TaskFiles

__all__ = ["ObjectTaskFiles"]


@dataclass(frozen=True)
class ObjectTaskFiles(TaskFiles):
    """`TaskFiles` of one bucket. A file becomes an object when it is finished: no reader sees less.

    Attributes:
        location: in the bucket; the driver has checked it.
    """

    location: ObjectLocation

    @cached_property
    def _client(self) -> ObjectClient:
        return ObjectClient(self.location)

    def __getstate__(self) -> ObjectLocation:
        return self.location

    def __setstate__(self, location: ObjectLocation) -> None:
        object.__setattr__(self, "location", location)

    def check(self) -> None:
        """See `TaskFiles.check`: the start of a run writes objects itself."""

    def require(self, directory: str) -> None:
        """See `TaskFiles.require`: every process finds the same bucket."""

    def create(self, path: str) -> "_ObjectFile":
        return _ObjectFile(self._client, _key(path))

    def length_bytes(self, path: str) -> int | None:
        return self._client.length_bytes(_key(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._client.read_range(_key(path), offset, length)


class _ObjectFile(TaskFile):
    """Bytes of a file in memory, or on the local disk if they are many, until it is finished."""

    def __init__(self, client: ObjectClient, key: str) -> None:
        self._client = client
        self._key = key
        self._file = tempfile.SpooledTemporaryFile(PART_BYTES, prefix="sluice-object-")  # noqa: SIM115 - closed by `finish` and `abandon`

    @property
    def stream(self) -> BinaryIO:
        return cast(BinaryIO, self._file)

    def finish(self) -> int:
        """See `TaskFile.finish`; an answer that was lost is settled by a look at the object."""
        with self._file, _local_failures(self._key):
            length_bytes = self._file.tell()
            self._file.seek(0)
            if length_bytes <= PART_BYTES:
                self._create(self._file.read())
            else:
                self._client.put(self._key, self.stream)
            return length_bytes

    def _create(self, data: bytes) -> None:
        try:
            if self._client.create(self._key, data):
                return
        except StorageError:
            if self._client.read(self._key) != data:
                raise
            return
        if self._client.read(self._key) != data:
            raise StorageError(
                "another file has the name of a task's file",
                {"uri": self._client.location.uri, "key": self._key},
                "Repeat the attempt, which uses another name.",
            )

    def abandon(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.close()


def _key(path: str) -> str:
    return path.strip("/")


@contextlib.contextmanager
def _local_failures(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise local_failure(error, "keep a task's file on the local disk", {"key": key}) from error
