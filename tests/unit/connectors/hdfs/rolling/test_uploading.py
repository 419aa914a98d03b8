"""Merging whole objects without a JVM, and publishing them by uploads."""

import io
from dataclasses import replace
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.choice import file_format
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.rolling.uploading import MergingByTypes, UploadedRolls, merger_of
from sluice.connectors.hdfs.staging.pending_files import PendingFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, staging_root
from sluice.connectors.hdfs.staging.uploaded_files import decode_upload_set
from sluice.connectors.hdfs.writing import upload_writer
from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.objects.object_file_system import ObjectFileSystem
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_task_files import ObjectTaskFiles
from sluice.runtime.storage.objects.object_uploads import uploads_at
from sluice.runtime.storage.task_files import LocalTaskFiles
from tests.kit.objects.fake_uploads import Bucket, FakeUploads
from tests.kit.objects.s3_fixture import S3Bucket, new_bucket

_BATCH = BatchKey(region="main", attempt_id=3, batch_id=7)
_SCOPE = TaskScope(
    job_uid="job", operator_id="op", batch=_BATCH, checkpoint_id=42, committed_through=41
)
_ROWS = pa.record_batch(
    {
        "n": pa.array(range(50), pa.int64()),
        "at": pa.array(range(50), pa.timestamp("us", tz="UTC")),
        "tags": pa.array([["a", None]] * 50, pa.list_(pa.string())),
    }
)


def _directory(parent: Path) -> StagingDirectory:
    return StagingDirectory(
        fs=LocalFileSystem(parent),
        root=staging_root("orders", job_uid="job", operator_id="op"),
        attempt=StagingAttempt.draw(_BATCH),
        checkpoint_id=42,
    )


def _staged(form: FileFormat, directory: StagingDirectory, name: str, rows: pa.RecordBatch) -> str:
    """A file that a task staged; its path below the parent."""
    file = LocalTaskFiles().create(f"{directory.uri.removeprefix('file://')}/{name}")
    writer = form.open(file.stream, rows.schema)
    writer.write(rows)
    writer.close()
    file.finish()
    return f"{directory.path}/{name}"


def _read(path: Path) -> list[int]:
    if ".parquet" in path.name.replace("~", "."):
        return [row["n"] for row in pq.read_table(io.BytesIO(path.read_bytes())).to_pylist()]
    with path.open("rb") as stream:
        return [row["n"] for row in fastavro.reader(stream)]  # type: ignore[index,call-overload]


@pytest.mark.parametrize("name", ["parquet", "avro"])
def test_files_with_decision_a_merged_file_holds_the_rows_of_its_parts(
    tmp_path: Path, name: str
) -> None:
    """In their order, with their types and values; the parts stay."""
    form, directory = file_format(name, {}), _directory(tmp_path)
    staged = f"part-00000-x-c000{form.extension}".replace(".", "~") + ".staged"
    parts = [
        _staged(form, directory, f"{number}/{staged}", _ROWS.slice(10 * number, 10))
        for number in range(3)
    ]
    merger = merger_of(name, form, LocalTaskFiles())
    assert isinstance(merger, MergingByTypes)
    ((whole,), (one,)) = merger.merge(None, [parts, parts[:1]], directory)

    assert (whole.rows, one.rows) == (30, 10)
    path = tmp_path / directory.path / whole.staged
    assert path.stat().st_size == whole.length_bytes
    assert _read(path) == list(range(30))
    assert all((tmp_path / part).exists() for part in parts)
    if name == "parquet":
        alone = pq.ParquetFile(tmp_path / parts[0])
        assert pq.ParquetFile(path).schema_arrow == alone.schema_arrow


def _rolls(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, target: str) -> UploadedRolls:
    monkeypatch.setattr(upload_writer, "uploads_at", lambda _: FakeUploads(bucket))
    factory = UploadWriterFactory(
        target=target,
        parent=object_location("s3://lake/data", environment={}),
        form=file_format("json", {}),
        partitions=PartitionPaths(columns=()),
    )
    return UploadedRolls(
        factory=factory,
        files=LocalTaskFiles(),
        locate=lambda uri: object_location(uri, environment={}),
    )


def _pending(directory: StagingDirectory, name: str, data: bytes) -> PendingFile:
    directory.fs.write_temporary(f"{directory.path}/{name}", data)
    return PendingFile(
        directory="dt=1",
        staging=directory.path,
        staged=name,
        length_bytes=len(data),
        rows=None,
        first_ms=0,
        last_ms=0,
    )


def test_files_with_decision_what_rolls_is_uploaded_and_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte, under a name of its own; the staged file stays: earlier records name it."""
    bucket, directory = Bucket(), _directory(tmp_path)
    rolls = _rolls(bucket, monkeypatch, "s3://lake/data/orders")
    large = b"x" * (20 << 20)
    files = [
        _pending(directory, "part-00000-x-c000~json.staged", large),
        _pending(directory, "part-00001-x-c000~json.staged", b"few"),
    ]
    work = rolls.published(files, "s3://lake/data/orders", directory, _SCOPE, own=directory.path)
    assert work.staging is None
    assert not bucket.objects
    found = decode_upload_set(work.committable)
    uploads = FakeUploads(bucket)
    for file in found.files:
        uploads.complete(found.key(file), file.upload_id, file.tags, mark=found.mark)
        assert file.final.startswith("dt=1/part-000000000042-main-")
        assert file.final.endswith(".json")
    assert [bucket.objects[found.key(file)][0] for file in found.files] == [large, b"few"]
    assert all((tmp_path / file.path).exists() for file in files)


def test_files_with_decision_a_changed_file_is_not_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length differs from the record's: nothing is published."""
    bucket, directory = Bucket(), _directory(tmp_path)
    file = _pending(directory, "part-00000-x-c000~json.staged", b"rows")
    directory.fs.replace(file.path, b"other rows")
    rolls = _rolls(bucket, monkeypatch, "s3://lake/data/orders")
    with pytest.raises(StorageError, match="pending file differs"):
        rolls.published([file], "s3://lake/data/orders", directory, _SCOPE, own="")
    assert (bucket.uploads, bucket.objects) == ({}, {})


def test_files_kept_for_another_kind_of_store_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how they are published."""
    directory = _directory(tmp_path)
    file = _pending(directory, "part-00000-x-c000~json.staged", b"rows")
    rolls = _rolls(Bucket(), monkeypatch, "s3://lake/data/orders")
    with pytest.raises(ConfigError, match="old path"):
        rolls.published([file], "hdfs://h/data/orders", directory, _SCOPE, own="")


def test_files_with_decision_files_kept_in_another_bucket_are_published_there(
    s3: S3Bucket,
) -> None:
    """The path leads to another bucket now: the bytes come from the old one."""
    options, other = s3.storage_options, new_bucket(s3.endpoint)
    old, new = (object_location(f"{each.uri}/data", options) for each in (s3, other))
    directory = replace(_directory(Path("/")), fs=ObjectFileSystem(old))
    file = _pending(directory, "part-00000-x-c000~json.staged", b"rows")
    rolls = UploadedRolls(
        factory=UploadWriterFactory(
            target=f"{new.uri}/orders",
            parent=new,
            form=file_format("json", {}),
            partitions=PartitionPaths(columns=()),
        ),
        files=ObjectTaskFiles(new),
        locate=lambda uri: object_location(uri, options),
    )
    work = rolls.published([file], f"{old.uri}/orders", directory, _SCOPE, own=directory.path)
    found = decode_upload_set(work.committable)
    (made,) = found.files
    uploads_at(old).complete(found.key(made), made.upload_id, made.tags, mark=found.mark)
    assert ObjectFileSystem(old).read(found.key(made)) == b"rows"
