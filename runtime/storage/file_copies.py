"""Copies and checks many files at the same time."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "THREADS",
    "Fault",
    "FileCopy",
    "Progress",
    "copy_files",
    "in_parallel",
    "wrong_files",
    "wrong_lengths",
]

THREADS = 8

Progress = Callable[[int, int, int], None]
"""Called after each file with the number of files that are done, the number of all files, and the
bytes that are done. In any thread, but not twice at once."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class FileCopy(NamedTuple):
    """One file to copy."""

    source: str
    """Its path in the file system that it comes from."""
    path: str
    """Its path where it goes to."""
    may_link: bool
    """Whether it never changes."""


class Fault(NamedTuple):
    """A file that is not as its reference says."""

    path: str
    problem: str


def copy_files(
    source: FileSystem,
    target: FileSystem,
    copies: Collection[FileCopy],
    *,
    progress: Progress | None = None,
) -> list[FileReference]:
    """Copy all files, durably; their references in the order of ``copies``.

    Raises:
        StorageError, AuthenticationError: one of them was not copied. Others may be there.
    """
    count = _Count(progress, len(copies))

    def copied(each: FileCopy) -> FileReference:
        digest = target.copy_from(source, each.source, each.path, may_link=each.may_link)
        count.add(digest.length_bytes)
        return FileReference(path=each.path, length_bytes=digest.length_bytes, sha256=digest.sha256)

    found = list(in_parallel(copied, copies))
    directories = {each.path.rpartition("/")[0] for each in copies}
    for _ in in_parallel(target.sync_directory, directories):
        pass
    return found


def wrong_files(
    fs: FileSystem, references: Collection[FileReference], *, progress: Progress | None = None
) -> list[Fault]:
    """Read every file, and name those that are missing or differ from their references.

    Raises:
        StorageError, AuthenticationError: the store does not answer, or refuses.
    """
    count = _Count(progress, len(references))

    def checked(wanted: FileReference) -> Fault | None:
        found = fs.digest(wanted.path)
        count.add(0 if found is None else found.length_bytes)
        length_bytes = None if found is None else found.length_bytes
        if found is None or length_bytes != wanted.length_bytes:
            return _fault(wanted, length_bytes)
        if found.sha256 != wanted.sha256:
            return Fault(wanted.path, "has other content: its SHA-256 differs")
        return None

    return [each for each in in_parallel(checked, references) if each is not None]


def wrong_lengths(fs: FileSystem, references: Collection[FileReference]) -> list[Fault]:
    """As `wrong_files`, of lengths alone: it reads no file."""
    lengths = in_parallel(lambda wanted: fs.length_bytes(wanted.path), references)
    found = zip(references, lengths, strict=True)
    return [_fault(wanted, length) for wanted, length in found if length != wanted.length_bytes]


def _fault(wanted: FileReference, length_bytes: int | None) -> Fault:
    if length_bytes is None:
        return Fault(wanted.path, "is missing")
    return Fault(wanted.path, f"has {length_bytes} bytes instead of {wanted.length_bytes}")


def in_parallel(function: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """The results in order; after an error, no further call begins."""
    with ThreadPoolExecutor(THREADS, "sluice-files") as pool:
        futures = [pool.submit(function, each) for each in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Count:
    def __init__(self, progress: Progress | None, files: int) -> None:
        self._progress = progress
        self._files = files
        self._lock = threading.Lock()
        self._done = self._bytes = 0

    def add(self, length_bytes: int) -> None:
        with self._lock:
            self._done += 1
            self._bytes += length_bytes
            if self._progress is not None:
                self._progress(self._done, self._files, self._bytes)
