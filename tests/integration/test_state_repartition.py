"""`sluice state repartition` on state that Spark wrote, of each operator."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_slots import METADATA
from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.spark.state.repartitioning import REPARTITION_FAILPOINTS
from sluice.runtime.spark.state.state_cli import app
from tests.kit.stateful_queries import QUERIES, StatefulQuery

pytestmark = pytest.mark.integration


def _repartition(source: Path, partitions: int, to: Path, *options: str) -> Path:
    arguments = ["repartition", str(source), "--partitions", str(partitions), "--to", str(to)]
    result = CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Path(result.output.splitlines()[-1].removeprefix("file://"))


def _contents(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def input_dir(tmp_path: Path) -> Path:
    made = tmp_path / "input"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [
        ("aggregate", 5),
        *(
            pytest.param(kind, partitions, marks=pytest.mark.extended)
            for kind, partitions in [
                ("aggregate", 1),
                *((kind, 5) for kind in QUERIES),
                ("join", 2),
            ]
            if (kind, partitions) != ("aggregate", 5)
        ),
    ],
)
def test_a_query_goes_on_with_another_number_of_partitions(
    spark: SparkSession, tmp_path: Path, input_dir: Path, kind: str, partitions: int
) -> None:
    """Exactly as one whose state was left alone, although the first directory is gone."""
    oracle = StatefulQuery(spark, kind, input_dir, tmp_path / "oracle")
    source = StatefulQuery(spark, kind, input_dir, tmp_path / "source")
    for number, values in enumerate((range(40), range(20, 60))):
        source.put(number, values)
    assert source.run() == oracle.run()
    source.save()
    before = _contents(source.directory)
    made = _repartition(source.directory, partitions, tmp_path / "to")
    assert _contents(source.directory) == before
    source.directory.rename(tmp_path / "away")
    saved = open_savepoint(str(made)).record
    (region,) = saved.regions
    assert region.state is not None
    assert (region.batch_id, region.state.state_version) == (2, 3)
    assert region.state.state_partitions == partitions
    for file in region.state.files:
        content = (made / file.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
        assert len(content) == file.length_bytes
    assert set(_contents(made)) == {METADATA, *(file.path for file in region.state.files)}
    resumed = StatefulQuery(spark, kind, input_dir, made)
    source.put(2, range(50, 75))
    assert resumed.run() == oracle.run()
    offsets = (made / resumed.location / "offsets" / "3").read_text()
    assert f'"spark.sql.shuffle.partitions":"{partitions}"' in offsets
