"""Files held over epochs by Spark's own writers: merged values are those that were written."""

import re
from collections import Counter
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

from sluice import HdfsSink, Roll
from sluice.connectors.hdfs.rolling import roll_plan as rolling
from sluice.connectors.hdfs.rolling.spark_merging import AppendingMerger
from sluice.connectors.hdfs.staging.pending_files import decode_pending_files
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.connectors.hdfs.writing.spark_saver import session_file_system
from sluice.runtime.contracts import CommitOutcome, RegisteredAttempt, StagedFrame, TaskScope
from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from tests.kit.marking_sink import CONTEXT

pytestmark = pytest.mark.integration

PLAIN = """
    CASE WHEN id % 3 = 0 THEN NULL ELSE concat('zeile ', id, ' äöü€\U0001f600 "q", b') END AS text,
    id, CAST(id AS INT) - 5 AS small, id % 2 = 0 AS flag, CAST(id AS DOUBLE) / 3 AS ratio,
    CAST(id * 1.25 AS DECIMAL(38, 18)) AS money,
    DATE'1890-01-01' + CAST(id AS INT) AS day,
    TIMESTAMP'1969-12-31 23:59:59.123456' + make_dt_interval(id * 4000) AS moment
"""
TYPED = (
    PLAIN
    + """,
    TIMESTAMP_NTZ'2026-03-29 02:30:00.000001' AS local, encode(concat('ÿ', id), 'UTF-8') AS raw,
    array(CAST(id AS STRING), NULL) AS many,
    map('k', struct(id AS a, CAST(NULL AS INT) AS b)) AS nested,
    named_struct('x', CAST(id AS FLOAT), 'y', CAST(NULL AS STRING)) AS pair
"""
)
PLACES = "CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN '01' WHEN 2 THEN 'Zürich {a}=/%é' ELSE '1' END"


class Registry:
    """Remembers nothing."""

    def register(self, attempt: RegisteredAttempt) -> float:
        del attempt
        return 0.0


class Region:
    """A sink's region whose epochs are all decided."""

    def __init__(self, sink: HdfsSink) -> None:
        self.writer = sink.frame_writer()
        coordinator = sink.coordinator()
        coordinator.claim(CONTEXT, timeout_s=300)
        self.committer = coordinator.committer
        self.states: tuple[StateEntry, ...] = ()
        self.batch_id = 0

    def epoch(self, frame: DataFrame, *, publishes_all: bool = False) -> StagedFrame:
        self.batch_id += 1
        scope = TaskScope(
            job_uid="job",
            operator_id="op",
            batch=BatchKey(region="main", attempt_id=0, batch_id=self.batch_id),
            checkpoint_id=self.batch_id,
            committed_through=0,
            operator_states=self.states,
            publishes_all=publishes_all,
        )
        staged = self.writer.write(frame, scope, Registry())
        reports = self.committer.commit(staged.committables, timeout_s=300, after_crash=False)
        assert {report.outcome for report in reports} <= {CommitOutcome.COMMITTED}
        self.states = staged.operator_states
        return staged


def rows_of(frame: DataFrame) -> Counter[str]:
    return Counter(repr(_sorted(row)) for row in frame.collect())


def _sorted(row: Row) -> list[tuple[str, object]]:
    return sorted(row.asDict().items())


def _literal(path: Path) -> str:
    return re.sub(r"([{}\[\]*?])", r"\\\1", str(path))


def numbered(spark: SparkSession, first: int, columns: str) -> DataFrame:
    """Four rows, one for each place, in one task."""
    spark.range(first, first + 4, numPartitions=1).createOrReplaceTempView("ids")
    return spark.sql(f"SELECT {PLACES} AS place, {columns} FROM ids")


def data_files(target: Path) -> list[Path]:
    return [path for path in target.rglob("part-*") if path.is_file()]


@pytest.mark.parametrize(
    ("format_name", "columns", "options"),
    [
        ("parquet", TYPED, {}),
        pytest.param("orc", TYPED, {}, marks=pytest.mark.extended),
        ("json", PLAIN, {"compression": "gzip"}),
        ("csv", PLAIN, {}),
    ],
)
def test_files_with_decision_merged_rows_are_those_that_were_written(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    format_name: str,
    columns: str,
    options: dict[str, str],
) -> None:
    """Through many merges, in directories that a path must escape; one file for each at the end."""
    target = tmp_path / "a [b] {c} %20 ü*" / "rolled"
    target.parent.mkdir()
    sink = HdfsSink(
        target, format=format_name, partition_by=["place"], options=options, roll=Roll(age=3600)
    )
    monkeypatch.setattr(rolling, "FAN_IN", 2)
    frames = [numbered(spark, 4 * n, columns) for n in range(3)]
    region = Region(sink)
    for frame in frames:
        region.epoch(frame)
    assert data_files(target) == []
    held = [path for path in target.parent.rglob("part-*") if path.suffix == ".staged"]
    assert held
    assert not [*target.parent.rglob(f"part-*.{format_name}*")], "a reader of the parent takes them"
    (state,) = region.states
    assert len(decode_pending_files(state).files) == 4 * 2
    region.epoch(frames[0].limit(0), publishes_all=True)
    assert region.states == ()
    assert len(data_files(target)) == 4
    plain, whole = tmp_path / "plain", frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    whole.write.format(format_name).options(**options).partitionBy("place").save(str(plain))
    schema = whole.schema
    found, expected = (
        spark.read.format(format_name).schema(schema).load(_literal(path))
        for path in (target, plain)
    )
    assert rows_of(found) == rows_of(expected)
    if format_name == "parquet":  # the others do not keep every value, merged or not
        assert rows_of(found) == rows_of(whole)


def test_files_with_decision_merged_avro_is_what_was_written(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Block by block, by tasks that have no Avro of Spark's; a file that is not whole stops it."""
    monkeypatch.setattr(rolling, "FAN_IN", 2)
    options = {"compression": "deflate"}
    whole = HdfsSink(tmp_path / "plain", format="avro", partition_by=["place"], options=options)
    rolled = HdfsSink(
        tmp_path / "rolled",
        format="avro",
        partition_by=["place"],
        options=options,
        roll=Roll(age=3600),
    )
    expected, region = Region(whole), Region(rolled)
    for number in range(3):
        frame = numbered(spark, 4 * number, TYPED)
        expected.epoch(frame)
        region.epoch(frame)
    states = region.states
    region.epoch(frame.limit(0), publishes_all=True)
    assert len(data_files(tmp_path / "rolled")) == 4
    assert _avro_rows(tmp_path / "rolled") == _avro_rows(tmp_path / "plain")

    region.states = states
    (held,) = (decode_pending_files(state) for state in states)
    cut = tmp_path / held.files[0].path
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(StorageError, match="differs from the last checkpoint"):
        region.epoch(frame.limit(0), publishes_all=True)


def _avro_rows(target: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in data_files(target):
        with path.open("rb") as stream:
            found.update(f"{path.parent.name} {row!r}" for row in fastavro.reader(stream))
    return found


def test_a_merged_avro_file_keeps_what_the_header_says(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own says there by which calendar dates before 1582 are meant."""
    del spark  # its JVM merges
    schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}]}
    paths = []
    for number in range(2):
        path = tmp_path / f"part-{number}.avro"
        with path.open("wb") as stream:
            fastavro.writer(stream, schema, [{"id": number}], metadata={"calendar": "of old"})
        paths.append(path.name)
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    directory = StagingDirectory(
        fs=session_file_system(tmp_path.as_uri()),
        root=".staging",
        attempt=StagingAttempt.draw(batch),
        checkpoint_id=1,
    )
    ((merged,),) = AppendingMerger().merge(None, [paths], directory)
    with (tmp_path / directory.path / merged.staged).open("rb") as stream:
        reader = fastavro.reader(stream)
        assert reader.metadata["calendar"] == "of old"
        assert [row["id"] for row in reader] == [0, 1]


def test_other_columns_publish_what_is_held_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """And so does a sink that does not roll any more: nothing is lost, nothing waits."""
    target = tmp_path / "rolled"
    region = Region(HdfsSink(target, roll=Roll()))
    region.epoch(spark.range(0, 3, numPartitions=1).selectExpr("id"))
    region.epoch(spark.range(3, 5, numPartitions=1).selectExpr("id", "'x' AS more"))
    assert len(data_files(target)) == 1
    assert len(region.states) == 1
    region.writer = HdfsSink(target).frame_writer()
    region.epoch(spark.range(0).selectExpr("id", "'x' AS more"))
    assert region.states == ()
    found = spark.read.option("mergeSchema", "true").parquet(str(target)).orderBy("id")
    expected = [(0, None), (1, None), (2, None), (3, "x"), (4, "x")]
    assert [(row.id, row.more) for row in found.collect()] == expected
