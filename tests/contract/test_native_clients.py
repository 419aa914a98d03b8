"""Clients of our own over librdkafka: when they are made, what they report, how they end.

No broker answers here, but for librdkafka's own mock; what a real one has a part in is in
``tests/integration/test_hot_path.py``.
"""

import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.client_tuning import HotPath, hot_path_of, read_settings
from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    TopicPartition,
    make_producer,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import UnsecuredToken
from sluice.connectors.kafka.native import library as native_library
from sluice.connectors.kafka.native.library import NativeLibrary, library_for
from sluice.connectors.kafka.native.native_consumer import NativeConsumer
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.sink.writer.native_producing import NativeProducing
from sluice.connectors.kafka.sink.writer.produce import Prepared
from sluice.connectors.kafka.sink.writer.sender import RecordSender, flush
from sluice.connectors.kafka.source.reader.consumers import ConsumerPool
from sluice.runtime.errors import (
    ConfigError,
    DeliveryError,
    TransactionAbortedError,
    UnreachableError,
)
from sluice.runtime.model.task_memory import TaskMemory
from tests.kit.kafka.kafka_fixture import require_native
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.task_scopes import SCOPE
from tests.kit.waiting import wait_for

SETTINGS = read_settings(TaskMemory(), {})
NOBODY = "127.0.0.1:1"
QUIET: Mapping[str, Any] = {
    "bootstrap.servers": NOBODY,
    "log_level": 0,
    "delivery.report.only.error": True,
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """The library and the log lines of this process are found again."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    native_library.library_of_process.cache_clear()
    native_library.log_choice.cache_clear()


@pytest.fixture
def library() -> NativeLibrary:
    require_native()
    found = library_for({}, HotPath.NATIVE)
    assert found is not None
    return found


# --- which path -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "value", "reason"),
    [
        ("built_file", lambda: None, "not built"),
        ("librdkafka_path", lambda: None, "no librdkafka of its own"),
    ],
)
def test_the_plain_path_stands_in_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
    value: object,
    reason: str,
) -> None:
    """By itself with a line in the log; where native was asked for, as an error."""
    require_native()
    monkeypatch.setattr(native_library, change, value)
    with caplog.at_level(logging.INFO, native_library.__name__):
        assert library_for({}, HotPath.AUTO) is None
        assert library_for({}, HotPath.AUTO) is None
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("hot path chosen: path=plain")
    assert reason in line
    with pytest.raises(ConfigError, match=reason):
        library_for({}, HotPath.NATIVE)


def test_tokens_from_a_python_function_reach_a_native_client() -> None:
    """By an event of librdkafka, which the caller's thread serves."""
    require_native()
    token = UnsecuredToken(principal="alice")
    connection = KafkaConnection(
        bootstrap_servers=NOBODY,
        options={"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        oauth_token=token,
    )
    pool = ConsumerPool()
    pooled = pool.borrow(
        connection, read_committed=True, settings=SETTINGS, hot_path=HotPath.NATIVE
    )
    assert isinstance(pooled.consumer, NativeConsumer)
    pool.discard(pooled)


def test_a_callback_that_only_confluent_kafka_serves_takes_the_plain_path() -> None:
    require_native()
    with pytest.raises(ConfigError, match="partitioner is a Python function"):
        library_for({"partitioner": print}, HotPath.NATIVE)


def test_the_log_says_once_that_the_native_path_runs(caplog: pytest.LogCaptureFixture) -> None:
    require_native()
    with caplog.at_level(logging.INFO, native_library.__name__):
        for _ in range(3):
            assert library_for({"error_cb": print, "linger.ms": 5}, HotPath.AUTO) is not None
    assert [r.getMessage() for r in caplog.records] == ["hot path chosen: path=native"]


def test_settings_are_read_as_people_write_them() -> None:
    assert hot_path_of(" Native ") is HotPath.NATIVE
    with pytest.raises(ConfigError, match="Did you mean plain"):
        hot_path_of("plian")


# --- settings, events, ends -----------------------------------------------------------------------


def test_a_setting_that_librdkafka_refuses_is_named_and_the_same_as_on_the_plain_path(
    library: NativeLibrary,
) -> None:
    refused = KafkaConnection(bootstrap_servers=NOBODY, options={"fetch.min.bytes": "many"})
    told = []
    for hot_path in (HotPath.NATIVE, HotPath.PLAIN):
        with pytest.raises(ConfigError, match=r"fetch\.min\.bytes") as caught:
            ConsumerPool().borrow(
                refused, read_committed=True, settings=SETTINGS, hot_path=hot_path
            )
        told.append(str(caught.value))
    assert told[0] == told[1]
    with pytest.raises(KafkaException):  # of several settings together
        NativeProducer(library, {**QUIET, "linger.ms": 100, "message.timeout.ms": 5})


def test_errors_statistics_and_log_lines_come_while_it_is_served(
    library: NativeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    """As of confluent-kafka's ``poll``; a callback's own error reaches the caller."""
    errors: list[KafkaError] = []
    statistics: list[str] = []
    config = {
        **QUIET,
        "log_level": 6,
        "statistics.interval.ms": 10,
        "error_cb": errors.append,
        "stats_cb": statistics.append,
    }
    with caplog.at_level(logging.INFO, "sluice.connectors.kafka.librdkafka"):
        client = NativeProducer(library, config)
        wait_for(
            lambda: client.poll(0.05) is None or (errors and statistics and caplog.records),
            what="an event of each kind",
        )
    assert "_TRANSPORT" in {error.name() for error in errors}
    assert f'"name": "{client.name}"' in statistics[0]
    assert client.name in caplog.records[0].getMessage()

    def fail(_: str) -> None:
        raise ValueError("of the callback")

    broken = NativeProducer(library, {**QUIET, "statistics.interval.ms": 10, "stats_cb": fail})
    with pytest.raises(ValueError, match="of the callback"):
        wait_for(lambda: broken.poll(0.05) < 0, what="never")


def test_a_closed_consumer_says_so_and_closing_twice_is_nothing(library: NativeLibrary) -> None:
    consumer = NativeConsumer(library, {"bootstrap.servers": NOBODY, "group.id": "g"})
    consumer.close()
    consumer.close()
    assert consumer.serve(0) == 0
    with pytest.raises(RuntimeError, match="closed"):
        consumer.unassign()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.take(1, 0)


class _Interrupted:
    """The compiled loops, of which one raises after what it did."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        self.taken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loops, name)

    def sluice_consume(self, *arguments: object) -> int:
        self.taken = self._loops.sluice_consume(*arguments)
        if self.taken > 0:
            raise KeyboardInterrupt
        return self.taken


def test_what_an_interrupted_call_has_taken_comes_back(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt comes up after the call. A consumer whose messages are lost waits for them for
    ever when it is closed, or when Python ends."""
    with MockCluster.running() as mock:
        mock.make_topic("t")
        producer = make_producer({**QUIET, "bootstrap.servers": mock.bootstrap})
        for _ in range(20):
            producer.produce("t", b"v")
        assert producer.flush(300) == 0
        consumer = NativeConsumer(
            library, {"bootstrap.servers": mock.bootstrap, "group.id": "g", "log_level": 0}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        loops = _Interrupted(library.call)
        with monkeypatch.context() as patch:
            patch.setattr(library, "call", loops)
            with pytest.raises(KeyboardInterrupt):
                wait_for(lambda: len(consumer.take(20, 0.1)), what="records")
        assert loops.taken > 0
        assert consumer.is_sound
        consumer.close()


def test_clients_end_with_their_last_reference(library: NativeLibrary) -> None:
    """As confluent-kafka's do: a transaction that is open stays open for the coordinator."""
    producer = NativeProducer(library, QUIET)
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None


def test_a_forked_child_leaves_its_parents_clients_alone(library: NativeLibrary) -> None:
    """librdkafka's threads are not there: to end a client would wait for them for ever."""
    program = """
import os, warnings
warnings.simplefilter("ignore")
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.native.native_consumer import NativeConsumer
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
library = library_for({}, HotPath.NATIVE)
settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
reads = {**settings, "group.id": "g"}
clients = [NativeProducer(library, settings), NativeConsumer(library, reads)]
child = os.fork()
if not child:
    clients.clear()
    os._exit(7)
_, status = os.waitpid(child, 0)
clients.clear()
print(os.waitstatus_to_exitcode(status))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stdout.strip() == "7"


# --- delivery reports -----------------------------------------------------------------------------


def _prepared(client: NativeProducer, delivery: DeliveryLog, count: int) -> Prepared:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch(
        {
            "value": [b"%d" % n for n in range(count)],
            "headers": pa.array([[{"key": "h", "value": None}]] * count, kind),
            "offset": pa.array(range(500, 500 + count), pa.int64()),
        }
    )
    columns = RecordColumns.of(rows.schema, "t")
    return NativeProducing(client).prepare(rows, columns, None, delivery)


def test_pre_commit_confirmed_a_full_queue_takes_a_part_and_every_report_comes_back(
    library: NativeLibrary,
) -> None:
    client = NativeProducer(library, {**QUIET, "queue.buffering.max.messages": 7})
    delivery = DeliveryLog(SCOPE)
    prepared = _prepared(client, delivery, 10)
    taken, refusal = prepared.produce(0)
    assert taken == len(client) == 7
    assert isinstance(refusal, BufferError)
    assert prepared.produce(taken)[0] == 0
    client.purge()
    wait_for(lambda: client.poll(0.05) is None or not len(client), what="reports")
    assert delivery.failed_records == 7
    with pytest.raises(TransactionAbortedError, match="_PURGE_QUEUE"):
        delivery.check()
    gone = weakref.ref(delivery)
    assert client.flush(1.0) == 0
    del delivery, prepared
    gc.collect()
    assert gone() is not None  # of the last rows: a report without rows is reported to somebody
    _prepared(client, DeliveryLog(SCOPE), 1)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("hot_path", [HotPath.NATIVE, HotPath.PLAIN])
def test_a_record_larger_than_the_queue_is_an_error_at_once(
    library: NativeLibrary, hot_path: HotPath
) -> None:
    """Both clients say the same of it as of a queue that is full for a moment."""
    config = {**QUIET, "queue.buffering.max.kbytes": 1}
    client = (
        NativeProducer(library, config) if hot_path is HotPath.NATIVE else make_producer(config)
    )
    sender = RecordSender(client, DeliveryLog(SCOPE), queue_full_timeout_s=600)
    rows = pa.record_batch({"value": [b"x" * 5_000]})
    with pytest.raises(DeliveryError, match=r"larger than .* queue .*row=0 record_bytes=5000"):
        sender.send(rows, RecordColumns.of(rows.schema, "t"))


def test_pre_commit_confirmed_a_flush_never_ends_before_an_error_was_seen(
    library: NativeLibrary,
) -> None:
    """librdkafka counts a refused record until its report was served, so 0 means: all judged."""
    client = NativeProducer(library, {**QUIET, "message.timeout.ms": 20, "linger.ms": 0})
    delivery = DeliveryLog(SCOPE)
    assert _prepared(client, delivery, 3).produce(0) == (3, None)
    kafka = library.kafka
    wait_for(lambda: kafka.rd_kafka_queue_length(client._events), what="a report")  # noqa: SLF001
    for _ in range(3):  # librdkafka's own flush, while nobody serves
        assert kafka.rd_kafka_flush(client.address, 50) != 0
    assert delivery.failed_records == 0
    with pytest.raises(UnreachableError, match="_MSG_TIMED_OUT") as caught:
        flush(client, delivery, timeout_s=60)
    assert "source_offset" not in caught.value.args[1], "no single record is the reason"
    wait_for(lambda: client.flush(0.1) == 0, what="all settled")
    assert delivery.failed_records == 3


def test_pre_commit_confirmed_a_report_of_rows_that_were_let_go_is_still_an_error(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a million later records an error names the ranges alone; it is never dropped."""
    monkeypatch.setattr("sluice.connectors.kafka.sink.producers.native_producer._KEPT_RECORDS", 4)
    client, delivery = NativeProducer(library, QUIET), DeliveryLog(SCOPE)
    for _ in range(3):
        assert _prepared(client, delivery, 3).produce(0) == (3, None)
    client.purge()
    wait_for(lambda: client.poll(0.05) is None or not len(client), what="reports")
    assert delivery.failed_records == 9
    with pytest.raises(TransactionAbortedError, match="_PURGE_QUEUE"):
        delivery.check()


@pytest.mark.parametrize("column", ["plain", "dictionary"])
def test_a_topic_with_a_null_character_is_refused_and_no_other_one_is_written_to(
    library: NativeLibrary, column: str
) -> None:
    """C would take what stands before it for the name; and of a dictionary only what rows name
    becomes a topic."""
    client, delivery = NativeProducer(library, QUIET), DeliveryLog(SCOPE)
    topics = pa.array(["orders", "orders\0x", "orders", "unused"])
    if column == "dictionary":
        topics = topics.dictionary_encode()
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"a", b"b", b"c", b"d"]), "topic": topics}
    ).slice(0, 3)
    prepared = NativeProducing(client).prepare(
        rows, RecordColumns.of(rows.schema, None), None, delivery
    )
    taken, refusal = prepared.produce(0)
    assert taken == 1
    assert isinstance(refusal, KafkaException)
    assert prepared.target(1) == ("orders\0x", -1)
    assert prepared._names == ["orders", "orders\0x"]  # type: ignore[attr-defined]  # noqa: SLF001
    client.purge()
    client.serve(0)
