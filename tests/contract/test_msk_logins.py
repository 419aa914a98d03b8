"""Log-in at Amazon MSK by IAM: tokens of keys and of roles, which moto's STS gives out.

MSK's tokens are signed URLs and no JSON web tokens, so that only MSK's own brokers take them. A
proxy before a real broker does what those do: it checks the signature by itself.
"""

import itertools
from collections.abc import Iterator, Mapping

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import TopicPartition, make_consumer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.msk_iam import MskIamToken
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError
from tests.contract.test_token_logins import native_consumer
from tests.kit.kafka.kafka_records import create_topic, unique
from tests.kit.kafka.login_proxy import LoginProxy
from tests.kit.kafka.msk_tokens import MskToken
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.objects.s3_proxy import FaultKind, S3Proxy

_KEY, _SECRET = "AKIDTEST", "canary-aws-secret"
_ACCOUNT = "123456789012"  # moto's
_ROLE = f"arn:aws:iam::{_ACCOUNT}:role/orders"
_REGION = "eu-west-1"
_NAMES = (
    *("REGION", "DEFAULT_REGION", "PROFILE", "SESSION_TOKEN", "ROLE_ARN"),
    *("ENDPOINT_URL", "ENDPOINT_URL_STS"),
)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the test alone."""
    for name in _NAMES:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", _KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture
def session_name() -> str:
    """A new one: a process keeps the tokens of equal logins."""
    return f"session-{next(_numbers)}"


def secrets_of_roles(session_name: str = "") -> Mapping[str, tuple[str, str]]:
    """Secret key and session token that moto's STS has given out, by access key."""
    from moto.sts.models import sts_backends  # seconds, which each collection would take

    return {
        role.access_key_id: (role.secret_access_key, role.session_token)
        for role in sts_backends[_ACCOUNT]["aws"].assumed_roles
        if role.session_name == session_name or not session_name
    }


def is_valid(token: str) -> bool:
    """What MSK checks: the secret key of a known access key signed the token."""
    found = MskToken.of(token)
    if found.access_key == _KEY:
        return found.is_signed_with(_SECRET)
    secret, session_token = secrets_of_roles().get(found.access_key, ("", ""))
    return found.session_token == session_token and found.is_signed_with(secret)


@pytest.fixture(scope="module")
def broker() -> Iterator[ProxiedKafka]:
    with ProxiedKafka(transaction_version=2, make_proxy=lambda: LoginProxy(is_valid)) as made:
        yield made


def login_proxy(broker: ProxiedKafka) -> LoginProxy:
    """The one of its one broker."""
    (proxy,) = broker.proxies.values()
    assert isinstance(proxy, LoginProxy)
    return proxy


def java_settings(broker: ProxiedKafka, jaas: str = "") -> dict[str, str]:
    """What a user of the Java client has."""
    return {
        "kafka.bootstrap.servers": broker.proxied,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": f"software.amazon.msk.auth.iam.IAMLoginModule required {jaas};",
        "kafka.sasl.client.callback.handler.class": (
            "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
        ),
        "kafka.sasl.aws.region": _REGION,
    }


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS"])
def test_a_role_that_sts_gives_signs_the_token(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, variable: str, session_name: str
) -> None:
    """Without a region in AWS's configuration: the cluster's is enough."""
    monkeypatch.setenv(variable, s3_endpoint)
    token = MskIamToken(region=_REGION, role_arn=_ROLE, session_name=session_name)()
    ((key, (secret, session_token)),) = secrets_of_roles(session_name).items()
    found = MskToken.of(token.value)
    assert found.host == "kafka.eu-west-1.amazonaws.com"
    assert (found.access_key, found.session_token) == (key, session_token)
    assert found.is_signed_with(secret)
    assert not found.is_signed_with(_SECRET)


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        (FaultKind.REFUSED, 403, AuthenticationError),
        (FaultKind.REFUSED, 503, UnreachableError),
        (FaultKind.DROPPED_BEFORE, 0, UnreachableError),
        (None, 0, UnreachableError),
    ],
    ids=["refused", "failed", "cut off", "away"],
)
def test_an_sts_that_is_away_is_no_refusal(
    s3_endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    session_name: str,
    kind: FaultKind | None,
    status: int,
    error: type[StreamError],
) -> None:
    """A refusal ends a job, and a job waits for a service that is away."""
    with S3Proxy(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.endpoint)
        if kind is not None:
            proxy.add(kind, status=status, times=None)
        else:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
        with pytest.raises(error) as caught:
            MskIamToken(region=_REGION, role_arn=_ROLE, session_name=session_name)()
    assert _SECRET not in str(caught.value)


@pytest.mark.integration
@pytest.mark.extended
@pytest.mark.parametrize("login", ["keys", "role"])
def test_each_client_logs_in_with_a_signed_token(
    broker: ProxiedKafka,
    s3_endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    session_name: str,
    login: str,
) -> None:
    """The broker has checked each signature."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3_endpoint)
    jaas = f'awsRoleArn="{_ROLE}" awsRoleSessionName="{session_name}"' if login == "role" else ""
    connection = KafkaConnection.of(java_settings(broker, jaas))
    partition = TopicPartition(create_topic(broker.bootstrap, partitions=1), 0)
    proxy = login_proxy(broker)
    before = proxy.logins, proxy.refusals

    native = native_consumer(connection)
    assert native.get_watermark_offsets(partition, 60, False) == (0, 0)
    native.close()
    plain = make_consumer({**connection.librdkafka(Role.CONSUMER), "group.id": unique("g")})
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

    assert proxy.logins >= before[0] + 4
    assert proxy.refusals == before[1]
    assert bool(secrets_of_roles(session_name)) is (login == "role")


@pytest.mark.integration
@pytest.mark.extended
def test_a_token_of_a_wrong_key_is_refused_by_the_broker(
    broker: ProxiedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    settings = java_settings(broker) | {"kafka.sasl.aws.region": "us-east-2"}
    with pytest.raises(AuthenticationError):
        KafkaCluster(KafkaConnection.of(settings)).cluster_id(timeout_s=60)
    assert login_proxy(broker).refusals
