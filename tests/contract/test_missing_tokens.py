"""What the client of a broker says when it is given no OAUTHBEARER token."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_admin, make_producer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import OAuthToken
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError
from tests.unit.connectors.kafka.client.test_tokens import AWAY, REFUSAL, SASL, Issuer


def oauth(function: Any) -> KafkaConnection:
    return KafkaConnection.of(SASL, oauth_token=function)


def test_a_client_without_a_token_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """confluent-kafka says that there was none in time, which looks like a refusal."""
    monkeypatch.setattr("sluice.connectors.kafka.client.connection._TOKEN_RETRY_S", 0.0)

    def told(failure: StreamError) -> type[StreamError]:
        connection = oauth(Issuer(*[failure] * 9))
        with pytest.raises(StreamError) as raised:
            make_producer({**connection.librdkafka(Role.PRODUCER), "log_level": 0})
        return type(raised.value)

    with ThreadPoolExecutor(2) as pool:  # each waits for ten seconds
        assert list(pool.map(told, [AWAY, REFUSAL])) == [UnreachableError, AuthenticationError]


def test_an_issuer_that_is_away_later_is_not_reported_as_a_refused_log_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused for 15 seconds, a log-in ends the job."""
    monkeypatch.setattr("sluice.connectors.kafka.client.connection._TOKEN_RETRY_S", 0.0)
    asked: list[float] = []
    told: list[Any] = []

    def function() -> OAuthToken:
        asked.append(time.time())
        if len(asked) > 1:
            raise AWAY
        return OAuthToken(value="t", expires_at_s=time.time() + 5.5, principal="me")

    config = {**oauth(function).librdkafka(Role.ADMIN), "log_level": 0, "error_cb": told.append}
    admin = make_admin(config)
    until_s = time.monotonic() + 60
    while not any("issuer is away" in error.str() for error in told):
        assert time.monotonic() < until_s
        admin.poll(0.1)
    assert {error.name() for error in told} <= {"_TRANSPORT", "_ALL_BROKERS_DOWN"}
