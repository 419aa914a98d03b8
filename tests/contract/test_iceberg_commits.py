"""Each decided data file is in the table once, whatever the catalog and other writers do."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntry, ManifestWriter
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from sluice.connectors.iceberg.committing.table_commit import expire_snapshots
from sluice.connectors.iceberg.written_files import decode_written_files, encode_written_files
from sluice.runtime.contracts import CommitOutcome
from tests.kit.iceberg.faulty_catalog import FaultyCatalog
from tests.kit.iceberg.iceberg_bed import OPERATOR, IcebergBed, rows_of
from tests.kit.waiting import PATIENCE_S

_FAULTY = {"py-catalog-impl": "tests.kit.iceberg.faulty_catalog.FaultyCatalog"}


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[IcebergBed]:
    FaultyCatalog.reset()
    made = IcebergBed(directory=tmp_path, extra=dict(_FAULTY))
    made.create()
    yield made
    FaultyCatalog.reset()


def _outcomes(reports: list) -> set[CommitOutcome]:  # type: ignore[type-arg]
    return {report.outcome for report in reports}


def test_a_checkpoint_is_one_snapshot_of_all_regions_with_its_origin_in_the_summary(
    bed: IcebergBed,
) -> None:
    entries = [
        *bed.pre_commit(rows_of(1, 2), region="a", task="0.0"),
        *bed.pre_commit(rows_of(3), region="a", task="1.0"),
        *bed.pre_commit(rows_of(4), region="b"),
    ]
    assert _outcomes(bed.commit(entries, checkpoint_id=7)) == {CommitOutcome.COMMITTED}
    (snapshot,) = bed.table().snapshots()
    assert snapshot.summary is not None
    found = {key: snapshot.summary[key] for key in ("sluice.checkpoint-id", "sluice.regions")}
    assert found == {"sluice.checkpoint-id": "7", "sluice.regions": "a,b"}
    assert snapshot.summary["sluice.job-id"] == bed.job_uid
    assert snapshot.summary["sluice.operator-id"] == OPERATOR
    assert bed.ids() == Counter([1, 2, 3, 4])


@pytest.mark.parametrize(
    "fault", ["conflict", "unknown-before", "unknown-after", "repeated", "away"]
)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("upsert", [False, True])
def test_whatever_the_catalog_answered_the_files_are_there_once(
    bed: IcebergBed, fault: str, times: int, upsert: bool
) -> None:
    key = {"upsert": True, "equality_fields": ["id"]} if upsert else {}
    entries = bed.pre_commit(rows_of(1, 2), **key)
    FaultyCatalog.faults = [fault] * times
    assert _outcomes(bed.commit(entries)) == {CommitOutcome.COMMITTED}
    (snapshot,) = bed.table().snapshots()
    assert bed.table().io.new_input(snapshot.manifest_list).exists()
    assert [row["id"] for row in bed.rows()] == [1, 2]


def test_a_catalog_that_stays_away_leaves_the_work_pending(bed: IcebergBed) -> None:
    entries = bed.pre_commit(rows_of(1))
    FaultyCatalog.faults = ["away"] * 1000
    (report,) = bed.commit(entries, timeout_s=0.2)
    assert report.outcome is CommitOutcome.PENDING
    assert "the catalog is away" in report.detail
    assert bed.notes(), "the note of undecided files stays"
    FaultyCatalog.reset()
    assert _outcomes(bed.commit(entries, after_crash=True)) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1])


def test_a_repeated_commit_finds_its_own_behind_other_writers_and_expired_snapshots(
    bed: IcebergBed,
) -> None:
    entries = bed.pre_commit(rows_of(1))
    bed.commit(entries)
    for other in range(3):
        bed.table().append(pa.Table.from_batches([rows_of(100 + other)]))
    table = bed.table()
    first = table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert _outcomes(bed.commit(entries, after_crash=True)) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1, 100, 101, 102])


def test_a_repeated_commit_of_an_earlier_checkpoint_appends_nothing(bed: IcebergBed) -> None:
    first = bed.pre_commit(rows_of(1), batch_id=0)
    second = bed.pre_commit(rows_of(2), batch_id=1)
    bed.commit(first)
    bed.commit(second, checkpoint_id=2)
    bed.commit(first, after_crash=True)
    bed.commit(second, checkpoint_id=2, after_crash=True)
    assert bed.ids() == Counter([1, 2])


def test_a_commit_that_had_a_part_of_a_batch_is_completed(bed: IcebergBed) -> None:
    entries = [
        entry for task in range(3) for entry in bed.pre_commit(rows_of(task), task=f"{task}.0")
    ]
    bed.commit(entries[:1])
    bed.commit(entries, after_crash=True)
    assert bed.ids() == Counter([0, 1, 2])
    assert len(bed.table().snapshots()) == 2


def test_another_writer_that_commits_before_each_try_delays_and_changes_nothing(
    bed: IcebergBed,
) -> None:
    entries = bed.pre_commit(rows_of(1))
    others = iter(range(100, 103))
    plain = IcebergBed(directory=bed.directory)

    def append() -> None:
        number = next(others, None)
        if number is not None:
            plain.table().append(pa.Table.from_batches([rows_of(number)]))

    FaultyCatalog.beside = [append]
    assert _outcomes(bed.commit(entries)) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1, 100, 101, 102])


def test_a_superseded_coordinator_that_commits_the_same_work_late_appends_nothing(
    bed: IcebergBed,
) -> None:
    """It has loaded the table before its successor commits: the catalog refuses its request."""
    entries = bed.pre_commit(rows_of(1))
    stale = bed.committer()
    stale._current()  # noqa: SLF001 - as if it had stopped just before its request
    bed.commit(entries, after_crash=True)
    assert _outcomes(bed.commit(entries, committer=stale)) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1])


def test_two_jobs_append_to_one_table(bed: IcebergBed) -> None:
    other = IcebergBed(directory=bed.directory, job_uid="job-2")
    for batch_id in range(3):
        bed.commit(bed.pre_commit(rows_of(batch_id), batch_id=batch_id))
        other.commit(other.pre_commit(rows_of(10 + batch_id), batch_id=batch_id))
    assert bed.ids() == Counter([0, 1, 2, 10, 11, 12])


def test_a_table_that_was_dropped_and_made_again_gets_nothing(bed: IcebergBed) -> None:
    entries = bed.pre_commit(rows_of(1))
    bed.catalog().drop_table("lake.events")
    (report,) = bed.commit(entries)
    assert report.outcome is CommitOutcome.UNKNOWN
    bed.create()
    (report,) = bed.commit(entries)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "dropped and created again" in report.detail


def test_decided_files_that_are_gone_after_a_crash_are_reported_and_not_appended(
    bed: IcebergBed,
) -> None:
    entries = bed.pre_commit(rows_of(1))
    for path in bed.directory.glob("warehouse/**/*.parquet"):
        path.unlink()
    (report,) = bed.commit(entries, after_crash=True)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "gone" in report.detail
    assert bed.ids() == Counter()


def test_a_committed_checkpoint_has_no_note_and_an_aborted_one_no_file(bed: IcebergBed) -> None:
    entries = bed.pre_commit(rows_of(1), batch_id=0)
    lost = bed.pre_commit(rows_of(2), batch_id=1)
    assert len(bed.notes()) == 2
    bed.commit(entries)
    (report,) = bed.committer().abort(lost, timeout_s=PATIENCE_S)
    assert report.outcome is CommitOutcome.ABORTED
    assert bed.notes() == []
    assert len(bed.data_files()) == 1


def test_files_of_an_older_partition_spec_keep_it(bed: IcebergBed) -> None:
    entries = bed.pre_commit(rows_of(1, 2))
    with bed.table().update_spec() as update:
        update.add_identity("name")
    newer = bed.pre_commit(rows_of(3, 4), task="1.0")
    assert _outcomes(bed.commit([*entries, *newer])) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1, 2, 3, 4])
    plans = list(bed.table().scan(row_filter="name = 'n3'").plan_files())
    assert [task.file.record_count for task in plans] == [2, 1] or len(plans) <= 2


@pytest.mark.parametrize("upsert", [False, True])
def test_files_whose_partition_column_was_dropped_are_appended_under_their_spec(
    tmp_path: Path, *, upsert: bool
) -> None:
    """The current schema lacks the column; the snapshot names the current schema all the same."""
    bed = _partitioned(tmp_path)
    key = {"upsert": True, "equality_fields": ["id", "name"]} if upsert else {}
    entries = bed.pre_commit(rows_of(1, 2), **key)
    _drop_the_partition_column(bed)
    assert _outcomes(bed.commit(entries, after_crash=True)) == {CommitOutcome.COMMITTED}
    table = bed.table()
    assert table.schema().column_names == ["id"]
    assert table.spec().is_unpartitioned()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.schema_id == table.schema().schema_id
    assert sorted(row["id"] for row in bed.rows()) == [1, 2]
    bed.table().append(pa.table({"id": [3]}))
    assert sorted(row["id"] for row in bed.rows()) == [1, 2, 3]


def _partitioned(directory: Path) -> IcebergBed:
    bed = IcebergBed(directory=directory, extra=dict(_FAULTY))
    FaultyCatalog.reset()
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    columns = (NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    bed.create(Schema(*columns), partition_spec=spec)
    return bed


def _drop_the_partition_column(bed: IcebergBed) -> None:
    with bed.table().update_spec() as spec:
        spec.remove_field("name")
    with bed.table().update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("name")


@pytest.mark.parametrize("is_added_again", [False, True])
@pytest.mark.parametrize("metrics", ["full", "none"])
def test_values_of_a_column_that_was_dropped_meanwhile_are_committed_with_a_warning(
    bed: IcebergBed, caplog: pytest.LogCaptureFixture, metrics: str, *, is_added_again: bool
) -> None:
    """The rows are decided. Who dropped the column meant it, and the job must not stop for that."""
    with bed.table().transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": metrics})
    entries = bed.pre_commit(rows_of(1, 2))
    with bed.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("name")
    if is_added_again:
        with bed.table().update_schema() as update:
            update.add_column("name", StringType())
    assert _outcomes(bed.commit(entries, after_crash=True)) == {CommitOutcome.COMMITTED}
    assert "has dropped columns" in caplog.text
    assert "table=lake.events values=name:2" in caplog.text
    caplog.clear()
    bed.commit(bed.pre_commit(rows_of(3).drop_columns(["name"]), batch_id=1), checkpoint_id=2)
    assert "dropped columns" not in caplog.text
    assert bed.ids() == Counter([1, 2, 3])


def test_a_change_of_the_schema_that_the_committer_has_not_loaded_is_found_too(
    bed: IcebergBed, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog refuses the commit, and the committer loads the table."""
    committer = bed.committer()
    bed.commit(bed.pre_commit(rows_of(1)), committer=committer)
    entries = bed.pre_commit(rows_of(2), batch_id=1)
    with bed.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("name")
    bed.commit(entries, committer=committer, checkpoint_id=2)
    assert "values=name:1" in caplog.text
    assert FaultyCatalog.commits == 4


def test_files_that_no_snapshot_can_have_are_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person can act then; an error of pyiceberg would end the driver at each start."""
    bed = _partitioned(tmp_path)
    entries = bed.pre_commit(rows_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(ManifestWriter, "add_entry", _refuse)
        committer = bed.committer()
        for after_crash in (False, True):
            (report,) = bed.commit(entries, committer=committer, after_crash=after_crash)
            assert report.outcome is CommitOutcome.UNKNOWN
            assert "table=lake.events" in report.detail
            assert "TypeError: no such value" in report.detail
            assert "accept-loss" in report.detail
    assert FaultyCatalog.commits == 0
    assert _outcomes(bed.commit(entries, committer=committer)) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1])


def _refuse(*_: object) -> None:
    raise TypeError("no such value")


def test_a_store_that_fails_while_a_manifest_is_written_is_tried_again(
    bed: IcebergBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest's writer hides the store's error behind one of its own."""
    entries = bed.pre_commit(rows_of(1))
    add, failing = ManifestWriter.add_entry, [OSError("no answer")]

    def add_entry(writer: ManifestWriter, entry: ManifestEntry) -> ManifestWriter:
        if failing:
            raise failing.pop()
        return add(writer, entry)

    monkeypatch.setattr(ManifestWriter, "add_entry", add_entry)
    assert _outcomes(bed.commit(entries)) == {CommitOutcome.COMMITTED}
    assert bed.ids() == Counter([1])


def test_a_spec_that_the_table_no_longer_has_is_reported(bed: IcebergBed) -> None:
    entries = bed.pre_commit(rows_of(1))
    written = replace(decode_written_files(entries[0]), spec_id=7)
    (report,) = bed.commit([encode_written_files(written, operator_id=OPERATOR)])
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "no longer has partition spec 7" in report.detail


@pytest.mark.parametrize("fault", ["odd-answer", "gone"])
def test_an_answer_that_pyiceberg_does_not_expect_is_looked_into(
    bed: IcebergBed, fault: str
) -> None:
    entries = bed.pre_commit(rows_of(1))
    FaultyCatalog.faults = [fault]
    assert _outcomes(bed.commit(entries)) == {CommitOutcome.COMMITTED}
    assert len(bed.table().snapshots()) == 1
    assert bed.ids() == Counter([1])


def test_a_catalog_that_drops_properties_gets_one_commit(bed: IcebergBed) -> None:
    """The first one is in the table. Without its position, nothing would say so after a crash."""
    committer = bed.committer()
    FaultyCatalog.faults = ["no-properties"]
    reports = bed.commit(bed.pre_commit(rows_of(1)), committer=committer)
    assert _outcomes(reports) == {CommitOutcome.COMMITTED}
    entries = bed.pre_commit(rows_of(2), batch_id=1)
    (report,) = bed.commit(entries, committer=committer, checkpoint_id=2)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "does not keep table properties" in report.detail
    assert bed.ids() == Counter([1])


def test_expired_snapshots_leave_all_rows(bed: IcebergBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sluice.connectors.iceberg.committing.iceberg_committer._EXPIRES_AT_ONCE", 3
    )
    with bed.table().transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    committer = bed.committer(expires=True)
    for batch_id in range(8):
        entries = bed.pre_commit(rows_of(batch_id), batch_id=batch_id)
        bed.commit(entries, committer=committer, checkpoint_id=batch_id + 1)
    assert len(bed.table().snapshots()) < 5
    assert bed.ids() == Counter(range(8))


@pytest.mark.parametrize("how", ["rollback", "tag"])
def test_an_expiry_keeps_what_a_person_names_meanwhile(
    bed: IcebergBed, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Without its snapshot, the branch ``main`` would be gone, and the table would be empty."""
    person = IcebergBed(directory=bed.directory)
    with person.table().transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    for batch_id in range(3):
        bed.commit(bed.pre_commit(rows_of(batch_id), batch_id=batch_id), checkpoint_id=batch_id + 1)
        time.sleep(0.002)  # snapshots of one millisecond do not expire
    second = person.table().snapshots()[1].snapshot_id

    def act() -> None:
        with person.table().manage_snapshots() as change:
            if how == "tag":
                change.create_tag(second, "kept")
            else:
                change.set_current_snapshot(snapshot_id=second)

    def expire(table: Table, *, least: int) -> int:
        assert least > 1
        if how == "tag":
            act()
        else:
            FaultyCatalog.beside = [act]
        return expire_snapshots(table, least=1)

    committing = "sluice.connectors.iceberg.committing.iceberg_committer"
    monkeypatch.setattr(f"{committing}.expire_snapshots", expire)
    entries = bed.pre_commit(rows_of(3), batch_id=3)
    reports = bed.commit(entries, committer=bed.committer(expires=True), checkpoint_id=4)
    assert _outcomes(reports) == {CommitOutcome.COMMITTED}
    table = person.table()
    assert set(table.metadata.refs) == ({"main", "kept"} if how == "tag" else {"main"})
    assert second in {one.snapshot_id for one in table.snapshots()}
    assert len(table.snapshots()) == (2 if how == "tag" else 4)
    assert len(bed.ids()) == (4 if how == "tag" else 2)
