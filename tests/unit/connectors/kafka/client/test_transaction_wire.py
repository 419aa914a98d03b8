"""What is sent to brokers, and what their answers mean, on brokers that are a table.

The same functions meet real brokers in `tests/contract/test_wire.py`; here are the answers that
those give seldom.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.connectors.kafka.client.broker_requests import REQUESTS
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import Net, kafka_errors
from sluice.connectors.kafka.sink.committer import kafka_wire as transaction_wire
from sluice.connectors.kafka.sink.committer import transaction_listing
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    EndReport,
    TransactionState,
)
from sluice.connectors.kafka.sink.committer.wire_answers import STATE_TOPIC, id_for_each_partition
from sluice.connectors.kafka.sink.handles import TransactionIdentity

OURS = TransactionIdentity(transactional_id="p/j/r.1/o/0", producer_id=7, producer_epoch=3)
LATE = TransactionIdentity(transactional_id="p/j/r.1/o/1", producer_id=8, producer_epoch=0)
Answer = Callable[[Any, int | None], Any]


def said(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


def code(error: type[BaseException]) -> int:
    number: int = cast(Any, error).errno
    return number


@dataclass
class TableNet:
    """Requests and their answers by the kind of request; an exception is raised when awaited.

    ``pauses``: how often there is time for another try.
    """

    answers: Mapping[str, Answer]
    pauses: int = 0
    unreached: bool = False
    sent: list[Any] = field(default_factory=list)

    def send(self, request: Any, node_id: int | None = None) -> Awaitable[Any]:
        self.sent.append(request)
        answer = self.answers[type(request).__name__]

        async def answered() -> Any:
            found = answer(request, node_id)
            if isinstance(found, BaseException):
                raise found
            return found

        return _Lazy(answered)

    def begin(self, coroutine: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        return coroutine()

    async def pause(self) -> bool:
        """See `Net.pause`."""
        self.pauses -= 1
        return self.pauses >= 0

    def of(self, name: str) -> list[Any]:
        return [request for request in self.sent if type(request).__name__ == name]


@dataclass
class _Lazy:
    """Nothing dangles when it is never awaited."""

    make: Callable[[], Coroutine[Any, Any, Any]]

    def __await__(self) -> Any:
        return self.make().__await__()


def coordinators(request: Any, node_id: int | None) -> Any:
    return said(
        coordinators=[said(key=key, node_id=1, error_code=0) for key in request.coordinator_keys]
    )


def features(level: int | None) -> Answer:
    """Finalised ``transaction.version``; None: the cluster has none."""
    found = [said(name="kraft.version", max_version_level=1)]
    if level is not None:
        found.append(said(name="transaction.version", max_version_level=level))
    return lambda request, node_id: said(
        error_code=0, finalized_features=found, api_keys=requests()
    )


def requests(**changed: int) -> list[SimpleNamespace]:
    """What a current broker knows; other newest versions by name, -1: none."""
    newest = {name.partition(" ")[0]: each for name, each in REQUESTS.items()}
    known = {key: changed.get(name, version) for name, (key, version) in newest.items()}
    return [said(api_key=key, max_version=known[key]) for key in known if known[key] >= 0]


def ended(
    net: TableNet, *transactions: TransactionIdentity, commit: bool = True
) -> dict[Any, EndReport]:
    reports: dict[TransactionIdentity, EndReport] = {}
    asyncio.run(transaction_wire._end(cast(Net, net), transactions, reports, commit=commit))  # noqa: SLF001
    return reports


def accepted(request: Any, node_id: int | None) -> Any:
    return said(error_code=0)


@pytest.mark.parametrize(("level", "version"), [(None, 4), (0, 4), (1, 5), (2, 5)])
def test_endtxn_version_version_5_is_sent_only_where_its_level_is_finalised(
    level: int | None, version: int
) -> None:
    """Below, it is advertised, answers UNSUPPORTED_VERSION, and wedges the transaction."""
    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "ApiVersionsRequest": features(level),
            "EndTxnRequest": accepted,
        }
    )
    assert ended(net, OURS) == {OURS: EndReport(outcome=EndOutcome.DONE)}
    (request,) = net.of("EndTxnRequest")
    assert request._max_version == version  # noqa: SLF001 - kafka-python shows it nowhere else
    assert (request.producer_id, request.producer_epoch, request.committed) == (7, 3, True)


def test_endtxn_version_no_request_goes_out_where_the_level_cannot_be_read() -> None:
    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "ApiVersionsRequest": lambda *_: said(error_code=code(kafka_errors.UnknownError)),
            "EndTxnRequest": accepted,
        },
        pauses=2,
    )
    assert ended(net, OURS) == {}
    assert net.of("EndTxnRequest") == []
    assert len(net.of("ApiVersionsRequest")) == 3


def test_abort_by_endtxn_an_abort_is_an_endtxn_with_the_transactions_own_epoch() -> None:
    """InitProducerId aborts whatever is open under the id, also under a stale epoch."""
    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "ApiVersionsRequest": features(2),
            "EndTxnRequest": accepted,
            "InitProducerIdRequest": accepted,
        }
    )
    assert ended(net, OURS, commit=False) == {OURS: EndReport(outcome=EndOutcome.DONE)}
    assert net.of("InitProducerIdRequest") == []
    (request,) = net.of("EndTxnRequest")
    assert (request.producer_id, request.producer_epoch, request.committed) == (7, 3, False)


@pytest.mark.parametrize(
    ("answer", "outcome", "tries"),
    [
        (said(error_code=code(kafka_errors.InvalidTxnStateError)), EndOutcome.REFUSED, 1),
        (said(error_code=code(kafka_errors.ConcurrentTransactionsError)), EndOutcome.REFUSED, 3),
        (said(error_code=code(kafka_errors.CoordinatorLoadInProgressError)), EndOutcome.REFUSED, 3),
        # It may be in the log of a coordinator that has lost its partition meanwhile.
        (said(error_code=code(kafka_errors.NotCoordinatorError)), EndOutcome.UNKNOWN, 1),
        (kafka_errors.NodeNotReadyError("never sent"), EndOutcome.REFUSED, 3),
        (kafka_errors.RequestTimedOutError("sent"), EndOutcome.UNKNOWN, 1),
        (kafka_errors.KafkaConnectionError("cut off"), EndOutcome.UNKNOWN, 1),
    ],
)
def test_outcome_from_broker_only_what_was_certainly_not_done_is_asked_again(
    answer: Any, outcome: EndOutcome, tries: int
) -> None:
    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "ApiVersionsRequest": features(2),
            "EndTxnRequest": lambda *_: answer,
        },
        pauses=2,
    )
    assert ended(net, OURS)[OURS].outcome is outcome
    assert len(net.of("EndTxnRequest")) == tries


def test_a_late_answer_costs_only_its_own_transaction() -> None:
    def one_is_late(request: Any, node_id: int | None) -> Any:
        late = request.transactional_id == LATE.transactional_id
        return kafka_errors.RequestTimedOutError("late") if late else said(error_code=0)

    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "ApiVersionsRequest": features(2),
            "EndTxnRequest": one_is_late,
        }
    )
    found = ended(net, LATE, OURS)
    assert found[OURS].outcome is EndOutcome.DONE
    assert found[LATE].outcome is EndOutcome.UNKNOWN


def test_ids_without_a_coordinator_are_asked_about_again() -> None:
    """The log's partition is moving: neither the id's end, nor its absence, is reported."""

    def none_yet(request: Any, node_id: int | None) -> Any:
        moving = code(kafka_errors.CoordinatorNotAvailableError)
        return said(
            coordinators=[
                said(key=k, node_id=-1, error_code=moving) for k in request.coordinator_keys
            ]
        )

    net = TableNet({"FindCoordinatorRequest": none_yet}, pauses=1)
    assert ended(net, OURS) == {}
    assert described(TableNet({"FindCoordinatorRequest": none_yet}, pauses=1), OURS) == {}
    silent = TableNet({"FindCoordinatorRequest": lambda *_: kafka_errors.NodeNotReadyError("no")})
    assert described(silent, OURS) == {}


def test_a_missing_permission_is_said_and_not_waited_for() -> None:
    forbidden = code(kafka_errors.TransactionalIdAuthorizationFailedError)
    net = TableNet(
        {
            "FindCoordinatorRequest": lambda request, _: said(
                coordinators=[said(key=OURS.transactional_id, node_id=-1, error_code=forbidden)]
            )
        },
        pauses=5,
    )
    with pytest.raises(kafka_errors.TransactionalIdAuthorizationFailedError):
        ended(net, OURS)


def row(transactional_id: str, state: str = "Ongoing", *, error_code: int = 0) -> Any:
    return said(
        transactional_id=transactional_id,
        error_code=error_code,
        transaction_state=state,
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=-1,
        topics=[said(topic="out", partitions=[0, 2])],
    )


def described(net: TableNet, *transactions: TransactionIdentity) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ids = [transaction.transactional_id for transaction in transactions]
    asyncio.run(transaction_wire._describe(cast(Net, net), ids, found))  # noqa: SLF001
    return found


NOT_FOUND = code(kafka_errors.TransactionalIdNotFoundError)
LOADING = code(kafka_errors.CoordinatorLoadInProgressError)


def test_outcome_from_broker_an_id_that_is_not_known_is_reported_from_one_that_is_not_reported_yet() -> (
    None
):
    """The one has expired, or never was; the other is asked for again."""
    answers = iter(
        [
            [row("p/j/r.1/o/0", error_code=NOT_FOUND), row("p/j/r.1/o/1", error_code=LOADING)],
            [row("p/j/r.1/o/1", "a state of later years")],
        ]
    )
    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "DescribeTransactionsRequest": lambda *_: said(transaction_states=next(answers)),
        },
        pauses=1,
    )
    found = described(net, OURS, LATE)
    assert found[OURS.transactional_id] is None
    late = found[LATE.transactional_id]
    assert late.state is TransactionState.UNKNOWN
    assert (late.timeout_s, late.started_at_ms) == (60.0, None)
    assert late.partitions == (("out", 0), ("out", 2))


def test_a_broker_that_does_not_describe_is_asked_again() -> None:
    answers = iter([kafka_errors.RequestTimedOutError(), said(transaction_states=[row("x")])])
    net = TableNet(
        {
            "FindCoordinatorRequest": coordinators,
            "DescribeTransactionsRequest": lambda *_: next(answers),
        },
        pauses=1,
    )
    ours = TransactionIdentity(transactional_id="x", producer_id=7, producer_epoch=3)
    assert described(net, ours)["x"].identity == ours


# --- lists (`wait-for-all-brokers`)----------------------------------------------------------------
# --------------------------------------------------------------------------------------------------

PREFIX = "p/j/"
IDS = id_for_each_partition(PREFIX, 2)


def log_of(*leaders: int, brokers: tuple[int, ...] = (1, 2), error_code: int = 0) -> Answer:
    partitions = [said(partition_index=i, leader_id=node) for i, node in enumerate(leaders)]
    return lambda *_: said(
        error_code=0,
        topics=[said(name=STATE_TOPIC, error_code=error_code, partitions=partitions)],
        brokers=[said(node_id=node) for node in brokers],
    )


def all_loaded(request: Any, node_id: int | None) -> Any:
    return said(
        transaction_states=[row(i, error_code=NOT_FOUND) for i in request.transactional_ids]
    )


def one_open(request: Any, node_id: int | None) -> Any:
    rows = [
        said(transactional_id=name, producer_id=7, transaction_state="Ongoing")
        for name in (f"{PREFIX}r.1/o/{node_id}", "theirs")
    ]
    return said(error_code=0, transaction_states=rows)


def listed(answers: Mapping[str, Answer]) -> tuple[list[str], tuple[str, ...]]:
    """Ids that are open, and who did not answer."""
    table = {
        "MetadataRequest": log_of(1, 2),
        "DescribeTransactionsRequest": all_loaded,
        "ListTransactionsRequest": one_open,
        **answers,
    }
    net = cast(Net, TableNet(table))
    found = asyncio.run(transaction_listing.list_transactions(net, PREFIX, ["Ongoing"]))
    return [one.transactional_id for one in found.transactions], found.missing


def test_wait_for_all_brokers_every_broker_is_asked_for_its_part_of_the_log() -> None:
    assert listed({}) == (["p/j/r.1/o/1", "p/j/r.1/o/2"], ())


def test_wait_for_all_brokers_a_partition_without_a_living_leader_is_missing() -> None:
    names, missing = listed({"MetadataRequest": log_of(1, 3)})
    assert missing == (f"{STATE_TOPIC}-1",)
    assert len(names) == 2


@pytest.mark.parametrize(
    "error", [kafka_errors.TopicAuthorizationFailedError, kafka_errors.LeaderNotAvailableError]
)
def test_wait_for_all_brokers_a_log_whose_partitions_are_not_reported_is_not_taken_for_an_empty_one(
    error: type[kafka_errors.KafkaError],
) -> None:
    with pytest.raises(error):
        listed({"MetadataRequest": log_of(error_code=code(error))})


@pytest.mark.parametrize("names_it", [True, False])
def test_wait_for_all_brokers_a_broker_that_knows_nothing_yet_does_not_list_for_the_cluster(
    names_it: bool,
) -> None:
    unknown = code(kafka_errors.UnknownTopicOrPartitionError)
    starting = log_of(brokers=(), error_code=unknown)
    elsewhere = lambda *_: said(error_code=129, topics=[], brokers=[])  # noqa: E731
    with pytest.raises(kafka_errors.KafkaError):
        listed({"MetadataRequest": starting if names_it else elsewhere})


def test_a_cluster_without_a_transaction_has_no_log_yet() -> None:
    unknown = code(kafka_errors.UnknownTopicOrPartitionError)
    nothing = said(error_code=0, transaction_states=[])
    answers = {
        "MetadataRequest": log_of(error_code=unknown),
        "ListTransactionsRequest": lambda *_: nothing,
    }
    assert listed(answers) == ([], ())


@pytest.mark.parametrize(
    "answer", [kafka_errors.RequestTimedOutError(), said(error_code=LOADING)], ids=str
)
def test_wait_for_all_brokers_a_broker_that_does_not_list_is_missing(answer: Any) -> None:
    def only_the_first(request: Any, node_id: int | None) -> Any:
        return one_open(request, node_id) if node_id == 1 else answer

    names, missing = listed({"ListTransactionsRequest": only_the_first})
    assert (names, missing) == (["p/j/r.1/o/1"], ("broker 2",))


@pytest.mark.parametrize("late", [False, True])
def test_wait_for_all_brokers_a_broker_that_has_not_loaded_a_partition_is_missing(
    late: bool,
) -> None:
    asked = 0

    def loads(request: Any, node_id: int | None) -> Any:
        nonlocal asked
        asked += node_id == 2
        if node_id == 2 and (asked == 1) != late:
            return said(
                transaction_states=[row(i, error_code=LOADING) for i in request.transactional_ids]
            )
        return all_loaded(request, node_id)

    assert listed({"DescribeTransactionsRequest": loads})[1] == ("broker 2",)


def test_wait_for_all_brokers_a_broker_that_does_not_describe_is_missing() -> None:
    silent = {"DescribeTransactionsRequest": lambda *_: kafka_errors.RequestTimedOutError()}
    assert listed(silent)[1] == ("broker 1", "broker 2")


# --- the start check ------------------------------------------------------------------------------


def test_topics_that_do_not_exist_are_named() -> None:
    unknown = code(kafka_errors.UnknownTopicOrPartitionError)
    topics = [
        said(name="there", error_code=0, topic_id=None),
        said(name="not", error_code=unknown, topic_id=None),
    ]
    metadata = said(error_code=0, topics=topics, brokers=[said(node_id=1)])
    net = cast(Net, TableNet({"MetadataRequest": lambda *_: metadata}))
    assert asyncio.run(transaction_wire._missing(net, ["there", "not"])) == ("not",)  # noqa: SLF001


@pytest.mark.parametrize(
    ("limits", "expected"),
    [(("900000", "60000"), 60.0), ((None, "60000"), 60.0), ((None, None), None)],
)
def test_the_smallest_timeout_limit_of_the_brokers_is_the_clusters(
    limits: tuple[str | None, str | None], expected: float | None
) -> None:
    def limit(request: Any, node_id: int | None) -> Any:
        value = limits[0 if node_id == 1 else 1]
        if value is None and node_id == 1:
            return kafka_errors.RequestTimedOutError()
        return said(results=[said(configs=[said(value=value)])])

    net = TableNet(
        {
            "MetadataRequest": lambda *_: said(
                error_code=0, cluster_id=None, brokers=[said(node_id=1), said(node_id=2)]
            ),
            "ApiVersionsRequest": features(1),
            "DescribeConfigsRequest": limit,
        }
    )
    found = asyncio.run(transaction_wire._cluster(cast(Net, net)))  # noqa: SLF001
    assert (found.cluster_id, found.transaction_version) == ("", 1)
    assert found.max_transaction_timeout_s == expected


@pytest.mark.parametrize(
    ("first", "second", "missing"),
    [
        (requests(), requests(), ()),
        (requests(), requests(FindCoordinator=3), ("FindCoordinator v4",)),
        (
            requests(DescribeTransactions=-1, ListTransactions=-1),
            requests(ListTransactions=-1),
            ("DescribeTransactions", "ListTransactions"),
        ),
        (requests(Fetch=3), requests(InitProducerId=-1), ("Fetch v4", "InitProducerId")),
        (requests(), kafka_errors.RequestTimedOutError(), ()),
    ],
)
def test_requests_that_some_broker_lacks_are_named_once(
    first: Any, second: Any, missing: tuple[str, ...]
) -> None:
    """Brokers of several versions serve one cluster; one that is away says nothing."""
    answers = {None: first, 1: first, 2: second}

    def versions(_: Any, node_id: int | None) -> Any:
        found = answers[node_id]
        if isinstance(found, BaseException):
            return found
        return said(error_code=0, finalized_features=(), api_keys=found)

    net = TableNet(
        {
            "MetadataRequest": lambda *_: said(
                error_code=0, cluster_id="c", brokers=[said(node_id=1), said(node_id=2)]
            ),
            "ApiVersionsRequest": versions,
            "DescribeConfigsRequest": lambda *_: said(results=[]),
        }
    )
    found = asyncio.run(transaction_wire._cluster(cast(Net, net)))  # noqa: SLF001
    assert found.missing_requests == missing


def test_wait_for_all_brokers_a_broker_that_is_not_known_is_looked_for() -> None:
    """It was away when the client last looked, and is back: the next try is to find it."""
    looks: list[None] = []

    class Manager:
        """kafka-python's, between two of its looks at the cluster."""

        cluster = said(request_update=lambda: looks.append(None))

        def send(self, request: Any, **options: Any) -> Any:
            raise kafka_errors.UnknownBrokerIdError(options["node_id"])

    net = Net(cast(Any, said(manager=Manager())), deadline=math.inf)
    net.send(said(), node_id=3)
    assert len(looks) == 1


def test_outcome_from_broker_where_nobody_can_be_asked_nothing_was_sent() -> None:
    """So each may be asked for again; a report is there for every transaction."""
    wire = transaction_wire.TransactionWire(KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    try:
        reports = wire.end([OURS, LATE], commit=True, timeout_s=0.2)
    finally:
        wire.close()
    assert [report.outcome for report in reports] == [EndOutcome.REFUSED] * 2
