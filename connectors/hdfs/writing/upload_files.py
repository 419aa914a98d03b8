"""Files that a task uploads in parts, and leaves for the decision to complete."""

import io
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, cast

from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.staging.upload_names import UploadName
from sluice.connectors.hdfs.staging.uploaded_files import UploadedFile
from sluice.connectors.hdfs.writing.task_writer import OutputFile, OutputFiles
from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.objects.multipart_uploads import (
    LEAST_PART_BYTES,
    MOST_PARTS,
    MultipartUploads,
)

__all__ = ["PART_BYTES", "UploadFiles"]

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
"""The size of each part but the last one; a file has at most 78 GiB."""

_PARTS_AT_ONCE = 4
_MOST_WAITING = 8  # parts of a task in memory; then the task waits for the store


class UploadFiles(OutputFiles[UploadedFile]):
    """The uploads of one attempt of one task. Python worker; the task's thread calls it.

    Threads of its own upload full parts while the task encodes the next ones.

    Args:
        uploads: below the parent of the target.
        target_name: the target, relative to that parent.
        sink: its tag in names.
        attempt: that writes.
        subtask: of the sink; >= 0.
        checkpoint_id: that the batch is expected to join; part of the names.
        part_bytes: of each part but the last one.
    """

    def __init__(
        self,
        uploads: MultipartUploads,
        *,
        target_name: str,
        sink: str,
        attempt: StagingAttempt,
        subtask: int,
        checkpoint_id: int,
        part_bytes: int = PART_BYTES,
    ) -> None:
        assert part_bytes >= LEAST_PART_BYTES
        self._uploads = uploads
        self._target_name = target_name
        self._sink = sink
        self._attempt = attempt
        self._subtask = subtask
        self._checkpoint_id = checkpoint_id
        self._part_bytes = part_bytes
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="sluice-parts")

    def create(self, directory: str, number: int, extension: str) -> "_Upload":
        name = UploadName(
            sink=self._sink,
            attempt=self._attempt,
            subtask=self._subtask,
            number=number,
            checkpoint_id=self._checkpoint_id,
            extension=extension,
        )
        final = f"{directory}/{name}" if directory else str(name)
        return _Upload(
            self._uploads,
            self._pool,
            key=f"{self._target_name}/{final}",
            final=final,
            mark=self._attempt.attempt,
            part_bytes=self._part_bytes,
        )

    def close(self) -> None:
        """End the threads, after the requests under way. Never raises."""
        self._pool.shutdown(cancel_futures=True)


class _Upload(OutputFile[UploadedFile]):
    """An upload, which begins with its file, so that a short one has only its part to wait for."""

    def __init__(
        self,
        uploads: MultipartUploads,
        pool: ThreadPoolExecutor,
        *,
        key: str,
        final: str,
        mark: str,
        part_bytes: int,
    ) -> None:
        self._uploads = uploads
        self._pool = pool
        self._key = key
        self._final = final
        self._id = pool.submit(uploads.create, key, mark=mark)
        self._tags: list[Future[str]] = []
        self._waited = 0
        self._stream = _PartStream(part_bytes, self._put)

    @property
    def stream(self) -> BinaryIO:
        return cast("BinaryIO", self._stream)

    def finish(self, rows: int | None) -> UploadedFile:
        self._stream.put_rest()
        tags = tuple(tag.result() for tag in self._tags)
        failpoint("mid-upload")
        return UploadedFile(
            final=self._final,
            upload_id=self._id.result(),
            tags=tags,
            length_bytes=self._stream.tell(),
            rows=rows,
        )

    def abandon(self) -> None:
        """See `OutputFile.abandon`: aborts the upload if the store answers; the sweep retries."""
        for each in self._tags:
            each.cancel()
        if self._id.cancel():
            return
        try:
            self._uploads.abort(self._key, self._id.result())
        except StreamError as err:
            log.info("an upload was left to the sweep: key=%s error=%s", self._key, err)

    def _put(self, data: bytes) -> None:
        if len(self._tags) >= MOST_PARTS:
            raise StorageError(
                "a file has more parts than an object store takes",
                {"key": self._key, "parts": len(self._tags)},
                "Make epochs shorter, or use more tasks: no row becomes visible.",
            )
        number = len(self._tags) + 1
        self._tags.append(self._pool.submit(self._put_part, number, data))
        while len(self._tags) - self._waited > _MOST_WAITING:
            self._tags[self._waited].result()
            self._waited += 1

    def _put_part(self, number: int, data: bytes) -> str:
        failpoint("before-part")
        tag = self._uploads.put_part(self._key, self._id.result(), number, data)
        failpoint("after-part")
        return tag


class _PartStream(io.RawIOBase):
    """Collects bytes, and passes them on in parts of one size."""

    def __init__(self, part_bytes: int, put: Callable[[bytes], None]) -> None:
        self._part_bytes = part_bytes
        self._put = put
        self._buffer = bytearray()
        self._length = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._length

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        """Take all of the bytes."""
        view = memoryview(data).cast("B")
        taken = view.nbytes
        self._length += taken
        while view.nbytes:
            room = self._part_bytes - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == self._part_bytes:
                self._put_buffer()
        return taken

    def put_rest(self) -> None:
        """Pass on the last part. An upload needs one, and no format writes an empty file."""
        if self._buffer:
            self._put_buffer()

    def _put_buffer(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        self._put(data)
