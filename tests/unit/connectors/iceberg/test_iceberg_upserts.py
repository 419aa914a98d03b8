"""Upserts: of each key, the table has the last row."""

from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyspark.sql.types import LongType as SparkLong
from pyspark.sql.types import StringType as SparkString
from pyspark.sql.types import StructField, StructType

from sluice.connectors.iceberg.iceberg_drop_in import IcebergFormat, iceberg_sink
from sluice.connectors.iceberg.iceberg_kinds import DATA_FILES
from sluice.connectors.iceberg.iceberg_sink import IcebergSink
from sluice.connectors.iceberg.table.upsert_key import UpsertKey
from sluice.connectors.iceberg.writing.upsert_rows import UpsertRows, last_of_each_key
from sluice.connectors.iceberg.written_files import decode_written_files
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.errors import ConfigError
from tests.kit.iceberg.iceberg_bed import SCHEMA, IcebergBed
from tests.kit.iceberg.merged_rows import live_files

_KEYED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    identifier_field_ids=[1],
)


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    made = IcebergBed(directory=tmp_path)
    made.create(_KEYED)
    return made


def _pairs(*pairs: tuple[int | None, str]) -> pa.RecordBatch:
    ids, names = zip(*pairs, strict=True)
    return pa.record_batch({"id": list(ids), "name": list(names)}, schema=SCHEMA)


def _upsert(bed: IcebergBed, *pairs: tuple[int, str], batch_id: int = 0, **more: Any) -> None:
    entries = bed.pre_commit(_pairs(*pairs), batch_id=batch_id, upsert=True, **more)
    (report,) = bed.commit(entries, checkpoint_id=batch_id + 1)
    assert report.outcome is CommitOutcome.COMMITTED


def _found(bed: IcebergBed) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in bed.rows())


class TestRows:
    def test_the_last_row_of_each_key_stays_in_the_order_of_arrival(self) -> None:
        rows = _pairs((2, "a"), (1, "b"), (2, "c"), (None, "d"), (3, "e"), (None, "f"))
        found = last_of_each_key(rows, ["id"]).to_pylist()
        assert [row["name"] for row in found] == ["b", "c", "e", "f"]

    def test_a_key_of_several_columns(self) -> None:
        rows = _pairs((1, "a"), (1, "b"), (1, "a"))
        assert last_of_each_key(rows, ["id", "name"]).num_rows == 2

    def test_many_updates_of_few_keys_stay_in_one_run(self) -> None:
        waiting = UpsertRows(["id"], most_bytes=400)
        assert not any(waiting.add(_pairs((n % 3, "x"))) for n in range(200))
        assert waiting.take().num_rows == 3
        assert not waiting

    def test_many_keys_end_the_run(self) -> None:
        waiting = UpsertRows(["id"], most_bytes=400)
        assert any(waiting.add(_pairs((n, "x"))) for n in range(200))


def test_rows_replace_those_of_earlier_checkpoints_and_of_their_own_epoch(
    bed: IcebergBed,
) -> None:
    _upsert(bed, (1, "a"), (2, "b"), (1, "c"))
    _upsert(bed, (2, "d"), (3, "e"), batch_id=1)
    assert _found(bed) == [(1, "c"), (2, "d"), (3, "e")]


def test_a_checkpoint_is_one_snapshot_with_a_data_and_a_delete_manifest(bed: IcebergBed) -> None:
    entries = [
        *bed.pre_commit(_pairs((1, "a")), task="0.0", upsert=True),
        *bed.pre_commit(_pairs((2, "b")), task="1.0", upsert=True),
    ]
    bed.commit(entries)
    (snapshot,) = bed.table().snapshots()
    manifests = snapshot.manifests(bed.table().io)
    assert [one.content for one in manifests] == [ManifestContent.DATA, ManifestContent.DELETES]
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.OVERWRITE
    assert snapshot.summary["added-equality-deletes"] == "2"
    assert snapshot.summary["sluice.checkpoint-id"] == "1"
    deletes = [f for _, f in live_files(bed.table()) if f.content is not DataFileContent.DATA]
    assert [file.equality_ids for file in deletes] == [[1], [1]]


def test_the_ids_of_a_key_have_the_type_of_the_specification(bed: IcebergBed) -> None:
    """pyiceberg declares them as long, and Java's readers fail on that."""
    _upsert(bed, (1, "a"))
    snapshot = bed.table().current_snapshot()
    assert snapshot is not None
    path = snapshot.manifests(bed.table().io)[1].manifest_path.removeprefix("file://")
    with Path(path).open("rb") as file:
        read = fastavro.reader(file)
        assert read.metadata["content"] == "deletes"
        data_file = next(one for one in read.writer_schema["fields"] if one["name"] == "data_file")
    (ids,) = (one for one in data_file["type"]["fields"] if one["name"] == "equality_ids")
    assert [kind["items"] for kind in ids["type"] if kind != "null"] == ["int"]


def test_a_key_in_two_tasks_of_an_epoch_has_one_row(bed: IcebergBed) -> None:
    """No order between them is known; two rows of a key would never be right."""
    for batch_id in range(2):
        entries = [
            entry
            for region, task in (("a", "0.0"), ("a", "1.0"), ("b", "0.0"))
            for entry in bed.pre_commit(
                _pairs((1, f"{region}{task}{batch_id}"), (2, "x")),
                region=region,
                task=task,
                batch_id=batch_id,
                upsert=True,
            )
        ]
        bed.commit(entries, checkpoint_id=batch_id + 1)
        found = _found(bed)
        assert [number for number, _ in found] == [1, 2]
        assert found[0][1].endswith(str(batch_id))


def test_batches_of_a_region_in_one_commit_keep_their_order(bed: IcebergBed) -> None:
    """As after a crash with several decided checkpoints; whatever order they are given in."""
    first = bed.pre_commit(_pairs((1, "old")), batch_id=0, upsert=True)
    second = bed.pre_commit(_pairs((1, "new")), batch_id=1, upsert=True)
    bed.commit([*second, *first], after_crash=True)
    assert _found(bed) == [(1, "new")]


def test_an_epoch_that_is_too_large_for_the_memory_ends_a_run(
    bed: IcebergBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sluice.connectors.iceberg.writing.data_file_writer._MOST_BUFFERED_BYTES", 256
    )
    _upsert(bed, (1, "before"), (50, "before"))
    batches = [_pairs((n % 60, f"{n}")) for n in range(120)]
    entries = bed.pre_commit(*batches, batch_id=1, upsert=True)
    written = decode_written_files(entries[0])
    assert len({file.run for file in written.files}) > 1
    bed.commit(entries, checkpoint_id=2)
    assert _found(bed) == [(n, f"{n + 60}") for n in range(60)]
    shown = DATA_FILES.describe(entries[0])
    assert len(shown["delete_files"]) == len(written.deletes)  # type: ignore[arg-type]


def test_a_repeated_commit_changes_nothing_and_other_writers_stay(bed: IcebergBed) -> None:
    entries = bed.pre_commit(_pairs((1, "a")), upsert=True)
    bed.commit(entries)
    schema = pa.schema([SCHEMA.field("id").with_nullable(False), SCHEMA.field("name")])
    bed.table().append(pa.table({"id": [1, 9], "name": ["other", "other"]}, schema=schema))
    bed.commit(entries, after_crash=True)
    assert _found(bed) == [(1, "a"), (1, "other"), (9, "other")]
    _upsert(bed, (1, "b"), batch_id=1)
    assert _found(bed) == [(1, "b"), (9, "other")]


def test_appends_and_merges_keep_the_sequence_numbers(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(_KEYED, properties={"commit.manifest.min-count-to-merge": "3"})
    for batch_id in range(8):
        entries = [
            entry
            for task in range(2)
            for entry in bed.pre_commit(
                _pairs((batch_id % 3, f"{batch_id}-{task}"), (100 + task, f"{batch_id}")),
                batch_id=batch_id,
                task=f"{task}.0",
                upsert=True,
            )
        ]
        bed.commit(entries, checkpoint_id=batch_id + 1)
    bed.commit(bed.pre_commit(_pairs((7, "appended")), batch_id=8), checkpoint_id=9)
    found = {number: name.partition("-")[0] for number, name in _found(bed)}
    assert found == {0: "6", 1: "7", 2: "5", 7: "appended", 100: "7", 101: "7"}
    assert len(_found(bed)) == len(found)
    snapshot = bed.table().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(bed.table().io)) <= 6


def test_partitions_are_of_the_key(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    bed.create(_KEYED, partition_spec=spec)
    for batch_id in range(3):
        _upsert(bed, *((n, f"{batch_id}") for n in range(20)), batch_id=batch_id)
    assert _found(bed) == [(n, "2") for n in range(20)]


def test_a_partition_by_another_column_is_refused(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    bed.create(_KEYED, partition_spec=spec)
    with pytest.raises(ConfigError, match=r"not in the key .*column=name"):
        bed.pre_commit(_pairs((1, "a")), upsert=True)


def test_rows_of_an_older_partition_spec_refuse_the_upsert(bed: IcebergBed) -> None:
    """Its deletes would not reach them, and a key would have two rows."""
    _upsert(bed, (1, "a"))
    with bed.table().update_spec() as update:
        update.add_field("id", BucketTransform(4), "bucket")
    with pytest.raises(ConfigError, match=r"older partition spec .*rewrite-all"):
        bed.pre_commit(_pairs((1, "b")), batch_id=1, upsert=True)


def test_a_spec_that_changes_after_the_decision_stops_the_commit(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    bed.create(_KEYED, partition_spec=spec)
    decided = bed.pre_commit(_pairs((1, "a")), batch_id=1, upsert=True)
    with bed.table().update_spec() as update:
        update.remove_field("bucket")
    _upsert(bed, (1, "other"), region="other")
    (report,) = bed.commit(decided, after_crash=True)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "rewrite-all=true" in report.detail


def test_the_table_may_say_that_it_is_upserted_and_the_user_names_the_key(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(properties={"write.upsert.enabled": "true"})
    for batch_id, name in enumerate("ab"):
        rows = _pairs((1, name), (2, "x"))
        entries = bed.pre_commit(rows, batch_id=batch_id, equality_fields=["id"])
        bed.commit(entries, checkpoint_id=batch_id + 1)
    assert _found(bed) == [(1, "b"), (2, "x")]
    bed.commit(bed.pre_commit(_pairs((1, "c")), batch_id=2, upsert=False))
    assert _found(bed) == [(1, "b"), (1, "c"), (2, "x")]


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("other", [{}, {"ID": [1, 2]}])
def test_rows_without_a_column_of_the_key_are_refused(
    tmp_path: Path, other: dict[str, list[int]], *, evolve: bool
) -> None:
    """Also where the table could have null in it: all of them became one row."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    rows = pa.record_batch({"name": ["x", "y"], **other})
    with pytest.raises(ConfigError, match=r"rows lack a column of the upsert's key .*column=id "):
        bed.pre_commit(rows, upsert=True, evolve=evolve, equality_fields=["id"])
    assert bed.data_files() == set()
    assert [field.name for field in bed.table().schema().fields] == ["id", "name"]


def test_a_column_of_the_key_that_is_dropped_and_added_again_loses_no_row(tmp_path: Path) -> None:
    """It has another id; without it, rows of several keys became one row."""
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({"id": pa.int64(), "region": pa.string()}))
    key = {"upsert": True, "evolve": True, "equality_fields": ["id", "region"]}
    factory = bed.sink(**key).writer_factory()
    with bed.table().update_schema() as update:
        update.delete_column("region")
    with bed.table().update_schema() as update:
        update.add_column("region", StringType())
    writer = factory.open(bed.scope("orders", 0, attempt_id=1, task="0.0"), bed.registry)
    rows = pa.record_batch({"id": [1, 1], "region": ["eu", "us"], "extra": [1, 2]})
    with pytest.raises(ConfigError, match="has lost a column of the upsert's key"):
        writer.write(rows)
    bed.commit(bed.pre_commit(rows, attempt_id=2, **key))
    assert sorted(row["region"] for row in bed.rows()) == ["eu", "us"]


def test_a_new_column_in_the_middle_of_an_epoch(bed: IcebergBed) -> None:
    wider = _pairs((1, "b")).append_column("extra", pa.array(["x"]))
    entries = bed.pre_commit(_pairs((1, "a"), (2, "a")), wider, upsert=True, evolve=True)
    bed.commit(entries)
    found = sorted(bed.rows(), key=lambda row: row["id"])
    assert found == [{"id": 1, "name": "b", "extra": "x"}, {"id": 2, "name": "a"}]


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        ({"schema": SCHEMA}, {"upsert": True}, "has no key"),
        ({}, {"equality_fields": ["id"]}, "the sink appends"),
        ({}, {"upsert": True, "equality_fields": ["other"]}, r"field=other type=absent"),
        ({"properties": {"format-version": "1"}}, {"upsert": True}, "format version"),
    ],
)
def test_what_cannot_have_upserts_is_refused(
    tmp_path: Path, made: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(**{"schema": _KEYED, **made})
    with pytest.raises(ConfigError, match=said):
        bed.sink(**given).writer_factory()
    with pytest.raises(ConfigError, match=said):
        bed.sink(**given).coordinator().check(timeout_s=10)


@pytest.mark.parametrize(
    ("upsert", "fields"),
    [
        ("upsert", "equalityFields"),
        ("upsert-enabled", "equality-fields"),
        ("iceberg.tables.upsert-mode-enabled", "iceberg.tables.default-id-columns"),
    ],
)
def test_a_query_may_use_the_names_of_iceberg_s_own_sinks(upsert: str, fields: str) -> None:
    options = {"catalog": "lake", "table": "a.b", upsert: "true", fields: "id, name"}
    options["fs.s3a.endpoint"] = "http://127.0.0.1:1"
    sink = iceberg_sink(options, str)
    assert isinstance(sink, IcebergSink)
    assert sink.upsert_key == UpsertKey(is_upsert=True, fields=("id", "name"))
    assert sink.catalog_settings.storage_options == {"fs.s3a.endpoint": "http://127.0.0.1:1"}


def test_a_query_whose_key_cannot_be_used_does_not_start(bed: IcebergBed) -> None:
    options = {f"catalog.{name}": str(value) for name, value in bed.properties.items()}
    options |= {"table": "lake.events", "upsert": "true", "equalityFields": "other"}
    schema = StructType([StructField("id", SparkLong()), StructField("name", SparkString())])
    with pytest.raises(ConfigError, match="field=other"):
        IcebergFormat.check(options, schema, mode="update")
    options["equalityFields"] = "id"
    for evolve in ("true", "false"):
        with pytest.raises(
            ConfigError, match=r"rows lack a column of the upsert's key .*column=id"
        ):
            IcebergFormat.check(
                {**options, "evolve": evolve}, StructType(schema.fields[1:]), mode="update"
            )
    IcebergFormat.check(options, schema, mode="update")


def test_floating_point_columns_are_no_keys(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(Schema(NestedField(1, "x", DoubleType())))
    with pytest.raises(ConfigError, match="cannot be used"):
        bed.sink(upsert=True, equality_fields="x").writer_factory()
    assert isinstance(bed.sink(upsert=True), IcebergSink)
