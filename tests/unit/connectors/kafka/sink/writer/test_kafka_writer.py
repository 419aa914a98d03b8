"""The writer's promises, over a fake cluster: rules `pre-commit-confirmed`,
`handle-from-producer`, `ids-never-reused` and `outcome-from-broker`."""

import pyarrow as pa
import pytest

from sluice.connectors.kafka.sink.handles import TransactionIdentity, decode_handle
from sluice.connectors.kafka.sink.producers.preparation import WaitLimits
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.transaction_status import read_status
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.contracts import RegisteredAttempt, TaskScope
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    FencedError,
    StreamError,
    TransactionAbortedError,
    UnreachableError,
)
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, kafka_error

ORDERS = SplitRange(
    source_id="s", topic="orders", topic_id="x", partition=1, start_offset=100, end_offset=200
)
SCOPE = TaskScope(
    job_uid="j",
    operator_id="o",
    batch=BatchKey(region="r", attempt_id=0, batch_id=4),
    checkpoint_id=5,
    committed_through=4,
    task="0.0",
    source_ranges=(ORDERS,),
)


class Registry:
    """Notes what was registered, and that no record was written before; its clock says `now_s`."""

    now_s = 7.0

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.attempts: list[RegisteredAttempt] = []
        self.refusal: StreamError | None = None

    def register(self, attempt: RegisteredAttempt) -> float:
        if self.refusal is not None:
            raise self.refusal
        identity = TransactionIdentity.parse(attempt.resource)
        assert self.cluster.open_transactions(identity.transactional_id) == []
        self.attempts.append(attempt)
        return self.now_s


class Rig:
    """A transactional writer and everything around it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.clients: list[FakeClient] = []
        self.producers: list[TransactionalProducer] = []
        self.registry = Registry(self.cluster)
        self.timeout_ms: int | None = None
        self.renew()

    def renew(self) -> None:
        """The writer, and its pool."""
        self.pool = self.renewed_pool()
        self.writer = TransactionalWriter(self.pool, SCOPE, self.registry, "out")

    def renewed_pool(self) -> ProducerPool:
        """With a producer that knows the cluster as it is now."""
        pool = ProducerPool(
            prefix="p",
            scope=SCOPE,
            prepare=self._prepare,
            background=lambda function: function(),
            keep_alive_s=None,
        )
        pool.enter(SCOPE)
        return pool

    def _prepare(self, transactional_id: str) -> TransactionalProducer:
        def make(config: object) -> FakeClient:
            self.clients.append(FakeClient(self.cluster, config))  # type: ignore[arg-type]
            return self.clients[-1]

        timeout = {} if self.timeout_ms is None else {"transaction.timeout.ms": self.timeout_ms}
        producer = TransactionalProducer(make, timeout, transactional_id)
        producer.prepare(topic=None, timeout_s=1)
        self.producers.append(producer)
        return producer

    @property
    def client(self) -> FakeClient:
        """The writer's own, not one that was made ready ahead."""
        return next(client for client in self.clients if client.state == "InTransaction")


@pytest.fixture
def rig() -> Rig:
    """Each test has its own cluster."""
    return Rig()


def records(*values: bytes | None, first_offset: int = 100) -> pa.RecordBatch:
    """Rows as a chained task hands them over: the source's columns are still there."""
    count = len(values)
    return pa.record_batch(
        {
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([1] * count, pa.int32()),
            "offset": pa.array(range(first_offset, first_offset + count), pa.int64()),
        }
    )


def test_an_epoch_without_records_costs_no_transaction(rig: Rig) -> None:
    """Rule `outcome-from-broker`: nothing produced, nothing begun, nothing to commit, nothing
    registered."""
    rig.writer.write(records())
    assert rig.writer.pre_commit() == []
    assert rig.cluster.transactions == []
    assert rig.registry.attempts == []


def test_a_pre_commit_names_the_registered_transaction_and_leaves_it_open(rig: Rig) -> None:
    """Rules `handle-from-producer` and `ids-never-reused`: the handle is the producer's own, told
    before the first record."""
    rig.writer.write(records(b"a", b"b"))
    rig.writer.write(records(b"c", first_offset=102))
    [entry] = rig.writer.pre_commit()
    handle = decode_handle(entry)
    [attempt] = rig.registry.attempts
    assert handle.identity.resource == attempt.resource
    assert (attempt.batch, attempt.operator_id) == (SCOPE.batch, "o")
    assert (handle.checkpoint_id, handle.record_count) == (5, 3)
    assert [(s.topic, s.partition, s.start_offset, s.end_offset) for s in handle.sources] == [
        ("orders", 1, 100, 200)
    ]
    [transaction] = rig.cluster.open_transactions(handle.transactional_id)
    assert [m.record_value for m in transaction.records] == [b"a", b"b", b"c"]


def test_transaction_timeout_a_pre_commit_says_until_when_its_transaction_is_safe(rig: Rig) -> None:
    """By the clock of the coordinator, who was told before the broker was; with room to commit."""
    rig.timeout_ms = 600_000
    rig.renew()
    rig.writer.write(records(b"a"))
    rig.registry.now_s = 500.0  # what is said later changes nothing
    assert rig.writer.decide_by_s is None
    rig.writer.pre_commit()
    assert rig.writer.decide_by_s == 7.0 + 600.0 - 60.0


def test_a_transaction_whose_timeout_nobody_knows_has_no_last_moment(rig: Rig) -> None:
    """Then a checkpoint's own time-out is all there is."""
    rig.writer.write(records(b"a"))
    rig.writer.pre_commit()
    assert rig.writer.decide_by_s is None


def refuse_value(value: bytes, code: str) -> object:
    """A rule for `FakeCluster`: this value is refused."""
    return lambda message: kafka_error(code) if message.record_value == value else None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("MSG_SIZE_TOO_LARGE", DeliveryError),
        ("_MSG_TIMED_OUT", UnreachableError),
        ("_UNKNOWN_PARTITION", DeliveryError),
        ("TOPIC_AUTHORIZATION_FAILED", AuthenticationError),
    ],
)
@pytest.mark.parametrize("at_flush", [False, True])
def test_a_record_refused_by_the_broker_is_never_pre_committed(
    rig: Rig, code: str, kind: type[StreamError], at_flush: bool
) -> None:
    """Rule `pre-commit-confirmed`: `flush` returns 0 although a record was refused; its report
    must count."""
    rig.cluster.refuse = refuse_value(b"bad", code)  # type: ignore[assignment]
    rig.cluster.answers_at_flush = at_flush
    with pytest.raises(kind) as caught:
        write_and_pre_commit(rig, records(b"a", b"bad", b"c"))
    where = caught.value.args[1]
    assert where["topic"] == "out"
    assert where["partition"] == 1
    assert where["code"] == code
    assert (where["source_topic"], where["source_partition"], where["source_offset"]) == (
        "orders",
        1,
        101,
    )
    rig.writer.abort()
    assert [t.state for t in rig.cluster.transactions] == ["aborted"]


def write_and_pre_commit(rig: Rig, *batches: pa.RecordBatch) -> None:
    for batch in batches:
        rig.writer.write(batch)
    rig.writer.pre_commit()


def test_a_record_that_the_client_does_not_accept_is_never_left_out(rig: Rig) -> None:
    """Rule `pre-commit-confirmed`: every record must be accepted, also by the client's own
    checks."""
    rig.cluster.refuse_at_produce = refuse_value(b"bad", "MSG_SIZE_TOO_LARGE")  # type: ignore[assignment]
    with pytest.raises(DeliveryError) as caught:
        write_and_pre_commit(rig, records(b"a", b"b", b"bad", b"c"))
    assert caught.value.args[1]["source_offset"] == 102


def test_a_partition_that_was_added_a_moment_ago_is_written(rig: Rig) -> None:
    """A producer that waited for its epoch knows the partitions of then; the order is kept."""
    rig.cluster.partitions = 1
    writer = TransactionalWriter(rig.renewed_pool(), SCOPE, rig.registry, "out")
    rig.cluster.partitions = 2
    writer.write(records(b"a", b"b"))
    [entry] = writer.pre_commit()
    [transaction] = rig.cluster.open_transactions(decode_handle(entry).transactional_id)
    assert [m.record_value for m in transaction.records] == [b"a", b"b"]


def test_a_partition_that_does_not_exist_is_asked_for_and_refused(rig: Rig) -> None:
    """Looking again does not hide a wrong partition number."""
    rig.cluster.partitions = 1
    writer = TransactionalWriter(rig.renewed_pool(), SCOPE, rig.registry, "out")
    with pytest.raises(StreamError) as caught:
        writer.write(records(b"a"))
    assert caught.value.args[1]["code"] == "_UNKNOWN_PARTITION"


def test_records_that_are_not_confirmed_are_never_pre_committed(rig: Rig) -> None:
    """Rule `pre-commit-confirmed`: `flush` must return 0."""
    rig.cluster.never_confirmed = 2
    rig.writer = TransactionalWriter(
        rig.pool, SCOPE, rig.registry, "out", waits=WaitLimits(flush_s=0)
    )
    with pytest.raises(UnreachableError, match="not confirmed"):
        write_and_pre_commit(rig, records(b"a"))


def test_the_largest_of_a_refused_batch_is_named(rig: Rig) -> None:
    """The broker refuses whole batches, the small records in them too."""
    rig.cluster.refuse = lambda _: kafka_error("MSG_SIZE_TOO_LARGE")
    with pytest.raises(DeliveryError) as caught:
        write_and_pre_commit(rig, records(b"a", b"b", b"large one", b"c"))
    assert caught.value.args[1]["source_offset"] == 102
    assert caught.value.args[1]["failed_records"] == 4


@pytest.mark.parametrize(
    ("bad", "code", "true_code", "at", "remedy"),
    [
        ([b"b"], "INVALID_TIMESTAMP", None, 101, "Clamp or drop"),
        ([b"b", b"d"], "INVALID_RECORD", "INVALID_TIMESTAMP", 101, "Clamp or drop"),
        ([b"b"], "INVALID_RECORD", None, 101, "key"),
    ],
)
def test_the_record_that_the_broker_names_is_named_and_no_other_of_its_batch(
    rig: Rig, bad: list[bytes], code: str, true_code: str | None, at: int, remedy: str
) -> None:
    """librdkafka says of all others that a different record was not valid. If several are not
    valid, only the client knows the broker's own code."""
    rig.cluster.refuse = lambda message: kafka_error(
        code if message.record_value in bad else "_INVALID_DIFFERENT_RECORD"
    )
    rig.cluster.answers_at_flush = True
    rig.writer.write(records(b"a much larger one", b"b", b"c", b"d"))
    if true_code is not None:
        rig.client.abort_reason = kafka_error(true_code, requires_abort=True)
        rig.client.state = "AbortableError"
    with pytest.raises(DeliveryError, match=remedy) as caught:
        rig.writer.pre_commit()
    where = caught.value.args[1]
    assert (where["code"], where["source_offset"]) == (true_code or code, at)
    assert where["failed_records"] == 4


def test_a_batch_refused_without_a_name_is_its_range_and_no_single_record(rig: Rig) -> None:
    """As brokers before 2.4 do: any offset could be that of an innocent record."""
    rig.cluster.refuse = lambda _: kafka_error("INVALID_TIMESTAMP")
    rig.cluster.answers_at_flush = True
    with pytest.raises(DeliveryError, match=r"orders-1\[100,200\)") as caught:
        write_and_pre_commit(rig, records(b"a", b"b"))
    assert "source_offset" not in caught.value.args[1]


def test_of_equal_rows_with_other_timestamps_none_is_named(rig: Rig) -> None:
    """The plain client reports the key and the value of a record, and not its row."""
    reports = iter([kafka_error("INVALID_TIMESTAMP"), kafka_error("_INVALID_DIFFERENT_RECORD")])
    rig.cluster.refuse = lambda _: next(reports)
    rig.cluster.answers_at_flush = True
    with pytest.raises(DeliveryError, match="INVALID_TIMESTAMP") as caught:
        write_and_pre_commit(rig, records(b"a", b"a"))
    assert "source_offset" not in caught.value.args[1]


def test_the_client_own_error_explains_records_that_were_thrown_away(rig: Rig) -> None:
    """A fenced producer purges its queue; the task must stop as fenced, not try again."""
    rig.writer.write(records(b"a"))
    rig.cluster.refuse = lambda _: kafka_error("_PURGE_QUEUE")
    rig.client.fail(kafka_error("_FENCED", fatal=True))
    with pytest.raises(FencedError):
        write_and_pre_commit(rig, records(b"b"))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("TRANSACTION_ABORTABLE", TransactionAbortedError),
        ("NOT_LEADER_FOR_PARTITION", TransactionAbortedError),
        ("COORDINATOR_NOT_AVAILABLE", UnreachableError),
        ("TOPIC_AUTHORIZATION_FAILED", AuthenticationError),
        ("MSG_SIZE_TOO_LARGE", DeliveryError),
    ],
)
def test_the_client_is_asked_why_it_has_thrown_records_away(
    rig: Rig, reason: str, kind: type[StreamError]
) -> None:
    """It calls nobody back where its transaction is to be aborted and tried again."""
    rig.writer.write(records(b"a"))
    rig.cluster.refuse = lambda _: kafka_error("_PURGE_QUEUE")
    rig.client.abort_reason = kafka_error(reason, requires_abort=True)
    rig.client.state = "AbortableError"
    with pytest.raises(kind, match=reason) as caught:
        write_and_pre_commit(rig, records(b"b"))
    assert type(caught.value) is kind
    assert caught.value.args[1]["source_offset"] == 100


def test_records_thrown_away_for_no_known_reason_are_worth_another_try(rig: Rig) -> None:
    """As often as the job tolerates failures: nothing of them is visible."""
    rig.writer.write(records(b"a"))
    rig.cluster.refuse = lambda _: kafka_error("_PURGE_INFLIGHT")
    with pytest.raises(TransactionAbortedError, match="_PURGE_INFLIGHT"):
        write_and_pre_commit(rig, records(b"b"))
    assert TransactionAbortedError not in PERMANENT_ERRORS


def test_a_fatal_error_of_the_client_stops_the_epoch(rig: Rig) -> None:
    """It is raised by whatever call serves next; no record needs to be refused for it."""
    rig.writer.write(records(b"a"))
    rig.client.fail(kafka_error("_FENCED", fatal=True))
    with pytest.raises(FencedError):
        rig.writer.pre_commit()


def test_a_record_refused_before_the_client_said_why_waits_for_the_reason(rig: Rig) -> None:
    """`produce` fails by the bare fatal mark; its cause may be served only after that."""
    rig.writer.write(records(b"a"))
    rig.cluster.refuse_at_produce = lambda _: kafka_error("_FATAL")
    rig.client.fail(kafka_error("_FENCED", fatal=True))
    with pytest.raises(FencedError):
        rig.writer.write(records(b"b"))


def test_another_producer_epoch_after_the_flush_is_never_pre_committed(rig: Rig) -> None:
    """Rule `handle-from-producer`: the identity must be unchanged after the flush."""
    rig.writer.write(records(b"a"))
    rig.client.epoch += 1
    with pytest.raises(TransactionAbortedError, match="not the one that was started"):
        rig.writer.pre_commit()


def test_a_transaction_that_is_no_longer_open_is_never_pre_committed(rig: Rig) -> None:
    """Rule `handle-from-producer`: librdkafka's state must be InTransaction when it is asked after
    the flush."""
    rig.writer.write(records(b"a"))
    rig.client.state = "AbortableError"
    with pytest.raises(UnreachableError, match="_TIMED_OUT"):
        rig.writer.pre_commit()


def test_a_transaction_that_ended_unseen_is_never_pre_committed(rig: Rig) -> None:
    """Rule `handle-from-producer`: nobody but the pre-commit may have brought it to another
    state."""
    rig.writer.write(records(b"a"))
    rig.client.state = "CommittingTransaction"
    with pytest.raises(TransactionAbortedError, match=r"state=CommittingTransaction"):
        rig.writer.pre_commit()


def test_outcome_from_broker_a_transaction_that_may_be_begun_again_is_never_pre_committed(
    rig: Rig,
) -> None:
    """Behind its commit, by a copy of a request: timed out, it would be described as aborted."""
    rig.cluster.lost_additions = 1
    rig.writer.write(records(b"a"))
    with pytest.raises(TransactionAbortedError, match="may still arrive"):
        rig.writer.pre_commit()


def test_a_transaction_older_than_its_timeout_is_never_pre_committed() -> None:
    """A task that was paused behind its last acknowledged record, or whose host slept, does not
    learn of the broker's abort; a decision must not name what is lost already."""
    cluster, now_s = FakeCluster(), [0.0]
    producer = TransactionalProducer(
        cluster.client, {"transaction.timeout.ms": 60_000}, "id", ages=lambda: now_s[0]
    )
    producer.prepare(topic=None, timeout_s=1)
    now_s[0] = 1000.0  # waiting for its epoch costs nothing
    producer.begin(lambda _: None)
    now_s[0] += 59
    producer.confirm()
    now_s[0] += 1
    with pytest.raises(TransactionAbortedError, match="may have timed out"):
        producer.confirm()


def test_a_fenced_writer_is_told_of_both_reasons(rig: Rig) -> None:
    """Kafka calls a transaction that ran too long fenced, too."""
    rig.writer.write(records(b"a"))
    rig.client.fail(kafka_error("_FENCED", fatal=True))
    with pytest.raises(FencedError, match=r"transactionTimeout.*newer run"):
        rig.writer.pre_commit()


def test_a_batch_that_is_no_longer_wanted_writes_nothing(rig: Rig) -> None:
    """Rule `ids-never-reused`: registering comes first, and may be refused."""
    rig.registry.refusal = FencedError("the batch is over", {}, "Stop.")
    with pytest.raises(FencedError):
        rig.writer.write(records(b"a"))
    assert rig.cluster.transactions == []
    rig.writer.abort()


def test_a_full_queue_waits_and_keeps_the_order(rig: Rig) -> None:
    """`BufferError` is no error, and no record is skipped or doubled by it."""
    rig.cluster.queue_room = 3
    values = [b"%d" % number for number in range(20)]
    rig.writer.write(records(*values))
    rig.writer.pre_commit()
    [transaction] = rig.cluster.transactions
    assert [m.record_value for m in transaction.records] == values


def test_without_the_offset_column_an_error_names_the_tasks_ranges(rig: Rig) -> None:
    """A function may have dropped the source's columns."""
    rig.cluster.refuse = lambda _: kafka_error("MSG_SIZE_TOO_LARGE")
    with pytest.raises(DeliveryError, match=r"orders-1\[100,200\)"):
        write_and_pre_commit(rig, pa.record_batch({"value": pa.array([b"a"])}))


def test_an_offset_column_of_the_users_own_is_not_taken_for_the_sources(rig: Rig) -> None:
    """A wrong position would be worse than a range."""
    rig.cluster.refuse = lambda _: kafka_error("MSG_SIZE_TOO_LARGE")
    batch = pa.record_batch({"value": pa.array([b"a"]), "offset": pa.array(["far away"])})
    with pytest.raises(DeliveryError, match=r"orders-1\[100,200\)") as caught:
        write_and_pre_commit(rig, batch)
    assert "source_offset" not in caught.value.args[1]


def test_abort_is_silent_when_the_broker_does_not_answer(rig: Rig) -> None:
    """The coordinator's sweep aborts what the writer could not."""
    rig.writer.write(records(b"a"))
    rig.cluster.abort_is_acknowledged = False
    rig.writer.abort()
    rig.writer.abort()
    assert [t.state for t in rig.cluster.transactions] == ["open"]


def test_a_row_that_no_record_can_hold_is_named_by_its_source(rig: Rig) -> None:
    """A null topic is found before the row is sent."""
    writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, None)
    batch = pa.record_batch({"value": [b"a", b"b"], "topic": ["out", None], "offset": [120, 121]})
    with pytest.raises(ConfigError, match="null topic") as caught:
        writer.write(batch)
    assert caught.value.args[1]["source_offset"] == 121


def test_the_statistics_of_a_topic_called_eos_do_not_hide_the_transaction() -> None:
    """The transaction's part is found from the end of the text."""
    cluster = FakeCluster()
    client = FakeClient(cluster, {"transactional.id": "t"})
    client.init_transactions(1)
    status = read_status(client.statistics())
    assert status is not None
    assert (status.producer_id, status.producer_epoch, status.state) == (7, 0, "Ready")
    assert read_status('{"type": "producer"}') is None


# --- dead letters ---------------------------------------------------------------------------------


def letters(*values: bytes) -> pa.RecordBatch:
    """As the runtime makes them."""
    rows = records(*values).select(["key", "value", "offset"])
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[("sluice.job", b"j")]] * len(values), kind)
    return pa.RecordBatch.from_arrays(
        [*rows.columns, headers], names=[*rows.schema.names, "headers"]
    )


def test_dead_letters_are_in_the_transaction_of_the_output(rig: Rig) -> None:
    """One decision for both; the handle counts both."""
    rig.writer.write(records(b"a"))
    rig.writer.write_dead_letters("dead", letters(b"x", b"y"))
    rig.writer.write(records(b"b"))
    [entry] = rig.writer.pre_commit()
    handle = decode_handle(entry)
    [transaction] = rig.cluster.open_transactions(handle.transactional_id)
    assert handle.record_count == 4
    assert len(rig.registry.attempts) == 1
    written = [(m.record_topic, m.record_value) for m in transaction.records]
    assert written == [("out", b"a"), ("dead", b"x"), ("dead", b"y"), ("out", b"b")]
    assert transaction.records[1].headers == (("sluice.job", b"j"),)


def test_an_epoch_of_dead_letters_alone_is_a_transaction(rig: Rig) -> None:
    """It is registered before its first record, and pre-committed as any other."""
    rig.writer.write(records())
    rig.writer.write_dead_letters("dead", letters(b"x"))
    [entry] = rig.writer.pre_commit()
    assert decode_handle(entry).record_count == 1


def test_no_rows_for_another_topic_are_checked_without_a_transaction(rig: Rig) -> None:
    """As functions with late rows do for each new schema."""
    rig.writer.write_dead_letters("late", letters())
    assert rig.writer.pre_commit() == []
    with pytest.raises(ConfigError, match="value"):
        rig.writer.write_dead_letters("late", letters().select(["key"]))


def test_a_writer_of_dead_letters_alone_ignores_other_records(rig: Rig) -> None:
    """Whatever their columns are; an epoch without a dead letter has no transaction."""
    rig.writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, None, dead_letters_only=True)
    rig.writer.write(pa.RecordBatch.from_pydict({"amount": [1, 2]}))
    assert rig.writer.pre_commit() == []
    rig.renew()
    rig.writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, None, dead_letters_only=True)
    rig.writer.write(records(b"a"))
    rig.writer.write_dead_letters("dead", letters(b"x"))
    [entry] = rig.writer.pre_commit()
    [transaction] = rig.cluster.open_transactions(decode_handle(entry).transactional_id)
    assert [(m.record_topic, m.record_value) for m in transaction.records] == [("dead", b"x")]


def test_dead_letters_go_with_the_epoch_that_is_given_up(rig: Rig) -> None:
    """A failed attempt leaves none; the next one writes them again."""
    rig.writer.write(records(b"a"))
    rig.writer.write_dead_letters("dead", letters(b"x"))
    rig.writer.abort()
    assert [t.state for t in rig.cluster.transactions] == ["aborted"]


def test_pre_commit_confirmed_a_refused_dead_letter_is_never_pre_committed(rig: Rig) -> None:
    """Its epoch fails with the source's position: no record is left out unseen."""
    rig.cluster.refuse = refuse_value(b"x", "MSG_SIZE_TOO_LARGE")  # type: ignore[assignment]
    rig.cluster.answers_at_flush = True
    rig.writer.write(records(b"a"))
    rig.writer.write_dead_letters("dead", letters(b"w", b"x"))
    with pytest.raises(DeliveryError) as caught:
        rig.writer.pre_commit()
    where = caught.value.args[1]
    assert (where["topic"], where["source_offset"]) == ("dead", 101)
