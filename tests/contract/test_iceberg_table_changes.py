"""A person changes the table in the middle of a job: decided rows are neither lost nor misread."""

import datetime as dt
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSchemaUpdate, RemoveSchemasUpdate, SetCurrentSchemaUpdate
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from sluice.connectors.iceberg.committing.changed_types import changed_types
from sluice.connectors.iceberg.written_files import WrittenFiles, decode_written_files, types_of
from sluice.runtime.contracts import CommitOutcome, CommitReport
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.iceberg.iceberg_bed import IcebergBed, rows_of
from tests.kit.iceberg.merged_rows import live_files

_KEY: dict[str, Any] = {"upsert": True, "equality_fields": ["id", "country"]}
_DAY = dt.datetime(2024, 1, 2)  # noqa: DTZ001 - a timestamp without a zone
_TEXT = pa.array(["de"])


def _partitioned(
    directory: Path, kind: IcebergType | None = None, transform: Any = None
) -> IcebergBed:
    """By ``country``."""
    bed = IcebergBed(directory=directory)
    spec = PartitionSpec(PartitionField(3, 1000, transform or IdentityTransform(), "country_p"))
    columns = (
        NestedField(1, "id", LongType()),
        NestedField(2, "name", StringType()),
        NestedField(3, "country", kind or StringType()),
    )
    bed.create(Schema(*columns), partition_spec=spec)
    return bed


def _with_country(number: int, value: pa.Array = _TEXT) -> pa.RecordBatch:
    return rows_of(number).append_column("country", value)


def _drop_country(bed: IcebergBed) -> None:
    with bed.table().update_spec() as spec:
        spec.remove_field("country_p")
    with bed.table().update_schema() as schema:
        schema.delete_column("country")


def _require_committed(reports: list[CommitReport]) -> None:
    assert all(report.outcome is CommitOutcome.COMMITTED for report in reports), reports


def _partitions(bed: IcebergBed) -> dict[str, list[object]]:
    """Values of each data file."""
    return {file.file_path: list(file.partition._data) for _, file in live_files(bed.table())}  # noqa: SLF001 - a record has no other list of its values


@pytest.mark.parametrize(
    ("kind", "transform", "value"),
    [
        (StringType(), IdentityTransform(), _TEXT),
        (LongType(), IdentityTransform(), pa.array([7], pa.int64())),
        (StringType(), BucketTransform(4), _TEXT),
        (StringType(), TruncateTransform(1), _TEXT),
        (TimestampType(), DayTransform(), pa.array([_DAY], pa.timestamp("us"))),
        (DateType(), IdentityTransform(), pa.array([_DAY.date()])),
    ],
    ids=["text", "long", "bucket", "truncated", "day", "date"],
)
def test_manifests_of_a_spec_whose_column_was_dropped_are_merged_and_keep_their_values(
    tmp_path: Path, kind: IcebergType, transform: Any, value: pa.Array
) -> None:
    bed = _partitioned(tmp_path, kind, transform)
    for number in range(2):
        entries = bed.pre_commit(_with_country(number, value), batch_id=number)
        bed.commit(entries, checkpoint_id=number + 1)
    before = _partitions(bed)
    assert len(before) == 2
    _drop_country(bed)
    entries = bed.pre_commit(rows_of(2), batch_id=2, attempt_id=2)
    _require_committed(bed.commit(entries, checkpoint_id=3, timeout_s=3))
    assert _partitions(bed).items() >= before.items()
    manifests = bed.table().inspect.manifests()["partition_spec_id"].to_pylist()
    assert sorted(manifests) == [0, 1]
    assert bed.ids() == Counter(range(3))


def test_upserts_merge_manifests_of_a_spec_whose_column_was_dropped(tmp_path: Path) -> None:
    bed = _partitioned(tmp_path)
    for number in range(2):
        entries = bed.pre_commit(_with_country(number), batch_id=number, **_KEY)
        _require_committed(bed.commit(entries, checkpoint_id=number + 1))
    _drop_country(bed)
    key = {"upsert": True, "equality_fields": ["id"]}
    entries = bed.pre_commit(rows_of(2), batch_id=2, attempt_id=2, **key)
    _require_committed(bed.commit(entries, checkpoint_id=3, timeout_s=3))
    assert len(bed.table().inspect.manifests()) == 4
    numbers = Counter(number for number, _ in live_files(bed.table()))
    assert numbers == {1: 2, 2: 2, 3: 2}


def test_manifests_of_a_spec_whose_schemas_are_gone_stay_as_they_are(tmp_path: Path) -> None:
    """Java's expiry may remove the schemas that no snapshot names."""
    bed = _partitioned(tmp_path)
    for number in range(2):
        bed.commit(bed.pre_commit(_with_country(number), batch_id=number), checkpoint_id=number + 1)
    _drop_country(bed)
    table = bed.table()
    gone = [one.schema_id for one in table.metadata.schemas if one != table.schema()]
    bed.catalog().commit_table(table, (), (RemoveSchemasUpdate(schema_ids=gone),))
    before = _partitions(bed)
    entries = bed.pre_commit(rows_of(2), batch_id=2, attempt_id=2)
    _require_committed(bed.commit(entries, checkpoint_id=3, timeout_s=3))
    assert _partitions(bed).items() >= before.items()
    assert bed.ids() == Counter(range(3))


def test_decided_files_of_a_spec_that_lost_its_column_join_manifests_of_a_newer_spec(
    tmp_path: Path,
) -> None:
    """A person partitions by a new column, and another writer commits before the decided files."""
    bed = _partitioned(tmp_path)
    decided = bed.pre_commit(_with_country(1))
    _drop_country(bed)
    with bed.table().update_schema() as schema:
        schema.add_column("zone", StringType())
    with bed.table().update_spec() as spec:
        spec.add_field("zone", IdentityTransform(), "zone_p")
    other = IcebergBed(directory=tmp_path, job_uid="other")
    for number in range(2):
        rows = rows_of(10 + number).append_column("zone", pa.array(["z"]))
        other.commit(other.pre_commit(rows, batch_id=number), checkpoint_id=number + 1)
    _require_committed(bed.commit(decided, after_crash=True, timeout_s=5))
    assert sorted(map(str, _partitions(bed).values())) == ["['de']", "['z']", "['z']"]
    assert bed.ids() == Counter([1, 10, 11])


def test_batches_of_a_region_keep_their_order_if_a_person_changes_the_spec_back(
    tmp_path: Path,
) -> None:
    """The older batch follows spec 1, and the newer one spec 0 again."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    with bed.table().update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
    older = bed.pre_commit(rows_of(1))
    beside = bed.pre_commit(rows_of(2), region="payments")
    with bed.table().update_spec() as spec:
        spec.remove_field("bucket")
    newer = bed.pre_commit(rows_of(3), attempt_id=2)
    _require_committed(bed.commit([*newer, *older, *beside], after_crash=True))
    assert bed.ids() == Counter([1, 2, 3])
    assert len(bed.table().snapshots()) == 2


def test_a_batch_waits_for_an_older_one_of_its_region_that_cannot_be_appended(
    tmp_path: Path,
) -> None:
    """With the newer one in the table, the older one would count as committed."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    older = bed.pre_commit(rows_of(1))
    with bed.table().update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
    newer = bed.pre_commit(rows_of(2), batch_id=1)
    beside = bed.pre_commit(rows_of(3), region="payments")
    (path,) = (Path(one.path.removeprefix("file://")) for one in _written(older).files)
    path.rename(path.with_suffix(".away"))
    reports = bed.commit([*older, *newer, *beside], after_crash=True)
    outcomes = [report.outcome for report in reports]
    assert outcomes == [CommitOutcome.UNKNOWN, CommitOutcome.PENDING, CommitOutcome.COMMITTED]
    path.with_suffix(".away").rename(path)
    _require_committed(bed.commit([*older, *newer, *beside], after_crash=True))
    assert bed.ids() == Counter([1, 2, 3])


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("after_crash", [False, True])
def test_files_of_another_type_than_the_table_has_by_now_are_not_appended(
    tmp_path: Path, *, after_crash: bool, is_empty: bool
) -> None:
    """No reader could read the table."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    committer = bed.committer()
    bed.commit([] if is_empty else bed.pre_commit(rows_of(1)), committer=committer)
    entries = bed.pre_commit(rows_of(2), batch_id=1)
    _replace_column(bed, LongType(), StringType())
    (report,) = bed.commit(entries, committer=committer, after_crash=after_crash)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "id (long in the files, string in the table)" in report.detail
    _replace_column(bed, StringType(), LongType())
    _require_committed(bed.commit(entries, committer=committer))
    assert bed.ids() == Counter([2] if is_empty else [1, 2])


def _replace_column(bed: IcebergBed, before: IcebergType, after: IcebergType) -> None:
    """As a replacement of the table: the column has another type, and its field id."""
    table = bed.table()
    (found, *others) = table.schema().fields
    assert found.field_type == before
    number = len(table.metadata.schemas)
    changed = Schema(NestedField(found.field_id, found.name, after), *others, schema_id=number)
    updates = (AddSchemaUpdate(schema=changed), SetCurrentSchemaUpdate(schema_id=-1))
    bed.catalog().commit_table(table, (), updates)


_NESTED = StructType(NestedField(2, "inner", LongType()))


@pytest.mark.parametrize(
    ("written", "read", "named"),
    [
        (IntegerType(), LongType(), None),
        (FloatType(), DoubleType(), None),
        (DecimalType(9, 2), DecimalType(18, 2), None),
        (DecimalType(18, 2), DecimalType(9, 2), "c"),
        (DecimalType(9, 2), DecimalType(9, 3), "c"),
        (LongType(), IntegerType(), "c"),
        (StringType(), BinaryType(), "c"),
        (TimestampType(), TimestamptzType(), "c"),
        (_NESTED, _NESTED, None),
        (_NESTED, StructType(NestedField(2, "inner", StringType())), "c.inner"),
        (_NESTED, StringType(), "c"),
        (ListType(2, IntegerType()), ListType(2, LongType()), None),
        (ListType(2, LongType()), MapType(2, StringType(), 3, LongType()), "c"),
    ],
    ids=str,
)
def test_the_types_that_readers_promote(
    tmp_path: Path, written: IcebergType, read: IcebergType, named: str | None
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    work = _written(bed.pre_commit(rows_of(1)))
    work = replace(work, types=types_of(Schema(NestedField(1, "c", written))))
    metadata = new_table_metadata(
        Schema(NestedField(1, "c", read)),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        "l",
        {},
    )
    found = changed_types(metadata, [work])
    assert named in found if named else not found


def _written(entries: list[StateEntry]) -> WrittenFiles:
    (entry,) = entries
    return decode_written_files(entry)
