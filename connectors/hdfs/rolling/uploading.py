"""Rolls files in an object store: the driver merges whole objects, and uploads those due."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import BinaryIO, ClassVar

import fastavro
import pyarrow.parquet as pq

from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.rolling.merging import FileMerger, JoiningMerger, MergedFile
from sluice.connectors.hdfs.rolling.rolling_writer import (
    Publication,
    PublishedWork,
    require_whole,
)
from sluice.connectors.hdfs.staging.pending_files import PendingFile
from sluice.connectors.hdfs.staging.staged_names import split_target, written_type
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    encode_upload_set,
)
from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.connectors.hdfs.writing.upload_files import UploadFiles
from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory
from sluice.runtime.contracts import Frame, TaskScope
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.file_system_opening import is_object_store, without_scheme
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.objects.object_task_files import ObjectTaskFiles
from sluice.runtime.storage.task_files import TaskFiles

__all__ = ["MergingByTypes", "UploadedRolls", "merger_of", "task_layout"]

_PIECE_BYTES = 8 << 20


def task_layout(
    form: FileFormat, partition_by: tuple[str, ...], columns: tuple[str, ...] | None
) -> Callable[[Frame], str]:
    """Returns the layout of a frame's files that tasks write: files of one may be merged."""

    def layout(frame: Frame) -> str:
        schema = (frame if columns is None else frame.select(*columns)).schema.json()
        return sha256(repr((form, partition_by, schema)).encode()).hexdigest()[:16]

    return layout


def merger_of(format_name: str, form: FileFormat, files: TaskFiles) -> FileMerger:
    """The merger that keeps the values of a format exactly."""
    if format_name in ("json", "csv"):
        return JoiningMerger()
    return MergingByTypes(form=form, files=files, is_avro=format_name == "avro")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergingByTypes(FileMerger):
    """`FileMerger` without a JVM: rows of Parquet by Arrow, blocks of Avro as they are.

    It holds one source file in memory.

    Attributes:
        form: of the files.
        files: of the target's store.
        is_avro: else Parquet.
    """

    form: FileFormat
    files: TaskFiles
    is_avro: bool
    counts_rows: ClassVar[bool] = True

    def merge(
        self, frame: Frame, groups: Sequence[Sequence[str]], directory: StagingDirectory
    ) -> list[list[MergedFile]]:
        """See `FileMerger`."""
        del frame
        found: list[list[MergedFile]] = []
        root = without_scheme(directory.fs.uri)
        for number, sources in enumerate(groups):
            written = sources[0].rpartition("/")[2]
            staged = f"merged/{number:05d}/{written}"
            file = self.files.create(f"{root}/{directory.path}/{staged}")
            try:
                contents = (self._content(f"{root}/{source}") for source in sources)
                append = _append_avro if self.is_avro else self._append_parquet
                rows = append(file.stream, contents)
            except BaseException:
                file.abandon()
                raise
            length_bytes = file.finish()
            failpoint("mid-merge")
            found.append([MergedFile(staged=staged, length_bytes=length_bytes, rows=rows)])
        return found

    def _content(self, path: str) -> bytes:
        return b"".join(_pieces(self.files, path, self.files.length_bytes(path) or 0))

    def _append_parquet(self, stream: BinaryIO, contents: Iterator[bytes]) -> int:
        first = pq.ParquetFile(io.BytesIO(next(contents)))
        writer = self.form.open(stream, first.schema_arrow)
        try:
            for batch in first.iter_batches():
                writer.write(batch)
            for content in contents:
                for batch in pq.ParquetFile(io.BytesIO(content)).iter_batches():
                    writer.write(batch)
            return writer.close()
        except BaseException:
            writer.abandon()
            raise


def _append_avro(stream: BinaryIO, contents: Iterator[bytes]) -> int:
    writer, rows = None, 0
    for content in contents:
        blocks = fastavro.block_reader(io.BytesIO(content))
        if writer is None:
            writer = fastavro.write.Writer(
                stream, blocks.writer_schema, codec=blocks.codec, metadata=_described(blocks)
            )
        for block in blocks:
            writer.write_block(block)
            rows += block.num_records
    if writer is not None:
        writer.flush()
    return rows


def _described(blocks: fastavro.block_reader) -> dict[str, str]:
    """Spark records the calendar of the file's dates there."""
    return {key: value for key, value in blocks.metadata.items() if not key.startswith("avro.")}


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedRolls(Publication):
    """`Publication` without a rename: the driver uploads the content of each file in parts.

    Attributes:
        factory: of the sink's uploads.
        files: of the target's bucket.
        locate: a URI of the same store.
    """

    factory: UploadWriterFactory
    files: TaskFiles
    locate: Callable[[str], ObjectLocation]

    def published(
        self,
        files: Sequence[PendingFile],
        target: str,
        into: StagingDirectory,
        scope: TaskScope,
        *,
        own: str,
    ) -> PublishedWork:
        del own
        factory = self._factory_for(target)
        # An earlier path may lead to another bucket, with the files that were kept for it.
        kept = self.files if factory is self.factory else ObjectTaskFiles(factory.parent)
        uploads = factory.task_files(scope, into.attempt, subtask=0)
        with contextlib.closing(uploads):
            found = tuple(
                _uploaded(file, kept, into, uploads, number) for number, file in enumerate(files)
            )
        made = UploadSet(
            target=target,
            endpoint=factory.parent.endpoint,
            mark=into.attempt.attempt,
            files=found,
        )
        entry = encode_upload_set(made, operator_id=scope.operator_id)
        return PublishedWork(committable=entry, staging=None)

    def _factory_for(self, target: str) -> UploadWriterFactory:
        """That of an earlier path for the files that were kept for it."""
        if target == self.factory.target:
            return self.factory
        if not is_object_store(target):
            raise ConfigError(
                "a file sink keeps files of another kind of store",
                {"path": self.factory.target, "kept_for": target},
                "Start with the old path once more and stop the job in order: this publishes them.",
            )
        return replace(self.factory, target=target, parent=self.locate(split_target(target)[0]))


def _uploaded(
    file: PendingFile,
    kept: TaskFiles,
    into: StagingDirectory,
    uploads: UploadFiles,
    number: int,
) -> UploadedFile:
    require_whole(file, into, into.fs.length_bytes(file.path))
    upload = uploads.create(file.directory, number, written_type(file.staged))
    path = f"{without_scheme(into.fs.uri)}/{file.path}"
    try:
        for piece in _pieces(kept, path, file.length_bytes):
            upload.stream.write(piece)
        return upload.finish(file.rows)
    except BaseException:
        upload.abandon()
        raise


def _pieces(files: TaskFiles, path: str, length_bytes: int) -> Iterator[bytes]:
    for offset in range(0, length_bytes, _PIECE_BYTES):
        yield files.read(path, offset, min(_PIECE_BYTES, length_bytes - offset))
