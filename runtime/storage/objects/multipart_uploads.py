"""Uploads in parts: bytes that an object store keeps invisible until one call completes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.errors import StorageError

__all__ = [
    "LEAST_PART_BYTES",
    "MOST_PARTS",
    "CompletedObject",
    "MultipartUploads",
    "OpenUpload",
    "UploadGoneError",
]

LEAST_PART_BYTES = 5 << 20
"""The size of each part but the last one: S3's limit; other stores allow less."""

MOST_PARTS = 10_000
"""The limit of one upload on S3 and Google's store; Azure allows more."""


class UploadGoneError(StorageError):
    """The store has no such upload: it was completed or aborted, or it expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpload:
    """An upload that is neither completed nor aborted.

    Attributes:
        key: of the object that it would make, relative to the root.
        upload_id: drawn by the store.
    """

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedObject:
    """An object that readers see.

    Attributes:
        length_bytes: of its content.
        mark: of the upload that made it; None: it has none, so an upload of ours did not make it.
    """

    length_bytes: int
    mark: str | None


class MultipartUploads(Protocol):
    """Uploads below one root. Driver, tasks and commands; any thread, also several at once.

    Every call repeats itself a few times. Then it raises `AuthenticationError` without permission,
    `StorageUnreachableError` without an answer, after a fault of the store, or if it asks for less
    speed, and another `StorageError` for all else. After an error of a call that
    writes, it is unknown whether the store acted.
    """

    @property
    def uri(self) -> str:
        """The root, with scheme, without a slash at the end."""
        ...

    def create(self, key: str, *, mark: str) -> str:
        """Begin an upload; returns its id. A lost answer leaves an upload without an owner.

        Args:
            key: that only this upload uses.
            mark: kept with the object, so that a look recognises it.
        """
        ...

    def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Write a part, over an earlier one of the number; returns the tag that completes it.

        Args:
            number: 1 to `MOST_PARTS`.
        Raises:
            UploadGoneError: the upload was aborted.
        """
        ...

    def complete(self, key: str, upload_id: str, tags: Sequence[str], *, mark: str) -> None:
        """Make the object of all parts visible in one step.

        Args:
            tags: of parts 1, 2, …
            mark: as at `create`.
        Raises:
            UploadGoneError: `look` shows whether it was completed.
        """
        ...

    def abort(self, key: str, upload_id: str) -> None:
        """Discard an upload and its parts; no error if there is none."""
        ...

    def open_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        """The uploads whose keys begin with ``prefix``, also those of other programs."""
        ...

    def look(self, key: str) -> CompletedObject | None:
        """The object under a key; None if there is none."""
        ...

    def close(self) -> None:
        """Close the connections; a later call connects again."""
        ...
