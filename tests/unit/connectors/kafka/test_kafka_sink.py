"""What `KafkaSink` takes and refuses."""

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from sluice.connectors.kafka.client.client_tuning import write_settings
from sluice.connectors.kafka.client.confluent import make_producer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.sink.producers.cluster_limits import ClusterLimits
from sluice.connectors.kafka.sink.producers.preparation import plain_config, transactional_config
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.task_memory import TaskMemory

CANARY = "canary-55-secret"


def sink(**settings: Any) -> KafkaSink:
    given = {"bootstrap_servers": "b:9092", "topic": "out", "transactional_id_prefix": "orders"}
    return KafkaSink(**{**given, **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"guarantee": "exactly_once"}, "Did you mean exactly-once"),
        ({"guarantee": "whatever it takes"}, "Use one of exactly-once, at-least-once, none"),
        ({"transactional_id_prefix": ""}, "exactly-once needs a prefix"),
        ({"transactional_id_prefix": "p\0x"}, "cannot send"),
        ({"transactional_id_prefix": "ü" * 15_001}, "too long for brokers"),
        ({"topic": "no spaces"}, "name of a topic is not valid"),
        ({"topic": ""}, "name of a topic is not valid"),
        ({"transaction_timeout_s": 0.5}, "too short"),
        ({"bootstrap_servers": ""}, "no Kafka servers"),
        ({"options": {"kafka.lingerms": "5"}}, "Did you mean kafka.linger.ms"),
        ({"options": {"transactional.id": "mine"}}, "transactionalIdPrefix"),
        ({"options": {"enable.idempotence": "false"}}, "unsafe with exactly-once"),
        ({"options": {"acks": 1}}, "unsafe with exactly-once"),
        ({"guarantee": "at-least-once", "options": {"acks": 1}}, "unsafe with at-least-once"),
        (
            {
                "guarantee": "at-least-once",
                "options": {"enable.idempotence": "false", "request.required.acks": "0"},
            },
            "unsafe with at-least-once",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    """Misspelt, missing, out of range or unsafe: one sentence, and what to do."""
    with pytest.raises(ConfigError, match=words):
        sink(**settings)


@pytest.mark.parametrize(
    ("guarantee", "option", "value"),
    [("at-least-once", "enable.idempotence", "false"), ("none", "acks", "0")],
)
def test_a_weaker_guarantee_needs_no_prefix_and_allows_what_it_does_not_need(
    guarantee: str, option: str, value: str
) -> None:
    """Repeated records may be meant with at-least-once, lost ones with none."""
    weaker = sink(guarantee=guarantee, transactional_id_prefix="", options={option: value})
    assert weaker.settings()["guarantee"] == guarantee


def test_a_sink_and_its_writer_factory_travel_by_pickle() -> None:
    made = sink(uid="u", name="n", transaction_timeout_s=60)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.name, copy.uid, copy.settings()) == ("n", "u", made.settings())
    assert pickle.loads(pickle.dumps(made.writer_factory())) == made.writer_factory()


@dataclass
class Type:
    text: str

    def simpleString(self) -> str:
        return self.text


@dataclass
class Field:
    name: str
    dataType: Type


@dataclass
class Schema:
    fields: list[Field]


OPTIONS = {
    "kafka.bootstrap.servers": "b:9092",
    "topic": "out",
    "transactionalIdPrefix": "orders",
    "checkpointLocation": "/tmp/x",
    "queryName": "q",
}


def test_the_drop_ins_options_make_the_same_sink() -> None:
    """Names in any case, as Spark's options are."""
    shouted = {name.upper(): value for name, value in OPTIONS.items()}
    for options in (OPTIONS, shouted):
        more = {"transactionTimeout": "15m", "taskMemoryMiB": "256"}
        made = KafkaSink.from_options({**options, **more})
        assert made.settings() == sink(transaction_timeout_s=900).settings()


@pytest.mark.parametrize(
    "shared",
    [
        {"includeHeaders": "true"},
        {"subscribe": "orders", "startingOffsets": "earliest", "failOnDataLoss": "false"},
        {"kafka.group.id": "orders", "groupIdPrefix": "mine"},
        {"kafka.auto.offset.reset": "earliest", "kafka.enable.auto.commit": "false"},
        {"kafka.isolation.level": "read_uncommitted", "kafka.session.timeout.ms": "30000"},
        {"kafka.max.poll.records": "500", "kafka.fetch.max.wait.ms": "50"},
        {"topic": " out ", "partitionBy": "day"},
    ],
)
def test_options_that_reader_and_writer_share_make_the_same_sink(shared: dict[str, str]) -> None:
    """Spark's own sink ignores those of a source, and blanks around the topic."""
    made = KafkaSink.from_options({**OPTIONS, **shared})
    known = KafkaSink.from_options({**OPTIONS, "kafka.max.poll.records": "500"})
    wanted = known if "kafka.max.poll.records" in shared else KafkaSink.from_options(OPTIONS)
    assert made.settings() == wanted.settings()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("kafka.key.serializer", "Bytes", "not available"),
        ("subscrib", "orders", "unknown option"),
        ("transactionIdPrefix", "x", "Did you mean transactionalIdPrefix"),
        ("transactionTimeout", "soon", "a duration cannot be read"),
        ("kafka.acks", "0", "unsafe with exactly-once"),
    ],
)
def test_a_wrong_option_of_the_drop_in_is_refused(option: str, value: str, words: str) -> None:
    """The nearest right name is in the message."""
    with pytest.raises(ConfigError, match=words):
        KafkaSink.from_options({**OPTIONS, option: value})


def test_the_drop_in_checks_the_frames_schema() -> None:
    good = Schema([Field("value", Type("binary"))])
    KafkaSink.from_options(OPTIONS, good)
    with pytest.raises(ConfigError, match="value must be of type"):
        KafkaSink.from_options(OPTIONS, Schema([Field("value", Type("double"))]))


CONNECTION = KafkaConnection(bootstrap_servers="b:9092", options={"linger.ms": "3"})
SETTINGS = write_settings(TaskMemory(), {})


def test_the_default_transaction_timeout_is_the_brokers_maximum() -> None:
    """Rule `transaction-timeout`: 60 s would turn an outage of a minute into lost transactions."""
    limits = ClusterLimits(transaction_timeout_s=1800)
    config = transactional_config(CONNECTION, limits, SETTINGS, transaction_timeout_s=None)
    assert config["transaction.timeout.ms"] == 1_800_000
    config = transactional_config(CONNECTION, limits, SETTINGS, transaction_timeout_s=30)
    assert (config["transaction.timeout.ms"], config["message.timeout.ms"]) == (30_000, 30_000)
    unknown = transactional_config(
        CONNECTION, ClusterLimits(), SETTINGS, transaction_timeout_s=None
    )
    assert unknown["transaction.timeout.ms"] == 900_000


def test_no_answer_is_waited_for_longer_than_the_transaction_attempts() -> None:
    """librdkafka refuses that; what the user says is left as it is, to be refused by name."""
    plain = KafkaConnection(bootstrap_servers="127.0.0.1:1")
    for timeout_s, answer_ms in [(15.0, 15_000), (29.9, 29_900), (900.0, 30_000)]:
        config = transactional_config(
            plain, ClusterLimits(), SETTINGS, transaction_timeout_s=timeout_s
        )
        assert config["socket.timeout.ms"] == answer_ms
        make_producer({**config, "transactional.id": "orders"})
    told = KafkaConnection(bootstrap_servers="b:9092", options={"socket.timeout.ms": "60000"})
    config = transactional_config(told, ClusterLimits(), SETTINGS, transaction_timeout_s=15)
    assert config["socket.timeout.ms"] == "60000"


def test_the_users_options_win_and_batches_fit_the_topic() -> None:
    """A broker refuses a batch beyond ``max.message.bytes``; librdkafka does not split it."""
    limits = ClusterLimits(batch_bytes=10_000)
    config = transactional_config(CONNECTION, limits, SETTINGS, transaction_timeout_s=None)
    assert config["linger.ms"] == "3"
    assert config["batch.size"] < 10_000


@pytest.mark.parametrize(
    ("options", "linger_ms"),
    [
        ({}, 20),
        ({"queue.buffering.max.messages": "10000"}, 5),
        ({"queue.buffering.max.kbytes": "2048"}, 4),
        ({"queue.buffering.max.messages": "500"}, 1),
    ],
)
def test_a_small_queue_does_not_wait_for_batches_that_it_cannot_hold(
    options: dict[str, str], linger_ms: int
) -> None:
    """It is full, no batch is, and nothing is sent before the linger ends."""
    settings = write_settings(TaskMemory(), options)
    limits = ClusterLimits()
    plain = KafkaConnection(bootstrap_servers="b:9092")
    config = transactional_config(plain, limits, settings, transaction_timeout_s=None)
    assert config["linger.ms"] == linger_ms
    assert plain_config(plain, limits, settings, idempotent=True)["linger.ms"] == linger_ms


@pytest.mark.parametrize(
    ("partitions", "options", "linger_ms", "batch_records"),
    [
        (4, {}, 100, 53_248 // 4),
        (12, {}, 100, 53_248 // 12),
        (13, {}, 20, 100_000),  # and a record in hand: 14 MB do not fit into 13 MiB
        (None, {}, 20, 100_000),
        (4, {"batch.size": "4000000"}, 20, 100_000),
        (4, {"linger.ms": "7"}, "7", 100_000),
        (4, {"linger.ms": "0.5"}, "0.5", 100_000),
        (4, {"linger.ms": "0"}, "0", 100_000),
        (4, {"batch.num.messages": "20000"}, 20, "20000"),
        (4, {"message.max.bytes": "20000000"}, 20, 100_000),
    ],
)
def test_what_nobody_sees_before_its_commit_waits_for_full_batches(
    partitions: int | None, options: dict[str, str], linger_ms: int | str, batch_records: int | str
) -> None:
    told = KafkaConnection(bootstrap_servers="b:9092", options=options)
    limits = ClusterLimits(partitions=partitions)
    config = transactional_config(told, limits, SETTINGS, transaction_timeout_s=None)
    assert (config["linger.ms"], config["batch.num.messages"]) == (linger_ms, batch_records)
    seen_at_once = plain_config(told, limits, SETTINGS, idempotent=True)
    assert seen_at_once["linger.ms"] == options.get("linger.ms", 20)
    make_producer({**config, "transactional.id": "orders", "bootstrap.servers": "127.0.0.1:1"})


def test_records_without_a_key_do_not_stay_with_a_partition_for_longer_than_before() -> None:
    """librdkafka's own time for that is twice the linger: an epoch of 100 ms would go to one."""
    plain = KafkaConnection(bootstrap_servers="b:9092")
    config = transactional_config(
        plain, ClusterLimits(partitions=4), SETTINGS, transaction_timeout_s=None
    )
    assert (config["linger.ms"], config["sticky.partitioning.linger.ms"]) == (100, 40)


def test_each_guarantee_has_its_own_acknowledgements() -> None:
    """At least once: all replicas, in order, never doubled by the client's own retries."""
    checked = plain_config(CONNECTION, ClusterLimits(), SETTINGS, idempotent=True)
    assert (checked["enable.idempotence"], checked["acks"]) == (True, "all")
    unchecked = plain_config(CONNECTION, ClusterLimits(), SETTINGS, idempotent=False)
    assert (unchecked["enable.idempotence"], unchecked["acks"]) == (False, "1")


def test_dead_letters_go_to_topics_that_can_be_and_are_not_the_output() -> None:
    """A sink that takes them is another one; its settings say which."""
    plain = sink()
    taking = plain.with_dead_letters(["dead", "dead-2"])
    assert taking.settings()["dead_letter_topics"] == "dead,dead-2"
    assert "dead_letter_topics" not in plain.settings()
    again = pickle.loads(pickle.dumps(taking.writer_factory()))
    assert again.dead_letter_topics == ("dead", "dead-2")
    for topic, words in (("out", "topic of the output"), ("no topic", "name of a topic")):
        with pytest.raises(ConfigError, match=words):
            plain.with_dead_letters([topic])


def test_a_sink_of_dead_letters_alone_has_no_topic_of_its_own() -> None:
    made = sink(topic=None, dead_letters_only=True)
    assert made.name == "kafka-sink-dead-letters"
    assert made.with_dead_letters(["dead"]).writer_factory().dead_letters_only
    with pytest.raises(ConfigError, match=r"topic=out\]. Leave topic out"):
        sink(topic="out", dead_letters_only=True)
