"""Environments of the peers, fetched once per user into the cache, never into this project's venv.

Each peer has a virtual environment of pinned Python packages. The resolver that fetches the servers
also fetches jars, with pinned checksums.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sluice.connectors.kafka.client.confluent import librdkafka_path
from sluice.runtime.embedded.cache import cache_dir, exclusive
from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums, report_to_stderr
from sluice.runtime.embedded.java import find_java
from sluice.runtime.errors import MissingRequirementError

__all__ = [
    "FLINK",
    "FLINK_CONNECTOR",
    "ICEBERG",
    "KAFKA_STREAMS",
    "PROGRAMS",
    "QUIX",
    "SPARK",
    "SPARK_KAFKA",
    "SPARK_KAFKA_OF_ICEBERG",
    "SPARK_OF_ICEBERG",
    "compiled",
    "compiled_c",
    "flink_jars",
    "jars",
    "python",
]

FLINK = "flink-2.2.1"
QUIX = "quix-3.28.1"
SPARK = "spark-4.2.0"
FLINK_CONNECTOR = "flink-sql-connector-kafka-5.0.0-2.2"
KAFKA_STREAMS = "kafka-streams-4.3.1"
SPARK_KAFKA = "spark-sql-kafka-4.2.0"
ICEBERG = "iceberg-spark-runtime-1.12.0"
SPARK_OF_ICEBERG = "spark-4.1.1"
"""Iceberg's newest jar is for Spark 4.1."""

SPARK_KAFKA_OF_ICEBERG = "spark-sql-kafka-4.1.1"

PROGRAMS = Path(__file__).with_name("programs")

_PINS = Path(__file__).with_name("pins")
_TIMEOUT_S = 1800.0
_ARTIFACTS = {
    FLINK_CONNECTOR: Artifact(
        organisation="org.apache.flink", name="flink-sql-connector-kafka", version="5.0.0-2.2"
    ),
    KAFKA_STREAMS: Artifact(organisation="org.apache.kafka", name="kafka-streams", version="4.3.1"),
    SPARK_KAFKA: Artifact(
        organisation="org.apache.spark", name="spark-sql-kafka-0-10_2.13", version="4.2.0"
    ),
    SPARK_KAFKA_OF_ICEBERG: Artifact(
        organisation="org.apache.spark", name="spark-sql-kafka-0-10_2.13", version="4.1.1"
    ),
    ICEBERG: Artifact(
        organisation="org.apache.iceberg",
        name="iceberg-spark-runtime-4.1_2.13",
        version="1.12.0",
        transitive=False,
    ),
}


@cache
def jars(name: str) -> Path:
    """The directory of the jars of an artifact above and of its dependencies.

    Raises:
        MissingRequirementError: a download failed; says why.
    """
    pinned = parse_checksums((_PINS / f"{name}.sha256").read_text("ascii"))
    return fetch(Bundle(name=name, artifacts=(_ARTIFACTS[name],), checksums=pinned))


@cache
def python(name: str) -> Path:
    """The interpreter of a peer's virtual environment; the first call of a user makes it.

    Raises:
        MissingRequirementError: pip failed, or does not support this Python; says why.
    """
    pins = _PINS / f"{name}.txt"
    home = cache_dir() / "peers" / name
    interpreter, stamp = home / "bin" / "python", home / ".whole"
    mark = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    with exclusive(home.with_suffix(".lock"), timeout_s=_TIMEOUT_S):
        if not (stamp.exists() and stamp.read_text("ascii") == mark):
            report_to_stderr(f"Installing {name} with pip, once per user, to {home}")
            if home.exists():  # incomplete, or with other versions
                shutil.rmtree(home)
            _run([sys.executable, "-m", "venv", str(home)], name)
            pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install"]
            _run([*pip, "--quiet", "--no-deps", "--requirement", str(pins)], name)
            stamp.write_text(mark, "ascii")
    return interpreter


def flink_jars() -> Path:
    """The directory of the Flink distribution that its Python package contains."""
    return next((python(FLINK).parents[1] / "lib").glob("python3*/site-packages/pyflink/lib"))


@cache
def compiled(program: str, class_path: Sequence[Path]) -> Path:
    """The directory of the compiled classes of a Java program.

    Args:
        class_path: directories of jars.
    Raises:
        MissingRequirementError: there is no ``javac``, or it failed.
    """
    source = PROGRAMS / f"{program}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = cache_dir() / "peers" / f"{program}-{digest}"
    if not (target / f"{program}.class").exists():
        javac = find_java().executable.with_name("javac")
        joined = os.pathsep.join(f"{directory}/*" for directory in class_path)
        _run([str(javac), "-cp", joined, "-d", str(target), str(source)], program)
    return target


@cache
def compiled_c(program: str) -> Path:
    """The executable of a C program, linked with the librdkafka of confluent-kafka.

    Raises:
        MissingRequirementError: there is no C compiler or no such library, or it failed.
    """
    source, library = PROGRAMS / f"{program}.c", librdkafka_path()
    if library is None:
        raise MissingRequirementError(
            f"{program} could not be made ready",
            {"cause": "confluent-kafka contains no librdkafka"},
            "Install confluent-kafka from its wheel.",
        )
    digest = hashlib.sha256(source.read_bytes() + bytes(library)).hexdigest()[:16]
    target = cache_dir() / "peers" / f"{program}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        options = ["-O2", "-pthread", f"-Wl,-rpath,{library.parent}"]
        _run(["cc", *options, "-o", str(target), str(source), str(library)], program)
    return target


def _run(command: Sequence[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        errors = [line for line in lines if "error" in line.lower()]
        raise MissingRequirementError(
            f"{name} could not be made ready",
            {"command": Path(command[0]).name, "output": (errors or lines)[-1].strip()},
            "Give the first run access to pip's index and Maven Central, and install a JDK.",
        )
