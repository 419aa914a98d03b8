"""A real schema registry as a plain JVM process: Apicurio 2, by its Confluent-compatible API.

Fetched once per user, with a checksum pinned beside the tests. Version 3 needs Java 21.
"""

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import QUICK_START
from sluice.runtime.embedded.cache import cache_dir, exclusive
from sluice.runtime.embedded.embedded_server import EmbeddedServer
from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports, is_free, require_free
from sluice.runtime.embedded.process import ServerProcess, ServerSpec
from sluice.runtime.errors import MissingRequirementError

_VERSION = "2.6.13.Final"
_NAME = f"Apicurio Registry {_VERSION}"
_CHECKSUMS = Path(__file__).parents[2] / "data" / "apicurio-registry-2.6.13.sha256"
_READY = "Installed features:"
_START_ATTEMPTS = 3
_UNPACK_S = 600.0


def registry_program() -> Path:
    """Directory of the unpacked server; fetched at the first call of a user (142 MB)."""
    bundle = Bundle(
        name=f"apicurio-registry-{_VERSION}",
        artifacts=(
            Artifact(
                organisation="io.apicurio",
                name="apicurio-registry-app",
                version=_VERSION,
                transitive=False,
                archive=("all", "tar.gz"),
            ),
        ),
        checksums=parse_checksums(_CHECKSUMS.read_text("ascii")),
    )
    target = cache_dir() / f"{bundle.name}-program"
    if not target.is_dir():
        (archive,) = fetch(bundle).glob("*.tar.gz")
        with exclusive(target.with_suffix(".lock"), timeout_s=_UNPACK_S):
            if not target.is_dir():
                _unpack(archive, target)
    return target


def _unpack(archive: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "made"
        with tarfile.open(archive) as files:
            files.extractall(made, filter="data")
        made.rename(target)


class EmbeddedRegistry(EmbeddedServer):
    """A schema registry on 127.0.0.1; used by one thread.

    It dies with the process that started it. `stop`, `kill` and a later `start` keep its port and
    its schemas with their ids; `close` deletes them. As a context manager it starts and closes.
    """

    def __init__(self) -> None:
        super().__init__(_NAME, None)
        self._port: int | None = None
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The address of the Confluent-compatible API."""
        return f"http://{HOST}:{self._port}/apis/ccompat/v7"

    @property
    def log_path(self) -> Path:
        """The log, over all its runs."""
        return self._directory() / "registry.log"

    def is_running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.is_running()

    def start(self) -> Self:
        if self.is_running():
            return self
        if self._port is not None:
            self._process = self._start_on(self._port)
            return self
        for attempt in range(_START_ATTEMPTS):
            (port,) = free_ports(1)
            try:
                self._process, self._port = self._start_on(port), port
                break
            except MissingRequirementError:
                # Another process may have taken it between the choice and the start.
                if is_free(port) or attempt == _START_ATTEMPTS - 1:
                    raise
        return self

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    def kill(self) -> None:
        """End it as ``kill -9`` does; port and schemas are kept."""
        if self._process:
            self._process.kill()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): it accepts connections and does not answer."""
        if self._process:
            self._process.pause()

    def resume(self) -> None:
        """Resume a suspended server."""
        if self._process:
            self._process.resume()

    def _start_on(self, port: int) -> ServerProcess:
        require_free(port, server=_NAME)
        (jar,) = registry_program().glob("*-runner.jar")
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": port,
            # In memory it would forget the ids with each stop.
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self._directory() / 'registry'}",
            "quarkus.datasource.jdbc.initial-size": 2,
            "quarkus.datasource.jdbc.min-size": 2,
            "registry.rest.artifact.deletion.enabled": "true",
            "java.io.tmpdir": self._temporary(),
        }
        process = ServerProcess(
            ServerSpec(
                name=_NAME,
                command=(
                    str(find_java().executable),
                    *QUICK_START,
                    *(f"-D{name}={value}" for name, value in settings.items()),
                    *("-jar", str(jar)),
                ),
                log_path=self.log_path,
                ready_text=_READY,
                scratch_dir=self._scratch,
            )
        )
        process.start()
        return process


@pytest.fixture(scope="session")
def registry_server() -> Iterator[EmbeddedRegistry]:
    """The session's schema registry; a test that stops or freezes it starts it again."""
    with EmbeddedRegistry() as server:
        yield server
