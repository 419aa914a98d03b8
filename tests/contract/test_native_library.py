"""What the native hot path takes for granted about confluent-kafka's clients, and what becomes of
a client, or a machine, where it does not hold."""

import gc
import json
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.kafka import native_library
from connectors.kafka._client import CLIENT_VERSION, make_consumer, make_producer
from connectors.kafka.hot_path import HotPath, hot_path_of
from connectors.kafka.native_library import NativeLibrary, library_for
from connectors.kafka.native_producing import NativeProducing
from connectors.kafka.records import RecordColumns
from runtime.errors import ConfigError
from tests.fake_producer import FakeClient, FakeCluster
from tests.kafka_fixture import require_native
from tests.waiting import wait_for

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """The library and the log lines of this process are found anew."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    native_library.library_of_process.cache_clear()
    native_library.tell.cache_clear()


@pytest.fixture
def library() -> NativeLibrary:
    require_native()
    producer = make_producer({"bootstrap.servers": NOBODY, "log_level": 0})
    found = library_for(producer, HotPath.NATIVE)
    assert found is not None
    return found


def _name_by_statistics(make: Callable[[Any], Any], config: dict[str, Any]) -> tuple[Any, str]:
    """A client, and what librdkafka calls it in its statistics."""
    told: list[str] = []
    client = make(
        {
            "bootstrap.servers": NOBODY,
            "log_level": 0,
            "statistics.interval.ms": 10,
            "stats_cb": lambda text: told.append(json.loads(text)["name"]),
            **config,
        }
    )
    wait_for(lambda: client.poll(0.05) is None or told, what="statistics")
    wait_for(lambda: (client.poll(0.05), told)[1], what="statistics")
    return client, told[0]


def test_clients_are_laid_out_as_the_native_path_expects(library: NativeLibrary) -> None:
    """The pointer that is found in a client is the client that librdkafka knows by its name."""
    for make, config in ((make_producer, {}), (make_consumer, {"group.id": "g"})):
        client, name = _name_by_statistics(make, config)
        library.check(client)
        assert library.client_name(client) == name


def test_the_installed_client_is_one_whose_layout_was_read() -> None:
    """A new version must be looked at (``Handle``, ``struct Producer_msgstate``) and added."""
    assert CLIENT_VERSION in native_library.KNOWN_VERSIONS


@pytest.mark.parametrize(
    ("change", "value", "reason"),
    [
        ("CLIENT_VERSION", "99.0.0", "99.0.0 is not a known version"),
        ("KNOWN_HANDLE_BYTES", 8, "another way"),
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
    client = make_producer({"bootstrap.servers": NOBODY, "log_level": 0})
    with caplog.at_level(logging.INFO, native_library.__name__):
        assert library_for(client, HotPath.AUTO) is None
        assert library_for(client, HotPath.AUTO) is None
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("hot path chosen: path=plain")
    assert reason in line
    with pytest.raises(ConfigError, match=reason):
        library_for(client, HotPath.NATIVE)


def test_a_client_that_is_closed_or_foreign_is_never_touched(library: NativeLibrary) -> None:
    closed = make_consumer({"bootstrap.servers": NOBODY, "group.id": "g", "log_level": 0})
    closed.close()
    for client in (closed, FakeClient(FakeCluster(), {}), object()):
        with pytest.raises(native_library.NativeUnavailableError):
            library.check(client)
        assert library_for(client, HotPath.AUTO) is None


def test_the_log_says_once_that_the_native_path_runs(caplog: pytest.LogCaptureFixture) -> None:
    require_native()
    with caplog.at_level(logging.INFO, native_library.__name__):
        for _ in range(3):
            client = make_producer({"bootstrap.servers": NOBODY, "log_level": 0})
            assert library_for(client, HotPath.AUTO) is not None
    assert [r.getMessage() for r in caplog.records] == ["hot path chosen: path=native"]


def test_settings_are_read_as_people_write_them() -> None:
    assert hot_path_of(" Native ") is HotPath.NATIVE
    with pytest.raises(ConfigError, match="Did you mean plain"):
        hot_path_of("plian")


def test_rule_1_a_full_queue_takes_a_part_and_every_report_comes_back(
    library: NativeLibrary,
) -> None:
    """What is not taken is said, what is taken is reported, and nothing of either is kept."""
    reported: list[tuple[str | None, bytes | None]] = []

    def on_delivery(error: Any, message: Any) -> None:
        reported.append((error and error.name(), message.value()))

    client = make_producer(
        {
            "bootstrap.servers": NOBODY,
            "log_level": 0,
            "queue.buffering.max.messages": 7,
            "delivery.report.only.error": True,
        }
    )
    values = [b"%d" % n for n in range(10)]
    rows = pa.record_batch({"value": values, "headers": _headers(10)})
    prepared = NativeProducing(library, client).prepare(
        rows, RecordColumns.of(rows.schema, "t"), None
    )
    taken, refusal = prepared.produce(0, on_delivery)
    assert taken == 7
    assert isinstance(refusal, BufferError)
    assert prepared.produce(taken, on_delivery)[0] == 0
    client.purge()
    wait_for(lambda: client.poll(0.05) is None or not len(client), what="reports")
    assert reported == [("_PURGE_QUEUE", value) for value in values[:7]]
    gone = weakref.ref(on_delivery)
    del on_delivery
    gc.collect()
    assert gone() is None


def _headers(count: int) -> pa.Array:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array([[{"key": "h", "value": None}]] * count, kind)
