"""Java's archives of loaded classes (class data sharing): their key, their location, how to make
them.

The start of a JVM program is bound by the processor: it reads and checks thousands of classes. An
archive of them removes much of that work. It fits one Java and one class path; Java itself detects
that it does not fit, and loads the classes as usual.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.embedded.cache import cache_dir, exclusive
from sluice.runtime.errors import MissingRequirementError

__all__ = ["SILENT", "Prepared", "SharedClasses", "reading_options", "writing_options"]

SILENT = ("-Xlog:cds*=off", "-Xlog:class+path*=off")
"""Java options that hide complaints about an archive that does not fit."""

_KEPT = 4  # for Javas, or environments, that are used alternately


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Path of the archive, and the time it took to make it; None: it already existed."""

    path: Path
    elapsed_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedClasses:
    """The set of classes that a program loads; Java compares the same things.

    Attributes:
        program: first part of the archive's name, e.g. ``spark``; the newest archives of each
            program are kept.
        java: that loads them, links resolved.
        places: directories of the class path.
        jars: the directory of its jars.
    """

    program: str
    java: Path
    places: tuple[Path, ...]
    jars: Path

    def archive_name(self, size_bytes: int | str) -> str:
        """Changes with everything that makes Java refuse an archive.

        It includes the size because Java 17 crashes on a truncated archive.
        """
        jars = sorted(self.jars.glob("*.jar"))
        newest = max((jar.stat().st_mtime_ns for jar in jars), default=0)
        java = (self.java, self.java.stat().st_mtime_ns, os.uname().machine)
        parts = (*java, *self.places, len(jars), newest)
        fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return f"{self.program}-classes-{fingerprint}-{size_bytes}.jsa"

    def find(self) -> Path | None:
        """The whole archive in the user's cache, if there is one. No errors."""
        with contextlib.suppress(OSError):
            found = self._find()
            if found is not None:
                with contextlib.suppress(PermissionError):  # of another user
                    os.utime(found)  # in use: older ones are deleted first
            return found
        return None

    def prepare(self, run: Callable[[Path], None], *, timeout_s: float) -> Prepared:
        """Make the archive if it is missing. One process makes it, others wait for it.

        Args:
            run: runs the program, which writes the archive at its end to the given path; the
                directory of that path is for this run alone.
            timeout_s: longest wait for another process that makes one.
        Raises:
            MissingRequirementError: Java wrote no archive, another process took too long, or the
                cache cannot be written to.
        """
        with exclusive(cache_dir() / f"{self.program}-classes.lock", timeout_s=timeout_s):
            found = self._find()
            if found is not None:
                return Prepared(path=found, elapsed_s=None)
            begun_s = time.monotonic()
            path = self._make(run)
            self._drop_old()
            return Prepared(path=path, elapsed_s=time.monotonic() - begun_s)

    def _find(self) -> Path | None:
        for path in cache_dir().glob(self.archive_name("*")):
            if path.name == self.archive_name(path.stat().st_size):
                return path
        return None

    def _drop_old(self) -> None:
        archives = cache_dir().glob(f"{self.program}-classes-*.jsa")
        newest_first = sorted(archives, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in newest_first[_KEPT:]:
            path.unlink()

    def _make(self, run: Callable[[Path], None]) -> Path:
        scratch = f".{self.program}-classes-"
        for left in cache_dir().glob(f"{scratch}*"):  # of a killed process: the lock is ours
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=scratch) as directory:
            made = Path(directory) / "classes.jsa"
            run(made)
            if not made.exists():
                raise MissingRequirementError(
                    "this Java wrote no archive of its classes",
                    {"java": self.java, "program": self.program},
                    "Use a JDK with its own class archive; without one, only starts are slower.",
                )
            with made.open("rb") as file:
                os.fsync(file.fileno())
            return made.rename(cache_dir() / self.archive_name(made.stat().st_size))


def reading_options(archive: Path) -> tuple[str, ...]:
    """Java options of a program that takes its classes from the archive."""
    return (*SILENT, f"-XX:SharedArchiveFile={archive}")


def writing_options(archive: Path) -> tuple[str, ...]:
    """Java options of a program that writes an archive of its classes at a normal end."""
    return (*SILENT, f"-XX:ArchiveClassesAtExit={archive}")
