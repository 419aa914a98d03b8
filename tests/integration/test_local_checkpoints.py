"""Checkpoints on a local disk, with real processes: races, `kill -9` at every step, refusals."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_store import (
    STORE_FAILPOINTS,
    CheckpointStore,
    open_store,
    slot_name,
)
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import AuthenticationError, ConfigError, StorageError
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import committable, record
from tests.kit.waiting import PATIENCE_S, wait_for

_RACES = 300
_RACER = """
import json, pathlib, sys, time
from sluice.runtime.storage.local_fs import LocalFileSystem
root, name, races = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fs = LocalFileSystem(root)
won = []
for race in range(races):
    fs.write_temporary(f"tmp/{race}.{name}", name.encode() * 1000)
for race in range(races):  # both arrive at each race before either goes on
    (root / f"at.{race}.{name}").touch()
    deadline = time.monotonic() + 600
    while len(list(root.glob(f"at.{race}.*"))) < 2 and time.monotonic() < deadline:
        pass
    won.append(fs.place(f"tmp/{race}.{name}", f"placed.{race}", name.encode() * 1000))
print(json.dumps(won))
"""
_PUBLISHER = """
import sys
from sluice.runtime.checkpoint.acceptance import accepted_as
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from tests.kit.coordinator.checkpoint_records import committable, record
store = open_store(sys.argv[1])
print(store.publish(record(1), timeout_s=60).value, flush=True)
store.mark_committed(1)
store.publish_repair(1, {committable().payload: committable(b"new")}, session="first")
unknown = UnsettledWork(digest="d", outcome=CommitOutcome.UNKNOWN, region="r0", ranges=())
store.note_unsettled(1, [unknown])
store.accept(1, [accepted_as(unknown, AcceptedAs.COMMITTED)])
"""


def _python(code: str, *arguments: str, failpoints: str = "") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, VARIABLE: failpoints, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.integration
def test_exactly_one_process_wins_each_of_300_races(tmp_path: Path) -> None:
    """Rule `publish-whole`: where Hadoop's own local file system let both succeed in 96 of 300."""
    (tmp_path / "tmp").mkdir()
    racers = [_python(_RACER, str(tmp_path), name, str(_RACES)) for name in ("a", "b")]
    won = [json.loads(racer.communicate(timeout=PATIENCE_S)[0]) for racer in racers]
    assert [sum(both) for both in zip(*won, strict=True)] == [1] * _RACES
    for race in range(_RACES):
        winner = b"a" if won[0][race] else b"b"
        assert (tmp_path / f"placed.{race}").read_bytes() == winner * 1000
    assert len(Counter(won[0])) == 2, "no race was close: the test proves nothing"


@pytest.mark.integration
@pytest.mark.parametrize("failpoint", [one for one in STORE_FAILPOINTS if one != "after-put"])
def test_killed_at_any_step_leaves_a_record_whole_or_none(tmp_path: Path, failpoint: str) -> None:
    """`kill -9` inside the store: the next session reads all or nothing, seals and continues."""
    killed = _python(_PUBLISHER, str(tmp_path), failpoints=f"{failpoint}=kill")
    killed.communicate(timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    step = STORE_FAILPOINTS.index(failpoint)
    store = open_store(str(tmp_path))
    standing = store.read(1)
    assert standing == (record(1) if step >= STORE_FAILPOINTS.index("after-link") else None)
    assert store.is_committed(1) == (step >= STORE_FAILPOINTS.index("after-committed-mark"))
    assert len(store.repairs(1)) == (step >= STORE_FAILPOINTS.index("after-repair"))
    assert len(store.unsettled(1)) == (step >= STORE_FAILPOINTS.index("after-unsettled"))
    assert len(store.accepted(1)) == (failpoint == "after-acceptance")
    _seal_and_clean(store, place=1 if standing is None else 2)


def _seal_and_clean(store: CheckpointStore, *, place: int) -> None:
    fencing_record = record(
        place, verdict=Verdict.ABORTED, leader_session_id="second", requested_by="fencing"
    )
    assert store.publish(fencing_record, timeout_s=60) is PublishOutcome.OURS
    store.clean(session="second")
    for each in store.slots():
        names = [entry.name for entry in store.fs.entries(slot_name(each))]
        assert not [name for name in names if name.endswith(".tmp")]


@pytest.mark.integration
@pytest.mark.parametrize("failpoint", ["before-publish", "after-temp-sync"])
def test_paused_publisher_wakes_to_a_sealed_place(tmp_path: Path, failpoint: str) -> None:
    """SIGSTOP before the decision, a second session seals, SIGCONT: one decision, the seal's."""
    paused = _python(_PUBLISHER, str(tmp_path), failpoints=f"{failpoint}=pause")
    try:
        wait_for(lambda: _state(paused.pid) == "T", what="the publisher is stopped")
        store = open_store(str(tmp_path))
        _seal_and_clean(store, place=1)
        os.kill(paused.pid, signal.SIGCONT)
        answer, _ = paused.communicate(timeout=PATIENCE_S)
    finally:
        paused.kill()
    assert answer.split() == ["taken"]
    standing = store.read(1)
    assert standing.leader_session_id == "second"


def _state(pid: int) -> str:
    status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return status.rpartition(") ")[2].split()[0]


def test_missing_permission_is_its_own_error(tmp_path: Path) -> None:
    """The user learns at once, not after the time-out, and nothing is left."""
    tmp_path.chmod(0o500)
    store = open_store(str(tmp_path / "new"))
    with _unprivileged(), pytest.raises(AuthenticationError, match="may not"):
        store.publish(record(0), timeout_s=30)
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """As a user to whom permissions apply; root could write everywhere."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_path_of_a_file_is_a_typed_error(tmp_path: Path) -> None:
    """A directory was meant; the error names the path and nothing is overwritten."""
    (tmp_path / "file").write_text("mine")
    store = open_store(str(tmp_path / "file"))
    with pytest.raises(StorageError, match="file"):
        store.slots()
    with pytest.raises(StorageError, match="file"):
        store.publish(record(0), timeout_s=0)
    assert (tmp_path / "file").read_text() == "mine"


def test_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule `publish-whole`: a store that cannot publish without replacing is refused by name."""

    def no_links(_source: object, _target: object, **_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    store = open_store(str(tmp_path))
    with pytest.raises(ConfigError, match="no hard links"):
        store.publish(record(0), timeout_s=30)
    assert store.slots() == []


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:/a/b c", "/a/b c"),
        ("file:///a/b%20c", "/a/b%20c"),
        ("file://localhost/a", "/a"),
        ("FILE:/a", "/a"),
        ("/a/x:y", "/a/x:y"),
    ],
)
def test_local_uris_are_read_as_hadoop_reads_them(uri: str, path: str) -> None:
    """Spark and Sluice must mean the same directory: nothing is percent-decoded."""
    fs = open_file_system(uri)
    assert isinstance(fs, LocalFileSystem)
    assert fs.uri == f"file://{path}"


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("ftp://server/x", "ftp: has no tested way"),
        ("abfs://c@a/x", "abfs: has no tested way to publish"),
        ("viewfs:///x", "viewfs: has no tested way to publish"),
        ("dbfs:/x", "dbfs: has no tested way to publish"),
        ("file://host/x", "no host"),
        ("file:x", "absolute path"),
        ("", "the directory is empty"),
        ("hdfs://h:1/x", "this process has no JVM"),
    ],
)
def test_uris_without_a_tested_no_replace_step_are_refused(uri: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_store(uri)


def test_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store names one place, whatever the process's directory later is."""
    monkeypatch.chdir(tmp_path)
    assert open_store("checkpoints").uri == f"file://{tmp_path}/checkpoints"


def test_repaired_committables_follow_through_a_restart(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.publish(record(1), timeout_s=30)
    store.publish_repair(1, {committable().payload: committable(b"new")}, session="first")
    assert open_store(str(tmp_path)).effective_committables(record(1)) == (committable(b"new"),)
