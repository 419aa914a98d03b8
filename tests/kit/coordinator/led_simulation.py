"""A Kafka source between brokers whose logs change: the real enumerator, readers and task loop, in
virtual time, with the decisions made manually."""

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.reader import range_reader as reader_module
from sluice.connectors.kafka.source.reader.consumers import ConsumerPool, PooledConsumer
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.reader.streaming_reader import (
    KafkaRecordStream,
    KafkaStreamingReader,
)
from sluice.connectors.kafka.source.splits import key_of
from sluice.runtime.continuous.checkpoint_client import EndedEpoch
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.errors import UnreachableError
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import Barrier, SplitRange
from tests.kit.coordinator.led_logs import LedConsumer, LedLog
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import Bench

log = logging.getLogger("sluice.connectors.kafka")

_TOPIC = "orders"
_STEPS = 30  # of a task, in which it ends its epoch
_STEP_S = 0.1
_LOST = re.compile(rf"{_TOPIC}-(\d+)\[(\d+),(\d+)\)")


class _Told(logging.Handler):
    """What was said of losses: partition, from, to."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.ranges: list[tuple[int, int, int]] = []
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Of a line in the log."""
        text = record.getMessage()
        self.text += text
        self.ranges += [(int(p), int(a), int(b)) for p, a, b in _LOST.findall(text)]


@dataclass
class _Writer:
    """A `ContinuousWriter` that remembers: name, partition and offset of each record."""

    decide_by_s: float | None = None
    records: list[tuple[int, int, int]] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        self.records += _rows(batch)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """See `ContinuousWriter.end_epoch`."""

    def pre_commit(self) -> list[StateEntry]:
        """See `SinkWriter.pre_commit`."""
        return []

    def abort(self) -> None:
        """See `SinkWriter.abort`."""


@dataclass
class _Courier:
    """A checkpoint client whose barriers are given, and whose ended epochs are taken, manually."""

    barrier: Barrier | None = None
    ended: list[EndedEpoch] = field(default_factory=list)
    committed_batch: int = -1
    has_read: bool = False

    def take_barrier(self) -> Barrier | None:
        barrier, self.barrier = self.barrier, None
        return barrier

    def submit_epoch(self, ended: EndedEpoch) -> None:
        self.ended.append(ended)


@dataclass
class LedWorld:
    """Everything, and what happens to it.

    Attributes:
        random: decides.
        fails: ``failOnDataLoss``.
        bounded: the source ends where it ended when it began, or began again.
        delivered: names of the records that are decided.
        may_change: also while somebody reads.
        truncated: partitions whose log an unclean election has truncated.
    """

    random: Random
    fails: bool
    bounded: bool
    delivered: set[int] = field(default_factory=set)
    may_change: bool = True
    truncated: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._names = itertools.count(1)
        self._topic_of: dict[int, str] = {}
        self._made = itertools.count(1)
        self.told = _Told()
        self._follower: KafkaRecordStream | None = None
        self._written: dict[int, _Writer] = {}  # by batch
        self.cluster = FakeSourceCluster()
        self.make_topic(self.random.randint(1, 2))
        for made in self.logs.values():
            made.write(self.random.randint(0, 6))
        start = self.random.choice(["earliest", "latest"])
        self._options = {"failOnDataLoss": str(self.fails).lower(), "startingOffsets": start}
        self.bench = Bench(self.cluster, bounded=self.bounded, **self._options)
        self.decided = {key_of(split): split for split in self.bench.start()}
        self.begins = {key: split.end_offset for key, split in self.decided.items()}

    # --- what happens to the brokers -----------------------------------------------------------

    def make_topic(self, partitions: int) -> None:
        """Anew, under its name."""
        topic_id = f"id-{next(self._made)}"
        made: list[FakeLog] = [LedLog(names=self._names_in(topic_id)) for _ in range(partitions)]
        self.cluster.create(_TOPIC, *made, topic_id=topic_id)

    def _names_in(self, topic_id: str) -> Callable[[], int]:
        def name() -> int:
            made = next(self._names)
            self._topic_of[made] = topic_id
            return made

        return name

    def replace_topic(self) -> None:
        """It is deleted, or made again, once; nobody is between a cut and its end."""
        if _TOPIC in self.cluster.topics and self.cluster.topics[_TOPIC][0] != "id-1":
            return
        held = self.cluster.topics.pop(_TOPIC, None)
        if held is None or self.random.random() < 0.5:
            self.make_topic(self.random.randint(1, 3))
            for made in self.logs.values():
                made.write(self.random.randint(0, 12))

    @property
    def logs(self) -> dict[int, LedLog]:
        """By partition."""
        return self.cluster.topics.get(_TOPIC, ("", {}))[1]  # type: ignore[return-value]  # all are

    def change(self) -> None:
        """One thing happens to one of the logs, or time passes."""
        random = self.random
        if not self.logs:
            return
        partition = random.choice(list(self.logs))
        at, key = self.logs[partition], (_TOPIC, partition)
        few = random.randint(1, 4)
        changes = {
            "write": lambda: at.write(few),
            "write more": lambda: at.write(few),
            "markers": lambda: at.write(few, markers=True),
            "compact": lambda: at.compact(random),
            "begin": lambda: at.begin(few),
            "commit": lambda: at.finish(commits=True),
            "abort": lambda: at.finish(commits=False),
            "clean election": at.change_leader,
            "unclean election": lambda: self._lose(partition),
            "one more unclean election": lambda: self._lose(partition),
            "delete": lambda: at.delete_before(random.randint(at.earliest, at.latest)),
            "leader is gone": lambda: self.cluster.leaderless.add(key),
            "leader is back": lambda: self.cluster.leaderless.discard(key),
            "add a partition": self._add_partition,
            "time": lambda: self.bench.clock.pass_time(random.choice([0.5, 3.0, 12.0, 40.0])),
        }
        changes[random.choice(list(changes))]()

    def _add_partition(self) -> None:
        names = self._names_in(self.cluster.topics[_TOPIC][0])
        self.logs.setdefault(len(self.logs), LedLog(names=names))

    def _lose(self, partition: int) -> None:
        at = self.logs[partition]
        self.truncated.add(partition)
        at.change_leader(loses=self.random.randint(1, 6))
        for _ in range(self.random.choice([0, 0, 3, 8])):
            at.write(1, markers=self.random.random() < 0.3)

    def calm(self) -> None:
        """Every partition has a leader, and no transaction is open."""
        self.cluster.leaderless.clear()
        for at in self.logs.values():
            at.finish(commits=True)
        self.may_change = False

    # --- what the source does ----------------------------------------------------------------

    def restart(self) -> None:
        """The driver begins again, with what is decided."""
        clock = self.bench.clock
        self.bench = Bench(self.cluster, bounded=self.bounded, clock=clock, **self._options)
        self.bench.enumerator.restore(tuple(self.decided.values()), timeout_s=1.0)

    def discover(self) -> None:
        """ClusterView for new partitions."""
        for split in self.bench.discover():
            assert key_of(split) not in self.decided
            self.decided[key_of(split)] = split
            self.begins[key_of(split)] = 0

    def cut(self) -> tuple[SplitRange, ...]:
        """The next ranges."""
        most = self.random.choice([None, 3]) if self.may_change else None
        return self.bench.cut(tuple(self.decided.values()), max_records=most)

    def decide(self, ranges: Sequence[SplitRange], records: Sequence[tuple[int, int, int]]) -> None:
        """Of records: name, partition, offset."""
        for split in ranges:
            before = self.decided[key_of(split)]
            # A source may read transaction markers again, but no record before them.
            assert split.start_offset >= before.known_end
            assert split.topic_id == before.topic_id
            self.decided[key_of(split)] = split
        within = {split.partition: (split.start_offset, split.end_offset) for split in ranges}
        at = dict.fromkeys(within, -1)
        for name, partition, offset in records:
            start, end = within[partition]
            assert start <= offset < end, (partition, offset, within)
            assert at[partition] < offset, "out of order"
            assert name not in self.delivered, ("twice", partition, offset)
            assert self._topic_of[name] == self.decided[_TOPIC, partition].topic_id
            at[partition] = offset
            self.delivered.add(name)

    # --- readers -------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Readers are given consumers of this world, and its clock."""
        pool = ConsumerPool()
        clock = SimpleNamespace(monotonic=self.bench.clock)
        log.addHandler(self.told)
        with (
            patch("sluice.connectors.kafka.source.reader.range_reader.process_pool", pool),
            patch("sluice.connectors.kafka.source.reader.streaming_reader.process_pool", pool),
            patch(
                "sluice.connectors.kafka.source.reader.consumers._connect",
                lambda key: PooledConsumer(consumer=self._consumer(), key=key),
            ),
            patch.object(reader_module, "time", clock),
        ):
            try:
                yield
            finally:
                log.removeHandler(self.told)

    @property
    def reader(self) -> KafkaSplitReader:
        """What tasks read with."""
        return KafkaSplitReader(
            connection=KafkaConnection(bootstrap_servers="fake:9092"),
            columns=("value", "partition", "offset"),
            fail_on_data_loss=self.fails,
            no_progress_timeout_s=2.0,
        )

    def _consumer(self) -> LedConsumer:
        made = LedConsumer(self._find, self.random)
        consume = made.consume

        def waiting(most: int, timeout_s: float) -> Sequence[object]:
            if self.may_change and self.random.random() < 0.1:
                self.change()
            self.bench.clock.pass_time(timeout_s)
            return consume(most, timeout_s)

        made.consume = waiting  # type: ignore[method-assign, assignment]  # time passes
        return made

    def _find(self, key: PartitionKey) -> LedLog | None:
        return None if key in self.cluster.leaderless else self.logs[key[1]]

    # --- engines -------------------------------------------------------------------------------

    def read_a_batch(self) -> None:
        """Micro-batches: a cut, then its ranges, as often as it takes."""
        ranges = self.cut()
        if self.may_change and self.random.random() < 0.3:
            self.change()
        records = [
            each for batch in self.reader.read(ranges) for each in _rows(batch)
        ]  # an error ends the batch, and the next one is cut from what is decided
        self.decide(ranges, records)

    def begin_life(self) -> None:
        """The continuous engine: a task that follows all splits."""
        self.end_life()
        splits = [split.at_end() for split in self.decided.values()]
        ends = self.bench.enumerator.fixed_ends()
        self._follower = KafkaStreamingReader(reader=self.reader).follow(splits, ends)
        self._checkpoint_client = _Courier()
        self._loop = TaskLoop(
            "main",
            1,
            stream=self._follower,
            client=self._checkpoint_client,  # type: ignore[arg-type]  # what the loop uses of it
            open_writers=self._open_writers,
            functions=FunctionRun,
            begins_after=0,
            leaders={s.key: s.leader_epoch for s in splits if s.leader_epoch is not None},
            clock=self.bench.clock,
        )

    def end_life(self) -> None:
        """What it had read is in no decision."""
        if self._follower is not None:
            self._follower.close()

    def step(self) -> None:
        """The task looks once."""
        self.bench.clock.pass_time(_STEP_S)
        self._loop.step()

    def end_an_epoch(self) -> None:
        """A cut, the barrier, and the decision; or the attempt's end."""
        self._checkpoint_client.barrier = Barrier(
            checkpoint_id=1, region="main", attempt_id=1, splits=self.cut()
        )
        for _ in range(_STEPS):
            if self.may_change and self.random.random() < 0.3:
                self.change()
            self.step()
            if self._checkpoint_client.ended:
                break
        if not self._checkpoint_client.ended or (self.may_change and self.random.random() < 0.1):
            raise UnreachableError("the epoch is not decided", {}, "It is read again.")
        (ended,) = self._checkpoint_client.ended
        self._checkpoint_client.ended.clear()
        result = ended.pre_commit()
        self.decide(result.ranges, self._written[result.batch.batch_id].records)

    def _open_writers(self, scope: EpochScope) -> TaskWriters[_Writer]:
        made = self._written[scope.batch.batch_id] = _Writer()
        return TaskWriters({"sink": made}, dead_letter_sink=None)

    def judge(self) -> None:
        """Whoever has come so far has read all that is there, or reported what not."""
        ends = self.bench.enumerator.fixed_ends()
        is_finished = self.bench.enumerator.is_finished(tuple(self.decided.values()))
        assert ends is None or is_finished or "ends before the requested end" in self.told.text
        for partition, at in self.logs.items():
            key = (_TOPIC, partition)
            if ends is not None and ("s", *key) not in ends:
                continue  # it came later
            place, begins = self.decided[key], self.begins[key]
            assert place.topic_id == self.cluster.topics[_TOPIC][0]
            assert place.end_offset >= at.latest or self.bounded, "it hangs"
            lost = [(start, end) for p, start, end in self.told.ranges if p == partition]
            for kept in at.kept:
                is_asked = kept.name is not None and begins <= kept.offset < place.end_offset
                is_told = any(start <= kept.offset < end for start, end in lost)
                assert not is_asked or is_told or kept.name in self.delivered, (key, kept)


def _rows(batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
    columns = (batch.column(name).to_pylist() for name in ("value", "partition", "offset"))
    return [
        (int(name), partition, offset) for name, partition, offset in zip(*columns, strict=True)
    ]
