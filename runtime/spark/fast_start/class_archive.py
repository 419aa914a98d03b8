"""Java's archive of Spark's loaded classes: finds it for a session, and runs Spark to write it.

Spark loads some 20,000 classes; an archive makes its start a third shorter.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sluice.runtime.embedded.ivy import pyspark_jars
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.shared_classes import Prepared, SharedClasses, writing_options
from sluice.runtime.errors import ConfigError, MissingRequirementError

__all__ = ["SparkClasses", "find_archive", "prepare_archive"]

_MAKE_S = 900.0
_PACKAGES = Path(__file__).parents[4]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkClasses:
    """The facts that decide which classes a session loads; Java compares the same ones.

    Attributes:
        java: the program that Spark's launcher will start.
        home: of Spark; contains ``jars``.
        configuration: the first entry of Spark's class path. Java shares no class after a directory
            with files.
    """

    java: Path
    home: Path
    configuration: Path

    @classmethod
    def of_this_process(cls) -> Self:
        """For a session that this process would create now.

        Raises:
            MissingRequirementError: there is no Java, or no Spark.
        """
        java_home = os.environ.get("JAVA_HOME")  # then Spark's launcher uses only this
        java = Path(java_home) / "bin" / "java" if java_home else Path(shutil.which("java") or "")
        if not java.is_file():
            raise MissingRequirementError(
                "Java was not found", {"JAVA_HOME": java_home or "unset"}, "Install Java."
            )
        own = os.environ.get("SPARK_HOME")
        # PySpark resolves links to its own home, but not in SPARK_HOME.
        home = Path(own) if own else pyspark_jars().parent.resolve()
        configuration = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
        return cls(java=java.resolve(), home=home, configuration=configuration)

    @property
    def is_shareable(self) -> bool:
        """Whether Java takes an archive for this class path at all."""
        return not self.configuration.is_dir() or not any(self.configuration.iterdir())

    @property
    def shared(self) -> SharedClasses:
        """The part that decides whether an archive fits."""
        places = (self.home, self.configuration)
        return SharedClasses(
            program="spark", java=self.java, places=places, jars=self.home / "jars"
        )


def find_archive() -> Path | None:
    """The archive for a session that this process would create now, if any; never raises."""
    try:
        classes = SparkClasses.of_this_process()
        return classes.shared.find() if classes.is_shareable else None
    except (OSError, MissingRequirementError):
        return None


def prepare_archive() -> Prepared:
    """Make the archive when there is none: half a minute, 180 MB in the user's cache.

    Raises:
        ConfigError: Spark's configuration directory prevents it.
        MissingRequirementError: no Java, or one that cannot write archives.
        UnreachableError: Spark did not end in time.
    """
    find_java()  # raises the typed error if there is none
    classes = SparkClasses.of_this_process()
    if not classes.is_shareable:
        raise ConfigError(
            "Java cannot share classes: the configuration directory has files",
            {"directory": classes.configuration},
            "Move these settings into the program, or point SPARK_CONF_DIR to an empty directory.",
        )
    return classes.shared.prepare(_run_workload, timeout_s=2 * _MAKE_S)


def _run_workload(archive: Path) -> None:
    from sluice.runtime.embedded.program import Program, ProgramSpec  # needs sluice-spark[local]

    options = " ".join(writing_options(archive))
    unset = {"HADOOP_CONF_DIR": "", "YARN_CONF_DIR": ""}  # directories on the class path
    spec = ProgramSpec(
        command=(sys.executable, "-m", "sluice.runtime.spark.fast_start.archive_workload"),
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
        if exit_code != 0 or not program.await_end(timeout_s=_MAKE_S):
            raise MissingRequirementError(
                "Spark did not run here, so its classes could not be archived",
                {"exit_code": exit_code, "log": "\n" + program.log_tail()},
                "Run a program with PySpark first; Sluice works without the archive.",
            )
