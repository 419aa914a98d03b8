"""What each error of Kafka means in an answer about transactions, and the table of rule `outcome-from-broker`."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest

from sluice.connectors.kafka.client.wire_client import Net, kafka_errors
from sluice.connectors.kafka.sink.committer import kafka_wire as transaction_wire
from sluice.connectors.kafka.sink.committer.commit_outcomes import TABLE, EpochStep, judge
from sluice.connectors.kafka.sink.committer.transaction_listing import list_transactions
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    EndReport,
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.committer.wire_answers import (
    STATE_TOPIC,
    end_report,
    error_name,
    is_answered_later,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import CommitOutcome
from tests.kit.kafka.played_wire import OURS, said

_NAMES = """
    UNKNOWN_SERVER_ERROR NONE OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION
    INVALID_FETCH_SIZE LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT
    BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE MESSAGE_TOO_LARGE STALE_CONTROLLER_EPOCH
    OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS
    COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE
    NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS
    ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID
    INVALID_SESSION_TIMEOUT REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE
    TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
    INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE UNSUPPORTED_VERSION
    TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
    INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST
    UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER
    DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE
    INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT CONCURRENT_TRANSACTIONS
    TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED
    OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED
    UNKNOWN_PRODUCER_ID REASSIGNMENT_IN_PROGRESS DELEGATION_TOKEN_AUTH_DISABLED
    DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED
    DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND
    FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND
    TOPIC_DELETION_DISABLED FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
    UNSUPPORTED_COMPRESSION_TYPE STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED
    PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID
    ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
    GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED
    PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL
    INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED
    PRINCIPAL_DESERIALIZATION_FAILURE SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID
    DUPLICATE_BROKER_REGISTRATION BROKER_ID_NOT_REGISTERED INCONSISTENT_TOPIC_ID
    INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND FETCH_SESSION_TOPIC_ID_ERROR
    INELIGIBLE_REPLICA NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE FENCED_MEMBER_EPOCH
    UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE
    UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE
    INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND
    INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER
    VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED STREAMS_INVALID_TOPOLOGY
    STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED
""".split()  # noqa: SIM905 - a block of names is easier to compare than 135 lines
NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(_NAMES, start=-1)}
LATER = (len(_NAMES) - 1, 200, 32_767, -2)
"""Codes that no Kafka has yet, or never will."""
ALL = pytest.mark.parametrize(
    "number",
    [*NUMBERS.values(), *LATER],
    ids=lambda n: _NAMES[n + 1] if -1 <= n < len(_NAMES) - 1 else str(n),
)


FORBIDDEN = {
    "CLUSTER_AUTHORIZATION_FAILED",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}
END_NOT_YET = {"CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS"}
"""Nothing was done, and the same request may go well a moment later."""
END_REFUSED = END_NOT_YET | {
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_REQUEST",
    "INVALID_TXN_STATE",
    "PRODUCER_FENCED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION",
}
"""Answered before a coordinator writes to its log. That such an answer says neither committed nor
aborted, is rule `outcome-from-broker`."""


def numbers(names: set[str]) -> set[int]:
    return {NUMBERS[name] for name in names}


def _always(answer: Any, _: Any) -> Any:
    return answer


class Answering:
    """A cluster of one broker, as a call sees it. Each kind of request has its answer; there is no
    time for another try."""

    def __init__(self, **answers: Any) -> None:
        self.unreached = False
        self.sent: list[str] = []
        self._answers: dict[str, Callable[[Any], Any]] = {
            "FindCoordinator": lambda request: said(
                coordinators=[
                    said(key=k, node_id=1, error_code=0) for k in request.coordinator_keys
                ]
            ),
            "DescribeTransactions": lambda request: said(
                transaction_states=[row(i, 105) for i in request.transactional_ids]
            ),
            "ApiVersions": lambda _: said(error_code=0, finalized_features=()),
            "Metadata": lambda _: log_of_one(),
            "ListTransactions": lambda _: said(error_code=0, transaction_states=[]),
            "EndTxn": lambda _: said(error_code=0),
            **{name: partial(_always, answer) for name, answer in answers.items()},
        }

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        """See `Net.send`."""
        kind = type(request).__name__.removesuffix("Request")
        self.sent.append(kind)
        return self._answers[kind](request)

    def begin(self, coroutine: Callable[[], Any]) -> Any:
        return coroutine()

    async def pause(self) -> bool:
        """See `Net.pause`."""
        return False


def row(transactional_id: str, number: int) -> Any:
    """A description; of an error its other fields are what an empty one's are."""
    return said(
        transactional_id=transactional_id,
        error_code=number,
        transaction_state="CompleteAbort",
        producer_id=OURS.producer_id,
        producer_epoch=OURS.producer_epoch,
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        topics=[],
    )


def log_of_one(number: int = 0, *, of_all: int = 0) -> Any:
    """Metadata of the transaction log, which broker 1 leads."""
    partitions = [said(partition_index=0, leader_id=1)] if number == 0 else []
    topics = [said(name=STATE_TOPIC, error_code=number, partitions=partitions)]
    return said(error_code=of_all, topics=topics, brokers=[said(node_id=1)])


def ended(net: Answering) -> EndReport | None:
    reports: dict[TransactionIdentity, EndReport] = {}
    asyncio.run(transaction_wire._end(cast(Net, net), [OURS], reports, commit=True))  # noqa: SLF001
    return reports.get(OURS)


def described(net: Answering) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ids = [OURS.transactional_id]
    asyncio.run(transaction_wire._describe(cast(Net, net), ids, found))  # noqa: SLF001
    return found


def is_forbidden(number: int) -> bool:
    return number in numbers(FORBIDDEN)


def test_the_numbers_are_kafkas() -> None:
    assert NUMBERS["NONE"] == 0
    assert NUMBERS["INVALID_TXN_STATE"] == kafka_errors.InvalidTxnStateError.errno
    assert NUMBERS["TRANSACTIONAL_ID_NOT_FOUND"] == kafka_errors.TransactionalIdNotFoundError.errno
    assert NUMBERS["VOTER_NOT_FOUND"] == kafka_errors.VoterNotFoundError.errno


@ALL
def test_outcome_from_broker_an_answer_to_endtxn(number: int) -> None:
    report = end_report(number)

    if number == 0:
        assert report == EndReport(outcome=EndOutcome.DONE)
        return
    refused = number in numbers(END_REFUSED)
    assert report.outcome is (EndOutcome.REFUSED if refused else EndOutcome.UNKNOWN)
    assert is_answered_later(report) is (number in numbers(END_NOT_YET))
    assert report.error == error_name(number) != ""
    assert ended(Answering(EndTxn=said(error_code=number))) == report


@ALL
def test_outcome_from_broker_an_answer_to_describetransactions(number: int) -> None:
    """That there is no such transaction, too, is one code; with an error no state is reported."""
    net = Answering(
        DescribeTransactions=said(transaction_states=[row(OURS.transactional_id, number)])
    )
    if is_forbidden(number):
        with pytest.raises(kafka_errors.AuthorizationError):
            described(net)
        return
    found = described(net)

    if number == 0:
        assert found[OURS.transactional_id].state is TransactionState.COMPLETE_ABORT
    elif number == NUMBERS["TRANSACTIONAL_ID_NOT_FOUND"]:
        assert found == {OURS.transactional_id: None}
        assert judge(OURS, None).outcome is CommitOutcome.UNKNOWN
    else:
        assert found == {}


@ALL
def test_outcome_from_broker_an_answer_to_findcoordinator(number: int) -> None:
    answer = said(coordinators=[said(key=OURS.transactional_id, node_id=1, error_code=number)])
    net = Answering(FindCoordinator=answer)
    if is_forbidden(number):
        for ask in (ended, described):
            with pytest.raises(kafka_errors.AuthorizationError):
                ask(net)
        return

    assert (ended(net) is not None) is (number == 0)
    assert (described(net) != {}) is (number == 0)
    assert ("EndTxn" in net.sent) is (number == 0)


@ALL
def test_endtxn_version_an_answer_to_apiversions(number: int) -> None:
    """With any error the level is not known, and no version of EndTxn is sent."""
    net = Answering(ApiVersions=said(error_code=number, finalized_features=()))

    assert (ended(net) is not None) is (number == 0)
    assert ("EndTxn" in net.sent) is (number == 0)


@ALL
def test_wait_for_all_brokers_an_answer_to_listtransactions(number: int) -> None:
    net = cast(Net, Answering(ListTransactions=said(error_code=number, transaction_states=[])))
    if is_forbidden(number):
        with pytest.raises(kafka_errors.AuthorizationError):
            asyncio.run(list_transactions(net, "p/j/", []))
        return

    found = asyncio.run(list_transactions(net, "p/j/", []))

    assert found.missing == (() if number == 0 else ("broker 1",))


@pytest.mark.parametrize("of_all", [False, True], ids=["of the topic", "of all"])
@ALL
def test_wait_for_all_brokers_an_answer_to_metadata(number: int, of_all: bool) -> None:
    """That there is no log yet is one code, of that topic: with any other the list is no list."""
    answer = log_of_one(of_all=number) if of_all else log_of_one(number)
    net = cast(Net, Answering(Metadata=answer))
    there_is_none = number == NUMBERS["UNKNOWN_TOPIC_OR_PARTITION"] and not of_all
    if number == 0 or there_is_none:
        assert asyncio.run(list_transactions(net, "p/j/", [])).missing == ()
        return

    with pytest.raises(kafka_errors.KafkaError):
        asyncio.run(list_transactions(net, "p/j/", []))


@ALL
def test_wait_for_all_brokers_an_answer_about_a_partition_that_may_not_be_loaded(
    number: int,
) -> None:
    """A broker counts as asked only where it says of an id that it has, or has not, got it."""
    answering = Answering()
    asked = answering._answers  # noqa: SLF001 - its answer names what it is asked for
    asked["DescribeTransactions"] = lambda request: said(
        transaction_states=[row(i, number) for i in request.transactional_ids]
    )
    net = cast(Net, answering)
    if is_forbidden(number):
        with pytest.raises(kafka_errors.AuthorizationError):
            asyncio.run(list_transactions(net, "p/j/", []))
        return

    knows = number in (0, NUMBERS["TRANSACTIONAL_ID_NOT_FOUND"])
    found = asyncio.run(list_transactions(net, "p/j/", []))
    assert found.missing == (() if knows else ("broker 1",))


_S, _E = TransactionState, EpochStep
HANDLE = TransactionIdentity(transactional_id="p/u/r.1/o/0", producer_id=90, producer_epoch=4)

# Written out manually, not derived from the table under test.
COMMITTED = {(_S.COMPLETE_COMMIT, 4), (_S.COMPLETE_COMMIT, 5)}
ABORTED = {
    (_S.PREPARE_ABORT, 4),
    (_S.PREPARE_ABORT, 5),
    (_S.COMPLETE_ABORT, 4),
    (_S.COMPLETE_ABORT, 5),
}
PENDING = {
    (_S.ONGOING, 4),
    (_S.ONGOING, 5),
    (_S.PREPARE_COMMIT, 4),
    (_S.PREPARE_COMMIT, 5),
    (_S.PREPARE_EPOCH_FENCE, 4),
    (_S.PREPARE_EPOCH_FENCE, 5),
}


def _described(
    state: TransactionState, epoch: int, producer_id: int = 90
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=HANDLE.transactional_id,
        state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def _expected(state: TransactionState, epoch: int) -> CommitOutcome:
    for outcome, rows in (
        (CommitOutcome.COMMITTED, COMMITTED),
        (CommitOutcome.ABORTED, ABORTED),
        (CommitOutcome.PENDING, PENDING),
    ):
        if (state, epoch) in rows:
            return outcome
    return CommitOutcome.UNKNOWN


@pytest.mark.parametrize(("state", "epoch"), list(itertools.product(_S, (3, 4, 5, 6, 7))))
def test_outcome_from_broker_every_state_and_epoch_has_one_verdict(
    state: TransactionState, epoch: int
) -> None:
    """Rule `outcome-from-broker`: all states, from one epoch below the handle's to three above."""
    judgement = judge(HANDLE, _described(state, epoch))

    assert judgement.outcome is _expected(state, epoch)
    assert judgement.open == ((state, epoch) == (_S.ONGOING, 4))
    assert state.value in judgement.detail


@pytest.mark.parametrize("state", _S)
@pytest.mark.parametrize("epoch", [0, 4, 5])
def test_outcome_from_broker_another_producer_id_proves_nothing(
    state: TransactionState, epoch: int
) -> None:
    """Rule `outcome-from-broker`: the same epoch of another producer id is another transaction."""
    judgement = judge(HANDLE, _described(state, epoch, producer_id=91))

    assert judgement.outcome is CommitOutcome.UNKNOWN
    assert not judgement.open


def test_outcome_from_broker_an_unknown_id_is_unknown() -> None:
    """Rule `outcome-from-broker`: an expired id may have been committed; only a human may call it
    lost."""
    judgement = judge(HANDLE, None)

    assert judgement.outcome is CommitOutcome.UNKNOWN
    assert not judgement.open


def test_outcome_from_broker_only_aborts_of_our_own_epochs_may_be_repaired() -> None:
    """Rule `outcome-from-broker`: ABORTED is the only outcome that may be repaired, so its rows
    are counted."""
    aborted = {pair for pair, outcome in TABLE.items() if outcome is CommitOutcome.ABORTED}

    assert aborted == set(
        itertools.product((_S.PREPARE_ABORT, _S.COMPLETE_ABORT), (_E.SAME, _E.NEXT))
    )


@pytest.mark.parametrize(
    ("state", "epoch", "outcome"),
    [
        (_S.COMPLETE_COMMIT, 0, CommitOutcome.COMMITTED),
        (_S.COMPLETE_ABORT, 0, CommitOutcome.ABORTED),
        (_S.COMPLETE_COMMIT, 1, CommitOutcome.UNKNOWN),
        (_S.EMPTY, 0, CommitOutcome.UNKNOWN),
        (_S.ONGOING, 0, CommitOutcome.UNKNOWN),
    ],
)
def test_outcome_from_broker_the_last_epoch_rolls_over_to_a_new_producer_id(
    state: TransactionState, epoch: int, outcome: CommitOutcome
) -> None:
    """Rule `outcome-from-broker`: measured: (103, 32766), ended by version 5, is described as
    (104, 0)."""
    last = TransactionIdentity(
        transactional_id=HANDLE.transactional_id, producer_id=103, producer_epoch=32_766
    )
    judgement = judge(last, _described(state, epoch, producer_id=104))

    assert judgement.outcome is outcome
    assert not judgement.open
    assert judge(HANDLE, _described(state, 0)).outcome is CommitOutcome.UNKNOWN
