"""A real REST catalog behind a proxy that loses, repeats and delays commits."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluice.runtime.contracts import CommitOutcome, CommitReport
from sluice.runtime.errors import AuthenticationError, StorageError, StreamError
from tests.integration.test_iceberg_kills import KILLS, OtherWriter, require_exact, run
from tests.kit.iceberg.iceberg_bed import IcebergBed, rows_of
from tests.kit.iceberg.rest_catalog import RestCatalog
from tests.kit.iceberg.spark_reader import read_by_spark
from tests.kit.objects.s3_proxy import FaultKind
from tests.kit.threads.joined_thread import JoinedThread
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_COMMIT: dict[str, Any] = {"method": "POST", "key": "tables/events$"}
_HUNDRED = 100
_ENDLESS = 1_000_000
_LOST = [FaultKind.DROPPED_BEFORE, FaultKind.DROPPED_AFTER, FaultKind.REPEATED]
_FAULTS = [
    (FaultKind.DROPPED_BEFORE, 0),
    (FaultKind.DROPPED_AFTER, 0),
    (FaultKind.REPEATED, 0),
    (FaultKind.TRUNCATED, 0),
    *((FaultKind.REFUSED, status) for status in (409, 429, 500, 503)),
    *((FaultKind.REFUSED_AFTER, status) for status in (500, 502, 503, 504)),
]


@pytest.fixture
def bed(tmp_path: Path, rest_catalog: RestCatalog) -> Iterator[IcebergBed]:
    """A table whose clients go through the proxy."""
    made = IcebergBed(directory=tmp_path, extra=rest_catalog.properties())
    made.create()
    yield made
    rest_catalog.proxy.clear()


def _require_committed(reports: list[CommitReport]) -> None:
    assert all(report.outcome is CommitOutcome.COMMITTED for report in reports), reports


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.extended)])
@pytest.mark.parametrize(("kind", "status"), _FAULTS)
def test_whatever_became_of_a_commit_its_snapshot_is_there_once(
    bed: IcebergBed, rest_catalog: RestCatalog, kind: FaultKind, status: int, times: int
) -> None:
    fault = rest_catalog.proxy.add(kind, status=status, times=times, **_COMMIT)
    appended = bed.pre_commit(rows_of(1, 2))
    _require_committed(bed.commit(appended))
    assert fault.seen
    upserted = bed.pre_commit(rows_of(2, 3), batch_id=1, upsert=True, equality_fields=["id"])
    rest_catalog.proxy.add(kind, status=status, times=times, **_COMMIT)
    _require_committed(bed.commit(upserted, checkpoint_id=2))
    assert sorted(row["id"] for row in bed.rows()) == [1, 2, 3]
    assert len(bed.table().snapshots()) == 2


def test_a_commit_that_arrives_after_its_repetition_is_refused(
    bed: IcebergBed, rest_catalog: RestCatalog
) -> None:
    """The coordinator waits for an answer, is replaced, and its request is still on its way."""
    entries = bed.pre_commit(rows_of(1))
    held = rest_catalog.proxy.add(FaultKind.HELD, **_COMMIT)
    with _Committing(bed, entries) as replaced:
        held.wait()
        _require_committed(bed.commit(entries, after_crash=True))
        later = bed.pre_commit(rows_of(2), batch_id=1)
        _require_committed(bed.commit(later, checkpoint_id=2))
        held.release()
    _require_committed(replaced.reports)  # it has found its successor's commit
    assert sorted(row["id"] for row in bed.rows()) == [1, 2]
    assert len(bed.table().snapshots()) == 2


def test_a_catalog_that_is_away_leaves_the_work_pending(
    bed: IcebergBed, rest_catalog: RestCatalog
) -> None:
    entries = bed.pre_commit(rows_of(1))
    rest_catalog.proxy.add(FaultKind.REFUSED, times=None, status=503)
    (report,) = bed.commit(entries, timeout_s=0.5)
    assert report.outcome is CommitOutcome.PENDING
    rest_catalog.proxy.clear()
    _require_committed(bed.commit(entries, after_crash=True))
    assert [row["id"] for row in bed.rows()] == [1]


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, AuthenticationError), (500, StorageError), (503, StorageError)],
)
def test_what_a_catalog_answers_at_the_start_is_a_typed_error(
    bed: IcebergBed, rest_catalog: RestCatalog, status: int, error: type[StreamError]
) -> None:
    rest_catalog.proxy.add(FaultKind.REFUSED, times=None, status=status)
    with pytest.raises(error):
        bed.sink().coordinator().check(timeout_s=5)


@pytest.mark.parametrize("kind", ["", pytest.param("upsert", marks=pytest.mark.extended)])
@pytest.mark.parametrize(
    "kills",
    [
        ("before-append=kill@1", "after-append=kill@2"),
        pytest.param(
            tuple(
                f"{name}=kill@{hit}"
                for name in ("after-lookup", "before-append", "after-append", "after-decision")
                for hit in (1, 2)
            ),
            marks=pytest.mark.extended,
        ),
    ],
    ids=["commit", "all"],
)
def test_kills_around_a_commit_whose_answers_are_lost(
    bed: IcebergBed, rest_catalog: RestCatalog, kills: tuple[str, ...], kind: str
) -> None:
    words = [kind] if kind else []
    for kill in (*kills, ""):
        lost = rest_catalog.proxy.add(FaultKind.DROPPED_AFTER, **_COMMIT)
        code = run(bed.directory, kill, *words, extra=bed.extra)
        lost.times = 0
    assert code == 0
    require_exact(bed, [], upserts=kind == "upsert")


@pytest.mark.extended
def test_spark_reads_what_upserts_have_left(bed: IcebergBed, rest_catalog: RestCatalog) -> None:
    """Iceberg's own reader applies the deletes in the order of the sequence numbers: keys of one
    epoch, of two tasks of it, of two regions, of several batches in one commit, and merged ones."""
    with bed.table().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "3"})
    waiting = []
    for batch_id in range(9):
        for region in ("a", "b"):
            for task in ("0.0", "1.0"):
                rows = rows_of(batch_id % 4, batch_id % 4, 10 + batch_id, 100)
                waiting += bed.pre_commit(
                    rows,
                    region=region,
                    task=task,
                    batch_id=batch_id,
                    upsert=True,
                    equality_fields=["id"],
                )
        if batch_id % 3:
            _require_committed(bed.commit(waiting, checkpoint_id=batch_id + 1))
            waiting = []
    found = read_by_spark(rest_catalog.direct, "lake.events")
    assert sorted(row["id"] for row in found) == [*range(4), *range(10, 19), 100]
    by_id = {row["id"]: row for row in found}
    assert by_id == {row["id"]: row for row in bed.rows()}


def test_java_does_not_take_it_that_all_rows_of_a_file_with_nan_are_small(
    bed: IcebergBed, rest_catalog: RestCatalog, iceberg_jvm: Any
) -> None:
    """Spark's DELETE drops a file of which its evaluator says so."""
    bed.catalog().drop_table("lake.events")
    bed.create(pa.schema({"id": pa.int64(), "x": pa.float64()}))
    rows = pa.record_batch({"id": [1, 2, 3], "x": [1.0, float("nan"), 2.0]})
    _require_committed(bed.commit(bed.pre_commit(rows)))
    java = iceberg_jvm.org.apache.iceberg
    settings = iceberg_jvm.java.util.HashMap()
    settings.put("uri", rest_catalog.direct)
    client = java.rest.RESTCatalog()
    client.initialize("rest", settings)
    table = client.loadTable(java.catalog.TableIdentifier.parse("lake.events"))
    file = table.newScan().includeColumnStats().planFiles().iterator().next().file()
    below = java.expressions.Expressions.lessThan("x", 3.0)
    assert not java.expressions.StrictMetricsEvaluator(table.schema(), below).eval(file)
    client.close()


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["", "upsert"])
def test_a_hundred_kills_beside_another_writer(
    bed: IcebergBed, rest_catalog: RestCatalog, kind: str
) -> None:
    """Read by pyiceberg and DuckDB where there are no deletes, and by Spark."""
    with bed.table().transaction() as change:
        change.set_properties({"commit.retry.num-retries": "1000"})
    chosen, words, killed = random.Random(0), [kind] if kind else [], 0
    direct = rest_catalog.properties(rest_catalog.direct)
    with OtherWriter(IcebergBed(directory=bed.directory, extra=direct)) as other:
        while killed < _HUNDRED:
            rest_catalog.proxy.add(chosen.choice(_LOST), **_COMMIT)
            kill = chosen.choice(KILLS)
            code = run(bed.directory, kill, *words, extra=bed.extra, batches=_ENDLESS)
            assert code == -signal.SIGKILL, kill
            killed += 1
        rest_catalog.proxy.clear()
        batches = len(list((bed.directory / "decisions").glob("*.json"))) + 1
        assert run(bed.directory, "", *words, extra=bed.extra, batches=batches) == 0
    require_exact(bed, other.written, upserts=kind == "upsert", batches=batches)
    rows = sorted((row["id"], row["name"]) for row in bed.rows())
    found = read_by_spark(rest_catalog.direct, "lake.events")
    assert sorted((row["id"], row["name"]) for row in found) == rows
    if kind != "upsert":
        scan = bed.table().scan()
        table = scan.to_arrow()
        assert sorted(zip(*table.to_pydict().values(), strict=True)) == rows
        paths = [task.file.file_path.removeprefix("file://") for task in scan.plan_files()]
        read = duckdb.sql(f"SELECT id, name FROM read_parquet({paths!r})").fetchall()
        assert sorted(read) == rows


class _Committing(JoinedThread):
    """A coordinator that commits once."""

    def __init__(self, bed: IcebergBed, entries: list[Any]) -> None:
        super().__init__("replaced coordinator", stop_s=PATIENCE_S)
        self._bed = bed
        self._entries = entries
        self.reports: list[CommitReport] = []

    def _work(self) -> None:
        self.reports = self._bed.commit(self._entries, timeout_s=PATIENCE_S)
