"""Kafka's own system test of transactions, with Sluice in the copier's place.

Kafka's ``group_mode_transactions_test`` and ``transactions_test`` copy 100,000 numbers from a topic
of 2 partitions to one of 3, in transactions of 750 records, on three brokers. Meanwhile it bounces
clients or brokers, hard (``kill -9``) or clean (SIGTERM), and a read_committed consumer reads.
Kafka's four checks are made here with plain sets, too: the output has each number of the input, and
none twice, and the concurrent consumer has seen the same. Two checks are ours: the order, and that
the concurrent reader saw prefixes only.

A cell bounces one kind of process, each time after a fifth of the records that were left:

- driver: the program and its JVM, with Sluice's checkpoint coordinator, three times.
- executor: the JVMs of Spark's two executors in turn, three rounds.
- coordinator: the broker that coordinates all transactions at the time, three times. Kafka's
  transaction log has one partition here.
- broker: all three brokers in turn, as Kafka's test does.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import await_readable, read_records
from sluice.runtime.checker import History, Identity, Record
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.embedded.program import ProgramSpec, command_of
from tests.chaos.spark_start import spark_environment
from tests.kit.kafka.broker_cluster import BrokerCluster
from tests.kit.kafka.kafka_records import create_topic, unique
from tests.kit.memory_checker import check, check_prefix, expect, history_of
from tests.kit.mortal_program import MortalProgram
from tests.kit.spark_cluster import SparkCluster
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

_SCRIPT = Path(__file__).with_name("copier.py")
_BOUND_S = 2 * PATIENCE_S
_ROUNDS = 3
_PROGRESS = 0.2
_SPARK = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # So that a lost executor is missed soon.
    "spark.executor.heartbeatInterval": "2s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of one cell; the default is Kafka's own.

    Attributes:
        records: of the input before the copier starts.
        transaction_records: the most per copier and epoch.
        inputs, outputs: partitions. There is a copier for each input partition.
    """

    records: int = 100_000
    transaction_records: int = 750
    inputs: int = 2
    outputs: int = 3


KAFKAS_OWN = Size(
    records=int(os.environ.get("SLUICE_COPIER_RECORDS", "100000")),
    transaction_records=int(os.environ.get("SLUICE_COPIER_TRANSACTION_RECORDS", "750")),
)
SMALL = Size(records=6_000, transaction_records=300)


@dataclass(slots=True, kw_only=True)
class Report:
    """One cell's figures, for people.

    Attributes:
        bounces: the bounced processes, in order.
        checkpoints: number of the last checkpoint slot, with fencing records and aborted ones.
    """

    engine: str
    cell: str
    records: int
    checkpoints: int = 0
    bounces: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three real brokers; each test leaves all of them running."""
    with BrokerCluster(tmp_path_factory.mktemp("brokers")) as made:
        yield made


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone Spark cluster: two workers of one core each."""
    with SparkCluster(tmp_path_factory.mktemp("workers")) as made:
        yield made


class Copy:
    """One seeded input, one copier over all its attempts, one concurrent reader."""

    def __init__(
        self,
        size: Size,
        brokers: BrokerCluster,
        workers: SparkCluster,
        directory: Path,
        engine: str,
    ) -> None:
        self.size, self.brokers, self.workers, self.engine = size, brokers, workers, engine
        self._directory = directory
        self._checkpoint = directory / "checkpoint"
        self._connection = KafkaConnection(bootstrap_servers=brokers.bootstrap)
        self._input = create_topic(brokers.bootstrap, unique("copier-in"), partitions=size.inputs)
        self._output = create_topic(
            brokers.bootstrap, unique("copier-out"), partitions=size.outputs
        )
        self._seed()
        self._seen = History(Identity(partition=False))
        self.observer = Observer(self._connection, self._output, seen=self._seen)
        self.program: MortalProgram | None = None

    def start(self) -> MortalProgram:
        """The next attempt of the copier; it ends at the end of the input."""
        command = command_of(
            sys.executable,
            _SCRIPT,
            [
                *("--bootstrap", self.brokers.bootstrap, "--master", self.workers.url),
                *("--input", self._input, "--output", self._output, "--until-end"),
                *("--checkpoint", str(self._checkpoint), "--interval", "0.2"),
            ],
        )
        self.program = MortalProgram(
            ProgramSpec(
                command=command,
                log_path=self._directory / "copier.log",
                environment=self._environment(),
                working_dir=self._directory,
            )
        )
        return self.program

    def await_progress(self) -> bool:
        """False: the copier is done. On a machine so busy that readers lag after it, that may be
        before the last bounce."""
        seen = self.observer.total
        goal = seen + int(_PROGRESS * (self.size.records - seen))
        program = self.program

        def met() -> bool:
            assert program.exit_code in (None, 0), f"{program.exit_code}\n{program.log_tail()}"
            return program.exit_code == 0 or self.observer.total >= goal

        try:
            wait_for(met, timeout_s=_BOUND_S, what=f"{goal} visible records")
        except AssertionError as error:
            error.add_note(f"visible {self.observer.total}\n{program.log_tail()}")
            raise
        return program.exit_code is None

    def finish(self) -> None:
        """Wait for the copier's own end, which must be a good one."""
        assert self.program is not None
        exit_code = self.program.await_exit(timeout_s=_BOUND_S)
        assert exit_code == 0, f"exit code {exit_code}\n{self.program.log_tail()}"

    def judge(self) -> None:
        await_readable(self._connection, self._output, timeout_s=PATIENCE_S)
        self.observer.catch_up(timeout_s=PATIENCE_S)
        self.observer.close()
        given = list(read_records(self._connection, self._input))
        found = list(read_records(self._connection, self._output))
        inputs = {record.value for record in given}
        assert len(inputs) == self.size.records, "the input lacks records"
        outputs = [record.value for record in found]
        assert len(outputs) == len(set(outputs)), "duplicates in the output"
        assert set(outputs) == inputs, "input and output are different sets"
        final = history_of(found, Identity(partition=False))
        prefix = check_prefix(self._seen, final)
        # The same records at the same places, so no duplicate and the whole input, too.
        assert prefix.is_clean, f"the concurrent reader: {prefix}"
        assert prefix.seen == len(inputs), "the concurrent reader saw another number of records"
        verdict = check(expect(given, self._copied, final.identity), final)
        assert verdict.is_clean, str(verdict)

    def checkpoints(self) -> int:
        """The number of the last place, whatever lies there."""
        return max(open_store(str(self._checkpoint)).slots())

    def close(self) -> None:
        """End everything of the copier that still lives."""
        if self.program is not None:
            self.program.kill()

    def _copied(self, record: Record) -> Iterator[Record]:
        yield record._replace(topic=self._output, headers=())

    def _seed(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.brokers.bootstrap,
                "enable.idempotence": True,
                "log_level": 0,
                # A reader gets whole batches: small ones, so that an epoch can be small.
                "batch.num.messages": self.size.transaction_records // 5,
            }
        )
        for number in range(self.size.records):
            text = str(number).encode()
            producer.produce(self._input, value=text, key=text)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    def _environment(self) -> Mapping[str, str]:
        before = spark_environment()
        more = " ".join(f"--conf '{name}={value}'" for name, value in _SPARK.items())
        return {
            **before,
            "PYSPARK_SUBMIT_ARGS": f"{more} {before['PYSPARK_SUBMIT_ARGS']}",
            "COPIER_ENGINE": self.engine,
            "COPIERS": str(self.size.inputs),
            "TRANSACTION_RECORDS": str(self.size.transaction_records),
        }


def bounce_driver(copy: Copy, report: Report, *, clean: bool) -> None:
    """Three times; the next attempt continues from the checkpoint directory."""
    for _ in range(_ROUNDS):
        if not copy.await_progress():
            return
        program = copy.program
        assert program is not None
        if clean:
            os.kill(program.pid, signal.SIGTERM)
            exit_code = program.await_exit(timeout_s=PATIENCE_S)
            assert exit_code in (0, 128 + signal.SIGTERM), program.log_tail()
        program.kill()
        report.bounces.append("driver")
        copy.start()


def bounce_executor(copy: Copy, report: Report, *, clean: bool) -> None:
    for _ in range(_ROUNDS):
        for number in (0, 1):
            if not copy.await_progress():
                return
            executor = wait_for(lambda n=number: copy.workers.executor(n), what="an executor")
            executor.send_signal(signal.SIGTERM if clean else signal.SIGKILL)
            _await_gone(executor)
            report.bounces.append(f"executor {number}")


def bounce_coordinator(copy: Copy, report: Report, *, clean: bool) -> None:
    for _ in range(_ROUNDS):
        if not copy.await_progress():
            return
        node = copy.brokers.transaction_coordinator()
        copy.brokers.bounce(node, clean=clean)
        report.bounces.append(f"broker {node}, coordinator")


def bounce_brokers(copy: Copy, report: Report, *, clean: bool) -> None:
    for node in copy.brokers.node_ids:
        if not copy.await_progress():
            return
        copy.brokers.bounce(node, clean=clean)
        report.bounces.append(f"broker {node}")


BOUNCES = {
    "driver": bounce_driver,
    "executor": bounce_executor,
    "coordinator": bounce_coordinator,
    "broker": bounce_brokers,
}


def copy_while_bouncing(copy: Copy, target: str, *, clean: bool) -> bool:
    """One cell: seeded, copied, bounced, judged, reported.

    False: the copier was done before anything was bounced, on a machine where readers lag after.
    """
    cell = f"{'clean' if clean else 'hard'} {target}"
    report = Report(engine=copy.engine, cell=cell, records=copy.size.records)
    started_s = time.monotonic()
    with copy.observer:
        try:
            copy.start()
            BOUNCES[target](copy, report, clean=clean)
            copy.finish()
            copy.judge()
        finally:
            copy.close()
    report.checkpoints = copy.checkpoints()
    report.elapsed_s = round(time.monotonic() - started_s, 1)
    _note(report)
    return bool(report.bounces)


@pytest.mark.long
@pytest.mark.parametrize("target", list(BOUNCES))
@pytest.mark.parametrize("how", ["hard", "clean"])
@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_kafkas_own_copier_test(
    engine: str,
    how: str,
    target: str,
    brokers: BrokerCluster,
    workers: SparkCluster,
    tmp_path: Path,
) -> None:
    copy = Copy(KAFKAS_OWN, brokers, workers, tmp_path, engine)
    assert copy_while_bouncing(copy, target, clean=how == "clean"), "nothing was bounced"


@pytest.mark.parametrize(
    ("how", "target"),
    [
        pytest.param("hard", "executor", marks=pytest.mark.long),
        pytest.param("clean", "coordinator", marks=pytest.mark.long),
        pytest.param("hard", "coordinator", marks=pytest.mark.extended),
    ],
)
def test_kafkas_own_copier_test_in_small(
    how: str, target: str, brokers: BrokerCluster, workers: SparkCluster, tmp_path: Path
) -> None:
    """The same cells with fewer records: one for every change, two for a first look. Once more with
    more of them when the copier was too fast."""
    for factor in (1, 4):
        (directory := tmp_path / str(factor)).mkdir()
        size = replace(SMALL, records=SMALL.records * factor)
        copy = Copy(size, brokers, workers, directory, "micro-batch")
        if copy_while_bouncing(copy, target, clean=how == "clean"):
            return
    raise AssertionError("nothing was bounced")


def _await_gone(process: psutil.Process) -> None:
    def is_gone() -> bool:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    wait_for(is_gone, what="the executor's end")


def _note(report: Report) -> None:
    """A line for the report, where ``SLUICE_COPIER_REPORT`` names a file."""
    path = os.environ.get("SLUICE_COPIER_REPORT")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")
