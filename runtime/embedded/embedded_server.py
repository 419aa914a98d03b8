"""Shared parts of embedded servers: data directory, format, use as a context manager."""

import abc
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from sluice.runtime.embedded.cache import require_directory
from sluice.runtime.embedded.start_timeout import FORMAT_TIMEOUT_S
from sluice.runtime.errors import MissingRequirementError

__all__ = ["CONSOLE_LOGGING", "EmbeddedServer"]

CONSOLE_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
"""Configuration of log4j."""


class EmbeddedServer(abc.ABC):
    """Used by one thread.

    Args:
        name: of the server, with its version.
        data_dir: of its data; None: a temporary directory.
    """

    def __init__(self, name: str, data_dir: Path | None) -> None:
        self._name = name
        self._data_dir = data_dir
        self._scratch: Path | None = None

    @abc.abstractmethod
    def start(self) -> Self:
        """Start and wait until it answers; returns at once if it runs."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it in good order; its data is kept."""

    def close(self) -> None:
        """Stop, and delete the data of a temporary directory."""
        self.stop()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _directory(self) -> Path:
        if self._data_dir is not None:
            return require_directory(self._data_dir)
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="sluice-server-"))
        return self._scratch

    def _temporary(self) -> Path:
        """Directory for files that a JVM unpacks: a killed one's are deleted with its data."""
        made = self._directory() / "tmp"
        made.mkdir(exist_ok=True)
        return made

    def _format(self, command: Sequence[str]) -> None:
        """Run the program that formats a new data directory."""
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False
        )
        if answer.returncode:
            raise MissingRequirementError(
                f"{self._name} could not format its data directory",
                {
                    "data_dir": self._directory(),
                    "answer": (answer.stdout + answer.stderr)[-2000:],
                },
                "Check that the directory is writable, and empty or a server's own.",
            )
