"""A log-in that is refused for a moment ends nothing; one that is refused for good is said."""

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException, error_codes
from sluice.connectors.kafka.client.login_refusals import LoginRefusals
from sluice.connectors.kafka.client.wire_client import Net, WireClient, kafka_errors
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.transaction_requests import EndOutcome, TransactionState
from sluice.connectors.kafka.source.enumerator import discovery
from sluice.connectors.kafka.source.enumerator import leader_epochs as epoch_lookup
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.errors import AuthenticationError, UnreachableError
from tests.kit.kafka.played_wire import CONNECTION, OURS, Made, PlayedClient, said
from tests.kit.source.fake_source_cluster import FakeClock
from tests.kit.waiting import join

REFUSED = kafka_errors.SaslAuthenticationFailedError("user not known yet")
NO_TOKEN = AuthenticationError("no OAuth token could be had", {"answer": "HTTP 503"}, "Again.")
(NOT_LOGGED_IN,) = error_codes("_AUTHENTICATION")
(AWAY,) = error_codes("_TRANSPORT")
(UNRESOLVED,) = error_codes("_RESOLVE")
(ALL_DOWN,) = error_codes("_ALL_BROKERS_DOWN")


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["FindCoordinatorRequest", "DescribeTransactionsRequest"])
@pytest.mark.parametrize("reason", [REFUSED, NO_TOKEN], ids=["password", "token"])
def test_a_log_in_that_one_broker_refuses_once_is_tried_again_by_the_next_call(
    wire_over: Made, kind: str, reason: Exception
) -> None:
    """A broker that has just started may not know its users; a token endpoint may be away."""
    first, second = PlayedClient(refusing={kind: reason}), PlayedClient()
    wire = wire_over(first, second)
    with contextlib.suppress(AuthenticationError):
        wire.describe([OURS.transactional_id], timeout_s=1)
    found = wire.describe([OURS.transactional_id], timeout_s=1)[OURS.transactional_id]
    assert found.state is TransactionState.ONGOING
    assert (first.closed, second.closed) == (True, False)


def test_refused_credentials_are_said_and_not_taken_for_silence(wire_over: Made) -> None:
    wire = wire_over(PlayedClient(refusing={"FindCoordinatorRequest": REFUSED}))
    with pytest.raises(AuthenticationError, match="SaslAuthenticationFailedError"):
        wire.describe([OURS.transactional_id], timeout_s=1)


@pytest.mark.parametrize("reason", [REFUSED, NO_TOKEN], ids=["password", "token"])
def test_outcome_from_broker_an_end_whose_log_in_is_refused_is_asked_for_again(
    wire_over: Made, reason: Exception
) -> None:
    """It never raises, and whether it was sent is not certain."""
    wire = wire_over(PlayedClient(refusing={"EndTxnRequest": reason}), PlayedClient())
    (report,) = wire.end([OURS], commit=True, timeout_s=1)
    assert report.outcome is EndOutcome.UNKNOWN
    (report,) = wire.end([OURS], commit=True, timeout_s=1)
    assert report.outcome is EndOutcome.DONE


def test_a_decided_transaction_is_committed_after_one_refused_log_in(wire_over: Made) -> None:
    wire = wire_over(PlayedClient(refusing={"FindCoordinatorRequest": REFUSED}), PlayedClient())
    (report,) = KafkaCommitter(wire).commit_transactions([OURS], timeout_s=5)
    assert report.outcome is CommitOutcome.COMMITTED


def test_a_call_whose_client_is_closed_by_another_thread_is_truncated_and_no_worse() -> None:
    """kafka-python ends its coroutines by GeneratorExit, which no caller expects."""
    client = WireClient({"client_id": "x", "bootstrap_servers": ["127.0.0.1:1"]})
    begun = threading.Event()
    caught: list[BaseException] = []

    async def waits() -> None:
        begun.set()
        while await Net(client, time.monotonic() + 300).pause():
            pass

    def call() -> None:
        try:
            client.run(waits, time.monotonic() + 300)
        except BaseException as err:  # noqa: BLE001 - whatever it is, is looked at
            caught.append(err)

    other = threading.Thread(target=call)
    other.start()
    assert begun.wait(300)
    client.close()
    join(other)
    assert [isinstance(err, kafka_errors.KafkaError) for err in caught] == [True]


# --- the driver's source client -------------------------------------------------------------------


class PlayedAdmin:
    """Reports refused log-ins when it is polled, and answers when its brokers are there.

    Attributes:
        refusals: what waits to be reported.
        unanswered: so many calls run out of time, each after a refusal.
        why_away: what is reported besides of a call that ran out of time.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._tell = config["error_cb"]
        self.refusals = 0
        self.unanswered = 0
        self.is_refused = False
        self.why_away: list[KafkaError] = []
        self._waiting: list[KafkaError] = []

    def poll(self, timeout: float) -> None:
        for _ in range(self.refusals):
            self._tell(KafkaError(NOT_LOGGED_IN, "the token endpoint answered 503"))
        self.refusals = 0
        while self._waiting:
            self._tell(self._waiting.pop(0))

    def list_topics(self, timeout: float) -> Any:
        if self.unanswered > 0:
            self.unanswered -= 1
            self.refusals += self.is_refused
            self._waiting += self.why_away
            raise KafkaException(KafkaError(AWAY))
        return said(topics={"orders": None})


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaCluster, PlayedAdmin]:
    """A cluster that has been asked before, and its client."""
    made: list[PlayedAdmin] = []

    def make(config: Mapping[str, Any]) -> PlayedAdmin:
        made.append(PlayedAdmin(config))
        return made[-1]

    monkeypatch.setattr(discovery, "make_admin", make)
    cluster = KafkaCluster(CONNECTION, pause=lambda _: None)
    cluster.topic_names(timeout_s=1)
    return cluster, made[-1]


def test_a_log_in_that_was_refused_is_tried_again_while_there_is_time(
    admin: tuple[KafkaCluster, PlayedAdmin],
) -> None:
    cluster, client = admin
    client.is_refused, client.unanswered = True, 1
    assert cluster.topic_names(timeout_s=300) == {"orders"}


def test_one_refusal_while_brokers_are_away_ends_no_job(
    admin: tuple[KafkaCluster, PlayedAdmin],
) -> None:
    """A broker that comes back does not know its users yet, and is gone again."""
    cluster, client = admin
    clock = FakeClock()
    refusals = cluster._refusals = LoginRefusals(clock=clock)  # noqa: SLF001
    client._tell = refusals.note  # noqa: SLF001
    assert cluster.topic_names(timeout_s=1) == {"orders"}

    def refused_for(seconds: int) -> None:
        client.unanswered = 1
        clock.pass_time(seconds)
        with pytest.raises(UnreachableError):
            cluster.topic_names(timeout_s=0)

    client.is_refused = True
    refused_for(0)
    refused_for(14)
    client.is_refused = False
    refused_for(60)
    client.is_refused = True
    client.unanswered = 1
    with pytest.raises(AuthenticationError, match="503"):
        cluster.topic_names(timeout_s=0)
    assert cluster.topic_names(timeout_s=1) == {"orders"}
    refused_for(0)


def test_a_broker_that_refuses_beside_others_that_answer_is_named(
    admin: tuple[KafkaCluster, PlayedAdmin],
) -> None:
    """For a moment or for good: its partitions cannot be asked about, and this is why."""
    cluster, client = admin
    client.is_refused, client.unanswered = True, 1
    with pytest.raises(UnreachableError, match="log_in_refused="):
        cluster.topic_names(timeout_s=0)
    cluster._refresh_metadata(1.0)  # noqa: SLF001
    client.unanswered = 1
    with pytest.raises(UnreachableError, match="log_in_refused="):
        cluster.topic_names(timeout_s=0)


def test_a_cluster_that_cannot_be_reached_says_what_the_client_error_of_it(
    admin: tuple[KafkaCluster, PlayedAdmin],
) -> None:
    """A misspelt host and a closed port are two mistakes; that all brokers are down is neither."""
    cluster, client = admin
    reason = "a:1/bootstrap: Failed to resolve 'a:1': Name or service not known"
    client.why_away = [
        KafkaError(UNRESOLVED, f"{reason} (after 3ms in state CONNECT)"),
        KafkaError(ALL_DOWN, "1/1 brokers are down"),
    ]
    client.unanswered = 1
    with pytest.raises(UnreachableError) as caught:
        cluster.topic_names(timeout_s=0)
    assert caught.value.args[1]["client_error"] == reason
    client.why_away = []
    client.unanswered = 1
    with pytest.raises(UnreachableError) as caught:
        cluster.topic_names(timeout_s=0)
    assert "client_error" not in caught.value.args[1]


def test_refusals_that_last_for_a_quarter_of_a_minute_are_meant() -> None:
    """A token that could not be had is asked for again after 10 s."""
    clock = FakeClock()
    refusals = LoginRefusals(clock=clock)
    refusals.note(KafkaError(AWAY))
    clock.pass_time(60)
    assert refusals.last is None
    refusals.note(KafkaError(NOT_LOGGED_IN))
    clock.pass_time(11)
    refusals.note(KafkaError(NOT_LOGGED_IN))
    assert refusals.lasting() is None
    clock.pass_time(4)
    assert refusals.lasting() is not None
    refusals.forget()
    assert refusals.lasting() is None
    refusals.answered()
    refusals.note(KafkaError(NOT_LOGGED_IN))
    clock.pass_time(16)
    assert refusals.lasting() is None
    refusals.note(KafkaError(NOT_LOGGED_IN))
    assert refusals.lasting() is not None


@pytest.mark.parametrize("reason", [REFUSED, NO_TOKEN], ids=["password", "token"])
def test_a_question_after_an_election_is_asked_again_where_its_log_in_is_refused(
    monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    """Each is a client of its own, and the broker that has just started may be asked first."""

    def connect(settings: object, deadline: float) -> WireClient:
        raise reason

    monkeypatch.setattr(WireClient, "connect", connect)
    cluster, clock = KafkaCluster(CONNECTION, pause=lambda _: None), FakeClock()
    cluster._lookup_refusals = LoginRefusals(clock=clock)  # noqa: SLF001
    for _ in range(3):
        with pytest.raises(UnreachableError):
            cluster.epoch_ends({}, timeout_s=1)
        clock.pass_time(7)
    with pytest.raises(AuthenticationError):
        cluster.epoch_ends({}, timeout_s=1)


def test_refusals_with_an_answer_between_them_are_not_one_that_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elections of one day, each with a broker that has just started."""
    answers: list[Exception | None] = [REFUSED, None, REFUSED]

    def ask(*_: object, **__: object) -> Mapping[PartitionKey, int]:
        answer = answers.pop(0)
        if answer is not None:
            raise epoch_lookup.LoginRefusedError(NO_TOKEN) from answer
        return {}

    monkeypatch.setattr(epoch_lookup, "fetch_epoch_ends", ask)
    cluster, clock = KafkaCluster(CONNECTION, pause=lambda _: None), FakeClock()
    cluster._lookup_refusals = LoginRefusals(clock=clock)  # noqa: SLF001
    for is_answered in (False, True, False):
        with contextlib.nullcontext() if is_answered else pytest.raises(UnreachableError):
            cluster.epoch_ends({}, timeout_s=1)
        clock.pass_time(3600)


def test_a_question_that_finds_no_broker_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(settings: object, deadline: float) -> WireClient:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(WireClient, "connect", connect)
    with pytest.raises(UnreachableError, match="nobody listens"):
        epoch_lookup.fetch_epoch_ends(CONNECTION, {}, timeout_s=1)


def test_a_question_that_no_log_in_can_ask_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(settings: object, deadline: float) -> WireClient:
        raise kafka_errors.UnsupportedSaslMechanismError("GSSAPI")

    monkeypatch.setattr(WireClient, "connect", connect)
    with pytest.raises(AuthenticationError, match="UnsupportedSaslMechanism"):
        epoch_lookup.fetch_epoch_ends(CONNECTION, {}, timeout_s=1)
