"""Checkpoints on a real HDFS: races, servers that die or hang, and the command line."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store, slot_name
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.embedded.hdfs.hdfs_site import render
from sluice.runtime.embedded.process import ServerProcess
from sluice.runtime.errors import AuthenticationError, StorageError, StorageUnreachableError
from sluice.runtime.job.job_cli import checkpoint_app as app
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.serve.requests import SavepointRequest
from sluice.runtime.storage.hadoop_fs import HadoopFileSystem
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.served_jobs_bed import PlayedJobs, service_of
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

_RACES = 100
_BAD_INPUT_BOUND_S = 300.0  # 30 s on a quiet machine
_FAILOVER_BOUND_S = 100.0  # 5 s there


@pytest.fixture
def uri(hdfs: EmbeddedHdfs) -> str:
    return f"{hdfs.uri}/{uuid.uuid4().hex}/checkpoints"


@pytest.fixture
def store(uri: str, hadoop_client: Any) -> CheckpointStore:
    return open_store(uri, hadoop_client)


@pytest.fixture
def stopped_name_node(hdfs: EmbeddedHdfs, store: CheckpointStore) -> Iterator[EmbeddedHdfs]:
    """The NameNode frozen, after checkpoint 0 was published; thawed again at the end."""
    store.publish(record(0), timeout_s=300)
    assert hdfs.name_node is not None
    hdfs.name_node.pause()
    yield hdfs
    hdfs.name_node.resume()
    wait_for(lambda: _answers(store), what="the NameNode answers again")


def _answers(store: CheckpointStore, *, empty: bool = False) -> bool:
    """Whether a look succeeds, and finds checkpoint 0 unless the store may be empty."""
    try:
        return store.read(0) is not None or empty
    except StorageError:
        return False


@pytest.mark.extended
def test_exactly_one_client_wins_each_race(uri: str, hadoop_client: Any) -> None:
    """Rule `publish-whole`: rename to an absent name, from two clients with connections of their
    own."""
    clients = {name: HadoopFileSystem(uri, hadoop_client) for name in ("a", "b")}

    def race(name: str) -> list[bool]:
        fs = clients[name]
        return [
            fs.place(f"tmp/{each}.{name}", f"placed.{each}", name.encode())
            for each in range(_RACES)
        ]

    for name, fs in clients.items():
        for each in range(_RACES):
            fs.write_temporary(f"tmp/{each}.{name}", name.encode())
    with ThreadPoolExecutor(2) as pool:
        won = dict(zip(clients, pool.map(race, clients, timeout=PATIENCE_S), strict=True))
    for each in range(_RACES):
        winner = [name for name in clients if won[name][each]]
        assert [clients["a"].read(f"placed.{each}")] == [name.encode() for name in winner]
    for fs in clients.values():
        fs.close()


@pytest.mark.extended
def test_hung_name_node_is_a_typed_error_and_publishing_continues_later(
    stopped_name_node: EmbeddedHdfs, store: CheckpointStore, uri: str, hasty_hadoop_client: Any
) -> None:
    """Every call ends within the bound; asked again when it answers, the place has one record."""
    hasty = open_store(uri, hasty_hadoop_client)
    began = time.monotonic()
    with pytest.raises(StorageError):
        hasty.publish(record(1), timeout_s=5)
    with pytest.raises(StorageError):
        hasty.read(0)
    assert time.monotonic() - began < 2 * _BAD_INPUT_BOUND_S
    assert stopped_name_node.name_node is not None
    stopped_name_node.name_node.resume()
    answer = wait_for(lambda: _published(hasty), what="published")
    assert answer is PublishOutcome.OURS
    assert store.read(1) == record(1)


def _published(store: CheckpointStore) -> PublishOutcome | None:
    try:
        return store.publish(record(1), timeout_s=5)
    except StorageError:
        return None


def test_late_rename_is_settled_by_looking(
    hdfs: EmbeddedHdfs, uri: str, hadoop_client: Any
) -> None:
    """Rule `publish-whole`: the answer is lost, the rename lands later; who gives up must look
    first."""
    with ThreadPoolExecutor(1) as pool:
        fs = _LosesTheAnswer(uri, hadoop_client, _name_node(hdfs), pool)
        store = CheckpointStore(fs)
        assert store.publish(record(0), timeout_s=0) is PublishOutcome.UNKNOWN
        fs.let_it_land(timeout_s=180)
    given_up = store.publish(record(0, verdict=Verdict.ABORTED), timeout_s=300)
    assert given_up is PublishOutcome.TAKEN
    assert store.read(0) == record(0), "the decision stands, and must be taken as decided"
    assert store.publish(record(0), timeout_s=300) is PublishOutcome.OURS


class _LosesTheAnswer(HadoopFileSystem):
    """Freezes the NameNode when the rename is on its way, and gives up waiting at once."""

    def __init__(
        self, uri: str, jvm: Any, name_node: ServerProcess, pool: ThreadPoolExecutor
    ) -> None:
        super().__init__(uri, jvm)
        self._name_node = name_node
        self._pool = pool
        self._on_its_way: Future[bool] | None = None

    def read(self, path: str) -> bytes | None:
        if self._on_its_way is not None and not self._on_its_way.done():
            raise StorageError("no answer in time", {"path": path}, "Retry.")
        return super().read(path)

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        self._name_node.pause()
        self._on_its_way = self._pool.submit(super().place, temporary, path, data)
        raise StorageError("no answer in time", {"path": path}, "Retry.")

    def let_it_land(self, *, timeout_s: float) -> None:
        self._name_node.resume()
        assert self._on_its_way is not None
        assert self._on_its_way.result(timeout_s)


@pytest.mark.extended
def test_timed_out_rename_leaves_one_record_whichever_it_is(
    hdfs: EmbeddedHdfs, uri: str, hadoop_client: Any, hasty_hadoop_client: Any
) -> None:
    """Whether a call that timed out is still done is the NameNode's affair (both seen)."""
    store = CheckpointStore(_HangsAtRename(uri, hasty_hadoop_client, _name_node(hdfs)))
    assert store.publish(record(0), timeout_s=1) is PublishOutcome.UNKNOWN
    _name_node(hdfs).resume()
    abort = record(0, verdict=Verdict.ABORTED)
    successor = open_store(uri, hadoop_client)
    wait_for(lambda: _answers(successor, empty=True), what="it answers again")
    given_up = successor.publish(abort, timeout_s=300)
    standing = abort if given_up is PublishOutcome.OURS else record(0)
    assert given_up is not PublishOutcome.UNKNOWN
    assert store.read(0) == standing
    assert store.publish(abort, timeout_s=300) is given_up


class _HangsAtRename(HadoopFileSystem):
    """Freezes the NameNode when the rename is on its way; the client's time-outs do the rest."""

    def __init__(self, uri: str, jvm: Any, name_node: ServerProcess) -> None:
        super().__init__(uri, jvm)
        self._name_node = name_node

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        self._name_node.pause()
        return super().place(temporary, path, data)


def _name_node(hdfs: EmbeddedHdfs) -> ServerProcess:
    assert hdfs.name_node is not None
    return hdfs.name_node


def test_unreachable_name_node_is_a_typed_error_in_time(hadoop_client: Any) -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match="NameNode"):
        open_store("hdfs://127.0.0.1:1/x", hadoop_client).publish(record(0), timeout_s=1)
    assert time.monotonic() - began < _BAD_INPUT_BOUND_S


def test_two_name_nodes_of_which_none_is_there_are_a_typed_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop's client goes from one to the other for three minutes, unless a site file says how
    long it shall."""
    properties = {
        "dfs.nameservices": "ns",
        "dfs.ha.namenodes.ns": "nn1,nn2",
        "dfs.namenode.rpc-address.ns.nn1": "127.0.0.1:1",
        "dfs.namenode.rpc-address.ns.nn2": "127.0.0.1:2",
        "dfs.client.failover.proxy.provider.ns": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
    }
    (tmp_path / "hdfs-site.xml").write_text(render(properties))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with hadoop_jvm() as jvm:
        began = time.monotonic()
        with pytest.raises(StorageUnreachableError, match="NameNode"):
            HadoopFileSystem("hdfs://ns/x", jvm).read("y")
        assert time.monotonic() - began < _FAILOVER_BOUND_S


def test_a_private_file_is_its_owners_alone(uri: str, hadoop_client: Any) -> None:
    fs = HadoopFileSystem(uri, hadoop_client)
    fs.replace("_command", b"for everybody")
    fs.replace("_command", b"a token", is_private=True)
    assert fs.read("_command") == b"a token"
    hadoop = hadoop_client.org.apache.hadoop
    path = hadoop.fs.Path(f"{uri}/_command")
    status = path.getFileSystem(hadoop.conf.Configuration()).getFileStatus(path)
    assert status.getPermission().toString() == "rw-------"
    assert [entry.name for entry in fs.entries("")] == ["_command"]


def test_missing_permission_is_its_own_error(
    store: CheckpointStore, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by the NameNode: reported at once, not tried until the time-out; reading is allowed."""
    store.publish(record(0), timeout_s=300)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with hadoop_jvm() as jvm:
        stranger = open_store(uri, jvm)
        assert stranger.read(0) == record(0)
        began = time.monotonic()
        with pytest.raises(AuthenticationError, match="may not write"):
            stranger.publish(record(1), timeout_s=300)
    assert time.monotonic() - began < _BAD_INPUT_BOUND_S
    assert store.slots() == [0]


@pytest.mark.extended
def test_records_survive_kill_9_of_both_servers(store: CheckpointStore, hdfs: EmbeddedHdfs) -> None:
    assert hdfs.name_node is not None
    assert hdfs.data_node is not None
    store.publish(record(0), timeout_s=300)
    store.publish(record(1), timeout_s=300)
    store.mark_committed(1)
    hdfs.data_node.kill()
    hdfs.name_node.kill()
    hdfs.start()
    wait_for(lambda: _answers(store), what="HDFS is back with its blocks")
    assert store.read(1) == record(1)
    assert store.is_committed(1)
    assert store.publish(record(2), timeout_s=300) is PublishOutcome.OURS


_IN_SPARK = """
import sys
from pyspark.sql import SparkSession
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import StreamError
from tests.kit.coordinator.checkpoint_records import record
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.hadoop.ipc.client.connect.max.retries", "1")
    .getOrCreate()
)
jvm = spark.sparkContext._jvm
store = open_store(sys.argv[1], jvm)
print(store.publish(record(0), timeout_s=300).value)
print(store.publish(record(0, leader_session_id="other"), timeout_s=300).value)
store.mark_committed(0)
print(store.read(0) == record(0), store.read(1), store.is_committed(0), store.slots())
for wrong in ("hdfs://no-such-host.invalid:1/x", "hdfs://127.0.0.1:1/x"):
    try:
        open_store(wrong, jvm).slots()
    except StreamError as error:
        print(type(error).__name__)
spark.stop()
"""


@pytest.mark.extended
def test_store_works_through_the_jvm_of_a_spark_session(uri: str) -> None:
    """As a job uses it: Spark's gateway, Spark's ``spark.hadoop`` settings, typed errors.

    PySpark translates some Java exceptions into its own before we see them; those are ours too.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _IN_SPARK, uri],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    expected = ["ours", "taken", "True None True [0]", *2 * ["StorageUnreachableError"]]
    assert ran.stdout.splitlines() == expected, ran.stderr


def test_command_line_reads_hdfs_without_spark(store: CheckpointStore, uri: str) -> None:
    """``sluice checkpoint`` starts a JVM from PySpark's jars, with the job gone."""
    store.publish(record(0), timeout_s=300)
    fencing_record = record(
        1, verdict=Verdict.ABORTED, leader_session_id="second", requested_by="fencing"
    )
    store.publish(fencing_record, timeout_s=300)
    listed = CliRunner().invoke(app, ["list", uri, "--json"], catch_exceptions=False)
    standing = [each["standing"] for each in json.loads(listed.output)["checkpoints"]]
    assert standing == ["unfinished", "fencing"]
    inspected = CliRunner().invoke(
        app, ["inspect", f"{uri}/{slot_name(0)}", "--json"], catch_exceptions=False
    )
    assert json.loads(inspected.output)["checkpoint_id"] == 0


def test_jobs_of_a_registry_on_hdfs_are_listed_and_commanded(
    uri: str, hadoop_client: Any, tmp_path: Path
) -> None:
    """The service has a JVM of its own."""
    with PlayedJobs(uri, jvm=hadoop_client) as played, service_of(f"{uri}/registry", tmp_path) as s:
        job = played.start_job("job-1")
        with s.client() as client:

            def answered() -> bool:
                return [each["lag_records"] for each in client.get("/v1/jobs")["jobs"]] == [7]

            wait_for(answered)
            client.post("/v1/jobs/job-1/savepoints", SavepointRequest())
            assert [path for path, _ in job.told] == ["/v1/savepoints"]
            played.registry.delete("job-1")
            wait_for(lambda: client.get("/v1/jobs")["jobs"] == [])
