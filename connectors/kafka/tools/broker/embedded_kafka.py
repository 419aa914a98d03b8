"""A real single-node Kafka broker as a plain JVM process: for demos, tests and first steps.

Which of Java's archives of loaded classes an embedded broker uses.

A broker loads some 7,000 classes; from an archive this takes half the processor time.
"""

import base64
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_admin
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import await_controller
from sluice.connectors.kafka.tools.broker.broker_properties import (
    BrokerPorts,
    render,
    server_properties,
)
from sluice.runtime.embedded.embedded_server import CONSOLE_LOGGING, EmbeddedServer
from sluice.runtime.embedded.ivy import (
    Artifact,
    Bundle,
    fetch,
    pinned_checksums,
)
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports, is_free, require_free
from sluice.runtime.embedded.process import STOP_TIMEOUT_S, Identity, ServerProcess, ServerSpec
from sluice.runtime.embedded.shared_classes import SharedClasses, reading_options
from sluice.runtime.errors import ConfigError, MissingRequirementError, StreamError

__all__ = [
    "KAFKA_VERSION",
    "QUICK_START",
    "EmbeddedKafka",
    "broker_classes",
    "kafka_jars",
    "new_cluster_id",
    "sharing_options",
]

_CHOICES = (
    "-XX:SharedArchiveFile",
    "-XX:ArchiveClassesAtExit",
    "-XX:+AutoCreateSharedArchive",
    "-XX:AOT",
    "-Xshare",
)


def broker_classes(java: Path, jars: Path) -> SharedClasses:
    """The classes of a broker whose class path is all jars of one directory."""
    return SharedClasses(program="kafka", java=java, places=(jars,), jars=jars)


def sharing_options(java: Path, jars: Path, jvm_options: Sequence[str]) -> tuple[str, ...]:
    """Java options that name the archive, if there is one. Never raises: a start works without an
    archive.

    Args:
        jvm_options: if they set class sharing, no option is added.
    """
    if any(option.startswith(_CHOICES) for option in jvm_options):
        return ()
    found = broker_classes(java, jars).find()
    return reading_options(found) if found else ()


KAFKA_VERSION = "4.3.1"
_NAME = f"Kafka {KAFKA_VERSION}"
_READY = "Kafka Server started"
_START_ATTEMPTS = 3
_ANSWER_S = 60.0

QUICK_START: Sequence[str] = ("-Xms256m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVM options for the shortest start and a small footprint; not for a benchmark."""

# Setting up its log would take a third of a format.
_NO_LOG = "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory"


def kafka_jars() -> Path:
    """Directory with the broker's jars, downloaded at a user's first call."""
    bundle = Bundle(
        name=f"kafka-{KAFKA_VERSION}",
        artifacts=(
            Artifact(organisation="org.apache.kafka", name="kafka_2.13", version=KAFKA_VERSION),
            # The command line tools; their dependencies (Connect, Jersey) are not needed.
            Artifact(
                organisation="org.apache.kafka",
                name="kafka-tools",
                version=KAFKA_VERSION,
                transitive=False,
            ),
            # Without a binding for slf4j the broker logs nothing, not even that it is ready.
            Artifact(
                organisation="org.apache.logging.log4j", name="log4j-slf4j-impl", version="2.25.4"
            ),
        ),
        checksums=pinned_checksums(f"kafka-{KAFKA_VERSION}"),
    )
    return fetch(bundle)


class EmbeddedKafka(EmbeddedServer):
    """One KRaft broker and controller on 127.0.0.1; used by one thread.

    It dies with the process that started it, however it ends, unless ``detached``. `stop`,
    `kill` and a later `start` keep ports and data; `close` also deletes data in a temporary
    directory. As a context manager it starts and closes.

    Args:
        data_dir: of the broker's data; None: a temporary directory.
        port: of the plain text listener; None: any free one, kept over restarts.
        transaction_version: feature level 0, 1 or 2 for a new data directory.
        properties: server properties that override the defaults.
        jvm_options: heap and compiler settings. Unless they set class sharing, a broker uses the
            class archive of ``sluice kafka fetch``, if there is one.
        detached: the broker keeps running after this process ends.
        cluster_id: for a new data directory; None: any. Nodes of one cluster share it.
        jars: directory with the class path of another release; None: `kafka_jars`.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        transaction_version: int = 2,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = QUICK_START,
        detached: bool = False,
        cluster_id: str | None = None,
        jars: Path | None = None,
    ) -> None:
        if transaction_version not in (0, 1, 2):
            raise ConfigError(
                "Kafka has no such transaction.version",
                {"transaction_version": transaction_version},
                "Use 0, 1 or 2.",
            )
        super().__init__(_NAME, data_dir)
        self._port = port
        self._transaction_version = transaction_version
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._detached = detached
        self._cluster_id = cluster_id or new_cluster_id()
        self._jars = jars
        self._ports: BrokerPorts | None = None
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the plain text listener."""
        return f"{HOST}:{self._known_ports().plain}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        return self._running().pid

    @property
    def identity(self) -> Identity:
        """The running broker's process, so that another process can stop it later."""
        return Identity.of(self.pid)

    @property
    def log_path(self) -> Path:
        """The broker's log, over all its runs."""
        return self._directory() / "kafka.log"

    def is_running(self) -> bool:
        """Whether the broker's process lives."""
        return self._process is not None and self._process.is_running()

    def start(self) -> Self:
        """Start and wait until the broker answers; returns at once if it runs.

        Raises:
            MissingRequirementError: no Java, no jars, an occupied port, or no start in time.
        """
        if self.is_running():
            return self
        if self._port is not None or self._ports is not None:
            self._start_on(self._ports or self._choose_ports())
            return self
        for attempt in range(_START_ATTEMPTS):
            ports = self._choose_ports()
            try:
                self._start_on(ports)
                return self
            except MissingRequirementError:
                # Another process may have taken one between the choice and the start.
                taken = not all(map(is_free, (ports.plain, ports.controller)))
                if not taken or attempt == _START_ATTEMPTS - 1:
                    raise
        return self

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the broker in good order, by force after ``timeout_s``; data and ports are kept."""
        if self._process:
            self._process.stop(timeout_s=timeout_s)

    def kill(self) -> None:
        """End the broker as ``kill -9`` does; data and ports are kept."""
        if self._process:
            self._process.kill()

    def restart(self) -> Self:
        """Stop in good order and start on the same ports and data."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP)."""
        self._running().pause()

    def resume(self) -> None:
        """Resume a suspended broker."""
        self._running().resume()

    def _running(self) -> ServerProcess:
        if self._process is None or not self._process.is_running():
            raise MissingRequirementError(
                "the embedded broker is not running", {"data_dir": self._data_dir}, "Start it."
            )
        return self._process

    def _known_ports(self) -> BrokerPorts:
        if self._ports is None:
            raise MissingRequirementError(
                "the embedded broker has no port before its first start", {}, "Start it."
            )
        return self._ports

    def _choose_ports(self) -> BrokerPorts:
        plain, controller = free_ports(2)
        return BrokerPorts(plain=self._port or plain, controller=controller)

    def _start_on(self, ports: BrokerPorts) -> None:
        require_free(ports.plain, server=_NAME)
        java, jars, directory = find_java(), self._jars or kafka_jars(), self._directory()
        properties = self._server_properties(directory, ports)
        properties_file = _write_private(directory / "server.properties", render(properties))
        (directory / "log4j2.properties").write_text(CONSOLE_LOGGING, encoding="ascii")
        jvm = (
            str(java.executable),
            *sharing_options(java.executable, jars, self._jvm_options),
            *self._jvm_options,
            f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
            f"-Djava.io.tmpdir={self._temporary()}",
            *("-cp", f"{jars}/*"),
        )
        if not (directory / "data" / "meta.properties").exists():
            arguments = self._format_arguments(properties_file)
            self._format([*jvm, _NO_LOG, "kafka.tools.StorageTool", *arguments])
        process = ServerProcess(
            ServerSpec(
                name=_NAME,
                command=(*jvm, "kafka.Kafka", str(properties_file)),
                log_path=self.log_path,
                ready_text=_READY,
                scratch_dir=self._scratch,
                detached=self._detached,
            )
        )
        process.start()
        try:
            if "broker" in properties["process.roles"]:  # a controller serves only brokers
                _await_controller(f"{HOST}:{ports.plain}")
        except BaseException:  # also after an interrupt: the process would be lost
            process.kill()
            raise
        self._process, self._ports = process, ports

    def _server_properties(self, directory: Path, ports: BrokerPorts) -> dict[str, str]:
        return server_properties(
            ports=ports, log_dir=directory / "data", overrides=self._properties
        )

    def _format_arguments(self, properties_file: Path) -> list[str]:
        """Arguments of ``kafka-storage format``: only they set feature levels."""
        # One argument with "=": one id in 64 starts with a dash.
        arguments = ["format", f"--cluster-id={self._cluster_id}", "--config", str(properties_file)]
        return [*arguments, "--feature", f"transaction.version={self._transaction_version}"]


def _await_controller(servers: str) -> None:
    admin = make_admin(KafkaConnection(bootstrap_servers=servers).librdkafka(Role.ADMIN))
    try:
        await_controller(admin, {"servers": servers}, timeout_s=_ANSWER_S)
    except StreamError as err:
        raise MissingRequirementError(
            f"{_NAME} started, and does not answer requests",
            {"servers": servers, "error": err},
            "Read its log, kafka.log; with a data directory it is kept.",
        ) from err


def new_cluster_id() -> str:
    """A cluster id in Kafka's form: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def _write_private(path: Path, text: str) -> Path:
    """Write a file that only this user may read, because it holds passwords."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path
