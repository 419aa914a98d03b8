"""Stateful queries of plain Spark, with their state laid out as in a savepoint of one region."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    RegionRecord,
    StateSnapshot,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.spark_files import files_of_batch
from sluice.runtime.spark.session.spark_session import QUERY_SETTINGS
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record

Rows = set[str]
_Read = Callable[[str], DataFrame]
_COUNTED = "k int, n int"


class _Counter(StatefulProcessor):
    """A value, a list and a map for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n int")
        self._seen = handle.getListState("seen", "v int")
        self._rests = handle.getMapState("rests", "rest int", "n int")

    def handleInputRows(
        self, key: tuple[int, ...], rows: Iterator[pd.DataFrame], timerValues: object
    ) -> Iterator[pd.DataFrame]:
        (count,) = self._count.get() or (0,)
        for v in (int(v) for frame in rows for v in frame["v"]):
            count += 1
            self._seen.appendValue((v,))
            self._rests.updateValue((v % 3,), (count,))
        self._count.update((count,))
        total = count + len(list(self._seen.get())) * 1000
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def close(self) -> None:
        """Nothing is open."""


def _apply(
    key: tuple[int, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    count = sum(map(len, frames)) + (state.getOption or (0,))[0]
    state.update((count,))
    yield pd.DataFrame({"k": [key[0]], "n": [count]})


def _joined(read: _Read) -> DataFrame:
    right = read("others").withColumnsRenamed({"k": "j", "v": "w", "t": "u"})
    joined = read("numbers").join(right, F.expr("k = j AND w BETWEEN v AND v + 7"))
    return joined.select("k", "v", "w")


QUERIES: dict[str, tuple[str, Callable[[_Read], DataFrame]]] = {
    "aggregate": (
        "update",
        lambda read: read("numbers").groupBy("k").agg(F.count("*"), F.sum("v")),
    ),
    "windows": (
        "update",
        lambda read: read("numbers").groupBy(F.window("t", "5 seconds"), "k").count(),
    ),
    "sessions": (
        "append",
        lambda read: read("numbers").groupBy(F.session_window("t", "5 seconds"), "k").count(),
    ),
    "dedup": ("append", lambda read: read("numbers").dropDuplicates(["v"])),
    "dedup-watermark": (
        "append",
        lambda read: read("numbers").dropDuplicatesWithinWatermark(["v"]),
    ),
    "join": ("append", _joined),
    "group-state": (
        "update",
        lambda read: (
            read("numbers")
            .groupBy("k")
            .applyInPandasWithState(
                _apply, _COUNTED, "n int", "update", GroupStateTimeout.NoTimeout
            )
        ),
    ),
    "transform": (
        "update",
        lambda read: (
            read("numbers")
            .groupBy("k")
            .transformWithStateInPandas(_Counter(), _COUNTED, "Update", "None")
        ),
    ),
}


class StatefulQuery:
    """One of `QUERIES` over files of numbers. Its state lies below ``directory``, so that this
    becomes a savepoint with `save`.

    Args:
        spark: of the tests.
        kind: key of `QUERIES`.
        input_dir: of the files; shared by queries that shall have equal results.
        directory: as a checkpoint directory.
    """

    location = "spark/r0/state-0"

    def __init__(self, spark: SparkSession, kind: str, input_dir: Path, directory: Path) -> None:
        self.spark = spark.newSession()
        for key, value in QUERY_SETTINGS.items():
            self.spark.conf.set(key, value)
        self.spark.conf.set("spark.sql.shuffle.partitions", "3")
        self.mode, self.query = QUERIES[kind]
        self.input_dir = input_dir
        self.directory = directory

    def put(self, number: int, values: range) -> None:
        """One file, which becomes one batch."""
        rows = [
            {"k": v % 5, "v": v, "t": f"2026-01-01 00:{v // 60:02d}:{v % 60:02d}"} for v in values
        ]
        path = self.input_dir / f"{number}.json"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def run(self) -> list[Rows]:
        """Read what is there; the result of each batch."""
        found: list[Rows] = []
        query = (
            self.query(self._read)
            .writeStream.foreachBatch(lambda frame, _: found.append(set(map(str, frame.collect()))))
            .outputMode(self.mode)
            .option("checkpointLocation", str(self.directory / self.location))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    def _read(self, name: str) -> DataFrame:
        reader = self.spark.readStream.schema("k int, v int, t timestamp").name(name)
        frame = reader.option("maxFilesPerTrigger", 1).json(str(self.input_dir))
        return frame.withWatermark("t", "10 seconds")

    def save(self) -> None:
        """Make a savepoint of the directory."""
        location, fs = self.directory / self.location, LocalFileSystem(self.directory)
        last = max(int(path.name) for path in (location / "commits").glob("[0-9]*"))
        operators = [(int(path.name), "op") for path in (location / "state").glob("[0-9]*")]
        state = StateSnapshot(
            provider=QUERY_SETTINGS["spark.sql.streaming.stateStore.providerClass"],
            checkpoint_format_version=2,
            state_version=last + 1,
            state_partitions=3,
            operators=tuple(operators),
            location=f"{self.location}/state",
            files=tuple(
                FileReference(path=path, length_bytes=found.length_bytes, sha256=found.sha256)
                for path in files_of_batch(fs, self.location, last)
                if (found := fs.digest(path)) is not None
            ),
        )
        region = RegionRecord(region="r0", attempt_id=0, batch_id=last, state=state)
        saved = record(last + 1, kind=CheckpointKind.SAVEPOINT, regions=(region,))
        fs.replace("_metadata", encode(saved))
