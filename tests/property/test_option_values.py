"""Options with anything in them, of source and sinks, for a Job and as a drop-in: what they say, or
an error of ours that names the option.

Names that are misspelt, and what each right one means: `tests/unit/connectors/kafka/source/test_source_options.py`,
`tests/unit/connectors/kafka/test_kafka_sink.py`, `tests/unit/connectors/hdfs/test_file_drop_in.py`.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice import KafkaSink, KafkaSource
from sluice.connectors.hdfs.file_drop_in import FileDropIn
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_consumer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.source_options import SOURCE_OPTIONS, SourceOptions
from sluice.runtime.errors import ConfigError, StreamError
from tests.kit.effort import examples
from tests.kit.mutations import json_texts

_SINK_OPTIONS = (
    *("guarantee", "hotPath", "taskMemoryMiB", "topic", "transactionalIdPrefix"),
    "transactionTimeout",
)
_FILE_OPTIONS = (
    *("path", "fileFormat", "partitionBy", "compression", "header", "name", "guarantee"),
    *("timeZone", "encoding"),
)
_HUGE = "9" * 400
_VALUES = st.one_of(
    st.text(max_size=12),
    json_texts,
    st.sampled_from(
        [
            *("", " ", "-1", "0", "1e3", "nan", "inf", "true", "latest", "earliest", "committed"),
            *(_HUGE, "9" * 5000, f"{_HUGE}ms", f"{_HUGE}us", "٣", "²", "\0", "\ud800", "[" * 5000),
            *('{"t": {"0": 1}}', '{"t": {"0": 1e999}}', '{"t": [0, 1]}', '{"t": {"0": -3}}'),
            *("10s", "500ms", "15m", "(", "(a+)+$", "a,b", ",", "exactly-once", "none"),
        ]
    ),
)
_KAFKA_OPTIONS = (
    *("kafka.group.id", "kafka.isolation.level", "kafka.security.protocol", "kafka.acks"),
    *("kafka.sasl.jaas.config", "kafka.sasl.mechanism", "kafka.fetch.min.bytes"),
    *("kafka.linger.ms", "kafka.compression.type", "kafka.queued.max.messages.kbytes"),
    *("kafka.fetch.max.bytes", "kafka.batch.size", "kafka.bootstrap.servers", "kafka."),
)
_SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def some_of(*names: str) -> st.SearchStrategy[dict[str, str]]:
    """Up to four options."""
    return st.dictionaries(st.sampled_from(names), _VALUES, max_size=4)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@settings(max_examples=examples(80))
@given(given_options=some_of(*SOURCE_OPTIONS, *_KAFKA_OPTIONS))
@example(given_options={"maxTriggerDelay": f"{_HUGE}us"})
@example(given_options={"kafkaConsumer.pollTimeoutMs": _HUGE})
@example(given_options={"partitionDiscoveryIntervalMs": _HUGE})
@example(given_options={"startingOffsets": '{"t": ' + "[" * 100_000})
@example(given_options={"startingOffsets": '{"t": {"' + "9" * 5000 + '": 1}}'})
@example(given_options={"taskMemoryMiB": "9" * 5000})
def test_options_of_a_source(
    given_options: Mapping[str, str], *, bounded: bool, stream: bool
) -> None:
    found = {"subscribe": "in", **_SERVERS, **given_options}
    if {"assign", "subscribePattern"} & set(given_options):
        del found["subscribe"]
    with contextlib.suppress(StreamError):
        made = SourceOptions.of(found, bounded=bounded, stream=stream)
        assert 0 < made.no_progress_timeout_s < float("inf")
        assert 0 <= made.max_trigger_delay_s < float("inf")


@settings(max_examples=examples(80))
@given(options=some_of(*SOURCE_OPTIONS, *_KAFKA_OPTIONS))
def test_options_of_a_jobs_source(options: Mapping[str, str]) -> None:
    with contextlib.suppress(StreamError):
        KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["in"], options=options)


@settings(max_examples=examples(80))
@given(options=some_of(*_SINK_OPTIONS, *_KAFKA_OPTIONS))
@example(options={"transactionTimeout": _HUGE})
@example(options={"transactionTimeout": "9" * 5000})
@example(options={"taskMemoryMiB": "9" * 5000})
def test_options_of_a_sink(options: Mapping[str, str]) -> None:
    with contextlib.suppress(StreamError):
        made = KafkaSink.from_options({"transactionalIdPrefix": "p", **_SERVERS, **options})
        made.writer_factory()
        assert made.settings()


@given(
    timeout_s=st.floats() | st.sampled_from([float("nan"), float("inf"), -1.0, 10.0**300]),
    options=some_of(*_KAFKA_OPTIONS),
)
@example(timeout_s=float("nan"), options={})
@example(timeout_s=float("inf"), options={})
def test_arguments_of_a_jobs_sink(timeout_s: float, options: Mapping[str, str]) -> None:
    """A timeout that is a number, and is short enough to be reported to a broker."""
    with contextlib.suppress(StreamError):
        made = KafkaSink(
            bootstrap_servers="127.0.0.1:1",
            topic="out",
            transactional_id_prefix="p",
            transaction_timeout_s=timeout_s,
            options=options,
        )
        assert made.settings()
        assert 1 <= timeout_s * 1000 < 2**31


@settings(max_examples=examples(80))
@given(options=some_of(*_FILE_OPTIONS))
def test_options_of_files(options: Mapping[str, str]) -> None:
    with contextlib.suppress(StreamError):
        FileDropIn.from_options({"path": "/data/out", **options}, session_zone="UTC")


@settings(max_examples=examples(60))
@given(
    name=st.sampled_from(
        [
            *("fetch.min.bytes", "security.protocol", "client.id", "socket.timeout.ms"),
            *("ssl.ca.location", "debug", "sasl.mechanism", "queued.min.messages"),
        ]
    ),
    value=_VALUES,
)
@example(name="client.id", value="\ud800")
def test_what_librdkafka_refuses_is_an_error_of_ours(name: str, value: str) -> None:
    """Its own settings have bounds that only it knows."""
    with contextlib.suppress(StreamError):
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", options={name: value})
        consumer: Any = make_consumer({**connection.librdkafka(Role.CONSUMER), "group.id": "g"})
        consumer.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxTriggerDelay", f"{_HUGE}us"),
        ("kafkaConsumer.pollTimeoutMs", _HUGE),
        ("startingTimestamp", _HUGE),
        ("startingOffsets", '{"in": {"0": 9223372036854775808}}'),
    ],
)
def test_a_number_that_no_client_takes_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        SourceOptions.of({"subscribe": "in", **_SERVERS, name: value}, bounded=False, stream=True)
