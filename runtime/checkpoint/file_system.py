"""What the checkpoint store asks of a file system: few calls, each with its promise.

Paths are relative to the root that the file system was opened at, with ``/``.
"""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Entry", "FileSystem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a directory."""

    name: str
    is_directory: bool
    length_bytes: int


class FileSystem(Protocol):
    """A directory tree on a store that offers one atomic no-replace step (protocol rule 7).

    Driver or command line; any thread, one call at a time. Each call raises `AuthenticationError`
    when permission is missing, `ConfigError` when the store cannot give the promise at all, and
    `StorageError` for everything that may go away by itself; after a `StorageError` of a call that
    writes, it is unknown whether it happened, unless the call says otherwise.
    """

    uri: str
    """The root, with scheme, without a slash at the end."""

    def read(self, path: str) -> bytes | None:
        """The whole file, or None when there is none."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """What a directory holds, by name; empty when there is no such directory."""
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
        """Sync a file found under its final name after a `place` that did not answer."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file whole, over an older one; readers see one of the two."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or a directory tree; a tree vanishes for readers in one step."""
        ...
