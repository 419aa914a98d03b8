"""Settings of Java's IAM log-in at Amazon MSK, and the tokens of AWS's signer library."""

import base64
import time
import urllib.parse

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.msk_iam import MskIamToken, region_of
from sluice.runtime.errors import AuthenticationError, ConfigError

SERVERS = "b-1.orders.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"
JAVA = {
    "kafka.bootstrap.servers": SERVERS,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "kafka.sasl.client.callback.handler.class": (
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    ),
}
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the test alone."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-aws-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def test_javas_four_lines_log_in_by_a_signed_url() -> None:
    """librdkafka and the wire client get OAUTHBEARER with the same function."""
    connection = KafkaConnection.of(JAVA)
    config = connection.librdkafka(Role.CONSUMER)
    assert config["sasl.mechanism"] == "OAUTHBEARER"
    value, expires_at_s, principal, _ = config["oauth_cb"]("")
    url = base64.urlsafe_b64decode(value + "==").decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    fields = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    assert fields["X-Amz-Credential"].startswith("AKIDTEST/")
    assert 800 < expires_at_s - time.time() <= 900
    assert principal
    assert connection.wire()["sasl_mechanism"] == "OAUTHBEARER"
    assert "canary-aws-secret" not in f"{connection!r}{config}"


def test_aws_own_handler_of_oauthbearer_means_the_same() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    handler = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
    options = {
        "kafka.bootstrap.servers": SERVERS,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": module,
        "kafka.sasl.login.callback.handler.class": handler,
    }
    token = KafkaConnection.of(options).wire()["sasl_oauth_token"]
    assert token == MskIamToken(region="eu-west-1")


def test_the_driver_decides_the_region_for_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    connection = KafkaConnection.of({**JAVA, "kafka.bootstrap.servers": "proxy.internal:9098"})
    monkeypatch.delenv("AWS_REGION")
    assert connection.wire()["sasl_oauth_token"] == MskIamToken(region="us-east-2")


def test_regions_come_from_the_setting_then_the_addresses_then_the_environment() -> None:
    addresses = [SERVERS]
    assert region_of(addresses, "eu-north-1", {}) == "eu-north-1"
    assert region_of(addresses, "", {"AWS_REGION": "x"}) == "eu-west-1"
    serverless = ["boot-x.c1.kafka-serverless.us-west-2.amazonaws.com:9098"]
    assert region_of(serverless, "", {}) == "us-west-2"
    assert region_of(["kafka:9098"], "", {"AWS_DEFAULT_REGION": "sa-east-1"}) == "sa-east-1"
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.aws\.region"):
        region_of(["kafka:9098"], "", {})


def test_settings_of_the_login_module_are_taken_or_refused_by_name() -> None:
    module = "software.amazon.msk.auth.iam.IAMLoginModule required"

    def token(settings: str) -> object:
        options = {**JAVA, "kafka.sasl.jaas.config": f"{module} {settings};"}
        return KafkaConnection.of(options).wire()["sasl_oauth_token"]

    role = "arn:aws:iam::1:role/orders"
    assert token(f'awsRoleArn="{role}" awsRoleSessionName="s"') == MskIamToken(
        region="eu-west-1", role_arn=role, session_name="s"
    )
    assert token('awsProfileName="dev"') == MskIamToken(region="eu-west-1", profile="dev")
    with pytest.raises(ConfigError, match="awsMaxRetries"):
        token('awsMaxRetries="7"')
    with pytest.raises(ConfigError, match="awsProfileName"):
        token(f'awsRoleArn="{role}" awsProfileName="dev"')


@pytest.mark.parametrize("token", [{}, {"profile": "nobody"}])
def test_missing_credentials_are_an_authentication_error(
    token: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(AuthenticationError, match="AWS_ACCESS_KEY_ID"):
        MskIamToken(region="eu-west-1", **token)()


def test_other_java_classes_are_refused_still() -> None:
    with pytest.raises(ConfigError, match="Java class"):
        KafkaConnection.of({**JAVA, "kafka.sasl.client.callback.handler.class": "com.acme.Login"})
