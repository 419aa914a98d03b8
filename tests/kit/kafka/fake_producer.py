"""A fake of confluent-kafka's producer and of the cluster after it, in memory, single-threaded.

It follows the real ones where the sink depends on it: reports of delivery come from `poll` and
`flush`, for errors alone; `init_transactions` raises the epoch and aborts what is open under the
id; statistics come from `poll`; a refused record does not stop `flush` from returning 0
(`pre-commit-confirmed`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException
from sluice.connectors.kafka.sink.producers.producer_client import TopicMetadata


def kafka_error(
    name: str,
    text: str = "",
    *,
    fatal: bool = False,
    retriable: bool = False,
    requires_abort: bool = False,
) -> KafkaError:
    """librdkafka's error of that name."""
    code = getattr(KafkaError, name)
    return KafkaError(code, text or name, fatal, retriable, requires_abort)


@dataclass(frozen=True)
class FakeMessage:
    """What a delivery report says of a record."""

    record_topic: str
    record_partition: int
    record_key: bytes | None
    record_value: bytes | None
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def topic(self) -> str:
        return self.record_topic

    def partition(self) -> int:
        return self.record_partition

    def key(self) -> bytes | None:
        return self.record_key

    def value(self) -> bytes | None:
        return self.record_value


@dataclass
class FakeTransaction:
    """One transaction of an id; ``state`` is ``open`` until somebody has ended it."""

    transactional_id: str
    producer_epoch: int
    state: str = "open"
    records: list[FakeMessage] = field(default_factory=list)


@dataclass
class FakeCluster:
    """Transactions by id, and what the next producers shall suffer.

    Attributes:
        refuse: gives the error with which the broker refuses a record, or None.
        refuse_at_produce: the same, but the client does not even queue the record.
        never_confirmed: `flush` returns so many records.
        abort_is_acknowledged: whether `abort_transaction` gets its answer.
        commit_error: what `commit_transaction` raises.
        init_error: what a client meets while `init_transactions` runs: its error callback is reported.
        init_answers: what `init_transactions` itself raises, one for each call; with an
            ``init_error`` it times out.
        lost_connections: how often the client asks for the id again by itself.
        lost_additions: how often it adds a partition to the transaction again by itself.
        lost_questions: how many other requests to the coordinator it has given up.
        late_answers: how many of all that it has given up were answered after all.
        answers_at_flush: records are answered while flushing, not while writing.
        queue_room: how many records a client's queue takes before `BufferError`.
        queue_bytes: of keys and values that it takes.
        empties_when_full: all it holds is acknowledged right after such an error.
        partitions: of every topic; a client knows only those there were when it last looked.
    """

    refuse: Callable[[FakeMessage], KafkaError | None] = lambda _: None
    refuse_at_produce: Callable[[FakeMessage], KafkaError | None] = lambda _: None
    never_confirmed: int = 0
    abort_is_acknowledged: bool = True
    commit_error: KafkaError | None = None
    init_error: KafkaError | None = None
    init_answers: list[KafkaError] = field(default_factory=list)
    answers_at_flush: bool = False
    lost_connections: int = 0
    lost_additions: int = 0
    lost_questions: int = 0
    late_answers: int = 0
    queue_room: int = 1_000_000
    queue_bytes: int = 1_000_000_000
    empties_when_full: bool = False
    partitions: int | None = None
    epochs: dict[str, int] = field(default_factory=dict)
    transactions: list[FakeTransaction] = field(default_factory=list)

    def open_transactions(self, transactional_id: str) -> list[FakeTransaction]:
        """What nobody has ended under an id."""
        return [
            t
            for t in self.transactions
            if t.transactional_id == transactional_id and t.state == "open"
        ]

    def client(self, config: Mapping[str, Any]) -> "FakeClient":
        """A `ClientFactory`."""
        return FakeClient(self, config)


class FakeClient:
    """One producer."""

    def __init__(self, cluster: FakeCluster, config: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._id: str = config.get("transactional.id", "")
        self._on_statistics: Callable[[str], None] = config.get("stats_cb", lambda _: None)
        self._on_error: Callable[[KafkaError], None] = config.get("error_cb", lambda _: None)
        self._queue: list[tuple[Callable[..., None], FakeMessage]] = []
        self.epoch = -1
        self.state = "Init"
        self.abort_reason = kafka_error("_TIMED_OUT", requires_abort=True)
        self.transaction: FakeTransaction | None = None
        self._fatal: KafkaError | None = None
        self._told = ""
        self._known_partitions = cluster.partitions
        self.polls = 0
        self.initialisations = 0

    def init_transactions(self, timeout: float) -> None:
        del timeout
        self.initialisations += 1 + self._cluster.lost_connections
        if self._cluster.init_error is not None:
            self._on_error(self._cluster.init_error)
            raise KafkaException(kafka_error("_TIMED_OUT"))
        if self._cluster.init_answers:
            raise KafkaException(self._cluster.init_answers.pop(0))
        for orphan in self._cluster.open_transactions(self._id):
            orphan.state = "aborted"
        self.epoch = self._cluster.epochs.get(self._id, -1) + 1
        self._cluster.epochs[self._id] = self.epoch
        self.state = "Ready"

    def begin_transaction(self) -> None:
        if self.state == "AbortableError":
            raise KafkaException(self.abort_reason)
        if self.state != "Ready":
            refusal = f"Operation not valid in state {self.state}"
            raise KafkaException(kafka_error("_STATE", refusal))
        assert self.transaction is None, "one producer carries one transaction"
        self.state = "InTransaction"

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: Callable[..., None],
        on_delivery: None,
        timestamp: int,
        headers: list[tuple[str, bytes | None]] | None,
    ) -> None:
        del on_delivery
        message = FakeMessage(topic, partition, key, value, timestamp, tuple(headers or ()))
        self._require_room(message)
        if self._known_partitions is not None and partition >= self._known_partitions:
            raise KafkaException(kafka_error("_UNKNOWN_PARTITION"))
        error = self._cluster.refuse_at_produce(message)
        if error is not None:
            raise KafkaException(error)
        if self._id and self.transaction is None:
            self.transaction = FakeTransaction(self._id, self.epoch)
            self._cluster.transactions.append(self.transaction)
        self._queue.append((callback, message))

    def _require_room(self, message: FakeMessage) -> None:
        queued = [m for _, m in self._queue]
        size = sum(
            len(m.record_key or b"") + len(m.record_value or b"") for m in [*queued, message]
        )
        if len(queued) >= self._cluster.queue_room or size > self._cluster.queue_bytes:
            if self._cluster.empties_when_full:
                self._deliver()
            raise BufferError("Local: Queue full")

    def poll(self, timeout: float) -> int:
        """Deliver what is queued; statistics come at each poll, one for a state."""
        self.polls += 1
        served = 0 if self._cluster.answers_at_flush else self._deliver()
        statistics = self.statistics()
        if timeout > 0 or statistics != self._told:
            self._told = statistics
            self._on_statistics(statistics)
            served += 1
        return served

    def _deliver(self) -> int:
        fatal, self._fatal = self._fatal, None
        if fatal is not None:
            raise KafkaException(fatal)
        queue, self._queue = self._queue, []
        for callback, message in queue:
            error = self._cluster.refuse(message)
            if error is not None:
                callback(error, message)
            elif self.transaction is not None:
                self.transaction.records.append(message)
        return len(queue)

    def statistics(self) -> str:
        eos = {"txn_state": self.state, "producer_id": 7, "producer_epoch": self.epoch}
        lost = self._cluster.lost_connections
        additions = 0
        if self.transaction is not None:
            additions = 1 + self._cluster.lost_additions
            lost += self._cluster.lost_additions
        questions, late = self._cluster.lost_questions, self._cluster.late_answers
        coordinator = {
            "req": {
                "InitProducerId": self.initialisations,
                "AddPartitionsToTxn": additions,
                "Produce": 0,
            },
            "tx": self.initialisations + additions + questions,
            "rx": self.initialisations + additions - lost + late,
            "waitresp_cnt": 0,
            "outbuf_cnt": 0,
            "rxcorriderrs": late,
        }
        topics = {"eos": {"topic": "eos", "partitions": {}}}
        told = {"brokers": {"TxnCoordinator": coordinator}, "topics": topics, "eos": eos}
        return json.dumps(told)

    def flush(self, timeout: float) -> int:
        del timeout
        self._deliver()
        return self._cluster.never_confirmed

    def commit_transaction(self, timeout: float) -> None:
        del timeout
        if self._cluster.commit_error is not None:
            raise KafkaException(self._cluster.commit_error)
        assert self.state == "InTransaction", "a commit ends what was begun"
        self.state = "Ready"
        if self.transaction is not None:
            self.transaction.state = "committed"

    def abort_transaction(self, timeout: float) -> None:
        del timeout
        if not self._cluster.abort_is_acknowledged:
            raise KafkaException(kafka_error("_TIMED_OUT", retriable=True))
        if self.transaction is not None:
            self.transaction.state = "aborted"

    def fail(self, error: KafkaError) -> None:
        """The client itself gives up: a fatal error is raised by the next call that serves."""
        if error.fatal():
            self._fatal = error
        else:
            self._on_error(error)

    def purge(self) -> None:
        self._queue.clear()

    def list_topics(self, topic: str, timeout: float) -> TopicMetadata:
        del timeout
        if self._cluster.partitions is None:
            raise KafkaException(kafka_error("_TRANSPORT"))
        self._known_partitions = self._cluster.partitions
        found = SimpleNamespace(partitions=dict.fromkeys(range(self._known_partitions)))
        return SimpleNamespace(topics={topic: found})

    def __len__(self) -> int:
        return len(self._queue)
