"""Files that a task writes and reads without a JVM, on a local disk or over WebHDFS."""

import contextlib
import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.local_fs import LocalFileSystem, local_failure

__all__ = ["LocalTaskFiles", "TaskFile", "TaskFiles"]

_BUFFER_BYTES = 1 << 20


class TaskFile(Protocol):
    """One file being written. Python worker, one thread."""

    @property
    def stream(self) -> BinaryIO:
        """Takes the bytes; the format writer must not close it."""
        ...

    def finish(self) -> int:
        """Close the file whole and as durable as the store makes it; returns its bytes.

        Raises:
            StorageError: the file may not be whole: the attempt has failed, and the file is an
                orphan. A file is never finished twice.
        """
        ...

    def abandon(self) -> None:
        """Close without a promise; the sweep deletes the file. Never raises."""
        ...


class TaskFiles(Protocol):
    """Files of a store. A picklable value, made on the driver, used in tasks; any thread.

    Paths are absolute, without scheme.
    """

    def check(self) -> None:
        """Check that tasks can write at all; the driver calls it once, before any task starts.

        Raises:
            UnreachableError: no server answered in time.
            AuthenticationError: this user may not, or not without a ticket.
        """
        ...

    def require(self, directory: str) -> None:
        """Refuse to write in a directory that the driver, which publishes, would not find.

        Args:
            directory: absolute, without scheme; the driver has made it.
        Raises:
            ConfigError: it is not there.
        """
        ...

    def create(self, path: str) -> TaskFile:
        """A new file; directories above it are made.

        Args:
            path: only this attempt uses the name.
        Raises:
            StorageError: the name is taken, or the store failed.
            UnreachableError: no server answered in time.
            AuthenticationError: this user may not write there.
        """
        ...

    def length_bytes(self, path: str) -> int | None:
        """The length of a file; None if there is none. Raises as `create` does."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a file, fewer if it is shorter. Raises as `create` does, also without a file."""
        ...


class LocalTaskFiles(TaskFiles):
    """`TaskFiles` on a disk that this machine mounts; a finished file is synced."""

    def check(self) -> None:
        """See `TaskFiles.check`: the start of a run makes a file there itself."""

    def require(self, directory: str) -> None:
        """See `TaskFiles.require`: a decided file on another host's disk stops a query for good."""
        if not LocalFileSystem(Path(directory)).exists(""):
            raise ConfigError(
                "a task does not see a directory of the driver",
                {"path": directory, "host": socket.gethostname()},
                "Mount one directory for the driver and every executor, or write to hdfs://. If it "
                "was deleted, restart the query.",
            )

    def create(self, path: str) -> "_LocalFile":
        target = Path(path)
        directory = LocalFileSystem(target.parent)
        directory.make_directories("")
        with _translated("create", target):
            return _LocalFile(target, directory)

    def length_bytes(self, path: str) -> int | None:
        return LocalFileSystem(Path(path).parent).length_bytes(Path(path).name)

    def read(self, path: str, offset: int, length: int) -> bytes:
        with _translated("read", Path(path)), Path(path).open("rb", buffering=0) as file:
            found = bytearray()
            while piece := os.pread(file.fileno(), length - len(found), offset + len(found)):
                found += piece
            return bytes(found)


class _LocalFile(TaskFile):
    def __init__(self, path: Path, directory: LocalFileSystem) -> None:
        self._path = path
        self._directory = directory
        self._file = _LocalStream(path)

    @property
    def stream(self) -> BinaryIO:
        return cast(BinaryIO, self._file)

    def finish(self) -> int:
        with _translated("write", self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            length_bytes = self._file.tell()
        self._directory.sync_directory("")
        return length_bytes

    def abandon(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk refuses the buffer again
            self._file.close()


class _LocalStream(io.BufferedWriter):
    """A file whose write errors name the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"), _BUFFER_BYTES)
        self._path = path

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        with _translated("write", self._path):
            return super().write(data)


@contextlib.contextmanager
def _translated(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise local_failure(error, f"{action} a task's file", {"path": path}) from error
