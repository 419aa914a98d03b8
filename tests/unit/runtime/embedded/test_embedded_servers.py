"""Embedded servers: which run, when a start is given up, and archives of classes."""

import os
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluice.connectors.hdfs.tools.hdfs_cli import app as hdfs
from sluice.connectors.kafka.tools.broker.kafka_cli import app as kafka
from sluice.runtime.embedded.background import RunningServer, forget, recall, remember, start_once
from sluice.runtime.embedded.cache import exclusive, require_directory
from sluice.runtime.embedded.process import Identity
from sluice.runtime.embedded.shared_classes import SharedClasses, reading_options, writing_options
from sluice.runtime.embedded.start_timeout import StartTimeout
from sluice.runtime.errors import MissingRequirementError
from tests.kit.fakes import ManualClock

_GONE = Identity(pid=2**22 + 1, created_at=1.0)  # above the largest process id of Linux


def test_unusable_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingRequirementError, match="cannot be used") as caught:
        require_directory(tmp_path / "file" / "below")
    assert caught.value.args[1]["error"] == "Not a directory"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_STATE", str(tmp_path))
    return tmp_path


def _server(state: Path, *identities: Identity) -> RunningServer:
    return RunningServer(
        name="hdfs",
        identities=identities,
        address="hdfs://127.0.0.1:1",
        data_dir=state / "data",
        log_path=state / "log",
        web_address="http://127.0.0.1:2",
    )


def test_server_is_found_as_long_as_one_of_its_processes_attempts(state: Path) -> None:
    """A DataNode without its NameNode is still there to be stopped."""
    half = _server(state, _GONE, Identity.of(os.getpid()))
    remember(half)
    assert recall("hdfs") == half
    assert half.describe() == (
        f"hdfs://127.0.0.1:1  web http://127.0.0.1:2  pid {_GONE.pid}, {os.getpid()}"
        f"  log {state / 'log'}"
    )
    forget("hdfs")
    assert recall("hdfs") is None


def test_server_is_gone_with_its_last_process(state: Path) -> None:
    remember(_server(state, _GONE, _GONE))
    assert recall("hdfs") is None


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"5",
        b"\xff",
        b"[" * 100_000,
        b'{"processes": [5]}',
        b'{"processes": 5}',
        b'{"pid": -1, "created_at": 1, "address": "a", "data_dir": "d", "log_path": "l"}',
        b'{"pid": "x", "created_at": 1, "address": "a", "data_dir": "d", "log_path": "l"}',
        b'{"pid": 1, "created_at": 1, "address": "a", "data_dir": 5, "log_path": "l"}',
    ],
)
def test_a_file_that_is_not_ours_is_no_server(state: Path, content: bytes) -> None:
    (state / "kafka.json").write_bytes(content)
    assert recall("kafka") is None


@pytest.mark.parametrize("app", [kafka, hdfs], ids=["kafka", "hdfs"])
@pytest.mark.parametrize("command", ["status", "stop", "start"])
def test_a_state_that_is_no_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: typer.Typer, command: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLUICE_STATE", str(tmp_path / "file"))
    result = CliRunner().invoke(app, [command])
    assert isinstance(result.exception, MissingRequirementError)
    assert str(tmp_path / "file") in str(result.exception)


@pytest.mark.parametrize(
    ("app", "option"), [(kafka, "--port"), (hdfs, "--port"), (hdfs, "--web-port")]
)
@pytest.mark.parametrize("port", ["70000", "-1", "0"])
def test_a_port_that_there_is_not_is_wrong_usage(
    state: Path, app: typer.Typer, option: str, port: str
) -> None:
    result = CliRunner().invoke(app, ["start", option, port])
    assert result.exit_code == 2
    assert option in result.output
    assert not any(state.iterdir())


def test_second_start_is_refused_with_what_runs(state: Path) -> None:
    """One server of a name per user; nothing is started."""
    remember(_server(state, Identity.of(os.getpid())))

    def start() -> RunningServer:
        raise AssertionError("must not be asked")

    with pytest.raises(MissingRequirementError, match="an HDFS of this user already runs") as told:
        start_once("hdfs", "an HDFS", start)
    assert told.value.args[1]["address"] == "hdfs://127.0.0.1:1"
    assert "sluice hdfs stop" in told.value.args[2]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _patience(clock: ManualClock, *logs: Path) -> StartTimeout:
    return StartTimeout(logs, log_timeout_s=90.0, longest_s=600.0, clock=clock)


def _say(log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write("a line\n")


def test_slow_start_that_says_something_is_waited_for(tmp_path: Path, clock: ManualClock) -> None:
    """A line now and then, for longer than any silence may last."""
    log = tmp_path / "log"
    patience = _patience(clock, log)
    for _ in range(9):
        clock.advance(60.0)
        _say(log)
        assert patience.end() is None
    assert patience.elapsed_s == 540.0


def test_silent_start_is_given_up(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "log"
    _say(log)
    patience = _patience(clock, log)
    clock.advance(90.0)
    assert patience.end() is None
    clock.advance(1.0)
    assert "silent for 90 s" in str(patience.end())


def test_any_of_the_logs_breaks_the_silence(tmp_path: Path, clock: ManualClock) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    patience = _patience(clock, first, second)
    for log in (first, second, first):
        clock.advance(80.0)
        _say(log)
        assert patience.end() is None


def test_start_that_talks_for_ever_is_given_up(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "log"
    patience = _patience(clock, log)
    for _ in range(10):
        clock.advance(60.0)
        _say(log)
        assert patience.end() is None
    clock.advance(1.0)
    _say(log)
    assert "not ready after 600 s" in str(patience.end())


_CONTENT = b"classes"


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedClasses:
    (tmp_path / "java").touch()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").touch()
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    jars = tmp_path / "jars"
    return SharedClasses(program="p", java=tmp_path / "java", places=(jars,), jars=jars)


def _write(path: Path) -> None:
    path.write_bytes(_CONTENT)


def test_archive_is_made_once_and_found(classes: SharedClasses) -> None:
    """The second call finds the first one's, and starts nothing."""
    assert classes.find() is None
    made = classes.prepare(_write, timeout_s=1)
    assert made.elapsed_s is not None
    assert made.path.read_bytes() == _CONTENT
    again = classes.prepare(lambda _: pytest.fail("it was there"), timeout_s=1)
    assert (again.path, again.elapsed_s) == (made.path, None)
    assert classes.find() == made.path


@pytest.mark.parametrize("changed", ["java", "jars/a.jar", "jars/b.jar"])
def test_archive_of_another_java_or_other_jars_is_not_used(
    classes: SharedClasses, changed: str
) -> None:
    classes.prepare(_write, timeout_s=1)
    path = classes.java.parent / changed
    path.unlink(missing_ok=True)
    path.touch()
    assert classes.find() is None


def test_lost_java_or_cache_is_no_error(
    classes: SharedClasses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", "/nowhere")
    assert classes.find() is None
    classes.java.unlink()
    assert classes.find() is None


def test_failed_making_leaves_nothing(classes: SharedClasses, tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"cla")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        classes.prepare(fail, timeout_s=1)
    with pytest.raises(MissingRequirementError, match="wrote no archive"):
        classes.prepare(lambda _: None, timeout_s=1)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["p-classes.lock"]
    classes.prepare(_write, timeout_s=0)


def test_killed_making_is_cleared_away(classes: SharedClasses, tmp_path: Path) -> None:
    def killed(path: Path) -> None:
        _write(path)
        shutil.copytree(path.parent, tmp_path / "cache" / f"{path.parent.name}-left")

    classes.prepare(killed, timeout_s=1)
    made = classes.find()
    made.unlink()
    classes.prepare(_write, timeout_s=1)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {made.name, "p-classes.lock"}


def test_archive_is_made_by_one_process_at_a_time(classes: SharedClasses, tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "cache" / "p-classes.lock", timeout_s=1),
        pytest.raises(MissingRequirementError, match="lock"),
    ):
        classes.prepare(_write, timeout_s=0)


def test_archives_that_were_used_last_are_kept(classes: SharedClasses, tmp_path: Path) -> None:
    """Four of a program, and none of another program is touched."""
    cache = tmp_path / "cache"
    for number in range(6):
        path = cache / f"p-classes-{number}-1.jsa"
        path.touch()
        os.utime(path, (number, number))
    (cache / "q-classes-0-1.jsa").touch()
    made = classes.prepare(_write, timeout_s=1)
    kept = {path.name for path in cache.glob("p-*.jsa")}
    assert kept == {made.path.name, *(f"p-classes-{number}-1.jsa" for number in (3, 4, 5))}
    assert (cache / "q-classes-0-1.jsa").exists()


def test_options_silence_java_about_an_archive_that_does_not_fit() -> None:
    path = Path("/c/a.jsa")
    assert reading_options(path)[-1] == "-XX:SharedArchiveFile=/c/a.jsa"
    assert writing_options(path)[-1] == "-XX:ArchiveClassesAtExit=/c/a.jsa"
    assert reading_options(path)[:-1] == writing_options(path)[:-1]
    assert all(option.endswith("=off") for option in reading_options(path)[:-1])
