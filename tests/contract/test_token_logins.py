"""OAUTHBEARER with signed tokens of an issuer that the broker trusts: each client, each way."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice import Job, KafkaSink, KafkaSource
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    TopicPartition,
    make_consumer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import OAuthToken
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.native.native_consumer import NativeConsumer
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.runtime.errors import AuthenticationError, UnreachableError
from tests.kit.kafka.kafka_fixture import require_native
from tests.kit.kafka.kafka_records import Record, create_topic, produce, read, unique
from tests.kit.kafka.secure_broker import BrokerSecurity, SecureBroker
from tests.kit.kafka.token_server import TokenServer
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

_MODULE = "org.apache.kafka.common.security.oauthbearer"
METHODS = ["default", "oidc"]
# A refusal is an error after 15 s, if librdkafka itself requests tokens.
QUICK_METHODS = ["default", pytest.param("oidc", marks=pytest.mark.extended)]


@pytest.fixture(scope="module")
def broker_issuer() -> Iterator[TokenServer]:
    with TokenServer(scope="kafka") as issuer:
        yield issuer


@pytest.fixture(scope="module")
def broker(broker_issuer: TokenServer) -> Iterator[SecureBroker]:
    security = BrokerSecurity(has_tls=False, mechanisms=("OAUTHBEARER",), issuer=broker_issuer)
    with SecureBroker(security) as broker:
        yield broker


@pytest.fixture
def issuer(broker_issuer: TokenServer) -> Iterator[TokenServer]:
    """As for a new test."""
    yield broker_issuer
    broker_issuer.refusal, broker_issuer.lifetime_s = None, 3600.0


def by_librdkafkas_names(
    broker: SecureBroker, issuer: TokenServer, **changed: str
) -> dict[str, str]:
    options = {
        "bootstrap.servers": broker.secure_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": issuer.token_url,
        "sasl.oauthbearer.client.id": issuer.client_id,
        "sasl.oauthbearer.client.secret": issuer.client_secret,
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "team=orders",
    }
    options |= {name.replace("_", "."): value for name, value in changed.items()}
    return {f"kafka.{name}": value for name, value in options.items()}


def by_javas_names(broker: SecureBroker, issuer: TokenServer) -> dict[str, str]:
    login = f'clientId="{issuer.client_id}" clientSecret="{issuer.client_secret}" scope="kafka"'
    options = {
        "bootstrap.servers": broker.secure_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{_MODULE}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": issuer.token_url,
        "sasl.jaas.config": f"{_MODULE}.OAuthBearerLoginModule required {login};",
    }
    return {f"kafka.{name}": value for name, value in options.items()}


def native_consumer(connection: KafkaConnection) -> NativeConsumer:
    require_native()
    config = {**connection.librdkafka(Role.CONSUMER), "group.id": unique("g"), "log_level": 0}
    library = library_for(config, HotPath.NATIVE)
    assert library is not None
    return NativeConsumer(library, config)


@pytest.mark.parametrize("names", [by_librdkafkas_names, by_javas_names])
def test_each_client_logs_in_by_either_set_of_names(
    broker: SecureBroker,
    issuer: TokenServer,
    names: Callable[[SecureBroker, TokenServer], dict[str, str]],
) -> None:
    """The native path, too: no record takes the plain one because of a token."""
    name = create_topic(broker.bootstrap, partitions=1)
    connection = KafkaConnection.of(names(broker, issuer))
    partition = TopicPartition(name, 0)

    native = native_consumer(connection)
    assert native.get_watermark_offsets(partition, 60, False) == (0, 0)
    native.close()
    plain = make_consumer({**connection.librdkafka(Role.CONSUMER), "group.id": "g"})
    assert plain.get_watermark_offsets(partition, 60, False) == (0, 0)
    plain.close()
    wire = TransactionWire(connection)
    assert wire.cluster(timeout_s=60).cluster_id
    wire.close()
    config = {**connection.librdkafka(Role.PRODUCER), "transactional.id": unique("txn")}
    library = library_for(config, HotPath.NATIVE)
    assert library is not None
    producer = NativeProducer(library, config)
    producer.init_transactions(60)


@pytest.mark.parametrize("method", QUICK_METHODS)
@pytest.mark.parametrize(
    "wrong", [{"sasl_oauthbearer_scope": "hdfs"}, {"sasl_oauthbearer_client_secret": "wrong"}]
)
def test_a_refused_request_for_a_token_is_an_authentication_error(
    broker: SecureBroker, issuer: TokenServer, wrong: dict[str, str], method: str
) -> None:
    """It names the issuer's answer, and shows no secret."""
    changed = {**wrong, "sasl_oauthbearer_method": method}
    options = by_librdkafkas_names(broker, issuer, **changed)

    with pytest.raises(AuthenticationError) as caught:
        KafkaCluster(KafkaConnection.of(options)).cluster_id(timeout_s=30)
    assert "wrong" not in str(caught.value)
    assert "invalid_" in str(caught.value)
    assert issuer.client_secret not in str(caught.value)


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS)
def test_an_issuer_that_is_away_is_unreachable_and_not_a_refusal(
    broker: SecureBroker, issuer: TokenServer, method: str
) -> None:
    options = by_librdkafkas_names(broker, issuer, sasl_oauthbearer_method=method)
    with TokenServer() as gone:
        options["kafka.sasl.oauthbearer.token.endpoint.url"] = gone.token_url

    with pytest.raises(UnreachableError):
        KafkaCluster(KafkaConnection.of(options)).cluster_id(timeout_s=20)


@pytest.mark.parametrize("method", METHODS)
def test_a_token_that_expires_is_renewed_while_a_native_client_is_served(
    broker: SecureBroker, issuer: TokenServer, method: str
) -> None:
    """The broker ends a connection at the end of its token, unless the client logs in again.

    On a busy machine the client may log in late, with a token that has just expired: the broker
    refuses it once, and the client goes on with its next token.
    """
    name = create_topic(broker.bootstrap, partitions=1)
    issuer.lifetime_s = 4.0
    options = by_librdkafkas_names(broker, issuer, sasl_oauthbearer_method=method)
    consumer = native_consumer(KafkaConnection.of(options))
    before = issuer.issued

    def asked_again() -> bool:
        consumer.serve(0.2)
        try:
            found = consumer.get_watermark_offsets(TopicPartition(name, 0), 60, False)
        except KafkaException as err:  # the broker ended the connection during the request
            is_unknown = err.args[0].code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - its API
            if not (
                is_unknown or isinstance(translate(err), UnreachableError | AuthenticationError)
            ):
                raise
            return False
        assert found == (0, 0)
        return issuer.issued >= before + 3

    wait_for(asked_again, what="three more tokens")
    consumer.close()


def test_a_native_client_keeps_its_token_while_the_issuer_is_away(
    broker: SecureBroker, issuer: TokenServer
) -> None:
    """A new client of the process takes the token that an earlier one was given."""
    options = by_librdkafkas_names(broker, issuer, sasl_oauthbearer_method="default")
    connection = KafkaConnection.of(options)
    name = create_topic(broker.bootstrap, partitions=1)
    native_consumer(connection).close()
    issuer.refusal = 503

    consumer = native_consumer(connection)
    assert consumer.get_watermark_offsets(TopicPartition(name, 0), 60, False) == (0, 0)
    consumer.close()


def test_a_native_client_without_a_token_says_why(
    broker: SecureBroker, issuer: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.connectors.kafka.client.connection._TOKEN_RETRY_S", 0.0)
    plain = by_librdkafkas_names(broker, issuer, sasl_oauthbearer_method="default")
    wrong = {**plain, "kafka.sasl.oauthbearer.client.secret": "wrong"}
    away = {**plain, "kafka.sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}
    for options, error in ((wrong, AuthenticationError), (away, UnreachableError)):
        with pytest.raises(error):
            native_consumer(KafkaConnection.of(options))


@pytest.mark.extended
def test_a_token_for_another_audience_is_refused_by_the_broker(
    broker: SecureBroker, issuer: TokenServer
) -> None:
    def other() -> OAuthToken:
        return OAuthToken(value=issuer.token(audience="hdfs"), expires_at_s=time.time() + 60)

    options = {
        "kafka.bootstrap.servers": broker.secure_bootstrap,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
    }
    with pytest.raises(AuthenticationError):
        KafkaCluster(KafkaConnection.of(options, oauth_token=other)).cluster_id(timeout_s=60)


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS)
def test_tokens_expire_in_the_middle_of_a_run_and_nothing_is_lost_or_doubled(
    spark: SparkSession, broker: SecureBroker, issuer: TokenServer, tmp_path: Path, method: str
) -> None:
    """Each client logs in several times while long tasks run."""
    source, sink = (create_topic(broker.bootstrap, partitions=2) for _ in range(2))
    produce(
        broker.bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in range(4_000)]
    )
    issuer.lifetime_s = 5.0
    before = issuer.issued
    login = by_librdkafkas_names(broker, issuer, sasl_oauthbearer_method=method)
    servers = login.pop("kafka.bootstrap.servers")

    def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.005 * batch.num_rows)
        return batch

    job = Job(
        f"expiring-{method}",
        spark,
        checkpoint_dir=str(tmp_path),
        interval_s=0.5,
        regions=2,
        engine="continuous",
    )
    job.source(
        KafkaSource(bootstrap_servers=servers, topics=[source], bounded=True, options=login)
    ).map_batches(slowly).sink(
        KafkaSink(
            bootstrap_servers=servers,
            topic=sink,
            transactional_id_prefix=unique("expiring"),
            options=login,
        )
    )
    job.run()

    values = sorted(int(record.value or b"") for record in read(broker.bootstrap, sink))
    assert values == list(range(4_000))
    assert issuer.issued > before + 4
