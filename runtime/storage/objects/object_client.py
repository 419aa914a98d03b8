"""Single requests to an object store, by absolute path inside its bucket; typed errors."""

import contextlib
import hashlib
import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

from sluice.runtime.errors import StreamError
from sluice.runtime.extras import extras_named
from sluice.runtime.storage.file_system import FileDigest
from sluice.runtime.storage.local_fs import local_failure
from sluice.runtime.storage.objects.object_errors import is_strange, object_failure, store_answer
from sluice.runtime.storage.objects.object_location import ObjectLocation

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["PART_BYTES", "FoundObject", "ObjectClient"]

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
"""The most bytes of one request: larger objects are read and written in parts."""
_UPLOADS = 4  # parts of one object at the same time
_TRIES = 4
_NO_OBJECT = re.compile(
    r"<Code>(NoSuchKey|BlobNotFound)</Code>"
    r"|The specified blob does not exist"  # Azure, of one of many deletions
)
_NO_SUCH_RANGE = re.compile(r"status code: 416|InvalidRange")
_CUT_SHORT = re.compile(r"response body|IncompleteBody|IncompleteMessage|UnexpectedEof")

T = TypeVar("T")


class FoundObject(NamedTuple):
    """An object of a listing."""

    key: str
    length_bytes: int
    changed_ms: int


class ObjectClient:
    """Requests to one bucket. Any thread; a pickled client connects again where it arrives.

    Each call raises `AuthenticationError` without permission, `ConfigError` for a missing bucket,
    `StorageUnreachableError` without an answer, and `StorageError` for all else.
    """

    def __init__(self, location: ObjectLocation) -> None:
        self.location = location

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectClient, (self.location,)

    @cached_property
    def _store(self) -> "ObjectStore":
        return replace(self.location, prefix="").open()

    @cached_property
    def _api(self) -> Any:  # noqa: ANN401 - the module obstore, an optional package
        with extras_named():
            import obstore

            return obstore

    def read(self, key: str) -> bytes | None:
        """A whole object of one request; None: there is none."""

        def whole() -> bytes:
            found = self._api.get(self._store, key)
            data = bytes(found.bytes())
            if not found.meta["e_tag"]:  # each answer of a store has one: see `_require_absence`
                raise OSError("the answer has no ETag: another server has given it")
            return data

        with self._translated("read an object", key):
            try:
                return self._asked(whole)
            except FileNotFoundError as error:
                _require_absence(error)
                return None

    def length_bytes(self, key: str) -> int | None:
        """The length of an object; None: there is none."""
        with self._translated("look up an object", key):
            try:
                return self._size(key)
            except FileNotFoundError as error:
                _require_absence(error)
                return None

    def read_range(self, key: str, offset: int, length: int) -> bytes:
        """Bytes of an object, fewer if it is shorter.

        Raises:
            StorageError: there is no such object.
        """
        if length <= 0:
            return b""
        with self._translated("read an object", key):
            size = self._size(key)
            end = min(size, offset + length)
            found = bytearray()
            while offset < end:
                stop = min(end, offset + PART_BYTES)
                found += self._range(key, offset, stop)
                offset = stop
            return bytes(found)

    def parts(self, key: str) -> Iterator[bytes]:
        """The content of an object, one request for each part.

        Raises:
            StorageError: there is no such object.
        """
        with self._translated("read an object", key):
            size = self._size(key)
        for offset in range(0, size, PART_BYTES):
            with self._translated("read an object", key):
                end = min(size, offset + PART_BYTES)
                part = self._range(key, offset, end)
            yield part

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none, in one step. False: the store refused.

        After a refusal, too, the object may be there by this call: an earlier try of the client
        may have been heard. So the caller reads what stands.
        """
        with self._translated("create an object", key):
            try:
                self._sent(
                    lambda: self._api.put(
                        self._store, key, data, mode="create", use_multipart=False
                    )
                )
            except self._api.exceptions.AlreadyExistsError:
                return False
            return True

    def put(self, key: str, data: bytes | BinaryIO) -> None:
        """Write an object whole over an older one; a large one in parts."""
        with self._translated("write an object", key):
            if isinstance(data, bytes):
                self._sent(lambda: self._put(key, data, use_multipart=None))
            else:
                self._put(key, data, use_multipart=True)

    def put_parts(self, key: str, parts: Iterable[bytes]) -> FileDigest:
        """Write an object of parts, and return its digest. Many parts wait on the local disk:
        obstore cannot read an object while it writes another one."""
        sha256, length_bytes = hashlib.sha256(), 0
        with tempfile.SpooledTemporaryFile(PART_BYTES, prefix="sluice-object-") as file:
            for part in parts:
                sha256.update(part)
                length_bytes += len(part)
                try:
                    file.write(part)
                except OSError as error:
                    where = {"directory": tempfile.gettempdir(), "key": key}
                    raise local_failure(error, "keep a part of an object", where) from error
            file.seek(0)
            is_small = length_bytes <= PART_BYTES
            self.put(key, file.read() if is_small else cast(BinaryIO, file))
        return FileDigest(length_bytes=length_bytes, sha256=sha256.hexdigest())

    def copy(self, source: str, key: str) -> None:
        """Copy an object of this bucket; the store copies, not this process."""
        with self._translated("copy an object", key):
            self._sent(lambda: self._api.copy(self._store, source, key, overwrite=True))

    def list_directory(self, key: str) -> tuple[list[FoundObject], list[str]]:
        """The objects directly below a key, and the keys of directories there."""
        with self._translated("list objects", key):
            prefix = key or None
            found = self._asked(lambda: self._api.list_with_delimiter(self._store, prefix=prefix))
            return [_found(each) for each in found["objects"]], list(found["common_prefixes"])

    def list_below(self, key: str) -> Iterator[FoundObject]:
        """All objects below a key, in the store's order."""
        with self._translated("list objects", key):
            prefix = key or None
            chunks = self._asked(lambda: list(self._api.list(self._store, prefix=prefix)))
        for chunk in chunks:
            yield from map(_found, chunk)

    def delete(self, keys: list[str]) -> None:
        """Delete objects; those that are gone do not matter.

        In a store without a request for many deletions, such as Google's, obstore ends at the first
        object that is gone. Its own repetition of a lost answer finds none either. So the rest is
        deleted one by one.
        """
        if not keys:
            return
        with self._translated("delete objects", keys[0]):
            if not self._deleted(keys) and len(keys) > 1:
                for key in keys:
                    self._deleted([key])

    def delete_directory(self, key: str) -> None:
        """Delete the directory that an Azure account with a hierarchical namespace keeps when its
        last blob is deleted: listings would name it for ever. A failure costs no more than that."""
        try:
            with self._translated("delete an empty directory", key):
                self._deleted(key)
        except StreamError as err:
            log.info("an empty directory stays: error=%s", err)

    def close(self) -> None:
        """Forget the connections; a later call connects again."""
        self.__dict__.pop("_store", None)

    def _deleted(self, keys: str | list[str]) -> bool:
        """Whether all were there; if not, some may still be there."""
        try:
            self._sent(lambda: self._api.delete(self._store, keys))
        except FileNotFoundError as error:
            _require_absence(error)
            return False
        return True

    def _put(self, key: str, data: bytes | BinaryIO, *, use_multipart: bool | None) -> None:
        self._api.put(
            self._store,
            key,
            data,
            use_multipart=use_multipart,
            chunk_size=PART_BYTES,
            max_concurrency=_UPLOADS,
        )

    def _size(self, key: str) -> int:
        """The answer to a HEAD has no body, which would say who gave it: this asks for a byte."""

        def first_byte() -> int:
            found = self._api.get(self._store, key, options={"range": (0, 1)})
            found.bytes()  # so that the connection can be used again
            return int(found.meta["size"])

        try:
            return self._asked(first_byte)
        except self._api.exceptions.GenericError as error:
            if not _NO_SUCH_RANGE.search(str(error)):
                raise
            return int(self._api.head(self._store, key)["size"])  # it is empty

    def _range(self, key: str, start: int, end: int) -> bytes:
        return self._asked(
            lambda: bytes(self._api.get_range(self._store, key, start=start, end=end))
        )

    def _asked(self, call: Callable[[], T]) -> T:
        """The answer to a request that changes nothing. obstore repeats a request that failed, but
        not one whose answer was cut short."""
        for _ in range(_TRIES - 1):
            try:
                return self._sent(call)
            except self._api.exceptions.GenericError as error:
                if not _CUT_SHORT.search(str(error)):
                    raise
        return self._sent(call)

    def _sent(self, call: Callable[[], T]) -> T:
        return store_answer(call, lambda error: is_strange(str(error)))

    @contextlib.contextmanager
    def _translated(self, action: str, key: str) -> Iterator[None]:
        exceptions = self._api.exceptions
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as error:
            where = {"bucket": self._bucket_uri(), "key": key}
            raise object_failure(error, action, where) from error

    def _bucket_uri(self) -> str:
        return self.location.uri.removesuffix(self.location.prefix).rstrip("/")


def _require_absence(error: FileNotFoundError) -> None:
    """A missing object is no error. A missing bucket is, and so is the answer of another server: of
    a proxy without the store behind it, for example."""
    if not _NO_OBJECT.search(str(error)):
        raise error


def _found(meta: Mapping[str, Any]) -> FoundObject:
    changed: datetime = meta["last_modified"]
    return FoundObject(meta["path"], int(meta["size"]), int(changed.timestamp() * 1000))
