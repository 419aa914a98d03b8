"""Java's archive of Spark's loaded classes (class data sharing): what it fits, and its making.

Spark's start is bound by the processor: the JVM reads and checks some 20,000 classes. An archive
of them takes a third of that away. It fits one Java and one set of jars; Java tells by itself
that it does not fit, and loads the classes as ever.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from runtime.embedded.cache import cache_dir, exclusive
from runtime.embedded.ivy import pyspark_jars
from runtime.embedded.java import find_java
from runtime.embedded.program import Program, ProgramSpec
from runtime.errors import ConfigError, MissingRequirementError

__all__ = ["SILENT", "Prepared", "SparkClasses", "find_archive", "prepare_archive"]

SILENT = "-Xlog:cds*=off -Xlog:class+path*=off"
"""Java options against complaints about an archive that does not fit."""

_MAKE_S = 900.0
_KEPT = 4  # for Javas, or environments, that are used in turn
_PACKAGES = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkClasses:
    """Which classes a session loads; Java compares the same things.

    Attributes:
        java: the program that Spark's launcher will start.
        home: of Spark, with ``jars`` in it.
        configuration: the first entry of Spark's class path. Java shares nothing behind a
            directory that holds files.
    """

    java: Path
    home: Path
    configuration: Path

    @classmethod
    def of_this_process(cls) -> Self:
        """What a session made by this process now would load.

        Raises:
            MissingRequirementError: there is no Java, or no Spark.
        """
        java_home = os.environ.get("JAVA_HOME")  # Spark's launcher looks nowhere else then
        java = Path(java_home) / "bin" / "java" if java_home else Path(shutil.which("java") or "")
        if not java.is_file():
            raise MissingRequirementError(
                "Java was not found", {"JAVA_HOME": java_home or "unset"}, "Install Java."
            )
        own = os.environ.get("SPARK_HOME")
        # PySpark follows links to its own home, but takes a given one as it is.
        home = Path(own) if own else pyspark_jars().parent.resolve()
        configuration = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
        return cls(java=java.resolve(), home=home, configuration=configuration)

    @property
    def is_shareable(self) -> bool:
        """Whether Java takes an archive for this class path at all."""
        return not self.configuration.is_dir() or not any(self.configuration.iterdir())

    def archive_name(self, size_bytes: int | str) -> str:
        """Changes with everything that makes Java refuse an archive.

        The size is a part of it because Java 17 dies of an archive that was cut short.
        """
        jars = sorted((self.home / "jars").glob("*.jar"))
        newest = max((jar.stat().st_mtime_ns for jar in jars), default=0)
        java = (self.java, self.java.stat().st_mtime_ns, os.uname().machine)
        parts = (*java, self.home, self.configuration, len(jars), newest)
        fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return f"spark-classes-{fingerprint}-{size_bytes}.jsa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Where the archive is, and how long its making took; None: it was there."""

    path: Path
    elapsed_s: float | None


def find_archive() -> Path | None:
    """The whole archive for a session made by this process now, if there is one. No errors."""
    try:
        classes = SparkClasses.of_this_process()
        found = _find(classes) if classes.is_shareable else None
        if found is not None:
            with contextlib.suppress(PermissionError):  # somebody else's
                os.utime(found)  # in use, so others are dropped before it
        return found
    except (OSError, MissingRequirementError):
        return None


def prepare_archive() -> Prepared:
    """Make the archive when there is none: half a minute, 180 MB in the user's cache.

    Raises:
        ConfigError: Spark's configuration directory stands in the way.
        MissingRequirementError: no Java, or one that cannot write archives.
        UnreachableError: Spark did not end in time.
    """
    find_java()  # the typed error, where there is none
    classes = SparkClasses.of_this_process()
    if not classes.is_shareable:
        raise ConfigError(
            "Java shares no classes behind a configuration directory with files",
            {"directory": classes.configuration},
            "Give these settings in the program, or let SPARK_CONF_DIR name an empty directory.",
        )
    with exclusive(cache_dir() / "spark-classes.lock", timeout_s=2 * _MAKE_S):
        found = _find(classes)
        if found is not None:
            return Prepared(path=found, elapsed_s=None)
        begun_s = time.monotonic()
        path = _make(classes)
        _drop_old()
        return Prepared(path=path, elapsed_s=time.monotonic() - begun_s)


def _find(classes: SparkClasses) -> Path | None:
    for path in cache_dir().glob(classes.archive_name("*")):
        if path.name == classes.archive_name(path.stat().st_size):
            return path
    return None


def _drop_old() -> None:
    archives = cache_dir().glob("spark-classes-*.jsa")
    newest_first = sorted(archives, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in newest_first[_KEPT:]:
        path.unlink()


def _make(classes: SparkClasses) -> Path:
    with tempfile.TemporaryDirectory(dir=cache_dir()) as directory:
        made = Path(directory) / "classes.jsa"
        _run_workload(made)
        if not made.exists():
            raise MissingRequirementError(
                "this Java wrote no archive of its classes",
                {"java": classes.java},
                "Use a JDK with its own class archive; Sluice works without, Spark starts slower.",
            )
        with made.open("rb") as file:
            os.fsync(file.fileno())
        return made.rename(cache_dir() / classes.archive_name(made.stat().st_size))


def _run_workload(archive: Path) -> None:
    options = f"-XX:ArchiveClassesAtExit={archive} {SILENT}"
    unset = {"HADOOP_CONF_DIR": "", "YARN_CONF_DIR": ""}  # directories on the class path
    spec = ProgramSpec(
        command=(sys.executable, "-m", "runtime.spark.archive_workload"),
        log_path=archive.with_name("log"),
        environment={
            **unset,
            "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{options}' pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(_PACKAGES), os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        working_dir=archive.parent,
    )
    with Program(spec) as program:
        exit_code = program.await_exit(timeout_s=_MAKE_S)
        # Java writes the archive after the driver's end.
        if exit_code != 0 or not program.await_gone(timeout_s=_MAKE_S):
            raise MissingRequirementError(
                "Spark did not run here, so its classes could not be archived",
                {"exit_code": exit_code, "log": "\n" + program.log_tail()},
                "Run a program with PySpark first; Sluice works without the archive.",
            )
