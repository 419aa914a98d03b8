"""Every SASL mechanism over TLS reaches both clients, and no secret leaves them."""

import logging
import pickle
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    KafkaException,
    TopicPartition,
    make_admin,
    make_consumer,
    make_producer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import OAuthToken, UnsecuredToken
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.tools.broker.kafka_cli import app as kafka_commands
from sluice.runtime.contracts import CommitOutcome, SinkContext
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError
from tests.kit.kafka.kafka_fixture import SecureKafka
from tests.kit.kafka.kafka_records import create_topic, unique
from tests.kit.kafka.transaction_harness import JOB_UID, RealHarness, committable
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


def _jaas(mechanism: str, username: str, password: str) -> str:
    if mechanism == "OAUTHBEARER":
        return f'{_OAUTH} required unsecuredLoginStringClaim_sub="{username}";'
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    return f'{module} required username="{username}" password="{password}";'


def _options(secure: SecureKafka, mechanism: str, *, password: str | None = None) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": secure.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": _jaas(mechanism, secure.username, password or secure.password),
        "kafka.ssl.truststore.location": str(secure.ca_file),
        "kafka.ssl.truststore.type": "PEM",
    }


@pytest.fixture
def log_of_everything(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def _cluster_id_by_librdkafka(connection: KafkaConnection) -> str:
    config = {**connection.librdkafka(Role.ADMIN), "debug": "security,conf"}
    admin: AdminClient = make_admin(config)
    try:
        found = admin.list_topics(timeout=30).cluster_id
        admin.poll(0)  # passes its log lines on
    except KafkaException as err:
        raise translate(err, {"servers": connection.bootstrap_servers}) from err
    return str(found)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl_ssl_reaches_both_clients_and_shows_no_secret(
    secure_kafka: SecureKafka, log_of_everything: pytest.LogCaptureFixture, mechanism: str
) -> None:
    """One set of options, two clients, one cluster; the canary is looked for everywhere."""
    connection = KafkaConnection.of(_options(secure_kafka, mechanism))
    wire = TransactionWire(connection)

    cluster = wire.cluster(timeout_s=60)
    assert _cluster_id_by_librdkafka(connection) == cluster.cluster_id
    wire.close()

    said = [
        log_of_everything.text,
        repr(connection),
        str(connection),
        repr(connection.redacted()),
        repr(pickle.loads(pickle.dumps(connection))),
        repr(connection.librdkafka(Role.PRODUCER)),
        repr(connection.wire()),
    ]
    assert len(log_of_everything.records) > 10
    assert [text for text in said if secure_kafka.password in text] == []


def test_topics_are_made_on_a_cluster_that_asks_for_a_log_in(
    secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    options, topic = tmp_path / "options", unique("topic")
    lines = [f"{name}={value}" for name, value in _options(secure_kafka, "SCRAM-SHA-512").items()]
    options.write_text("\n".join(lines), "utf-8")
    given = ["create", topic, "--partitions", "2", "--config-file", str(options)]
    made = CliRunner().invoke(kafka_commands, given, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    client = make_admin(KafkaConnection.of(_options(secure_kafka, "PLAIN")).librdkafka(Role.ADMIN))
    assert len(client.list_topics(topic, timeout=30).topics[topic].partitions) == 2


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_another_process_ends_a_transaction_over_sasl_ssl(
    secure_kafka: SecureKafka, mechanism: str
) -> None:
    """Rule `endtxn-version` and the lease, with every request authenticated."""
    connection = KafkaConnection.of(_options(secure_kafka, mechanism))
    harness = RealHarness(
        secure_kafka.broker, 2, connection=connection, options=secure_kafka.librdkafka()
    )
    attempt = harness.open()
    attempt.produce(3)
    entry = committable(attempt.identity)
    coordinator = KafkaSinkCoordinator(
        connection,
        transactional_id_prefix=harness.prefix,
        transaction_timeout_s=None,
        topics=(harness.topic,),
    )
    coordinator.check(timeout_s=60)
    coordinator.claim(
        SinkContext(
            job_uid=JOB_UID,
            job_name="job",
            operator_id="sink-1",
            checkpoint_uri="file:/a",
            leader_session_id="s",
        ),
        timeout_s=60,
    )

    (report,) = coordinator.committer.commit([entry], timeout_s=60, after_crash=True)

    assert report.outcome is CommitOutcome.COMMITTED
    assert harness.visible() == 3
    coordinator.renew()
    coordinator.close()
    harness.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_an_authentication_error_from_both_clients(
    secure_kafka: SecureKafka, log_of_everything: pytest.LogCaptureFixture, mechanism: str
) -> None:
    """A typed error that says what to check, in seconds, without the password."""
    wrong = "canary-4711-wrong"
    options = _options(secure_kafka, mechanism, password=wrong) | {"kafka.debug": "security,conf"}
    connection = KafkaConnection.of(options)
    wire, cluster = TransactionWire(connection), KafkaCluster(connection)
    started = time.monotonic()

    with pytest.raises(AuthenticationError) as by_wire:
        wire.cluster(timeout_s=PATIENCE_S)
    wire.close()
    by_librdkafka = wait_for(lambda: _refusal(cluster), what="the refusal", poll_s=0)
    cluster.close()

    assert time.monotonic() - started < 300
    assert len(log_of_everything.records) > 10
    said = [log_of_everything.text]
    for error in (by_wire.value, by_librdkafka):
        said += [str(error), repr(error), *traceback.format_exception(error)]
    assert [text for text in said if wrong in text] == []


def _refusal(cluster: KafkaCluster) -> AuthenticationError | None:
    try:
        cluster.topic_names(timeout_s=2.0)
    except AuthenticationError as err:
        return err
    except UnreachableError:
        return None
    raise AssertionError("it was let in")


def test_a_wrong_password_leaves_decided_work_pending(secure_kafka: SecureKafka) -> None:
    """The committer neither raises nor gives up a decided transaction."""
    connection = KafkaConnection.of(_options(secure_kafka, "PLAIN", password="wrong"))
    wire = TransactionWire(connection)
    harness = RealHarness(secure_kafka.broker, 2)
    attempt = harness.open()
    attempt.produce(1)

    (report,) = KafkaCommitter(wire).commit(
        [committable(attempt.identity)], timeout_s=2, after_crash=True
    )

    assert report.outcome is CommitOutcome.PENDING
    wire.close()
    harness.close()


def test_a_token_function_serves_both_clients(secure_kafka: SecureKafka) -> None:
    """OAUTHBEARER with the user's own function, which executors get by pickle."""
    options = _options(secure_kafka, "OAUTHBEARER")
    del options["kafka.sasl.jaas.config"]
    made = KafkaConnection.of(options, oauth_token=UnsecuredToken(principal=secure_kafka.username))
    connection: KafkaConnection = pickle.loads(pickle.dumps(made))
    wire = TransactionWire(connection)

    assert _cluster_id_by_librdkafka(connection) == wire.cluster(timeout_s=60).cluster_id
    wire.close()


def token_for_tests() -> OAuthToken:
    return UnsecuredToken(principal="alice")()


def test_a_token_function_may_be_named_by_an_option(secure_kafka: SecureKafka) -> None:
    """The drop-in has only options, and its own processes."""
    options = _options(secure_kafka, "OAUTHBEARER")
    del options["kafka.sasl.jaas.config"]
    options["kafka.sasl.oauthbearer.token.function"] = f"{__name__}:token_for_tests"
    connection: KafkaConnection = pickle.loads(pickle.dumps(KafkaConnection.of(options)))
    wire = TransactionWire(connection)

    assert wire.cluster(timeout_s=60).cluster_id == _cluster_id_by_librdkafka(connection)
    wire.close()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"kafka.ssl.truststore.location": ""}, UnreachableError),
        ({"kafka.security.protocol": "SASL_PLAINTEXT"}, UnreachableError),
    ],
    ids=["no-ca", "no-tls"],
)
def test_a_broker_that_cannot_be_trusted_or_understood_is_unreachable(
    secure_kafka: SecureKafka, changed: dict[str, str], error: type[StreamError]
) -> None:
    """TLS is checked by the wire client as by librdkafka; the remedy names the protocol."""
    options = {k: v for k, v in (_options(secure_kafka, "PLAIN") | changed).items() if v}
    wire = TransactionWire(KafkaConnection.of(options))

    with pytest.raises(error) as caught:
        wire.cluster(timeout_s=2)
    wire.close()

    assert "kafka.security.protocol" in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_producers_and_consumers_log_in_too(secure_kafka: SecureKafka, mechanism: str) -> None:
    """A transactional producer and a consumer made as executors make them, from Java's options."""
    connection = KafkaConnection.of(_options(secure_kafka, mechanism))
    topic = create_topic(secure_kafka.plain_bootstrap)
    producer = make_producer(
        {**connection.librdkafka(Role.PRODUCER), "transactional.id": unique("id")}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"hello")
    producer.commit_transaction(60)
    consumer = make_consumer({**connection.librdkafka(Role.CONSUMER), "group.id": unique("group")})
    consumer.assign([TopicPartition(topic, 0, 0)])

    message = consumer.poll(60)

    assert message.value() == b"hello"
    consumer.close()
