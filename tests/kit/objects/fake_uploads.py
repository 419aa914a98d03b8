"""Multipart uploads in memory, with the rules of S3, and a fault for each call."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sluice.runtime.storage.objects.multipart_uploads import (
    CompletedObject,
    MultipartUploads,
    OpenUpload,
    UploadGoneError,
)


@dataclass(slots=True)
class Bucket:
    """The content of a bucket, which outlives its clients."""

    objects: dict[str, tuple[bytes, str | None]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, dict[int, bytes]]] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    """Keys, in the order in which objects became visible."""
    ids: Iterator[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeUploads(MultipartUploads):
    """A client of a `Bucket`.

    Args:
        fail: called before and after each call's effect with ``before create`` and the like; what
            it raises is the answer.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        uri: str = "s3://fake",
        fail: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.bucket = bucket
        self.fail = fail
        self._uri = uri

    @property
    def uri(self) -> str:
        return self._uri

    def create(self, key: str, *, mark: str) -> str:
        self.fail("before create")
        with self.bucket.lock:
            upload_id = f"upload-{next(self.bucket.ids)}"
            self.bucket.uploads[upload_id] = (key, mark, {})
        self.fail("after create")
        return upload_id

    def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        self.fail("before put_part")
        with self.bucket.lock:
            self._parts(key, upload_id)[number] = data
        self.fail("after put_part")
        return f"{number}:{hash(data)}"

    def complete(self, key: str, upload_id: str, tags: Sequence[str], *, mark: str) -> None:
        self.fail("before complete")
        with self.bucket.lock:
            parts = self._parts(key, upload_id)
            found = [f"{number}:{hash(data)}" for number, data in sorted(parts.items())]
            assert found == list(tags), "the parts of the store"
            assert self.bucket.uploads[upload_id][1] == mark
            self.bucket.objects[key] = (b"".join(parts[n] for n in sorted(parts)), mark)
            self.bucket.writes.append(key)
            del self.bucket.uploads[upload_id]
        self.fail("after complete")

    def abort(self, key: str, upload_id: str) -> None:
        self.fail("before abort")
        with self.bucket.lock:
            if self.bucket.uploads.get(upload_id, ("",))[0] == key:
                del self.bucket.uploads[upload_id]
        self.fail("after abort")

    def open_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        self.fail("before open_uploads")
        found = [(key, upload_id) for upload_id, (key, _, _) in self.bucket.uploads.items()]
        for key, upload_id in found:
            if key.startswith(prefix):
                yield OpenUpload(key=key, upload_id=upload_id)

    def look(self, key: str) -> CompletedObject | None:
        self.fail("before look")
        found = self.bucket.objects.get(key)
        if found is None:
            return None
        return CompletedObject(length_bytes=len(found[0]), mark=found[1])

    def close(self) -> None:
        """Holds nothing open."""

    def _parts(self, key: str, upload_id: str) -> dict[int, bytes]:
        found = self.bucket.uploads.get(upload_id)
        if found is None or found[0] != key:
            raise UploadGoneError("no such upload", {"id": upload_id}, "Look at the object.")
        return found[2]
