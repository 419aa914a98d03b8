"""Real Spark: the files of a savepoint alone restart a query with its state, on every store.

Three kinds of state: an aggregation, a join of two streams (four stores with names) and
`transformWithState` (column families, timers, schemas by absolute path). The oracle is the same
query in its own directory.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.savepoint.operator_metadata import is_operator_metadata, with_location
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.savepoint.savepoint_writer import write_savepoint
from sluice.runtime.spark.microbatch.spark_state import StateDescriber
from sluice.runtime.spark.session.spark_session import QUERY_SETTINGS
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.waiting import wait_for

_LOCATION = "spark/r0/state-0"
_CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_FIRST, _SAVED, _LAST = 2, 5, 8

Rows = dict[int, list[str]]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session with a job's settings."""
    made = spark.newSession()
    for key, value in QUERY_SETTINGS.items():
        made.conf.set(key, value)
    made.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
    return made


def _records(session: SparkSession) -> DataFrame:
    options = {"rowsPerBatch": 20, "startTimestamp": 1000, "advanceMillisPerBatch": 1000}
    return session.readStream.format("rate-micro-batch").options(**options).load()


def _aggregation(session: SparkSession) -> DataFrame:
    key = (F.col("value") % 7).alias("key")
    found = _records(session).withWatermark("timestamp", "2 seconds").groupBy(key)
    return found.agg(F.count("*"), F.sum("value"))


def _join(session: SparkSession) -> DataFrame:
    left = _records(session).selectExpr("value AS a", "timestamp AS t")
    right = _records(session).selectExpr("CAST(value / 2 AS LONG) AS b", "timestamp AS u")
    near = F.expr("a = b AND u BETWEEN t - INTERVAL 10 SECONDS AND t + INTERVAL 10 SECONDS")
    return left.withWatermark("t", "3 seconds").join(right.withWatermark("u", "3 seconds"), near)


class _Counter(StatefulProcessor):
    """Counts and lists the values of a key; a timer reports them later."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n LONG")
        self._values = handle.getListState("values", "v LONG")
        self._last = handle.getMapState("last", "k LONG", "v LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            count += 1
            self._values.appendValue((row.value,))
            self._last.updateValue((row.value % 3,), (row.value,))
        self._count.update((count,))
        self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 2500)
        yield Row(key=key[0], n=count, total=sum(each[0] for each in self._values.get()))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(key=key[0], n=-1, total=sum(each[0] for each in self._last.values()))

    def close(self) -> None:
        """Nothing is open."""


def _with_state(session: SparkSession) -> DataFrame:
    keyed = _records(session).withWatermark("timestamp", "1 second")
    groups = keyed.withColumn("key", F.col("value") % 5).groupBy("key")
    return groups.transformWithState(
        _Counter(), "key LONG, n LONG, total LONG", "update", "EventTime"
    )


_QUERIES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "aggregation": _aggregation,
    "join": _join,
    "transformWithState": _with_state,
}


def _run(session: SparkSession, kind: str, fs: FileSystem, location: str, *, until: int) -> Rows:
    """Run the query until Spark has logged the end of a batch; the rows of each batch."""
    rows: Rows = {}

    def keep(frame: DataFrame, batch: int) -> None:
        rows[batch] = sorted(map(str, frame.collect()))

    writer = _QUERIES[kind](session).writeStream.foreachBatch(keep)
    query = (
        writer.outputMode("append" if kind == "join" else "update")
        .option("checkpointLocation", f"{fs.uri}/{location}")
        .start()
    )
    try:
        wait_for(lambda: not query.isActive or fs.exists(f"{location}/commits/{until}"))
        assert query.exception() is None
    finally:
        query.stop()
    return rows


def _root(store: str, tmp_path: Path, hdfs: Callable[[], EmbeddedHdfs]) -> str:
    return str(tmp_path) if store == "file" else f"{hdfs().uri}/{uuid.uuid4().hex}"


@pytest.mark.integration
@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "store", "target"),
    [
        ("aggregation", "file", "file"),
        ("join", "file", "hdfs"),
        ("transformWithState", "file", "file"),
        ("aggregation", "hdfs", "file"),
        ("transformWithState", "hdfs", "hdfs"),
    ],
)
def test_files_of_a_savepoint_alone_continue_the_query(
    session: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    store: str,
    target: str,
) -> None:
    """Written to ``target``, restored to another directory there, after the original is gone."""

    def opened(scheme: str, name: str) -> FileSystem:
        root = _root(scheme, tmp_path, lambda: request.getfixturevalue("hdfs"))
        return open_file_system(f"{root}/{name}", session._jvm)  # noqa: SLF001

    original = opened(store, "original")
    session.conf.set(_CHANGELOGS, "false")  # each batch writes a snapshot
    _run(session, kind, original, _LOCATION, until=_FIRST)
    session.conf.set(_CHANGELOGS, "true")
    _run(session, kind, original, _LOCATION, until=_SAVED)
    saved = max(int(name) for name in _numbers(original, "commits"))
    region = RegionRecord(
        region="r0",
        attempt_id=0,
        batch_id=saved,
        state=StateDescriber(original, _LOCATION).after(saved),
    )
    decided = record(9, kind=CheckpointKind.SAVEPOINT, regions=(region,))
    parent = opened(target, "savepoints")
    written = write_savepoint(original, decided, parent, name="savepoint-6f9619ff-9-0a1b2c")
    full = write_full_checkpoint(original, decided)
    assert (full.files, full.bytes) == (written.files, written.bytes)
    wanted = _run(session, kind, original, _LOCATION, until=saved + 3)
    original.delete("")

    savepoint = open_savepoint(written.uri, jvm=session._jvm)  # noqa: SLF001
    verify(savepoint)
    restored, location = opened(target, "restored"), "spark/other"
    for file in savepoint.state_files("r0"):
        path = f"{location}/{file.path.removeprefix(_LOCATION + '/')}"
        restored.copy_from(savepoint.fs, file.source, path)
        if is_operator_metadata(path):
            content = with_location(restored.read(path) or b"", f"{restored.uri}/{location}")
            restored.replace(path, content)
    found = _run(session, kind, restored, location, until=saved + 3)
    batches = range(saved + 1, saved + 4)
    assert [found[each] for each in batches] == [wanted[each] for each in batches]
    assert any(found.values()), "nothing was compared"


def _numbers(fs: FileSystem, log: str) -> list[str]:
    names = [entry.name for entry in fs.entries(f"{_LOCATION}/{log}")]
    return [name for name in names if name.isdigit()]
