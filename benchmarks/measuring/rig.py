"""The broker and the programs under measurement."""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring import topics
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.topic_history import EndWatch, topic_ends
from sluice.runtime.embedded.program import Program, ProgramSpec, command_of

__all__ = ["PARTITIONS", "Rig", "Running", "open_rig", "wait_until"]

PARTITIONS = 4

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAMS = _ROOT / "benchmarks" / "programs"
_POLL_S = 0.05
_JOBS = ("pipeline", "regional_pipeline", "keyed_pipeline")
# A production broker with both JIT compilers, because it shares the two cores with the program.
_BROKER_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A broker for the whole benchmark, and a directory for all files."""

    connection: KafkaConnection
    bootstrap: str
    directory: Path
    broker_pid: int

    def broker_cpu_s(self) -> float:
        """CPU time of the broker so far."""
        return float(sum(psutil.Process(self.broker_pid).cpu_times()[:2]))

    @contextlib.contextmanager
    def run(
        self,
        script: str,
        source: str,
        output: str,
        arguments: Sequence[str] = (),
        *,
        tree: Path | None = None,
    ) -> Iterator["Running"]:
        """A program of `benchmarks.programs` over two topics, killed at the end; ``tree``: another
        checkout of Sluice."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        with self.start(script, source, output, directory, arguments, tree=tree) as running:
            yield running

    def start(
        self,
        script: str,
        source: str,
        output: str,
        directory: Path,
        arguments: Sequence[str] = (),
        *,
        tree: Path | None = None,
    ) -> "Running":
        """As `run`, over the directory of an earlier run or a new one; the caller kills it."""
        common = ["--bootstrap", self.bootstrap, "--input", source, "--output", output]
        if script in _JOBS:
            common += ["--checkpoint", str(directory / "checkpoint")]
            common += ["--progress", str(directory / "progress")]
        program = _program(script, directory, [*common, *arguments], tree=tree or _ROOT)
        return Running(program=program, rig=self, source=source, output=output, directory=directory)

    def start_plain(self, directory: Path) -> Program:
        """Spark only, over a new directory; a context that kills it."""
        return _program("plain_start", directory, ["--checkpoint", str(directory / "checkpoint")])


def _program(
    script: str, directory: Path, arguments: Sequence[str], *, tree: Path = _ROOT
) -> Program:
    return Program(
        ProgramSpec(
            command=command_of(sys.executable, _PROGRAMS / f"{script}.py", arguments),
            log_path=directory / "log",
            environment={"PYTHONPATH": str(tree), "SPARK_LOCAL_IP": "127.0.0.1"},
            working_dir=directory,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running program; a context that kills it."""

    program: Program
    rig: Rig
    source: str
    output: str
    directory: Path

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()

    def copy_more(self, count: int, *, value_bytes: int = 100) -> None:
        """Append to the input while the program is paused; wait until it has copied all records."""
        self.program.pause()
        goal = self._visible() + count
        topics.fill(
            self.rig.connection, self.source, count, value_bytes=value_bytes, partitions=PARTITIONS
        )
        self.program.resume()
        self.await_committed(goal)

    def await_committed(self, goal: int, *, timeout_s: float = 180.0) -> None:
        """Wait until the sum of the output's visible end offsets is ``goal``."""
        watch = EndWatch(self.rig.connection, self.output)

        def seen() -> bool:
            found = watch.now()
            return found.is_settled and sum(found.stable.values()) >= goal

        wait_until(seen, program=self.program, timeout_s=timeout_s)

    def _visible(self) -> int:
        return sum(topic_ends(self.rig.connection, self.output).stable.values())

    def progress(self) -> list[dict[str, Any]]:
        """Every change of a checkpoint so far."""
        return _lines(self.directory / "progress")

    def events(self) -> list[dict[str, Any]]:
        """Every warning of the job so far, if the program writes them."""
        return _lines(self.directory / "events")

    def epochs_s(self) -> list[float]:
        """Seconds of each epoch with records, from its barrier to its completion marker."""
        return [line["marked_s"] for line in self.progress() if line["marked_s"] is not None]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON without the last one, which may be incomplete."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_until(condition: Callable[[], bool], *, program: Program, timeout_s: float) -> None:
    """Wait; raises an error with the log if the program ends meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if program.exit_code is not None or time.monotonic() > deadline:
            raise RuntimeError(f"ended or too slow:\n{program.log_tail()}")
        time.sleep(_POLL_S)  # another process's work gives no event to wait for


@contextlib.contextmanager
def open_rig() -> Iterator[Rig]:
    """Start the broker; deletes all files at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        EmbeddedKafka(jvm_options=_BROKER_JVM) as broker,
    ):
        yield Rig(
            connection=KafkaConnection(bootstrap_servers=broker.bootstrap),
            bootstrap=broker.bootstrap,
            directory=Path(directory),
            broker_pid=broker.pid,
        )
