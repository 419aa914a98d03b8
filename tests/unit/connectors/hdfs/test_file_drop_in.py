"""What a drop-in query's tasks stage, and what becomes of it, on a local disk and without Spark."""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from sluice.connectors.hdfs.file_drop_in import FileDropIn, FileDropInSink, FileWriter
from sluice.runtime.contracts import CommitOutcome, TaskScope, WriterFactory
from sluice.runtime.errors import AuthenticationError, ConfigError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.service.drop_in_client import REGION, QueryRun
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.storage.task_files import LocalTaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.drop_in_simulation import QueryProcess
from tests.kit.files.fake_webhdfs import FakeWebHdfs

_FORMAT = "sluice-files"
_ROWS = pa.record_batch({"n": pa.array([1, 2, 3]), "day": pa.array(["mon", "mon", "tue"])})


class World(QueryProcess):
    """A query with its files on this disk."""

    def __init__(self, directory: Path) -> None:
        location = directory / "chk"
        location.mkdir()
        super().__init__(location, {_FORMAT: _made})

    def restart(self, run_id: str) -> None:
        """The query, at the same checkpoint location."""
        self.query.runId = run_id

    def begin(self, options: Mapping[str, str]) -> QueryRun:
        """What the writer's constructor asks."""
        return self.client.begin(_FORMAT, self.location, options)

    def run_batch(self, run: QueryRun, batch_id: int) -> None:
        """One task, and Spark's commit."""
        with CoordinatorClient(run.address) as client:
            writer = _writer(run, batch_id, client)
            writer.write(_ROWS)
            entries = writer.pre_commit()
        self.client.commit(self.location, run, batch_id, entries, decide_by_s=None)


def _made(options: Mapping[str, str], _query: object) -> Any:
    return FileDropInSink(
        options=FileDropIn.from_options(options, session_zone="UTC"), files=LocalTaskFiles()
    )


def _writer(run: QueryRun, batch_id: int, client: CoordinatorClient) -> FileWriter:
    factory: WriterFactory = pickle.loads(run.writer_factory)
    batch = BatchKey(region=REGION, attempt_id=run.attempt_id, batch_id=batch_id)
    scope = TaskScope(
        job_uid=run.job_uid,
        operator_id=run.operator_id,
        batch=batch,
        checkpoint_id=run.committed_through + 1,
        committed_through=run.committed_through,
        task="0.0",
    )
    return cast(FileWriter, factory.open(scope, client))


def _files(target: Path) -> list[str]:
    return sorted(file.parent.name for file in target.rglob("*.parquet"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_restart_may_give_another_path(world: World, tmp_path: Path) -> None:
    """What was decided for the old one stays there; what comes goes to the new one."""
    old, new = tmp_path / "a" / "orders", tmp_path / "b" / "sales"
    world.run_batch(world.begin({"path": str(old), "partitionBy": "day"}), 0)
    world.restart("run-2")
    log = Path(world.location) / "offsets"
    log.mkdir()
    (log / "0").write_text("v1\n{}\n{}")
    world.run_batch(world.begin({"path": str(new)}), 1)
    assert _files(old) == ["day=mon", "day=tue"]
    assert _files(new) == ["sales"]


def test_a_checkpoint_shows_where_and_how_a_query_writes() -> None:
    """Among the settings of its record: `sluice checkpoint inspect` tells what has changed."""
    options = {"path": "/lake/orders", "fileFormat": "json", "partitionBy": "day, city"}
    assert _made(options, None).settings() == {
        "path": "file:///lake/orders",
        "format": "json",
        "partition_by": "day,city",
    }


def test_a_task_that_does_not_see_the_drivers_directory_writes_nothing(
    world: World, tmp_path: Path
) -> None:
    """On a disk of its own host its files would be decided and never found, in no restart."""
    run = world.begin({"path": str(tmp_path / "out" / "orders")})
    (tmp_path / "out" / ".sluice-staging-orders").rename(tmp_path / "elsewhere")
    with CoordinatorClient(run.address) as client:
        writer = _writer(run, 0, client)
        with pytest.raises(
            ConfigError, match=r"does not see a directory of the driver.* Mount one"
        ):
            writer.write(_ROWS)
    assert not (tmp_path / "out" / ".sluice-staging-orders").exists()


@pytest.mark.parametrize("form", ["parquet", "avro", "json", "csv"])
def test_a_reader_of_the_parent_sees_no_row_before_its_decision(
    world: World, tmp_path: Path, form: str
) -> None:
    """Not even one that also lists hidden directories."""
    parent = tmp_path / "lake"
    options = {"path": str(parent / "orders"), "fileFormat": form, "escape": '"'}
    if form != "csv":
        del options["escape"]

    def seen() -> set[int]:
        files = f"FROM glob('{parent}/**/*.{form}*')"
        found = [*parent.rglob(f"*.{form}*")], [*parent.rglob("part*.*.*")]
        return {len(duckdb.sql(files).fetchall()), *map(len, found)}

    run = world.begin(options)
    with CoordinatorClient(run.address) as client:
        writer = _writer(run, 0, client)
        writer.write(_ROWS)
        staged = seen()
        entries = writer.pre_commit()
    assert staged == seen() == {0}
    assert not ds.dataset(str(parent)).files
    coordinator = _made(options, None).coordinator()
    coordinator.committer.commit(entries, timeout_s=60, after_crash=False)
    coordinator.close()
    assert max(seen()) == 1


@pytest.mark.parametrize("spoilt", [b"PAR1", b"PAR1" * 4096], ids=["shorter", "longer"])
def test_rename_settled_a_staged_file_that_is_not_what_its_task_wrote_is_never_seen(
    world: World, tmp_path: Path, spoilt: bytes
) -> None:
    """Rule `rename-settled`: the driver has not seen it before, so it looks before it gives it its
    name."""
    target = tmp_path / "out" / "orders"
    options = {"path": str(target), "partitionBy": "day"}
    run = world.begin(options)
    with CoordinatorClient(run.address) as client:
        writer = _writer(run, 0, client)
        writer.write(_ROWS)
        entries = writer.pre_commit()
    (staged,) = (tmp_path / "out" / ".sluice-staging-orders").rglob("day=mon/part-*")
    staged.write_bytes(spoilt)
    coordinator = _made(options, None).coordinator()
    (report,) = coordinator.committer.commit(entries, timeout_s=60, after_crash=False)
    coordinator.close()
    assert report.outcome is CommitOutcome.UNKNOWN
    assert f"has {len(spoilt)} bytes" in report.detail
    assert _files(target) == ["day=tue"]
    assert staged.read_bytes() == spoilt


def test_webhdfs_that_tasks_cannot_use_is_told_before_any_task_starts() -> None:
    """Each of them would wait for it, and each of their attempts."""
    options = FileDropIn.from_options({"path": "hdfs://nn:9000/lake/a"}, session_zone="UTC")
    with FakeWebHdfs() as fake:
        fake.asks_for_kerberos = True
        address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
        sink = FileDropInSink(options=options, files=WebHdfsTaskFiles(address=address))
        with pytest.raises(AuthenticationError, match="Kerberos"):
            sink.coordinator()


def _place(path: str) -> tuple[str, ...]:
    """By which `df.write` knows a target, with HDFS as Hadoop's default."""
    options = FileDropIn.from_options({"path": path}, session_zone="UTC", default_fs="hdfs://nn")
    return FileDropInSink(options=options, files=LocalTaskFiles()).target()


def test_batch_identity_a_target_is_known_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a repeated batch would be written twice."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "link").symlink_to("bin")
    (tmp_path / "orders").symlink_to("bin/out")
    paths = ["bin/../bin//out/", "link/out", "bin/../link/../bin/out", "orders"]
    found = {_place(f"file:{tmp_path}/{path}") for path in paths}
    monkeypatch.chdir(tmp_path / "bin")
    bare = _made({"path": "out"}, None).target()
    assert found == {bare, *(_place(f"{uri}{tmp_path}/bin/out") for uri in ("FILE://", "file:///"))}
    assert found != {_place(f"file:{tmp_path}/bin/other")}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("hdfs:///lake/a", "hdfs://nn/lake/a", True),
        ("hdfs:/lake/a", "HDFS://NN:8020//lake/b/../a/", True),
        ("hdfs://nn/lake/a", "hdfs://nn:9000/lake/a", False),
        ("hdfs://nn/lake/a", "hdfs://other/lake/a", False),
        ("hdfs://nn/lake/a", "hdfs://nn/lake/A", False),
        ("s3a://lake//x/../a/", "s3://lake/a", True),
        ("s3://lake/a", "gs://lake/a", False),
    ],
)
def test_batch_identity_a_remote_target_is_known_by_its_store(
    one: str, other: str, *, is_same: bool
) -> None:
    """The default port and ``fs.defaultFS`` are the same place; S3 has two schemes."""
    assert (_place(one) == _place(other)) is is_same


@pytest.mark.parametrize("path", ["/lake/orders", "lake/orders"])
def test_a_path_that_spark_looks_for_elsewhere_is_refused(path: str) -> None:
    """Its own file sink would write it where ``fs.defaultFS`` points, and not to a local disk."""
    options = {"PATH": path}
    with pytest.raises(ConfigError, match="Write hdfs:// or file:// before it"):
        FileDropIn.from_options(options, session_zone="UTC", default_fs="hdfs://nn:9000")
    assert FileDropIn.from_options(options, session_zone="UTC").target.startswith("file:///")
    whole = {"path": f"hdfs://nn:9000/{path.lstrip('/')}"}
    FileDropIn.from_options(whole, session_zone="UTC", default_fs="hdfs://nn:9000")
