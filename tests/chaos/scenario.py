"""One life of a pipeline under fire: fed all along, killed again and again, finished, judged."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import await_readable
from sluice.runtime.checker import History, Payload
from sluice.runtime.embedded.program import ProgramSpec, command_of
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.feeder import Feeder
from tests.chaos.programs import Subject, Topics
from tests.chaos.published_files import DirectoryObserver, PublishedFiles
from tests.chaos.spark_start import spark_environment
from tests.kit.kafka.kafka_records import create_topic, unique
from tests.kit.kafka.topic_histories import read_history
from tests.kit.memory_checker import check_prefix
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import PATIENCE_S, wait_for

START_S = PATIENCE_S
"""Bound of a pipeline's start on a machine that is busy with other tests."""

_FINISH_S = PATIENCE_S
_SETTLE_S = PATIENCE_S
_PROGRESS = 200  # records
_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How small a scenario is.

    Attributes:
        partitions: of both topics.
        interval_s: from barrier to barrier.
        preload: records that are there before the first start.
        environment: for the program.
        master: Spark's; a continuous region keeps one of its cores busy.
        gone_s: bound from the driver's end to the end of all that it started.
    """

    partitions: int = 2
    interval_s: float = 0.3
    preload: int = 200
    environment: Mapping[str, str] = field(default_factory=dict)
    master: str = "local[2]"
    gone_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Start the program, and it dies at a failpoint.

    Attributes:
        failpoint: name.
        hit: at the how manieth time it is reached, from 1.
        action: see `sluice.runtime.failpoints`.
    """

    failpoint: str
    hit: int = 1
    action: str = "kill"

    def __str__(self) -> str:
        return f"{self.failpoint}={self.action}@{self.hit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReport:
    """What one start that ended in a kill did.

    Attributes:
        exit_code: of the driver; negative: the signal.
        seen_before, seen_after: records a read_committed reader had seen at start and end.
        elapsed_s: from the start to the end of the last process.
    """

    kill: str
    exit_code: int
    seen_before: int
    seen_after: int
    elapsed_s: float


class Scenario:
    """Topics, checkpoint directory, feeder and observer of one pipeline over all its attempts.

    Used as a context manager, by one thread; nothing is left running after it.
    """

    def __init__(
        self,
        subject: Subject,
        bootstrap: str,
        directory: Path,
        setting: Setting | None = None,
        *,
        output: str | None = None,
        files: PublishedFiles | None = None,
        checkpoint_uri: str | None = None,
    ) -> None:
        self.subject = subject
        self.setting = setting or Setting()
        self.reports: list[KillReport] = []
        self.checkpoint = directory / "checkpoint"
        self._checkpoint_uri = checkpoint_uri
        self._bootstrap = bootstrap
        self._directory = directory
        spark_environment()  # made once, and not while a pipeline is waited for
        source = create_topic(bootstrap, unique("chaos-in"), partitions=self.setting.partitions)
        output = output or create_topic(
            bootstrap, unique("chaos-out"), partitions=self.setting.partitions
        )
        connection = KafkaConnection(bootstrap_servers=bootstrap)
        self.topics = Topics(
            connection=connection,
            source=source,
            output=output,
            files=files or _local_files(directory),
        )
        payload = Payload(topic=source, run="chaos", partitions=self.setting.partitions)
        self.feeder = Feeder(bootstrap, payload)
        self._seen = History()
        self.observer = Observer(connection, output, seen=self._seen)
        self.files_observer = DirectoryObserver(self.topics.files)
        self._programs: list[MortalProgram] = []

    def __enter__(self) -> Self:
        self.feeder.send(self.setting.preload)
        self.feeder.flush()
        self.feeder.__enter__()
        self.observer.__enter__()
        self.files_observer.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # one that has failed leaves no other thread after
            for program in self._programs:
                stack.callback(program.kill)
            for thread in (self.files_observer, self.observer, self.feeder):
                stack.callback(thread.close)

    @property
    def checkpoint_uri(self) -> str:
        """Of the checkpoint directory, which may be elsewhere than on this machine."""
        return self._checkpoint_uri or str(self.checkpoint)

    def start(
        self, *, failpoints: str = "", until_end: bool = False, arguments: Sequence[str] = ()
    ) -> MortalProgram:
        """Start the program once more over the same topics and checkpoint directory."""
        flags = ["--until-end"] if until_end else []
        if self.subject.writes_files:
            flags += ["--path", self.topics.files.uri]
        if self.subject.writes_topic:
            flags += ["--output", self.topics.output]
        command = command_of(
            sys.executable,
            self.subject.script,
            [
                *("--bootstrap", self._bootstrap, "--input", self.topics.source),
                *("--checkpoint", self.checkpoint_uri),
                *("--interval", str(self.setting.interval_s), "--master", self.setting.master),
                *flags,
                *arguments,
            ],
        )
        environment = {
            **spark_environment(),
            **self.subject.environment,
            **self.setting.environment,
            VARIABLE: failpoints,
        }
        program = MortalProgram(
            ProgramSpec(
                command=command,
                # Of its own: of two that run at a time each is asked what it has said.
                log_path=self._directory / f"pipeline-{len(self._programs)}.log",
                environment=environment,
                working_dir=self._directory,
            )
        )
        self._programs.append(program)
        return program

    def kill_at(
        self,
        kill: Kill,
        *,
        arguments: Sequence[str] = (),
        on_progress: Callable[[], None] | None = None,
    ) -> KillReport:
        """Start, and wait until the failpoint has ended everything.

        Args:
            on_progress: called each time that readers have seen more.
        """
        before = self.observer.total
        program = self.start(failpoints=str(kill), arguments=arguments)
        while on_progress is not None and program.exit_code is None:
            more = self.observer.total + _PROGRESS
            wait_for(
                lambda: program.exit_code is not None or self.observer.total >= more,  # noqa: B023
                timeout_s=START_S,
                what=f"{kill}, or {more} records",
            )
            on_progress()
        exit_code = program.await_exit(timeout_s=START_S)
        # Anything else, an error too, is another end than the one that was asked for.
        assert exit_code == -signal.SIGKILL, f"{kill}: {exit_code}\n{program.log_tail()}"
        self._await_gone(program, str(kill))
        report = KillReport(
            kill=str(kill),
            exit_code=exit_code,
            seen_before=before,
            seen_after=self.observer.total,
            elapsed_s=time.monotonic() - program.started_s,
        )
        self.reports.append(report)
        return report

    def finish(self, *, arguments: Sequence[str] = ()) -> None:
        """Feed no more, let the program run to the end, and judge what it left."""
        self.feeder.close()
        program = self.start(until_end=True, arguments=arguments)
        exit_code = program.await_exit(timeout_s=_FINISH_S)
        assert exit_code == 0, f"exit code {exit_code} of a clean run:\n{program.log_tail()}"
        self._await_gone(program, "a clean run")
        self.judge()

    def finish_running(self, program: MortalProgram) -> None:
        """Feed no more, let the running program write the rest, end it as Ctrl-C does, and judge.

        For a program that writes a record for each one it reads; it must have lived all along. One
        that leaves something to a later run is given that run.
        """
        self.feeder.close()

        def all_seen() -> bool:
            assert program.exit_code is None, program.log_tail()
            return self.observer.total >= self.feeder.sent

        wait_for(all_seen, timeout_s=_FINISH_S, what="the rest of the records")
        program.interrupt()
        exit_code = program.await_exit(timeout_s=_FINISH_S)
        assert exit_code == _INTERRUPTED, f"exit code {exit_code}:\n{program.log_tail()}"
        self._await_gone(program, "an interrupted run")
        if self.subject.holds_back:
            self.finish()
        else:
            self.judge()

    def judge(self) -> None:
        """0 lost, 0 duplicated, 0 unexpected, order kept; and the observer saw a prefix."""
        await_readable(self.topics.connection, self.topics.output, timeout_s=_SETTLE_S)
        verdict = self.subject.judge(self.topics)
        assert verdict.is_clean, f"{verdict}\n{self.story()}"
        final = read_history(self.topics.connection, self.topics.output)
        self.observer.await_total(len(final), timeout_s=_SETTLE_S)
        prefix = check_prefix(self._seen, final)
        assert prefix.is_clean, f"{prefix}\n{self.story()}"
        self.files_observer.close()
        assert not self.files_observer.faults, f"{self.files_observer.faults}\n{self.story()}"

    def story(self) -> str:
        """What happened so far, for the message of a failure."""
        return "\n".join(map(str, self.reports))

    def _await_gone(self, program: MortalProgram, after: str) -> None:
        gone = program.await_end(timeout_s=self.setting.gone_s)
        assert gone, f"left behind by {after}: {program.members()}"


def survive(subject: Subject, kafka: EmbeddedKafka, directory: Path, kills: list[Kill]) -> None:
    """Start and be killed, once for each kill; then run to the end and be judged."""
    with Scenario(subject, kafka.bootstrap, directory) as scenario:
        for kill in kills:
            scenario.kill_at(kill)
        scenario.finish()


def _local_files(directory: Path) -> PublishedFiles:
    return PublishedFiles(fs=open_file_system(str(directory / "data")), name="files")
