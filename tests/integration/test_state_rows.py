"""`sluice checkpoint inspect --state`: rows of state that Spark wrote, read by Spark."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.job.job_cli import checkpoint_app
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.spark.state.stored_state import shown_column
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.integration.test_state_repartition import contents
from tests.kit.stateful_queries import QUERIES, StatefulQuery

pytestmark = pytest.mark.integration

_TABLES = {"join": ["left", "right"], "transform": ["count", "rests", "seen"]}


def _tables(path: Path, *options: str) -> list[dict[str, Any]]:
    arguments = ["inspect", str(path), "--state", *options]
    shown = CliRunner().invoke(checkpoint_app, [*arguments, "--json"], catch_exceptions=False)
    (region,) = json.loads(shown.output)["regions"]
    tables: list[dict[str, Any]] = region["state"]["tables"]
    return tables


def _saved(spark: SparkSession, kind: str, tmp_path: Path) -> Path:
    (tmp_path / "input").mkdir()
    query = StatefulQuery(spark, kind, tmp_path / "input", tmp_path / "saved")
    query.put(0, range(40))
    query.run()
    query.save()
    return query.directory


@pytest.mark.parametrize(
    "kind",
    [
        "aggregate",
        *(
            pytest.param(kind, marks=pytest.mark.extended)
            for kind in QUERIES
            if kind != "aggregate"
        ),
    ],
)
def test_rows_of_every_operator_are_shown(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Also after the savepoint was moved; nothing in it changes."""
    saved = _saved(spark, kind, tmp_path)
    moved = tmp_path / "moved"
    saved.rename(moved)
    before = contents(moved)
    tables = _tables(moved, "--limit", "1000")
    assert contents(moved) == before
    assert [table["name"] for table in tables] == _TABLES.get(kind, [""])
    assert all(table["rows"] for table in tables)
    if kind == "aggregate":
        found = {row["key"]["k"]: list(row["value"].values()) for row in tables[0]["rows"]}
        assert found == {k: [8, sum(range(k, 40, 5))] for k in range(5)}
    if kind == "transform":
        seen = sorted(row["list_element"]["v"] for row in tables[2]["rows"])
        assert seen == list(range(40))
    (limited, *_) = _tables(moved, "--limit", "2")
    assert len(limited["rows"]) == 2


def test_bytes_are_shown_as_text_if_they_are_text(spark: SparkSession) -> None:
    """A key of Kafka is bytes: an operator looks for it by its text."""
    rows = [((b"k1",), b"\xff\x00"), ((None,), "\u00e9".encode()), (None, b"")]
    frame = spark.createDataFrame(rows, "key struct<k: binary>, value binary")
    shown = frame.select(*map(shown_column, frame.schema.fields)).collect()
    found = [(row["key"] and row["key"]["k"], row["value"]) for row in shown]
    assert found == [("k1", "0xFF00"), (None, "\u00e9"), (None, "")]


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["aggregate", "transform"])
def test_rows_of_a_full_checkpoint_are_shown(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Its files lie in two directories; the job's own are gone."""
    saved = _saved(spark, kind, tmp_path)
    wanted = _tables(saved)
    fs = LocalFileSystem(saved)
    full = write_full_checkpoint(fs, decode(fs.read("_metadata") or b"")).uri
    shutil.rmtree(saved / "spark")
    (saved / "_metadata").unlink()
    found = _tables(Path(full.removeprefix("file://")))
    assert [table["name"] for table in found] == [table["name"] for table in wanted]
    assert [len(table["rows"]) for table in found] == [len(table["rows"]) for table in wanted]
