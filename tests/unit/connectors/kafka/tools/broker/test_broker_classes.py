"""When an embedded broker starts from the archive of its classes, and who makes that."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.connectors.kafka.tools.broker import kafka_cli as _cli
from sluice.connectors.kafka.tools.broker.embedded_kafka import (
    QUICK_START,
    broker_classes,
    sharing_options,
)
from sluice.runtime.embedded.shared_classes import Prepared
from sluice.runtime.errors import MissingRequirementError


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cache", "new", "old"):
        (tmp_path / name).mkdir()
    for name in ("java", "new/kafka.jar", "old/kafka.jar"):
        (tmp_path / name).touch()
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    classes = broker_classes(tmp_path / "java", tmp_path / "new")
    classes.prepare(_write, timeout_s=1)
    return tmp_path / "java"


def _write(path: Path) -> None:
    path.write_bytes(b"classes")


def test_broker_starts_from_the_archive_of_its_jars(java: Path) -> None:
    """And another release's as ever."""
    (archive,) = (java.parent / "cache").glob("kafka-classes-*.jsa")
    options = sharing_options(java, java.parent / "new", QUICK_START)
    assert options[-1] == f"-XX:SharedArchiveFile={archive}"
    assert sharing_options(java, java.parent / "old", QUICK_START) == ()


@pytest.mark.parametrize(
    "own",
    [
        "-Xshare:off",
        "-XX:SharedArchiveFile=/own.jsa",
        "-XX:ArchiveClassesAtExit=/own.jsa",
        "-XX:+AutoCreateSharedArchive",
        "-XX:AOTCache=/own.aot",
        "-XX:AOTCacheOutput=/own.aot",
    ],
)
def test_a_callers_own_choice_is_kept(java: Path, own: str) -> None:
    """Two archives at once may be refused by Java, as one that is read and one that is written, or
    from Java 24 on one of the newer kind: it does not start then."""
    assert sharing_options(java, java.parent / "new", (*QUICK_START, own)) == ()


def test_archive_that_was_cut_short_is_not_used(java: Path) -> None:
    """Java 17 would die of it with SIGBUS, and the broker with Java."""
    (archive,) = (java.parent / "cache").glob("kafka-classes-*.jsa")
    archive.write_bytes(b"clas")
    assert sharing_options(java, java.parent / "new", QUICK_START) == ()


def test_fetching_makes_the_archive_and_prints_the_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory alone on standard output: scripts read it."""
    made: list[str] = []

    def prepare() -> Prepared:
        made.append("archive")
        return Prepared(path=Path("/c/a.jsa"), elapsed_s=1.0)

    monkeypatch.setattr(_cli, "kafka_jars", lambda: Path("/jars"))
    monkeypatch.setattr(_cli, "prepare_broker", prepare)
    answer = CliRunner().invoke(_cli.app, ["fetch"])
    assert (answer.exit_code, answer.stdout, made) == (0, "/jars\n", ["archive"])


@pytest.mark.parametrize(
    "error", [MissingRequirementError("no archive", {"java": "/j"}, "Go on."), OSError("no room")]
)
def test_fetching_succeeds_without_an_archive(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A start without is slower, no more; one line says so, and why."""

    def fail() -> Prepared:
        raise error

    monkeypatch.setattr(_cli, "kafka_jars", lambda: Path("/jars"))
    monkeypatch.setattr(_cli, "prepare_broker", fail)
    answer = CliRunner().invoke(_cli.app, ["fetch"])
    assert (answer.exit_code, answer.stdout) == (0, "/jars\n")
    assert "starts slower" in answer.stderr
    assert str(error) in answer.stderr
