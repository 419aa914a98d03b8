"""One life of the job on the bed: fed, watched, kept running, and judged at the end."""

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import await_readable, read_history
from sluice.runtime.checker import Payload
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.bed.cluster import DRIVERS, Bed
from tests.bed.containers import Container
from tests.bed.plan import TRANSACTION_TIMEOUT_S
from tests.bed.verdict import RoundVerdict, judge_all, judge_what_is_left, with_sight
from tests.bed.witness import Witness
from tests.chaos.feeder import Feeder
from tests.chaos.programs import Topics
from tests.chaos.published_files import PublishedFiles
from tests.kafka_records import create_topic, unique

__all__ = ["SHAPES", "BedFailureError", "Pipeline", "Shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a round's job is.

    Attributes:
        engine: that runs it.
        writes_files: as well as a topic.
        may_lose: the input has two replicas, either of which may lead whatever it has got, and the
            job goes on behind what is gone (``failOnDataLoss=false``).
        may_lapse: transactions live for `TRANSACTION_TIMEOUT_S` only; without, for as long as the
            brokers allow.
    """

    engine: str
    writes_files: bool = False
    may_lose: bool = False
    may_lapse: bool = False


SHAPES: Mapping[str, Shape] = {
    "copy": Shape(engine="continuous"),
    "both": Shape(engine="micro-batch", writes_files=True),
    "copy-unclean": Shape(engine="continuous", may_lose=True),
    "both-unclean": Shape(engine="micro-batch", writes_files=True, may_lose=True),
    "copy-lapsing": Shape(engine="continuous", may_lapse=True),
    "both-lapsing": Shape(engine="micro-batch", writes_files=True, may_lapse=True),
}

PARTITIONS = 4
_REPLICAS = [(1, 2), (2, 3), (3, 1), (1, 2)]
"""Of an input that may lose: three brokers are three pairs."""
_UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
_LOSSES_TOLD = (b"records that were read are gone", b"records lost, going on behind them")
_REPAIR_TOLD = b"lost transactions were written again"
_POLL_S = 0.1
_SETTLE_S = 300.0
_STOP_S = 120
_PRELOAD = 100
_MOST_RESTARTS = 12
_ENDED_IN_ORDER = 128 + 15
_TAIL_LINES = 60


class BedFailureError(AssertionError):
    """The job did not come back, or its output is not what it must be."""


@dataclass(slots=True)
class _Marks:
    """What the drivers' logs tell.

    Attributes:
        count: checkpoints that were committed on record.
        losses: how often the job has said that records are gone from its input.
        repairs: how often it has said that it has written again what a broker had aborted.
    """

    paths: dict[str, Path]
    read: dict[str, int] = field(default_factory=dict)
    count: int = 0
    losses: int = 0
    repairs: int = 0

    def look(self) -> None:
        for name, path in self.paths.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self.read.get(name, 0))
                new = file.read()
            whole = new.rfind(b"\n") + 1
            self.read[name] = self.read.get(name, 0) + whole
            lines = new[:whole].splitlines()
            self.count += sum(line.startswith(b"checkpoint=") for line in lines)
            self.losses += sum(any(said in line for said in _LOSSES_TOLD) for line in lines)
            self.repairs += sum(_REPAIR_TOLD in line for line in lines)


class Pipeline:
    """Topics, drivers, feeder and witness of one round. Used by one thread.

    As a context manager the job runs and is fed; at any end its drivers are gone.

    Args:
        bed: up.
        shape: of the job.
        hadoop: a JVM with Hadoop's client on the host, for files.
    """

    def __init__(self, bed: Bed, shape: Shape, hadoop: Any) -> None:
        self.bed = bed
        self.shape = shape
        self.active = DRIVERS[0]
        self.expected_down: set[str] = set()
        self.restarts: list[str] = []
        self.connection = KafkaConnection(bootstrap_servers=bed.bootstrap)
        self.output = create_topic(bed.bootstrap, unique("bed-out"), partitions=PARTITIONS)
        self.source = create_topic(
            bed.bootstrap,
            unique("bed-in"),
            partitions=PARTITIONS,
            replicas=_REPLICAS if shape.may_lose else (),
            config=_UNCLEAN if shape.may_lose else {},
        )
        root = f"{bed.hdfs_uri}/{self.source}"
        self._checkpoint = f"{root}/checkpoint"
        self._files = PublishedFiles(fs=open_file_system(f"{root}/data", hadoop), name="files")
        # Behind a loss a row of a file is known by its value alone.
        special = {"null_value_every": 0, "empty_value_every": 0} if shape.may_lose else {}
        payload = Payload(topic=self.source, run="bed", partitions=PARTITIONS, **special)
        self.feeder = Feeder(bed.bootstrap, payload, may_lose=shape.may_lose)
        self.witness = Witness(self.connection, self.output, partitions=PARTITIONS)
        logs = {name: bed.directory / f"{name}.log" for name in DRIVERS}
        self._marks = _Marks(logs)
        self._restarts_left = _MOST_RESTARTS

    def __enter__(self) -> Self:
        self._marks.look()  # what former rounds have said
        self._marks.losses = self._marks.repairs = 0
        self.feeder.send(_PRELOAD)
        self.feeder.flush()
        self.feeder.__enter__()
        self.witness.__enter__()
        for name in DRIVERS:
            self.bed.make_driver(name, self._arguments())
        self.driver.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.bed.remove_drivers()
        finally:
            self.witness.close()
            if error is None:
                self.feeder.close()

    @property
    def driver(self) -> Container:
        """The one that is in charge, also when it does not run at the moment."""
        return self.bed.containers[self.active]

    @property
    def prefix(self) -> str:
        """Of the job's transactional ids."""
        return f"bed-{self.output}"

    @property
    def standby(self) -> str:
        """The place of a driver that is not in charge."""
        return next(name for name in DRIVERS if name != self.active)

    @property
    def marks(self) -> int:
        """Checkpoints committed on record since the round began."""
        self._marks.look()
        return self._marks.count

    @property
    def repairs(self) -> int:
        """Decisions of this round that were lost to a transaction timeout, and written again."""
        self._marks.look()
        return self._marks.repairs

    def resolve(self, target: str) -> str:
        """The container's name: of ``driver``, the one in charge."""
        return self.active if target == "driver" else target

    def wait(
        self, done: Callable[[], bool], *, timeout_s: float, what: str, required: bool = True
    ) -> bool:
        """Wait, and meanwhile start again what ended without being told to.

        Raises:
            BedFailureError: not in time, and ``required``.
        """
        deadline = time.monotonic() + timeout_s
        while not done():
            self._supervise()
            if time.monotonic() > deadline:
                if not required:
                    return False
                raise BedFailureError(f"not within {timeout_s:.0f} s: {what}\n{self.story()}")
            time.sleep(_POLL_S)  # for something that other machines do
        return True

    def rest(self, seconds: float) -> None:
        """Let the job, and the fault that is in force, go on for so long."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, timeout_s=2 * seconds + 60, what="time")

    def await_progress(self, *, timeout_s: float, what: str) -> tuple[float, float]:
        """Seconds to the next checkpoint committed on record, and until all partitions go on.

        Both begin with the call: a partition goes on with a record that was sent after it.
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
        """When, on the monotonic clock, each partition had shown a record behind the first
        ``sent`` ones; they must have by now."""
        found = self.witness.seen_at(_next_of_each(sent))
        assert found is not None
        return found

    def story(self) -> str:
        """What helps to understand a failure."""
        log = self.bed.directory / f"{self.active}.log"
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(
            [
                f"sent {self.feeder.sent}, seen {self.witness.total}, marks {self.marks}",
                *self.restarts[-_TAIL_LINES:],
                f"{self.active}:",
                *tail,
            ]
        )

    def finish(self, *, timeout_s: float) -> RoundVerdict:
        """Feed no more, wait for the rest, end the job in order, and judge what it left."""
        self.feeder.close()
        self.wait(
            lambda: self.witness.seen_at(_last_of_each(self.feeder.sent)) is not None,
            timeout_s=timeout_s,
            what="the last records",
        )
        code = self.driver.stop(timeout_s=_STOP_S)
        if code != _ENDED_IN_ORDER:
            raise BedFailureError(f"exit code {code} of a job ended by SIGTERM\n{self.story()}")
        return self._judge()

    def restart_budget(self, *, faults: int) -> None:
        """Begin to count restarts anew: each fault may cost `_MOST_RESTARTS`."""
        self._restarts_left = faults * _MOST_RESTARTS

    def await_running(self, target: str) -> None:
        """Until what a fault is to strike runs: another fault in force may have ended it."""
        container = self.bed.containers.get(self.resolve(target.partition("/")[0]))
        if container is not None:
            self.wait(lambda: container.runs, timeout_s=_SETTLE_S, what=f"{container.name} to run")

    def await_replicas(
        self, pair: Set[int], *, in_sync: Set[int] = frozenset(), leader: int = 0
    ) -> None:
        """Until those partitions of the input that lie on these two brokers have these in sync,
        and this one leads them; empty, 0: any."""

        def done() -> bool:
            found = [
                each for each in self.bed.partitions(self.source) if set(each.replicas) == pair
            ]
            return bool(found) and all(
                (not in_sync or set(each.isrs) == in_sync) and leader in {0, each.leader}
                for each in found
            )

        self.wait(done, timeout_s=_SETTLE_S, what=f"of {self.source}: {in_sync=} {leader=}")

    def _judge(self) -> RoundVerdict:
        await_readable(self.connection, self.output, timeout_s=_SETTLE_S)
        topics = Topics(
            connection=self.connection, source=self.source, output=self.output, files=self._files
        )
        writes_files = self.shape.writes_files
        found = (
            judge_what_is_left(topics, self.feeder, writes_files=writes_files)
            if self.shape.may_lose
            else judge_all(topics, sent=self.feeder.sent, writes_files=writes_files)
        )
        final = read_history(self.connection, self.output)
        self.wait(
            lambda: self.witness.total >= len(final), timeout_s=_SETTLE_S, what="a reader's sight"
        )
        self.witness.close()
        self._marks.look()
        return with_sight(found, self.witness.seen, final, is_loss_told=self._marks.losses > 0)

    def _supervise(self) -> None:
        """What a cluster manager does: start again what has ended."""
        for name, container in self.bed.containers.items():
            if container.runs or name in self.expected_down or name == self.standby:
                continue
            self.restarts.append(f"{name} ended with {container.exit_code}, started again")
            self._restarts_left -= 1
            if self._restarts_left < 0:
                raise BedFailureError(f"{name} ends again and again\n{self.story()}")
            container.start()

    def _arguments(self) -> list[str]:
        files = ["--path", self._files.uri] if self.shape.writes_files else []
        loss = ["--may-lose"] if self.shape.may_lose else []
        brief = [f"--transaction-timeout={TRANSACTION_TIMEOUT_S}"] if self.shape.may_lapse else []
        return [
            *("--bootstrap", self.bed.bootstrap, "--input", self.source, "--output", self.output),
            *("--checkpoint", self._checkpoint, "--master", self.bed.master_url),
            *("--engine", self.shape.engine, *files, *loss, *brief),
        ]


def _next_of_each(sent: int) -> list[int]:
    """The sequence in each partition of the next record to be sent: they go round."""
    return [(sent - partition + PARTITIONS - 1) // PARTITIONS for partition in range(PARTITIONS)]


def _last_of_each(sent: int) -> list[int]:
    return [sequence - 1 for sequence in _next_of_each(sent)]
