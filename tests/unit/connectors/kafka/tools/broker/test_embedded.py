"""What the servers' tooling decides without starting anything."""

import socket
import tempfile
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker import embedded_kafka as embedded
from sluice.connectors.kafka.tools.broker.broker_properties import (
    BrokerPorts,
    render,
    server_properties,
)
from sluice.connectors.kafka.tools.broker.embedded_kafka import new_cluster_id
from sluice.runtime.embedded.cache import cache_dir, exclusive, state_dir
from sluice.runtime.embedded.ivy import (
    Artifact,
    Bundle,
    ivy_description,
    parse_checksums,
    pinned_checksums,
)
from sluice.runtime.embedded.java import find_java, parse_version
from sluice.runtime.embedded.ports import free_ports, is_free, require_free
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
    """Both numbering schemes of Java."""
    assert parse_version(banner) == version


def test_missing_java_is_one_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither PATH nor JAVA_HOME has one: the error says what to install."""
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


def test_checksum_file_is_read() -> None:
    """As ``sha256sum`` writes it, in text or binary mode."""
    assert parse_checksums("AB12  a.jar\n\ncd34 *b.jar\n") == {"a.jar": "ab12", "b.jar": "cd34"}


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


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own variable wins over the desktop standard's."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("XDG_STATE_HOME", "/y")
    monkeypatch.delenv("SLUICE_CACHE", raising=False)
    monkeypatch.delenv("SLUICE_STATE", raising=False)
    assert (cache_dir(), state_dir()) == (Path("/x/sluice"), Path("/y/sluice"))
    monkeypatch.setenv("SLUICE_CACHE", "/own")
    assert cache_dir() == Path("/own")


def test_lock_excludes_and_is_free_again(tmp_path: Path) -> None:
    """A second holder gets an error when its time runs out, not a wait for ever."""
    lock = tmp_path / "lock"
    with (
        exclusive(lock, timeout_s=1),
        pytest.raises(MissingRequirementError, match="lock"),
        exclusive(lock, timeout_s=0),
    ):
        pass
    with exclusive(lock, timeout_s=0):
        pass


def test_free_ports_are_different_and_free() -> None:
    """As many as asked for."""
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(map(is_free, ports))


def test_occupied_port_is_refused() -> None:
    """Somebody listens: the error names port and server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MissingRequirementError, match="so Kafka cannot listen"):
            require_free(taken.getsockname()[1], server="Kafka")


def _properties(**overrides: str) -> dict[str, str]:
    return server_properties(
        ports=BrokerPorts(plain=1, controller=2), log_dir=Path("/data"), overrides=overrides
    )


def test_the_broker_has_one_listener() -> None:
    """For clients that do not log in."""
    properties = _properties()
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1"
    assert not any("sasl" in key for key in properties)


def test_overrides_win() -> None:
    """A caller may change any property."""
    assert _properties(**{"node.id": "7"})["node.id"] == "7"


def test_idle_broker_writes_nothing() -> None:
    """Kafka's default is a record each half second, into a log that is kept."""
    assert _properties()["metadata.max.idle.interval.ms"] == "0"


def test_properties_file_escapes_backslashes() -> None:
    """In a properties file a backslash begins an escape."""
    assert render({"a": "x\\y"}) == "a=x\\\\y\n"


def test_cluster_ids_are_made_as_kafka_makes_them() -> None:
    """16 bytes as 22 letters, another one each time."""
    assert {len(new_cluster_id()) for _ in range(20)} == {22}
    assert new_cluster_id() != new_cluster_id()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), UnreachableError("no", {}, "Look.")])
def test_a_broker_whose_start_is_given_up_does_not_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """Nobody would know of it; one that outlives its starter would run for ever."""
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
    """As an HDFS that does not."""

    def fail(*_: object, **__: object) -> None:
        assert list(tmp_path.iterdir())
        raise MissingRequirementError("no", {}, "Look.")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(embedded.EmbeddedKafka, "_format", fail)
    with pytest.raises(MissingRequirementError), embedded.EmbeddedKafka(jars=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
