"""How users say where Kafka is: option names and their translation, and errors as ours."""

import logging
import pickle
import time

import pytest

from sluice.connectors.kafka.client import client_options
from sluice.connectors.kafka.client.client_options import Role, translate_names
from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    OncePerMinute,
    make_admin,
    make_consumer,
    make_producer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    FencedError,
    SourceChangedError,
    StreamError,
    UnreachableError,
)
from tests.kit.kafka.kafka_options import SERVERS, connection_with
from tests.kit.source.fake_source_cluster import FakeClock

# --- names ----------------------------------------------------------------------------------------


def test_options_of_others_are_left_alone() -> None:
    """Spark's own options stand beside ours in one mapping."""
    connection = KafkaConnection.of({**SERVERS, "subscribe": "orders", "startingOffsets": "latest"})

    assert connection.bootstrap_servers == "a:9092,b:9092"
    assert connection.options == {}


@pytest.mark.parametrize(
    ("servers", "part"),
    [
        ("a:9092/", "a:9092/"),
        ("a:9092,b:abc", "b:abc"),
        ("a:9092, b:99999", "b:99999"),
        ("a:0", "a:0"),
        ("a:65536", "a:65536"),
        ("a:9092;b:9092", "a:9092;b:9092"),
        ("SASL_SSL://a:9092", "SASL_SSL://a:9092"),
        ("me:secret@a:9092", "a:9092"),
        ("a", "a"),
        ("a:", "a:"),
        (":9092", ":9092"),
        ("::1:9092", "::1:9092"),
        ("[::1]", "[::1]"),
        ("[::1:9092", "[::1:9092"),
        ("a:9092 b:9092", "a:9092 b:9092"),
        ("a:٩٠٩٢", "a:٩٠٩٢"),
    ],
)
def test_a_part_of_the_servers_that_is_no_address_is_named_before_any_client_sees_it(
    servers: str, part: str
) -> None:
    with pytest.raises(ConfigError, match="not host:port") as caught:
        KafkaConnection.of({"kafka.bootstrap.servers": servers})
    assert caught.value.args[1]["part"] == part


@pytest.mark.parametrize("servers", ["", " ", ",", " , ,"])
def test_servers_without_any_part_are_none(servers: str) -> None:
    with pytest.raises(ConfigError, match="no Kafka servers"):
        KafkaConnection(bootstrap_servers=servers)


@pytest.mark.parametrize(
    ("servers", "parts"),
    [
        ("a:1,b_2.c-d:65535", ("a:1", "b_2.c-d:65535")),
        ("[::1]:9092,[fe80::1%eth0]:9092", ("[::1]:9092", "[fe80::1%eth0]:9092")),
        # Java's clients skip empty parts, too.
        (" a:9092 , ,b:9092,", ("a:9092", "b:9092")),
    ],
)
def test_servers_that_java_clients_accept_are_accepted(
    servers: str, parts: tuple[str, ...]
) -> None:
    assert KafkaConnection(bootstrap_servers=servers).servers == parts


@pytest.mark.parametrize(
    "name",
    [
        "kafka.key.deserializer",
        "kafka.interceptor.classes",
        "kafka.partitioner.class",
        "kafka.sasl.login.callback.handler.class",
    ],
)
def test_what_only_a_java_client_can_do_is_refused_with_an_alternative(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaConnection.of({**SERVERS, name: "x"})

    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.transactional.id", "mine"),
        ("kafka.transaction.timeout.ms", "1000"),
        ("kafka.group.id", "mine"),
        ("kafka.enable.auto.commit", "true"),
        ("kafka.auto.offset.reset", "latest"),
        ("kafka.enable.idempotence", "false"),
        ("kafka.isolation.level", "read_uncommitted"),
        ("kafka.enable.idempotence", "0"),
        *(("kafka.acks", number) for number in ("1", "+1", "01", "0x1", "1.0", "")),
        ("kafka.request.required.acks", "0"),
        ("kafka.partitioner.ignore.keys", "true"),
    ],
)
def test_what_sluice_owns_cannot_be_overridden(option: str, value: str) -> None:
    """Refused by name: ownership, and everything that would silently weaken exactly-once."""
    with pytest.raises(ConfigError) as caught:
        KafkaConnection.of({**SERVERS, option: value}).refuse_owned(exactly_once=True)

    assert option in str(caught.value)


def test_weaker_guarantees_may_have_weaker_settings() -> None:
    """acks=1 is fine where nothing is promised; ids and groups stay ours."""
    connection_with(acks="1", enable_idempotence="false").refuse_owned(exactly_once=False)
    with pytest.raises(ConfigError):
        connection_with(group_id="g").refuse_owned(exactly_once=False)
    with pytest.raises(ConfigError, match=r"queuing\.strategy.*keep their order"):
        connection_with(queuing_strategy="lifo").refuse_owned(exactly_once=False)


def test_java_s_default_of_a_setting_without_a_counterpart_is_accepted() -> None:
    connection_with(partitioner_ignore_keys="false").refuse_owned(exactly_once=True)


def test_what_is_for_producers_does_nothing_in_a_source() -> None:
    weak = {"kafka.acks": "1", "kafka.enable.idempotence": "false"}
    options = {**SERVERS, "subscribe": "in", **weak, "kafka.partitioner.ignore.keys": "true"}
    SourceOptions.of(options, bounded=False, stream=True)
    connection_with(acks="all").refuse_owned(exactly_once=True)
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        connection_with(isolation_level="read_uncommitted").refuse_owned(
            exactly_once=True, reads_only=True
        )


def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.buffer\.memory value=64m"):
        translate_names({"buffer.memory": "64m"}, Role.PRODUCER)


def test_java_names_become_librdkafkas() -> None:
    java = {
        "fetch.max.wait.ms": "100",
        "max.request.size": "2000000",
        "buffer.memory": "33554432",
        "receive.buffer.bytes": "-1",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.location": "/ca.pem",
        "linger.ms": "5",
        "max.poll.records": "500",
    }

    assert translate_names(java, Role.PRODUCER) == {
        "message.max.bytes": "2000000",
        "queue.buffering.max.kbytes": "32768",
        "socket.receive.buffer.bytes": "0",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.ca.location": "/ca.pem",
        "linger.ms": "5",
    }
    assert "linger.ms" not in translate_names(java, Role.CONSUMER)
    assert translate_names(java, Role.CONSUMER)["fetch.wait.max.ms"] == "100"


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", ["request.timeout.ms", "socket.timeout.ms"])
def test_a_broker_that_hangs_is_waited_for_as_long_as_the_java_client_does(
    role: Role, name: str
) -> None:
    """Unless reported otherwise, by either name; a producer's has a meaning of its own."""
    assert connection_with().librdkafka(role)["socket.timeout.ms"] == 30_000
    told = KafkaConnection.of({**SERVERS, f"kafka.{name}": "9000"}).librdkafka(role)
    assert told[name if role is Role.PRODUCER else "socket.timeout.ms"] == "9000"


_VALUES: dict[str, object] = {
    "delivery.report.only.error": True,
    "ssl.endpoint.identification.algorithm": "https",
    "security.protocol": "plaintext",
    "broker.address.family": "any",
    "client.dns.lookup": "use_all_dns_ips",
    "metadata.recovery.strategy": "none",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "group.protocol": "classic",
    "partition.assignment.strategy": "range",
    "partitioner": "murmur2",
    "queuing.strategy": "fifo",
    "debug": "generic",
    "broker.version.fallback": "0.10.0",
    "sasl.mechanism": "PLAIN",
    "sasl.mechanisms": "PLAIN",
    "compression.codec": "none",
    "compression.type": "none",
    "topic.blacklist": "x",
}


@pytest.mark.parametrize("role", Role)
def test_every_option_of_the_tables_exists_in_librdkafka(role: Role) -> None:
    """The tables are not a wish: the installed librdkafka knows each name."""
    make = {Role.PRODUCER: make_producer, Role.CONSUMER: make_consumer, Role.ADMIN: make_admin}
    names = translate_names(dict.fromkeys(client_options._KNOWN, "1"), role)  # noqa: SLF001
    unknown = []
    for name in names:
        config: dict[str, object] = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
        if role is Role.CONSUMER:
            config["group.id"] = "g"
        try:
            make[role]({**config, name: _VALUES.get(name, "1")})
        except ConfigError as err:
            if "No such configuration property" in str(err):
                unknown.append(name)

    assert unknown == []
    assert len(names) > 50


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("_ALL_BROKERS_DOWN", UnreachableError),
        ("_TRANSPORT", UnreachableError),
        ("REQUEST_TIMED_OUT", UnreachableError),
        ("CONCURRENT_TRANSACTIONS", UnreachableError),
        ("FENCED_LEADER_EPOCH", UnreachableError),
        ("KAFKA_STORAGE_ERROR", UnreachableError),
        ("NOT_LEADER_FOR_PARTITION", UnreachableError),
        ("OFFSET_NOT_AVAILABLE", UnreachableError),
        ("REPLICA_NOT_AVAILABLE", UnreachableError),
        ("UNKNOWN_LEADER_EPOCH", UnreachableError),
        ("UNSTABLE_OFFSET_COMMIT", UnreachableError),
        ("_AUTHENTICATION", AuthenticationError),
        ("TOPIC_AUTHORIZATION_FAILED", AuthenticationError),
        ("SASL_AUTHENTICATION_FAILED", AuthenticationError),
        ("TOPIC_ALREADY_EXISTS", ConfigError),
        ("TOPIC_EXCEPTION", SourceChangedError),
        ("UNKNOWN_TOPIC_OR_PART", SourceChangedError),
        ("UNKNOWN_TOPIC_ID", SourceChangedError),
        ("MSG_SIZE_TOO_LARGE", DeliveryError),
        ("_MSG_TIMED_OUT", UnreachableError),
        ("_DESTROY_BROKER", UnreachableError),
        ("_UNKNOWN_BROKER", UnreachableError),
        ("PRODUCER_FENCED", FencedError),
        ("_FENCED", FencedError),
        ("INVALID_TRANSACTION_TIMEOUT", ConfigError),
    ],
)
def test_client_errors_become_typed_ones(code: str, kind: type[StreamError]) -> None:
    """One class for each thing a caller does differently; code and place are kept."""
    error = KafkaException(KafkaError(getattr(KafkaError, code)))
    translated = translate(error, {"topic": "out"})

    assert type(translated) is kind
    assert translated.args[1] == {"topic": "out", "code": code}
    assert pickle.loads(pickle.dumps(translated)).args == translated.args


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaError.TOPIC_ALREADY_EXISTS, "Choose another name, or use it as it is."),
        (KafkaError.TOPIC_EXCEPTION, "1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"),
    ],
)
def test_a_refused_topic_name_is_reported_with_what_it_may_be(code: int, remedy: str) -> None:
    """A broker's sentence ends with a full stop, as ours will."""
    translated = translate(KafkaError(code, "Topic 'out' is refused."), {"topic": "out"})
    assert "Kafka: Topic 'out' is refused [topic=out" in str(translated)
    assert remedy in str(translated)


def test_a_refused_setting_is_a_configuration_error() -> None:
    """librdkafka's own check of values, in our words."""
    with pytest.raises(ConfigError, match=r"socket\.timeout\.ms"):
        make_producer({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": "-5"})


def test_topics_of_a_cluster_that_does_not_answer_are_a_typed_error() -> None:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(UnreachableError, match=r"topic=orders servers=127\.0\.0\.1:1"):
        create_topics(connection, [NewTopic("orders", num_partitions=1)], timeout_s=0.1)


def test_librdkafka_logs_through_pythons_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing on stderr, also when a broker cannot be reached."""
    with caplog.at_level(logging.DEBUG, logger="sluice.connectors.kafka.librdkafka"):
        admin = make_admin({"bootstrap.servers": "127.0.0.1:1", "debug": "broker"})
        deadline = time.monotonic() + 300
        while not caplog.records and time.monotonic() < deadline:
            admin.poll(0.05)

    assert caplog.records
    assert capfd.readouterr().err == ""


def test_a_lost_connection_is_silent_where_no_log_is_set_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker without logging prints nothing for each producer when a broker stops."""
    log = logging.getLogger("sluice.connectors.kafka.librdkafka")
    with caplog.at_level(logging.WARNING, logger=log.name):
        log.error("%s [%s] %s", "FAIL", "rdkafka#producer-1", "[thrd:b/1]: b/1: Disconnected")
        log.warning("%s [%s] %s", "GETPID", "rdkafka#producer-1", "Failed to acquire: retrying")
    assert caplog.records == []


def test_a_name_that_does_not_resolve_is_reported_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """librdkafka says it with each of its tries: hundreds of lines for one misspelt host."""
    log = logging.getLogger("sluice.connectors.kafka.librdkafka")
    clock = FakeClock()
    once = OncePerMinute(clock=clock)

    def told(host: str) -> bool:
        text = f"[thrd:{host}/bootstrap]: {host}/bootstrap: Failed to resolve '{host}': not known"
        words = ("FAIL", "rdkafka#producer-1", f"{text} (after {clock():.0f}ms in state CONNECT)")
        return once.filter(
            log.makeRecord(log.name, logging.ERROR, "", 0, "%s [%s] %s", words, None)
        )

    assert told("localhst:9092")
    assert told("other:9092")
    clock.pass_time(59)
    assert not told("localhst:9092")
    clock.pass_time(1)
    assert told("localhst:9092")
    assert any(isinstance(each, OncePerMinute) for each in log.filters)


def test_servers_are_one_cluster_by_whatever_name() -> None:
    """Records would go to one, and EndTxn to another."""
    both = {"kafka.bootstrap.servers": "old:9092", "kafka.metadata.broker.list": "new:9092"}
    with pytest.raises(ConfigError, match=r"metadata\.broker\.list=new:9092"):
        KafkaConnection.of(both)
    both["kafka.metadata.broker.list"] = "old:9092"
    assert KafkaConnection.of(both).bootstrap_servers == "old:9092"
