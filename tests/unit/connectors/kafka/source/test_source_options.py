"""The options of the Kafka source: Spark's names and meanings, and errors that help."""

import pickle
import re
from datetime import UTC, datetime

import pytest

from sluice import KafkaSource
from sluice.connectors.kafka.source.positions import (
    AtTimestamp,
    Committed,
    Edge,
    NoMatch,
    PerPartition,
    PerPartitionTimestamp,
)
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.source.subscription import Assigned, Pattern, Topics
from sluice.runtime.errors import ConfigError

BASE = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}


def stream(**options: str) -> SourceOptions:
    given = {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}
    return SourceOptions.of(given, bounded=False, stream=True)


def batch(**options: str) -> SourceOptions:
    return SourceOptions.of({**BASE, **options}, bounded=True, stream=False)


def error_of(options: dict[str, str], *, is_stream: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.of(options, bounded=not is_stream, stream=is_stream)
    return str(caught.value)


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    "option",
    [
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "assign",
    ],
)
def test_the_form_that_a_refusal_shows_is_taken(option: str, is_stream: bool) -> None:
    """Word by word, as users copy it."""
    if is_stream and option.startswith("ending"):
        return  # a stream has no end
    servers = {"kafka.bootstrap.servers": "b:9092"}
    given = servers if option == "assign" else {**servers, "subscribe": "topic"}
    for value in ('{"topic": 1}', '{"topic": {"0": "1"}}', "[]", "no json", '{"topic": [-1]}'):
        form = re.search(
            r"(?:Write it as|such as) (\{.*\})",
            error_of({**given, option: value}, is_stream=is_stream),
        )
        assert form is not None
        SourceOptions.of({**given, option: form[1]}, bounded=not is_stream, stream=is_stream)


def test_names_are_case_insensitive_as_in_spark() -> None:
    found = SourceOptions.of(
        {"KAFKA.Bootstrap.Servers": "b:9092", "SUBSCRIBE": "a, b,a", "maxoffsetspertrigger": "7"},
        bounded=False,
        stream=True,
    )
    assert found.subscription == Topics(names=("a", "b"))
    assert found.max_offsets == 7
    assert found.connection.bootstrap_servers == "b:9092"


def test_defaults_are_those_of_spark_but_for_read_committed() -> None:
    """A stream starts at latest, a batch read at earliest and ends at latest."""
    assert stream().starting is Edge.LATEST
    assert batch().starting is Edge.EARLIEST
    assert batch().ending is Edge.LATEST
    assert stream().fail_on_data_loss
    assert not stream().include_headers
    assert stream().read_committed


def test_a_forgotten_topic_is_not_subscribed_also_by_a_pattern() -> None:
    found = SourceOptions.of(
        {
            "kafka.bootstrap.servers": "b:9092",
            "subscribePattern": "orders|returns",
            "forgetTopics": "returns, old",
        },
        bounded=False,
        stream=True,
    )
    assert found.subscription.choose({"orders", "returns"}) == {"orders"}
    assert found.forgotten == {"returns", "old"}
    assert "topics=orders " in error_of({**BASE, "forgetTopics": "orders,old"})
    assert "forgetTopics" in error_of({**BASE, "forgetTopics": "old"}, is_stream=False)
    made = KafkaSource(bootstrap_servers="b:9092", topics=["orders"], forget=["old"])
    assert made.forgotten == {"old"}
    with pytest.raises(ConfigError, match=r"forget=\['old'\]"):
        KafkaSource(bootstrap_servers="b:9092", topics=["orders"], forget="old")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscibe", "subscribe"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataloss2", "failOnDataLoss"),
        ("partitionDiscoveryInterval", "partitionDiscoveryIntervalMs"),
        ("kafka.isolation.leve", "kafka.isolation.level"),
    ],
)
def test_misspelt_option_names_the_nearest_right_one(given: str, meant: str) -> None:
    text = error_of({**BASE, given: "1"})
    assert given in text
    assert f"Did you mean {meant}?" in text


@pytest.mark.parametrize(
    "name",
    [
        "kafka.key.deserializer",
        "kafka.value.deserializer",
        "kafka.auto.offset.reset",
        "kafka.enable.auto.commit",
        "kafka.interceptor.classes",
        "kafka.enable.partition.eof",
    ],
)
def test_options_that_sluice_owns_are_refused(name: str) -> None:
    """As Spark refuses them: they would change what is read behind the checkpoint's back."""
    assert name in error_of({**BASE, name: "x"})


@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"subscribe": "a", "subscribePattern": "a.*"},
        {"subscribe": "a", "assign": '{"a":[0]}'},
        {"subscribe": "a", "subscribePattern": "a.*", "assign": '{"a":[0]}'},
    ],
)
def test_what_to_read_is_said_in_exactly_one_way(ways: dict[str, str]) -> None:
    text = error_of({"kafka.bootstrap.servers": "b:9092", **ways})
    assert "exactly one of three" in text
    assert all(way in text for way in ways)


def test_the_three_ways_to_subscribe() -> None:
    servers = {"kafka.bootstrap.servers": "b:9092"}

    def read(**way: str) -> object:
        return SourceOptions.of({**servers, **way}, bounded=False, stream=True).subscription

    assert read(subscribe="a,b") == Topics(names=("a", "b"))
    assert read(subscribePattern="a.*") == Pattern(regex="a.*")
    assert read(assign='{"a":[0,2],"b":[1]}') == Assigned(
        keys=frozenset({("a", 0), ("a", 2), ("b", 1)})
    )


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("[a-z&&[^x]]*", "[a-z&&[^x"),
        ("orders|[^a[bc]]", "[^a[bc"),
        ("[]a[]", "[]a["),
        (r"a\0101", r"\0"),
        (r"(a)\101", r"\101"),
    ],
)
def test_a_pattern_that_java_reads_in_another_way_is_refused(pattern: str, part: str) -> None:
    """Python reads these without an error, and would read other topics than Spark's source."""
    text = error_of({"kafka.bootstrap.servers": "b:9092", "subscribePattern": pattern})
    assert f"part={part}]" in text


@pytest.mark.parametrize(
    "pattern", [r"\[a\[b\]", r"[a\[&]+", r"[]&]+", r"(a)\1.*", r"(?:(?!x)[a-z])*"]
)
def test_a_pattern_that_java_reads_alike_is_taken(pattern: str) -> None:
    assert Pattern(regex=pattern).regex == pattern


@pytest.mark.parametrize(
    "pattern", [r"\Qa.b\E.*", r"\p{Alpha}+", "(?<name>a)", r"a\h", r"a\z", "a**"]
)
def test_javas_own_syntax_is_an_error(pattern: str) -> None:
    assert "not a regular expression" in error_of(
        {"kafka.bootstrap.servers": "b:9092", "subscribePattern": pattern}
    )


def test_offsets_may_name_whole_topics_as_in_spark() -> None:
    """Spark's cases of ``JsonUtils.specificOffsets``; its ending offsets are given alike."""
    text = '{"a":"earliest","orders":{"0":23,"1":-1},"c":"LATEST"}'
    assert stream(startingOffsets=text).starting == PerPartition(
        offsets={("orders", 0): 23, ("orders", 1): Edge.LATEST},
        topics={"a": Edge.EARLIEST, "c": Edge.LATEST},
    )
    for wrong in ('{"a":"latest"}', '{"a":{"0":-1}}'):
        assert "latest" in error_of({**BASE, "startingOffsets": wrong}, is_stream=False)
    assert "twice" in error_of({**BASE, "startingOffsets": '{"a":"earliest","a":{"0":23}}'})
    for wrong in ('{"a":"first"}', '{"a":[0,1]}', '{"a":{"0":"earliest"}}', '"earliest"', "not"):
        assert wrong in error_of({**BASE, "startingOffsets": wrong})


def test_limits_go_up_to_javas_largest_number() -> None:
    largest = str(2**63 - 1)
    assert stream(maxOffsetsPerTrigger=largest).max_offsets == 2**63 - 1
    assert "9223372036854775807" in error_of({**BASE, "maxOffsetsPerTrigger": str(2**63)})


def test_a_pattern_that_a_later_python_may_read_in_another_way_is_taken() -> None:
    """Python warns of "[[", which is an error where a program makes warnings errors."""
    options = {"kafka.bootstrap.servers": "b:9092", "subscribePattern": "[a||b]+"}
    assert SourceOptions.of(options, bounded=False, stream=True).subscription == Pattern(
        regex="[a||b]+"
    )


@pytest.mark.parametrize(
    "bad", ['{"a":', "[]", '{"a":0}', '{"a":[-1]}', '{"a":["0"]}', "{}", '{"a":[true]}']
)
def test_malformed_assignment_shows_the_form(bad: str) -> None:
    text = error_of({"kafka.bootstrap.servers": "b:9092", "assign": bad})
    assert "assign" in text
    assert '{"topic": [0, 1]}' in text


def test_starting_offsets_of_every_kind() -> None:
    assert stream(startingOffsets="Earliest").starting is Edge.EARLIEST
    assert stream(startingOffsets='{"orders":{"0":23,"1":-1,"2":-2}}').starting == PerPartition(
        offsets={("orders", 0): 23, ("orders", 1): Edge.LATEST, ("orders", 2): Edge.EARLIEST}
    )
    assert stream(startingTimestamp="1700").starting == AtTimestamp(timestamp_ms=1700)
    assert stream(
        startingOffsetsByTimestamp='{"orders":{"0":5}}',
        startingOffsetsByTimestampStrategy="LATEST",
    ).starting == PerPartitionTimestamp(timestamps_ms={("orders", 0): 5}, no_match=NoMatch.LATEST)
    assert stream(startingOffsets="committed", kafka__group__id="g").starting == Committed(
        group_id="g"
    )


def test_timestamps_take_precedence_as_in_spark() -> None:
    found = stream(
        startingOffsets="earliest",
        startingOffsetsByTimestamp='{"orders":{"0":5}}',
        startingTimestamp="9",
    )
    assert found.starting == AtTimestamp(timestamp_ms=9)


def test_committed_offsets_need_a_group() -> None:
    assert "kafka.group.id" in error_of({**BASE, "startingOffsets": "committed"})


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"orders":{"0":-2}}'},
        {"maxOffsetsPerTrigger": "5"},
        {"partitionDiscoveryIntervalMs": "5000"},
        {"commitGroupOffsets": "true"},
        {"guarantee": "none"},
    ],
)
def test_batch_read_refuses_what_makes_no_sense_for_it(options: dict[str, str]) -> None:
    assert next(iter(options)) in error_of({**BASE, **options}, is_stream=False)


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"groupIdPrefix": "team", "kafka.group.id": "mine"},
        {"startingOffsetsByTimestampStrategy": "latest"},
        {"kafka.acks": "all", "kafka.linger.ms": "5"},
        {"fetchOffset.numRetries": "5"},
    ],
)
def test_what_sparks_source_takes_and_does_not_use_is_taken(
    options: dict[str, str], is_stream: bool
) -> None:
    """A program that changes its format needs no other change."""
    SourceOptions.of({**BASE, **options}, bounded=not is_stream, stream=is_stream)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_stream_refuses_ending_offsets(name: str) -> None:
    assert name in error_of({**BASE, name: "latest"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "middle"),
        ("startingOffsets", '{"orders":{"0":-3}}'),
        ("startingOffsets", '{"orders":{"x":3}}'),
        ("startingOffsets", '{"orders":3}'),
        ("startingOffsetsByTimestamp", '{"orders":{"0":-1}}'),
        ("startingTimestamp", "-5"),
        ("startingTimestamp", "yesterday"),
        ("maxOffsetsPerTrigger", "0"),
        ("minPartitions", "two"),
        ("includeHeaders", "yes"),
        ("maxTriggerDelay", "soon"),
        ("subscribe", " , "),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("kafka.isolation.level", "serializable"),
        ("guarantee", "mostly"),
        ("kafka.group.id", " "),
    ],
)
def test_malformed_value_is_an_error_that_names_the_option(name: str, value: str) -> None:
    assert name in error_of({**BASE, name: value})


@pytest.mark.parametrize(
    "name",
    [
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
    ],
)
@pytest.mark.parametrize("wrong", ["x", "{", '{"orders": 1}', '{"orders": {"0": "1"}}'])
def test_the_form_that_an_error_shows_is_taken(name: str, wrong: str) -> None:
    """A user copies it."""
    base = dict(BASE)
    if name == "assign":
        base.pop("subscribe")
    with pytest.raises(ConfigError) as refused:
        SourceOptions.of({**base, name: wrong}, bounded=True, stream=False)
    shown = re.search(r"\{.*\}", refused.value.args[2])
    assert shown is not None
    SourceOptions.of({**base, name: shown[0]}, bounded=True, stream=False)


@pytest.mark.parametrize(
    ("value", "twice"),
    [
        ('{"orders":{"0":23,"00":5}}', '"0" and "00" of orders'),
        ('{"orders":{"00":23,"1":5,"0":2}}', '"00" and "0" of orders'),
        ('{"orders":{"0":23,"0":5}}', '"0" and "0"'),
        ('{"orders":{"0":23},"orders":{"0":5}}', '"orders" and "orders"'),
    ],
)
@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_a_partition_that_is_named_twice_is_an_error_with_both_names(
    name: str, value: str, twice: str
) -> None:
    """One of the two numbers would be taken without a word, and records read twice or skipped."""
    text = error_of({**BASE, name: value})
    assert name in text
    assert f"twice={twice}" in text


def test_one_number_is_one_partition_however_it_is_spelt() -> None:
    """As Spark reads it."""
    given = stream(startingOffsets='{"orders":{"00":23,"1":5}}').starting
    assert given == PerPartition(offsets={("orders", 0): 23, ("orders", 1): 5})


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("10s", 10), ("500ms", 0.5), ("250", 0.25), ("1h", 3600)]
)
def test_trigger_delay_is_written_as_in_spark(text: str, seconds: float) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_s == pytest.approx(seconds)


def test_least_above_largest_is_refused() -> None:
    text = error_of({**BASE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"})
    assert "minOffsetsPerTrigger" in text


def test_an_isolation_level_that_does_not_exist_is_refused() -> None:
    text = error_of({**BASE, "kafka.isolation.level": "intentionally_invalid"})
    assert "kafka.isolation.level" in text
    assert "intentionally_invalid" in text


def test_read_uncommitted_is_refused_with_exactly_once() -> None:
    """Rule `refused-settings`: a source that may see aborted records cannot be part of
    exactly-once."""
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    text = error_of({**BASE, **uncommitted})
    assert "kafka.isolation.level" in text
    assert "exactly-once" in text
    weaker = {**BASE, **uncommitted, "guarantee": "at-least-once"}
    assert not SourceOptions.of(weaker, bounded=False, stream=True).read_committed
    assert not SourceOptions.of({**BASE, **uncommitted}, bounded=True, stream=False).read_committed


def test_group_is_the_users_or_made_of_the_prefix() -> None:
    assert stream(kafka__group__id="mine").group_name("x") == "mine"
    assert stream(groupIdPrefix="team").group_name("x") == "team-x"


def test_kafka_source_takes_its_arguments_and_refuses_repetition() -> None:
    source = KafkaSource(
        bootstrap_servers="b:9092",
        partitions={"orders": [0, 1]},
        starting_offsets={"orders": {0: 23, 1: -2}},
        group_id="mine",
        uid="u",
        bounded=True,
    )
    assert source.uid == "u"
    assert source.bounded
    assert source.settings()["group.id"] == "mine"
    assert "headers" in source.schema_ddl()
    with pytest.raises(ConfigError, match="subscribe"):
        KafkaSource(bootstrap_servers="b:9092", topics=["a"], options={"Subscribe": "b"})
    with pytest.raises(ConfigError, match="list of names"):
        KafkaSource(bootstrap_servers="b:9092", topics="a")
    with pytest.raises(ConfigError, match="exactly one of three"):
        KafkaSource(bootstrap_servers="b:9092")
    with pytest.raises(ConfigError, match="no such column"):
        KafkaSource(bootstrap_servers="b:9092", topics=["a"], columns=["valeu"])


@pytest.mark.parametrize(
    "name", ["minPartitions", "maxRecordsPerPartition", "partitionDiscoveryIntervalMs"]
)
def test_kafka_source_refuses_what_a_job_would_ignore(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        KafkaSource(bootstrap_servers="b:9092", topics=["a"], options={name: "8"})


def test_kafka_source_starts_at_a_moment_with_a_time_zone() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    source = KafkaSource(bootstrap_servers="b:9092", topics=["a"], starting_offsets=moment)
    assert str(round(moment.timestamp() * 1000)) in source.settings()["starting"]
    with pytest.raises(ConfigError, match="time zone"):
        KafkaSource(
            bootstrap_servers="b:9092", topics=["a"], starting_offsets=moment.replace(tzinfo=None)
        )


@pytest.mark.parametrize(("microseconds", "starts_at_ms"), [(7_000, 7), (7_001, 8), (7_400, 8)])
def test_a_record_of_the_millisecond_before_a_moment_is_not_read(
    microseconds: int, starts_at_ms: int
) -> None:
    moment = datetime(2026, 1, 2, microsecond=microseconds, tzinfo=UTC)
    source = KafkaSource(bootstrap_servers="b:9092", topics=["a"], starting_offsets=moment)
    begin_ms = 1767312000000 + starts_at_ms
    assert f"timestamp_ms={begin_ms}," in source.settings()["starting"]


def test_kafka_source_crosses_processes_and_shows_no_password() -> None:
    source = KafkaSource(
        bootstrap_servers="b:9092",
        topics=["a"],
        options={
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password": "canary-5521",
        },
    )
    copy = pickle.loads(pickle.dumps(source))
    assert copy.settings() == source.settings()
    assert "canary-5521" not in str(source.settings())
    assert "canary-5521" not in repr(source.reader())
