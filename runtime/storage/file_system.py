"""What checkpoints and file sinks ask of a file system: few calls, each with its promise.

Paths are relative to the root that the file system was opened at, with ``/``.
"""

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.errors import StreamError

__all__ = [
    "NAME_TOO_LONG",
    "Entry",
    "FileSystem",
    "OpenFileSystem",
    "close_quietly",
    "require_writable",
]

log = logging.getLogger(__name__)

NAME_TOO_LONG = "A name is too long, as of a partition column's value: it must be made shorter."
"""What to do, of the error where a store takes no name of that length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a directory."""

    name: str
    is_directory: bool
    length_bytes: int


class FileSystem(Protocol):
    """A directory tree on a store that offers one atomic no-replace step (`publish-whole`).

    Driver or command line; any thread, also several at once. Each call raises `AuthenticationError`
    when permission is missing, `ConfigError` when the store cannot give the promise at all,
    `StorageUnreachableError` when it does not answer or takes nothing at the moment, and another
    `StorageError` for the rest, such as a full disk. After a `StorageError` of a call that writes,
    it is unknown whether it happened, unless the call says otherwise.
    """

    uri: str
    """The root, with scheme, without a slash at the end."""

    def read(self, path: str) -> bytes | None:
        """The whole file, or None when there is none."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """What a directory holds, by name; empty when there is no such directory."""
        ...

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        """The names in a directory that match as a whole, in any order; as `entries` where there is
        no such directory, but for directories of very many. The pattern takes no comma."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def write_temporary(self, path: str, data: bytes) -> None:
        """Write a file nobody else names, whole and synced; makes its directories.

        After an error the file may be there in part, and nothing else has changed.
        """
        ...

    def place(self, temporary: str, path: str) -> bool:
        """The atomic step: give the temporary file its final name, if nothing has it.

        True: durable under ``path``, and the temporary name is gone. False: the name is taken.
        """
        ...

    def make_durable(self, path: str) -> None:
        """Sync a file that somebody else wrote or placed, and its name in the directory."""
        ...

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Write a small file whole, over an older one; readers see one of the two.

        ``is_private``: at no moment can anybody read it but its owner (mode 600).
        """
        ...

    def length_bytes(self, path: str) -> int | None:
        """Of a file; None when no file has this name."""
        ...

    def make_directories(self, path: str) -> None:
        """Make a directory and those above it, where they are absent."""
        ...

    def join(self, sources: Sequence[str], path: str) -> int:
        """Write a file nobody else names of the bytes of others, in order; makes its directories.

        Whole and synced on return; its length. After an error the file may be there in part.
        """
        ...

    def move(self, source: str, path: str) -> bool:
        """Give a whole file its final name in a directory that is there, if nothing has the name.

        A name has one content for ever (`rename-settled`), so two callers do no harm. True:
        moved, durable after `sync_directory`. False: the name is taken. After any error it is
        unknown whether it happened.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or a directory tree; a tree vanishes for readers in one step."""
        ...

    def close(self) -> None:
        """Release what connects to the store; a later call connects again. Safe to repeat."""
        ...


OpenFileSystem = Callable[[str], FileSystem]
"""Opens the file system of a URI at that directory."""


def require_writable(fs: FileSystem, directory: str) -> None:
    """Write a small file and delete it: an answer alone does not say that files are taken.

    Raises:
        StorageUnreachableError: not at the moment (safe mode, no DataNode, no answer).
        StorageError, AuthenticationError, ConfigError: refused.
    """
    path = f"{directory}/.sluice-probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        fs.write_temporary(path, b"sluice")
    except StreamError:
        with contextlib.suppress(StreamError):
            fs.delete(path)  # without a DataNode the name is there all the same
        raise
    fs.delete(path)


def close_quietly(fs: FileSystem) -> None:
    """At the end of what used it, where a client that does not close changes nothing."""
    try:
        fs.close()
    except StreamError as err:
        log.info("a file system's client was not closed: uri=%s error=%s", fs.uri, err)
