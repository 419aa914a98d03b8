"""What a task leaves in an object store: whole files that no reader sees, and their committable."""

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.choice import TASK_FORMAT_NAMES, file_format
from sluice.connectors.hdfs.staging.upload_names import UploadName, sink_tag
from sluice.connectors.hdfs.staging.uploaded_files import UploadSet, decode_upload_set
from sluice.connectors.hdfs.writing import upload_files, upload_writer
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.upload_writer import UploadWriter, UploadWriterFactory
from sluice.runtime.contracts import RegisteredAttempt, TaskScope
from sluice.runtime.errors import ConfigError, FencedError, StorageUnreachableError, StreamError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.objects.object_location import object_location
from tests.kit.objects.fake_uploads import Bucket, FakeUploads

_SCOPE = TaskScope(
    job_uid="job",
    operator_id="op",
    batch=BatchKey(region="main", attempt_id=3, batch_id=7),
    checkpoint_id=42,
    committed_through=41,
    task="5.0",
)
_ROWS = pa.record_batch(
    {"city": pa.array(["Forlì", None, "a:b"] * 40), "n": pa.array(range(120), pa.int64())}
)


class _Registry:
    def __init__(self) -> None:
        self.registered: list[RegisteredAttempt] = []
        self.is_fenced = False

    def register(self, attempt: RegisteredAttempt) -> float:
        if self.is_fenced:
            raise FencedError("the batch is over", {}, "Stop.")
        self.registered.append(attempt)
        return 0.0


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def registry() -> _Registry:
    return _Registry()


Open = Callable[..., UploadWriter]


@pytest.fixture
def opened(bucket: Bucket, registry: _Registry, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a writer into the bucket."""

    def opened(
        *, by: tuple[str, ...] = (), form: str = "parquet", fail: object = None, **given: object
    ) -> UploadWriter:
        client = FakeUploads(bucket, fail=fail or (lambda _: None))  # type: ignore[arg-type]
        monkeypatch.setattr(upload_writer, "uploads_at", lambda _: client)
        options = {"escape": '"'} if form == "csv" else {}
        factory = UploadWriterFactory(
            target="s3://lake/data/out",
            parent=object_location("s3://lake/data", environment={}),
            form=file_format(form, options),
            partitions=PartitionPaths(columns=by),
            **given,  # type: ignore[arg-type]
        )
        return factory.open_continuous(_SCOPE, registry)

    return opened


def _completed(bucket: Bucket, writer: UploadWriter) -> UploadSet:
    (entry,) = writer.pre_commit()
    assert not bucket.objects, "a reader sees a file before the decision"
    assert writer.commit(timeout_s=60.0)
    return decode_upload_set(entry)


@pytest.mark.parametrize("form", TASK_FORMAT_NAMES)
def test_files_with_decision_uploads_are_whole_and_unseen(
    opened: Open, bucket: Bucket, registry: _Registry, form: str
) -> None:
    """In every format: registered first, invisible until the commit, and all bytes are there."""
    writer = opened(form=form)
    writer.write(_ROWS)
    writer.end_epoch([], checkpoint_id=42)
    found = _completed(bucket, writer)

    (file,) = found.files
    data, mark = bucket.objects[found.key(file)]
    assert (file.rows, file.length_bytes, mark) == (120, len(data), found.mark)
    name = UploadName.parse(file.final)
    assert name is not None
    assert (name.subtask, name.checkpoint_id) == (5, 42)
    assert name.sink == sink_tag(job_uid="job", operator_id="op")
    assert [one.resource for one in registry.registered] == [name.attempt.path]
    assert bucket.uploads == {}


def test_files_with_decision_partitions_become_directories(opened: Open, bucket: Bucket) -> None:
    """Each row once, below the directory of its value."""
    writer = opened(by=("city",))
    writer.write(_ROWS)
    writer.write(_ROWS)
    found = _completed(bucket, writer)

    rows: dict[str, int] = {}
    for file in found.files:
        directory = file.final.rpartition("/")[0]
        table = pq.read_table(io.BytesIO(bucket.objects[found.key(file)][0]))
        rows[directory] = rows.get(directory, 0) + table.num_rows
    assert rows == {
        "city=Forlì": 80,
        "city=__HIVE_DEFAULT_PARTITION__": 80,
        "city=a%3Ab": 80,
    }


def test_files_with_decision_only_chosen_columns_are_written(opened: Open, bucket: Bucket) -> None:
    """In the order of the sink's settings."""
    writer = opened(columns=("n",))
    writer.write(_ROWS)
    found = _completed(bucket, writer)
    table = pq.read_table(io.BytesIO(bucket.objects[found.key(found.files[0])][0]))
    assert table.column_names == ["n"]


@pytest.mark.parametrize("columns", [None, ("a", "b")])
def test_files_of_all_epochs_have_the_columns_that_functions_declared(
    opened: Open, bucket: Bucket, columns: tuple[str, ...] | None
) -> None:
    """A reader of CSV takes values by their place, in whatever order a function returns them."""
    declared = pa.schema({"a": pa.string(), "b": pa.int64()})
    texts = []
    for batch in ({"a": ["x"], "b": [1]}, {"b": [2], "a": ["y"]}):
        writer = opened(form="csv", columns=columns, rows=declared)
        writer.write(pa.record_batch(batch))
        found = _completed(bucket, writer)
        texts.append(bucket.objects[found.key(found.files[0])][0])
        bucket.objects.clear()
    assert texts == [b'"x",1\n', b'"y",2\n']

    for other in ({"a": ["x"], "b": ["07"]}, {"a": ["x"], "b": [1.5]}, {"a": ["x"], "c": [1]}):
        with pytest.raises(ConfigError, match="empty"):
            opened(form="csv", columns=columns, rows=declared).write(pa.record_batch(other))


def test_files_with_decision_a_large_file_goes_up_in_parts(opened: Open, bucket: Bucket) -> None:
    """Parts of one size, the last one smaller; together they are the file."""
    size = upload_files.PART_BYTES
    writer = opened(form="json")
    text = pa.array(["x" * 100_000] * (3 * size // 100_000 + 1))
    for batch in pa.table({"v": text}).to_batches(max_chunksize=50):
        writer.write(batch)
    (entry,) = writer.pre_commit()
    (file,) = decode_upload_set(entry).files
    ((_, _, parts),) = bucket.uploads.values()
    assert [len(parts[n]) for n in sorted(parts)] == [
        size,
        size,
        size,
        file.length_bytes - 3 * size,
    ]
    assert len(file.tags) == 4


def test_files_with_decision_a_file_of_the_wanted_size_is_finished(
    opened: Open, bucket: Bucket
) -> None:
    """With a limit, an epoch has several files, and each row is in one of them."""
    writer = opened(form="json", most_bytes=500)
    for _ in range(3):
        writer.write(_ROWS)
    found = _completed(bucket, writer)
    assert len(found.files) == 3
    assert sum(file.rows for file in found.files) == 360


def test_files_with_decision_an_empty_epoch_leaves_nothing(
    opened: Open, bucket: Bucket, registry: _Registry
) -> None:
    """No attempt, no upload, no committable; the committer has nothing to do."""
    writer = opened()
    writer.write(_ROWS.slice(0, 0))
    assert writer.pre_commit() == []
    assert not writer.commit(timeout_s=60.0)
    assert (bucket.uploads, registry.registered) == ({}, [])


def test_ids_never_reused_a_fenced_task_uploads_nothing(
    opened: Open, bucket: Bucket, registry: _Registry
) -> None:
    """The coordinator's refusal comes before the first upload."""
    registry.is_fenced = True
    with pytest.raises(FencedError):
        opened().write(_ROWS)
    assert bucket.uploads == {}


@pytest.mark.parametrize("point", ["create", "put_part"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_pre_commit_confirmed_an_upload_without_an_answer_fails_the_attempt(
    opened: Open, bucket: Bucket, point: str, when: str
) -> None:
    """A lost part is no committable; the abort discards what the store has."""

    def fail(at: str) -> None:
        if at == f"{when} {point}":
            raise StorageUnreachableError("no answer", {}, "Try again.")

    writer = opened(fail=fail)
    writer.write(_ROWS)  # the file begins in the background
    with pytest.raises(StreamError):
        writer.pre_commit()
    writer.abort()
    assert not bucket.objects


def test_upload_settled_an_aborted_writer_discards_its_uploads(
    opened: Open, bucket: Bucket
) -> None:
    """At once, where the store answers: parts cost money until a sweep."""
    writer = opened(by=("city",))
    writer.write(_ROWS)
    writer.abort()
    assert bucket.uploads == {}
    assert not bucket.objects


def test_upload_settled_a_task_that_gets_no_answer_leaves_it_to_the_committer(
    opened: Open, bucket: Bucket
) -> None:
    """False: the committer looks what happened."""

    def fail(at: str) -> None:
        if at == "after complete":
            raise StorageUnreachableError("no answer", {}, "Try again.")

    writer = opened(fail=fail)
    writer.write(_ROWS)
    writer.pre_commit()
    assert not writer.commit(timeout_s=60.0)
    assert len(bucket.objects) == 1
