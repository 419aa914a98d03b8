"""The interface of a file system for checkpoints and file sinks: few calls, each with its promise.

Paths are relative to the root that the file system was opened at, with ``/``.
"""

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.runtime.errors import StreamError

__all__ = [
    "NAME_TOO_LONG",
    "Entry",
    "FileDigest",
    "FileSystem",
    "OpenFileSystem",
    "close_quietly",
    "files_below",
    "require_writable",
]

log = logging.getLogger(__name__)

NAME_TOO_LONG = "Shorten the name that is too long, for example a partition column's value."
"""The remedy of an error about a name that is too long for the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a directory.

    Attributes:
        name: without the directory.
        is_directory: whether it is one.
        length_bytes: of a file.
        changed_ms: when content, or the names in a directory, changed last; milliseconds since
            1970 by the store's clock. On local disks also when a link to the file was made.
    """

    name: str
    is_directory: bool
    length_bytes: int
    changed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """The content of a file: its length, and its SHA-256 in lower-case hexadecimal digits."""

    length_bytes: int
    sha256: str


class FileSystem(Protocol):
    """A directory tree on a store that offers one atomic no-replace step (`publish-whole`).

    Driver or command line; any thread, also several at once. Each call raises `AuthenticationError`
    without permission, and `ConfigError` if the store cannot keep the promise at all. It raises
    `StorageUnreachableError` if the store does not answer or takes no files at the moment, and
    another `StorageError` for all else, such as a full disk. After a `StorageError` of a call that
    writes, it is unknown whether the write happened, unless the call says otherwise.
    """

    uri: str
    """The root, with scheme, without a slash at the end."""

    has_temporaries: bool = True
    """Whether `place` renames what `stage` wrote; if not, `place` writes the whole file itself."""

    def read(self, path: str) -> bytes | None:
        """The whole file, or None when there is none."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """The entries of a directory, by name; empty if there is no such directory."""
        ...

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        """The names in a directory that match as a whole, in any order; empty if there is no
        such directory. Faster than `entries` for very many names. The pattern matches no comma."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def write_temporary(self, path: str, data: bytes) -> None:
        """Write a file under a name of the caller's own, whole and synced; makes its directories.

        After an error the file may be there in part, and nothing else has changed.
        """
        ...

    def stage(self, temporary: str, data: bytes) -> None:
        """Prepare `place`: all that may fail before the file can have its final name.

        Raises:
            ConfigError: the store cannot keep the promise of `place`.
        """
        self.write_temporary(temporary, data)

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        """The atomic step: the staged file ``data`` gets its final name if the name is free.

        True: durable under ``path``, and the temporary name is gone. False: the name is taken; on
        a store without temporaries perhaps by this call, so the caller reads what stands.
        """
        ...

    def make_durable(self, path: str) -> None:
        """Sync a file that another client wrote or placed, and its name in the directory."""
        ...

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Write a small file whole, over an older one; readers see one of the two.

        ``is_private``: only its owner can read it, at every moment (mode 600).
        """
        ...

    def length_bytes(self, path: str) -> int | None:
        """The length of a file; None if no file has this name."""
        ...

    def digest(self, path: str) -> FileDigest | None:
        """The digest of a file of any size; None if no file has this name."""
        ...

    def copy_from(
        self, source: "FileSystem", source_path: str, path: str, *, may_link: bool = False
    ) -> FileDigest:
        """Copy a file of any size, of this or another store, to a name of the caller's own.

        Makes the directories. Whole and synced on return; its name is durable after
        `sync_directory`. After an error the file may be there in part.

        Args:
            may_link: the file never changes, so it may get a second name instead of a copy.
        """
        ...

    def export(self, path: str, target: Path) -> FileDigest:
        """Copy a file of any size to this host, into an existing directory, whole and synced."""
        ...

    def make_directories(self, path: str) -> None:
        """Make a directory and those above it, if they are absent."""
        ...

    def join(self, sources: Sequence[str], path: str) -> int:
        """Concatenate files into one under a name of the caller's own; makes its directories.

        Whole and synced on return; its length. After an error the file may be there in part.
        """
        ...

    def move(self, source: str, path: str) -> bool:
        """Give a whole file its final name in an existing directory, if the name is free.

        A name never has another content (`rename-settled`), so two callers do no harm. True:
        moved, durable after `sync_directory`. False: the name is taken. After any error it is
        unknown whether it happened.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or a directory tree; a tree vanishes for readers in one step.

        On an object store its ``_metadata`` vanishes first, the rest after it.
        """
        ...

    def close(self) -> None:
        """Close the connections to the store; a later call connects again. Safe to repeat."""
        ...


OpenFileSystem = Callable[[str], FileSystem]
"""Opens the file system of a URI at that directory."""


def files_below(fs: FileSystem, directory: str) -> Iterator[str]:
    """The paths of all files below a directory."""
    for entry in fs.entries(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from files_below(fs, path)
        else:
            yield path


def require_writable(fs: FileSystem, directory: str) -> None:
    """Write a small file and delete it: a store that answers may still take no files.

    Raises:
        StorageUnreachableError: not at the moment (safe mode, no DataNode, no answer).
        StorageError, AuthenticationError, ConfigError: the store refused the file.
    """
    path = f"{directory}/.sluice-probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        fs.write_temporary(path, b"sluice")
    except StreamError:
        with contextlib.suppress(StreamError):
            fs.delete(path)  # without a DataNode the name still exists
        raise
    fs.delete(path)


def close_quietly(fs: FileSystem) -> None:
    """Close a client that is no longer used; a failure is only logged."""
    try:
        fs.close()
    except StreamError as err:
        log.info("a file system's client was not closed: uri=%s error=%s", fs.uri, err)
