"""Reads the records of a topic in the checker's form (`sluice.runtime.checker`).

For tests, the demo and benchmarks; not on the data path of a job.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    OFFSET_BEGINNING,
    PARTITION_EOF,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    OffsetSpec,
    TopicPartition,
    error_codes,
    make_admin,
    make_consumer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.records.columns import header_pairs
from sluice.connectors.kafka.source.enumerator.topics import (
    KnownLeaders,
    answers_deadline,
    described,
    result,
)
from sluice.connectors.kafka.source.reader.fetch_positions import FetchPositions, reporting
from sluice.runtime.checker import Headers, Location, Record
from sluice.runtime.errors import ConfigError, UnreachableError

__all__ = [
    "EndWatch",
    "TopicEnds",
    "await_readable",
    "read_records",
    "reading_consumer",
    "record_of",
    "records_at",
    "topic_ends",
]

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 30.0
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # has no types
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # has no types
_POLL_S = 0.02
_CONSUME_RECORDS = 10_000
_CONSUME_S = 0.1

_LEADERLESS = (
    *error_codes("_NOENT"),  # no partition has one
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    # After an election: a broker does not know the new leader yet, or the leader does not know its
    # end.
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEnds:
    """The ends of a topic, by partition.

    Attributes:
        stable: last stable offset: a read_committed reader sees all records before it.
        high: high watermark: all written and replicated records are before it.
    """

    stable: Mapping[int, int]
    high: Mapping[int, int]

    @property
    def is_settled(self) -> bool:
        """No open transaction blocks readers (a later stable end covers an earlier high)."""
        return all(self.stable.get(partition, 0) >= end for partition, end in self.high.items())


def reading_consumer(
    connection: KafkaConnection,
    *,
    read_committed: bool = True,
    group: str = "sluice-history",
    statistics: Callable[[str], None] | None = None,
) -> Consumer:
    """A consumer that reads explicit partitions, joins no group and commits nothing.

    Args:
        statistics: receives librdkafka's statistics each second, in the thread that consumes.
    """
    return make_consumer(
        {
            **connection.librdkafka(Role.CONSUMER),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            # With the default of 1 s a reader waits a second whenever its queue is full.
            "fetch.queue.backoff.ms": 5,
            **(reporting(statistics) if statistics else {}),
        }
    )


class EndWatch:
    """Queries offsets of a topic, over one connection. Used by one thread.

    Raises:
        SourceChangedError: the topic does not exist.
        UnreachableError: no broker answers.
    """

    def __init__(
        self, connection: KafkaConnection, topic: str, *, timeout_s: float = _REQUEST_TIMEOUT_S
    ) -> None:
        self._admin = make_admin(connection.librdkafka(Role.ADMIN))
        self._topic = topic
        self._timeout_s = timeout_s
        self._where = _where(connection, topic)
        self._leaders = KnownLeaders()
        try:
            numbers = [partition.id for partition in self._described().partitions]
        except KafkaException as err:
            raise translate(err, self._where) from err
        self._keys = [(topic, number) for number in sorted(numbers)]

    def now(self) -> TopicEnds:
        """Last stable offset and high watermark of every partition.

        Queries the high watermark first, so that the stable offset is never older.
        """
        high = self.high()
        return TopicEnds(stable=self.stable(), high=high)

    def high(self) -> Mapping[int, int]:
        """High watermark by partition."""
        return self._at(_LATEST, IsolationLevel.READ_UNCOMMITTED)

    def stable(self) -> Mapping[int, int]:
        """Last stable offset by partition."""
        return self._at(_LATEST, IsolationLevel.READ_COMMITTED)

    def starts(self) -> Mapping[int, int]:
        """First remaining offset by partition."""
        return self._at(_EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def _at(self, spec: OffsetSpec, isolation: IsolationLevel) -> dict[int, int]:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._query(spec, isolation)
            except KafkaException as err:
                self._leaders.forget()
                # A new topic, or one whose broker has just died, has no leader for a short time.
                if err.args[0].code() not in _LEADERLESS or time.monotonic() > deadline:
                    raise translate(err, self._where) from err
            time.sleep(_POLL_S)  # no event reports the end of an election

    def _query(self, spec: OffsetSpec, isolation: IsolationLevel) -> dict[int, int]:
        if self._leaders.undescribed(self._keys):
            self._described()
        there = self._leaders.located(self._keys)
        if len(there) < len(self._keys):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        answers = self._admin.list_offsets(
            {TopicPartition(*key): spec for key in there},
            isolation_level=isolation,
            request_timeout=self._timeout_s,
        )
        deadline = answers_deadline(self._timeout_s)
        return {at.partition: result(answer, deadline).offset for at, answer in answers.items()}

    def _described(self) -> Any:  # noqa: ANN401 - confluent-kafka's description
        # Not list_topics: a missing topic named there makes the broker create it.
        found = described(self._admin, [self._topic], timeout_s=self._timeout_s)
        self._leaders.learn([self._topic], found)
        if self._topic not in found:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return found[self._topic]


def topic_ends(
    connection: KafkaConnection, topic: str, *, timeout_s: float = _REQUEST_TIMEOUT_S
) -> TopicEnds:
    """`EndWatch.now`, once."""
    return EndWatch(connection, topic, timeout_s=timeout_s).now()


def await_readable(
    connection: KafkaConnection,
    topic: str,
    *,
    beyond: Mapping[int, int] | None = None,
    timeout_s: float,
) -> float:
    """Wait until no open transaction blocks readers; returns the seconds it took.

    Args:
        beyond: by partition, the offset that readers must reach; None: the high watermark at the
            time of the call.
    Raises:
        UnreachableError: still blocked at the timeout; names the partitions.
    """
    watch = EndWatch(connection, topic)
    started = time.monotonic()
    while True:
        goal = beyond or watch.high()
        stable = watch.stable()
        if all(stable.get(partition, 0) >= offset for partition, offset in goal.items()):
            return time.monotonic() - started
        if time.monotonic() - started > timeout_s:
            raise UnreachableError(
                "an open transaction blocks the readers of a topic",
                {"topic": topic, "stable": stable, "wanted": dict(goal)},
                "Wait if a job runs: it ends the transaction soon. After a killed job restart it, "
                "or use `sluice txn abort`; `sluice txn list` shows the transaction.",
            )
        time.sleep(_POLL_S)  # no event reports that readers are unblocked


def read_records(
    connection: KafkaConnection,
    topic: str,
    *,
    read_committed: bool = True,
    need_headers: bool = True,
    partition: int | None = None,
    timeout_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Record, None, None]:
    """Everything in the topic now, each partition in offset order.

    Args:
        read_committed: up to the last stable offset, without aborted records; else up to the
            high watermark, with them.
        need_headers: see `record_of`.
        partition: the only one to read; None: all.
        timeout_s: longest time without progress of any partition; skipped aborted records are not
            returned, but count as progress.
    Raises:
        ConfigError: see `record_of`.
        SourceChangedError: the topic does not exist, or was truncated during the read.
        UnreachableError: no progress in ``timeout_s``.
    """
    ends = topic_ends(connection, topic, timeout_s=timeout_s)
    every = ends.stable if read_committed else ends.high
    wanted = {p: end for p, end in every.items() if end and partition in (None, p)}
    if not wanted:
        return
    fetched = FetchPositions()
    consumer = reading_consumer(
        connection, read_committed=read_committed, statistics=fetched.report
    )
    try:
        # Not from 0: retention may have deleted the first records.
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in wanted])
        progressed = clock()
        while wanted:
            messages = consumer.consume(_CONSUME_RECORDS, _CONSUME_S)
            has_moved, before = _has_moved(messages, wanted), set(wanted)
            yield from _records_before(messages, wanted, need_headers=need_headers)
            if finished := before - wanted.keys():
                # A partition with continuous writes would fill the queue before the rest.
                consumer.pause([TopicPartition(topic, number) for number in finished])
            if has_moved or fetched.moved({(topic, number): 0 for number in wanted}):
                progressed = clock()  # time in the caller is not waiting time
            elif clock() - progressed > timeout_s:
                raise UnreachableError(
                    "a topic could not be read to its end",
                    {**_where(connection, topic), "missing": wanted, "timeout_s": timeout_s},
                    "Read the broker's log.",
                )
    finally:
        consumer.close()


def records_at(
    connection: KafkaConnection, locations: Sequence[Location], *, timeout_s: float = 5.0
) -> dict[Location, Record]:
    """A few records by position, visible to read_committed readers or not.

    Left out are those that do not come in ``timeout_s`` each: this is for texts that people read.
    """
    with contextlib.closing(reading_consumer(connection, read_committed=False)) as consumer:
        messages = []
        for at in locations:
            consumer.assign([TopicPartition(*at)])
            messages += consumer.consume(1, timeout_s)
    every = [record_of(each, need_headers=False) for each in messages if each.error() is None]
    found = {Location(one.topic, one.partition, one.offset): one for one in every}
    return {at: found[at] for at in locations if at in found}


def record_of(message: Message, *, need_headers: bool = True) -> Record:
    """A message as the checker's record; it must not be an error.

    Args:
        need_headers: False: a record with a header whose name is not UTF-8 has no headers.
    Raises:
        ConfigError: a header's name is not UTF-8.
    """
    kind, timestamp_ms = message.timestamp()
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Record(
        topic,
        partition,
        offset,
        _bytes(message.key()),
        _bytes(message.value()),
        _headers(message, need_headers=need_headers),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )


def _headers(message: Message, *, need_headers: bool) -> Headers:
    # Also if they are not compared: a mapping, or the function of unique names, may read them.
    try:
        return tuple((name, _bytes(value)) for name, value in header_pairs(message) or ())
    except ConfigError:
        if need_headers:
            raise
        return ()


def _has_moved(messages: Sequence[Message], wanted: Mapping[int, int]) -> bool:
    """Whether a partition came nearer to its wanted end; an end of file before it does not
    count."""
    for message in messages:
        partition, offset = message.partition(), message.offset()
        end = None if partition is None else wanted.get(partition)
        if end is None or offset is None:
            continue
        if message.error() is None or offset >= end:
            return True
    return False


def _records_before(
    messages: Sequence[Message], wanted: dict[int, int], *, need_headers: bool
) -> Iterator[Record]:
    """Records before each wanted end; removes reached ends from ``wanted``."""
    for message in messages:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() != PARTITION_EOF:
            raise translate(error, {"topic": message.topic(), "partition": partition})
        assert partition is not None
        assert offset is not None
        end = wanted.get(partition)
        if end is None:
            continue
        if error is None and offset < end:
            yield record_of(message, need_headers=need_headers)
        # Only the position at the end of file shows control records at the end.
        if offset >= (end - 1 if error is None else end):
            del wanted[partition]


def _where(connection: KafkaConnection, topic: str) -> dict[str, object]:
    return {"topic": topic, "servers": connection.bootstrap_servers}


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
