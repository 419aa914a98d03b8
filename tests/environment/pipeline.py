"""The job of one round: the bed feeds, watches and restarts it, and judges its output."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import await_readable, topic_ends
from sluice.runtime.checker import Payload
from sluice.runtime.errors import StreamError
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.feeder import Feeder
from tests.chaos.programs import Topics
from tests.chaos.published_files import PublishedFiles
from tests.environment.cluster import DRIVERS, Bed
from tests.environment.containers import Container
from tests.environment.plan import (
    COORDINATORS,
    DRIVER,
    HOSTS,
    LEADER,
    QUORUM,
    TRANSACTION_TIMEOUT_S,
    ZOOKEEPERS,
)
from tests.environment.verdict import RoundVerdict, judge_all, judge_numbers, with_sight
from tests.environment.witness import Witness
from tests.kit.kafka.kafka_records import create_topic, unique
from tests.kit.kafka.topic_histories import read_history


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The kind of job in a round.

    Attributes:
        engine: that runs it.
        writes_files: writes files besides the topic.
        keyed: numbers the records of each key by a function with state, and does not copy them.
        may_lapse: the transaction timeout is `TRANSACTION_TIMEOUT_S`; False: the brokers' maximum.
        ha: how two coordinators of their own elect a leader, ``lease`` or ``zookeeper``; "": the
            driver is the coordinator.
    """

    engine: str
    writes_files: bool = False
    keyed: bool = False
    may_lapse: bool = False
    ha: str = ""

    @property
    def without(self) -> tuple[str, ...]:
        """Targets of faults that such a job does not have."""
        elected = (*ZOOKEEPERS, QUORUM)
        if not self.ha:
            return (*HOSTS, *COORDINATORS, LEADER, *elected)
        return (DRIVER,) if self.ha == "zookeeper" else (DRIVER, *elected)


SHAPES: Mapping[str, Shape] = {
    "copy": Shape(engine="continuous"),
    "both": Shape(engine="micro-batch", writes_files=True),
    "keyed": Shape(engine="continuous", keyed=True),
    "keyed-batches": Shape(engine="micro-batch", keyed=True),
    "copy-lapsing": Shape(engine="continuous", may_lapse=True),
    "both-lapsing": Shape(engine="micro-batch", writes_files=True, may_lapse=True),
    "led": Shape(engine="continuous", ha="zookeeper"),
    "led-lease": Shape(engine="continuous", ha="lease"),
}

PARTITIONS = 4
_REPAIR_LINE = b"lost transactions were written again"
_MARK_LINE = re.compile(rb"checkpoint=|.* INFO checkpoint committed: checkpoint_id=(\d+) ")
"""Of a driver's listener, or of a coordinator in a process of its own."""
_POLL_S = 0.1
_SETTLE_S = 300.0
_ENDS_S = 30.0
_STOP_S = 120
_PRELOAD = 100
_MOST_RESTARTS = 12
_ENDED_IN_ORDER = 128 + 15
_TAIL_LINES = 60


class BedFailureError(AssertionError):
    """The job did not recover, or its output is wrong."""


@dataclass(slots=True)
class Marks:
    """Counts lines of the programs' logs.

    Attributes:
        count: committed checkpoints.
        last: the newest checkpoint of each coordinator that has a process of its own.
        repairs: reports of repairs of transactions that a broker had aborted.
    """

    paths: dict[str, Path]
    read: dict[str, int] = field(default_factory=dict)
    count: int = 0
    repairs: int = 0
    last: dict[str, int] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read what is new."""
        for name, path in self.paths.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self.read.get(name, 0))
                new = file.read()
            whole = new.rfind(b"\n") + 1
            self.read[name] = self.read.get(name, 0) + whole
            lines = new[:whole].splitlines()
            marks = [found for line in lines if (found := _MARK_LINE.match(line))]
            self.count += len(marks)
            for found in marks:
                if found[1]:
                    self.last[name] = int(found[1])
            self.repairs += sum(_REPAIR_LINE in line for line in lines)


class Pipeline:
    """Topics, drivers, feeder and witness of one round. Used by one thread.

    The context starts and feeds the job; its end removes the drivers.

    Args:
        bed: must run.
        shape: of the job.
        hadoop: a JVM with Hadoop's client on the host, for files.

    Attributes:
        programs: containers of this round alone.
    """

    programs: tuple[str, ...] = DRIVERS

    def __init__(self, bed: Bed, shape: Shape, hadoop: Any) -> None:
        self.bed = bed
        self.shape = shape
        self.active = DRIVERS[0]
        self.expected_down: set[str] = set()
        self.restarts: list[str] = []
        self.connection = KafkaConnection(bootstrap_servers=bed.bootstrap)
        self.output = create_topic(bed.bootstrap, unique("bed-out"), partitions=PARTITIONS)
        self.source = create_topic(bed.bootstrap, unique("bed-in"), partitions=PARTITIONS)
        root = f"{bed.hdfs_uri}/{self.source}"
        self._checkpoint = f"{root}/checkpoint"
        self._files = PublishedFiles(fs=open_file_system(f"{root}/data", hadoop), name="files")
        payload = Payload(topic=self.source, run="bed", partitions=PARTITIONS)
        self.feeder = Feeder(bed.bootstrap, payload)
        self.witness = Witness(self.connection, self.output, partitions=PARTITIONS)
        logs = {name: bed.directory / f"{name}.log" for name in self.programs}
        self._marks = Marks(logs)
        self._restarts_left = _MOST_RESTARTS

    def __enter__(self) -> Self:
        self._marks.refresh()  # skips lines of earlier rounds
        self._marks.repairs = 0
        self._marks.last.clear()
        self.feeder.send(_PRELOAD)
        self.feeder.flush()
        self.feeder.__enter__()
        self.witness.__enter__()
        self._start()
        return self

    def _start(self) -> None:
        for name in DRIVERS:
            self.bed.make_driver(name, self._arguments())
        self.driver.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.bed.remove_programs()
        finally:
            self.witness.close()
            if error is None:
                self.feeder.close()

    @property
    def driver(self) -> Container:
        """The container of the active driver, whether it runs or not."""
        return self.bed.containers[self.active]

    @property
    def prefix(self) -> str:
        """The prefix of the job's transactional ids."""
        return f"bed-{self.output}"

    @property
    def standby(self) -> str:
        """The name of the driver that is not active."""
        return next(name for name in DRIVERS if name != self.active)

    @property
    def idle(self) -> tuple[str, ...]:
        """Containers that need not run."""
        return (self.standby,)

    @property
    def marks(self) -> int:
        """Checkpoints committed since the round began."""
        self._marks.refresh()
        return self._marks.count

    @property
    def repairs(self) -> int:
        """Decisions of this round whose transactions a timeout aborted, and the job repaired."""
        self._marks.refresh()
        return self._marks.repairs

    def resolve(self, target: str) -> str:
        """The name of the target's container; for ``driver``, that of the active one."""
        return self.active if target == "driver" else target

    def wait(
        self, done: Callable[[], bool], *, timeout_s: float, what: str, required: bool = True
    ) -> bool:
        """Wait, and meanwhile restart containers that no fault has ended.

        Raises:
            BedFailureError: the time is over and ``required`` is set.
        """
        deadline = time.monotonic() + timeout_s
        while not done():
            self._supervise()
            if time.monotonic() > deadline:
                if not required:
                    return False
                raise BedFailureError(f"not within {timeout_s:.0f} s: {what}\n{self.story()}")
            time.sleep(_POLL_S)  # other machines do the work
        return True

    def rest(self, seconds: float) -> None:
        """Let the job run for so long, with the active fault."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, timeout_s=2 * seconds + 60, what="time")

    def await_progress(self, *, timeout_s: float, what: str) -> tuple[float, float]:
        """Seconds to the next committed checkpoint, and until all partitions show a new record.

        Both begin with the call: a new record is one that was sent after it.
        """
        began_s = time.monotonic()
        marks, sent = self.marks, self.feeder.sent
        marked_s: list[float] = []

        def both() -> bool:
            if not marked_s and self.marks > marks:
                marked_s.append(time.monotonic() - began_s)
            return bool(marked_s) and self.witness.seen_at(_next_of_each(sent)) is not None

        self.wait(both, timeout_s=timeout_s, what=what)
        return marked_s[0], self.seen_at(sent) - began_s

    def seen_at(self, sent: int) -> float:
        """When, on the monotonic clock, each partition had shown a record after the first ``sent``
        ones. All of them must have."""
        found = self.witness.seen_at(_next_of_each(sent))
        assert found is not None
        return found

    def story(self) -> str:
        """Counts and log lines that help to understand a failure."""
        lines = [f"sent {self.feeder.sent}, seen {self.witness.total}, marks {self.marks}"]
        reader = self.witness
        lines += [f"its reader: {reader.replaced} clients replaced, {reader.hanging} hang"]
        lines += [self._ends()]
        lines += self.restarts[-_TAIL_LINES:]
        for name in self.programs:
            log = self.bed.directory / f"{name}.log"
            if name not in self.idle and log.exists():
                text = log.read_text(encoding="utf-8", errors="replace")
                lines += [f"{name}:", *text.splitlines()[-_TAIL_LINES:]]
        return "\n".join(lines)

    def _ends(self) -> str:
        """Of the output: whether an open transaction hides its records."""
        try:
            return str(topic_ends(self.connection, self.output, timeout_s=_ENDS_S))
        except StreamError as err:
            return f"the ends of the output are not known: {err}"

    def finish(self, *, timeout_s: float) -> RoundVerdict:
        """Stop the feeder, await the last records, end the job in order, and judge its output."""
        self.feeder.close()
        self.wait(
            lambda: self.witness.seen_at(_last_of_each(self.feeder.sent)) is not None,
            timeout_s=timeout_s,
            what="the last records",
        )
        self._end()
        return self._judge()

    def _end(self) -> None:
        code = self.driver.stop(timeout_s=_STOP_S)
        if code != _ENDED_IN_ORDER:
            raise BedFailureError(f"exit code {code} of a job ended by SIGTERM\n{self.story()}")

    def restart_budget(self, *, faults: int) -> None:
        """Reset the count of restarts: each fault may cost `_MOST_RESTARTS`."""
        self._restarts_left = faults * _MOST_RESTARTS

    def await_running(self, target: str) -> None:
        """Wait until the target of a fault runs: another active fault may have ended it."""
        container = self.bed.containers.get(self.resolve(target.partition("/")[0]))
        if container is not None:
            self.wait(lambda: container.runs, timeout_s=_SETTLE_S, what=f"{container.name} to run")

    def _judge(self) -> RoundVerdict:
        await_readable(self.connection, self.output, timeout_s=_SETTLE_S)
        topics = Topics(
            connection=self.connection, source=self.source, output=self.output, files=self._files
        )
        found = (
            judge_numbers(topics, sent=self.feeder.sent)
            if self.shape.keyed
            else judge_all(topics, sent=self.feeder.sent, writes_files=self.shape.writes_files)
        )
        final = read_history(self.connection, self.output)
        self.wait(
            lambda: self.witness.total >= len(final),
            timeout_s=_SETTLE_S,
            what="the reader of the output",
        )
        self.witness.close()
        self._marks.refresh()
        return with_sight(found, self.witness.seen, final)

    def _supervise(self) -> None:
        """Restart containers that have ended, as a cluster manager does."""
        for name, container in self.bed.containers.items():
            if container.runs or name in self.expected_down or name in self.idle:
                continue
            self.restarts.append(f"{name} ended with {container.exit_code}, started again")
            self._restarts_left -= 1
            if self._restarts_left < 0:
                raise BedFailureError(f"{name} ends again and again\n{self.story()}")
            container.start()

    def _arguments(self) -> list[str]:
        """Of the job's program."""
        files = ["--path", self._files.uri] if self.shape.writes_files else []
        brief = [f"--transaction-timeout={TRANSACTION_TIMEOUT_S}"] if self.shape.may_lapse else []
        return [
            *("--bootstrap", self.bed.bootstrap, "--input", self.source, "--output", self.output),
            *("--checkpoint", self._checkpoint, "--master", self.bed.master_url),
            *("--engine", self.shape.engine, *files, *brief),
            *(["--keyed"] if self.shape.keyed else []),
        ]


def _next_of_each(sent: int) -> list[int]:
    """The sequence of the next record of each partition: records go to partitions in turn."""
    return [(sent - partition + PARTITIONS - 1) // PARTITIONS for partition in range(PARTITIONS)]


def _last_of_each(sent: int) -> list[int]:
    return [sequence - 1 for sequence in _next_of_each(sent)]
