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
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.spark.state.state_cli import app
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.objects.s3_fixture import S3Bucket
from tests.kit.stateful_queries import QUERIES, StatefulQuery

pytestmark = pytest.mark.integration


def _repartition(source: Path, partitions: int, to: Path, *options: str) -> Path:
    arguments = ["repartition", str(source), "--partitions", str(partitions), "--to", str(to)]
    result = CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Path(result.output.splitlines()[-1].removeprefix("file://"))


def contents(directory: Path) -> dict[str, str]:
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
    before = contents(source.directory)
    made = _repartition(source.directory, partitions, tmp_path / "to")
    assert contents(source.directory) == before
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
    assert set(contents(made)) == {METADATA, *(file.path for file in region.state.files)}
    resumed = StatefulQuery(spark, kind, input_dir, made)
    source.put(2, range(50, 75))
    assert resumed.run() == oracle.run()
    offsets = (made / resumed.location / "offsets" / "3").read_text()
    assert f'"spark.sql.shuffle.partitions":"{partitions}"' in offsets


@pytest.fixture
def saved(spark: SparkSession, tmp_path: Path, input_dir: Path) -> Path:
    """A savepoint of a running sum."""
    query = StatefulQuery(spark, "aggregate", input_dir, tmp_path / "source")
    query.put(0, range(40))
    query.run()
    query.save()
    return query.directory


@pytest.mark.extended
def test_a_savepoint_in_a_bucket_is_repartitioned_on_this_host(
    spark: SparkSession, s3_environment: S3Bucket, saved: Path, tmp_path: Path
) -> None:
    """Spark has no client of the store: its files are written here, and copied before the record."""
    for path in contents(saved):
        fs = open_file_system(f"{s3_environment.uri}/saved")
        fs.copy_from(LocalFileSystem(saved), path, path)
    arguments = ["repartition", f"{s3_environment.uri}/saved", "--partitions", "5"]
    to = ["--to", f"{s3_environment.uri}/to"]
    result = CliRunner().invoke(app, [*arguments, *to], catch_exceptions=False)
    made = open_savepoint(result.output.splitlines()[-1])
    verify(made)
    (region,) = made.record.regions
    assert region.state is not None
    assert region.state.state_partitions == 5
    for file in region.state.files:
        target = tmp_path / "copy" / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        made.fs.export(file.path, target)
    query = StatefulQuery(spark, "aggregate", tmp_path / "input", tmp_path / "copy")
    query.put(1, range(40, 60))
    assert query.run()


@pytest.mark.extended
@pytest.mark.parametrize(
    "point",
    [
        "before-repartition",
        "after-repartition-copy",
        "after-repartition",
        "before-repartition-record",
        "after-repartition-record",
    ],
)
def test_a_command_that_is_killed_leaves_no_savepoint_or_a_whole_one(
    saved: Path, tmp_path: Path, point: str
) -> None:
    """Twice in a row; then it is repeated."""
    before, to = contents(saved), tmp_path / "to"
    program = "from sluice.runtime.spark.state.state_cli import app; app()"
    arguments = ["repartition", str(saved), "--partitions", "5", "--to", str(to)]
    for attempt in range(2):
        died = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, VARIABLE: f"{point}=kill"},
            capture_output=True,
            timeout=600,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        whole = [path.parent for path in to.glob(f"*/{METADATA}")]
        assert len(whole) == (attempt + 1 if point == "after-repartition-record" else 0)
        for made in whole:
            state = open_savepoint(str(made)).record.regions[0].state
            assert state is not None
            found = contents(made)
            assert all(found[file.path] == file.sha256 for file in state.files)
    made = _repartition(saved, 5, to)
    assert open_savepoint(str(made)).record.regions[0].batch_id == 1
    assert contents(saved) == before


@pytest.mark.extended
def test_a_call_that_changes_nothing_or_cannot_be_exact_is_refused(
    saved: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    with pytest.raises(ConfigError, match="another number"):
        _repartition(saved, 3, to)
    with pytest.raises(ConfigError, match="no such region"):
        _repartition(saved, 5, to, "--region", "r9")
    for pattern in ("commits/0", "*.changelog", "metadata"):
        path = next(saved.rglob(pattern))
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(DamagedCheckpointError, match="missing or damaged"):
            _repartition(saved, 5, to)
        path.write_bytes(kept + b"x")
        with pytest.raises(DamagedCheckpointError, match="missing or damaged"):
            _repartition(saved, 5, to)
        path.write_bytes(kept)
    assert not list(to.glob(f"*/{METADATA}"))
