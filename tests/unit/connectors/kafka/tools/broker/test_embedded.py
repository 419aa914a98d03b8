"""Embedded brokers: decisions before a start, archives of classes, and new topics."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from sluice.connectors.kafka.client.confluent import AdminClient
from sluice.connectors.kafka.client.topic_creation import (
    await_controller,
)
from sluice.connectors.kafka.tools.broker import embedded_kafka as embedded
from sluice.connectors.kafka.tools.broker import kafka_cli as _cli
from sluice.connectors.kafka.tools.broker.broker_properties import (
    BrokerPorts,
    server_properties,
)
from sluice.connectors.kafka.tools.broker.embedded_kafka import (
    QUICK_START,
    broker_classes,
    sharing_options,
)
from sluice.runtime.embedded.ivy import (
    Artifact,
    Bundle,
    ivy_description,
    pinned_checksums,
)
from sluice.runtime.embedded.java import find_java, parse_version
from sluice.runtime.embedded.shared_classes import Prepared
from sluice.runtime.errors import MissingRequirementError, UnreachableError


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_202"', 8),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ("no java here", None),
    ],
)
def test_java_version_is_read_from_old_and_new_banners(banner: str, version: int | None) -> None:
    assert parse_version(banner) == version


def test_missing_java_is_one_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingRequirementError, match="Java 17 or newer was not found") as caught:
        find_java()
    assert "JAVA_HOME" in caught.value.args[2]


def test_too_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that is too old is shown with its version."""
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'java version \"1.8.0_202\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingRequirementError) as caught:
        find_java()
    assert caught.value.args[1] == {str(program): 8}


def test_every_pinned_jar_has_a_whole_checksum() -> None:
    """The shipped file pins the broker, its logging, and nothing by half."""
    pinned = pinned_checksums("kafka-4.3.1")
    assert {"kafka_2.13-4.3.1.jar", "log4j-slf4j-impl-2.25.4.jar"} <= set(pinned)
    assert all(len(digest) == 64 for digest in pinned.values())


def test_ivy_is_asked_for_all_artifacts_at_once() -> None:
    """One description, one resolution, one version of each dependency."""
    bundle = Bundle(
        name="b",
        artifacts=(
            Artifact(organisation="o", name="x", version="1"),
            Artifact(organisation="o", name="y", version="2", transitive=False),
        ),
        checksums={},
    )
    text = ivy_description(bundle)
    assert 'name="x" rev="1" conf="default->default" transitive="true"' in text
    assert 'name="y" rev="2" conf="default->default" transitive="false"' in text


def _properties(**overrides: str) -> dict[str, str]:
    return server_properties(
        ports=BrokerPorts(plain=1, controller=2), log_dir=Path("/data"), overrides=overrides
    )


def test_the_broker_has_one_listener() -> None:
    properties = _properties()
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1"
    assert not any("sasl" in key for key in properties)


def test_idle_broker_writes_nothing() -> None:
    """Kafka's default is a record each half second, into a log that is kept."""
    assert _properties()["metadata.max.idle.interval.ms"] == "0"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), UnreachableError("no", {}, "Look.")])
def test_a_broker_whose_start_is_given_up_does_not_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    running: set[object] = set()

    class Process:
        def __init__(self, spec: object) -> None:
            del spec

        def start(self) -> None:
            running.add(self)

        def kill(self) -> None:
            running.discard(self)

    def fail(*_: object, **__: object) -> None:
        assert running
        raise failure

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").touch()  # it was formatted before
    monkeypatch.setattr(embedded, "ServerProcess", Process)
    monkeypatch.setattr(embedded, "await_controller", fail)
    broker = embedded.EmbeddedKafka(data_dir=tmp_path, jars=tmp_path, detached=True)
    told = MissingRequirementError if isinstance(failure, UnreachableError) else type(failure)
    with pytest.raises(told):
        broker.start()
    assert not running


def test_a_broker_that_does_not_start_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        assert list(tmp_path.iterdir())
        raise MissingRequirementError("no", {}, "Look.")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(embedded.EmbeddedKafka, "_format", fail)
    with pytest.raises(MissingRequirementError), embedded.EmbeddedKafka(jars=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


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


WHERE = {"servers": "fake:9092"}


def _telling(tell: Callable[[], int], **calls: Any) -> AdminClient:
    """An admin client of a cluster that names its controller so."""

    def list_topics(*, topic: str, timeout: float) -> SimpleNamespace:
        assert (topic, timeout > 0) == ("", True)
        return SimpleNamespace(controller_id=tell())

    return cast("AdminClient", SimpleNamespace(list_topics=list_topics, **calls))


def test_a_controller_that_the_brokers_have_not_heard_of_is_waited_for() -> None:
    """A client that asks for a topic meanwhile would wait until it times out."""
    told = [-1, -1, 1]
    await_controller(_telling(lambda: told.pop(0)), WHERE, timeout_s=60.0)
    assert told == []


def test_a_cluster_that_never_names_a_controller_is_given_up() -> None:
    with pytest.raises(UnreachableError, match="name no controller"):
        await_controller(_telling(lambda: -1), WHERE, timeout_s=0.02)
