"""Transaction requests to a real cluster: `connectors.kafka.wire.Wire` by way of kafka-python."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from connectors.kafka.handles import TransactionIdentity
from connectors.kafka.security import KafkaConnection
from connectors.kafka.transaction_log import STATE_TOPIC, id_for_each_partition
from connectors.kafka.transactions import (
    REFUSED_CREDENTIALS,
    ApiVersionsRequest,
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    Message,
    MetadataRequest,
    Net,
    WireClient,
    kafka_errors,
)
from connectors.kafka.wire import (
    Cluster,
    EndOutcome,
    EndReport,
    ListedTransaction,
    Listing,
    TransactionDescription,
    TransactionState,
)
from runtime.errors import AuthenticationError, StreamError, UnreachableError

__all__ = ["TransactionWire"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRANSACTION_KEY = 1  # FindCoordinator's key type
_BROKER_RESOURCE = 4  # DescribeConfigs' resource type
_BATCH = 500  # ids in one request
_NOT_YET = frozenset(
    {
        "ConcurrentTransactionsError",
        "CoordinatorLoadInProgressError",
        "CoordinatorNotAvailableError",
        "NodeNotReadyError",
        "NotCoordinatorError",
        "UnknownBrokerIdError",
    }
)


class TransactionWire:
    """Transaction requests to a real cluster; implements `connectors.kafka.wire.Wire`.

    Driver or command line; any thread. kafka-python runs one I/O thread per client; callers wait
    on an event, with a bound. A client that failed is thrown away and made anew, so that a
    cluster whose brokers have all moved is found again from the bootstrap servers.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._client: WireClient | None = None
        self._closed = False

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        """See `Wire.describe`."""
        found: dict[str, TransactionDescription | None] = {}
        try:
            self._call(lambda net: _describe(net, transactional_ids, found), timeout_s)
        except (UnreachableError, AuthenticationError) as err:
            # One coordinator that refuses, as one that is away, holds up nothing of the others'.
            if isinstance(err, AuthenticationError) and not found:
                raise
            log.debug("describing transactions: answered=%d error=%s", len(found), err)
        return dict(found)

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
        """See `Wire.end`."""
        reports: dict[TransactionIdentity, EndReport] = {}
        try:
            self._call(lambda net: _end(net, transactions, reports, commit=commit), timeout_s)
        except StreamError as err:
            log.debug("ending transactions: answered=%d error=%s", len(reports), err)
        answered = dict(reports)
        return [answered.get(transaction, _NEVER_SENT) for transaction in transactions]

    def list_transactions(
        self, prefix: str, *, timeout_s: float, states: Sequence[TransactionState] = ()
    ) -> Listing:
        """See `Wire.list_transactions`."""
        names = [state.value for state in states]
        try:
            return self._call(lambda net: _list(net, prefix, names), timeout_s)
        except UnreachableError as err:
            log.debug("listing transactions: error=%s", err)
            return Listing(transactions=(), missing=("the cluster",))

    def cluster(self, *, timeout_s: float) -> Cluster:
        """See `Wire.cluster`."""
        return self._call(_cluster, timeout_s)

    def missing_topics(self, topics: Sequence[str], *, timeout_s: float) -> tuple[str, ...]:
        """See `Wire.missing_topics`."""
        wanted = list(topics)
        return self._call(lambda net: _missing(net, wanted), timeout_s)

    def close(self) -> None:
        """See `Wire.close`."""
        with self._lock:
            self._closed = True
            client = self._client
        if client is not None:
            self._drop(client)

    def _call(self, ask: Callable[[Net], Awaitable[_T]], timeout_s: float) -> _T:
        """Run ``ask`` on the client's I/O thread; wait no longer than the time given."""
        deadline = time.monotonic() + timeout_s
        try:
            client = self._connected(deadline)
            try:
                return client.run(lambda: ask(Net(client, deadline)), deadline)
            except (kafka_errors.KafkaError, OSError, RuntimeError):
                self._drop(client)
                raise
            finally:
                # It would answer all further calls with what one broker has said for a moment.
                if client.refused is not None:
                    self._drop(client)
        except (kafka_errors.KafkaError, OSError, RuntimeError) as err:
            raise self._translated(err) from None

    def _connected(self, deadline: float) -> WireClient:
        with self._lock:
            if self._closed:
                raise self._unreachable("this client is closed")
            if self._client is None:
                self._client = WireClient.connect(self._connection.wire(), deadline)
            return self._client

    def _drop(self, client: WireClient) -> None:
        """Close it, unless another thread has; the one that is there by now stays."""
        with self._lock:
            if self._client is not client:
                return
            self._client = None
        client.close()

    def _translated(self, error: BaseException) -> StreamError:
        if isinstance(error, REFUSED_CREDENTIALS):
            return AuthenticationError(
                f"Kafka refused the credentials: {type(error).__name__}",
                {
                    "servers": self._connection.bootstrap_servers,
                    "refused": self._connection.scrub(str(error)),
                },
                "Check kafka.security.protocol, kafka.sasl.* and the ACLs "
                "(docs/kafka-sink.md names those that a sink needs).",
            )
        return self._unreachable(self._connection.scrub(f"{type(error).__name__}: {error}"))

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            "the Kafka cluster cannot be reached",
            {"servers": self._connection.bootstrap_servers, "reason": reason},
            "Check that the brokers run, their addresses, and kafka.security.protocol.",
        )


_NEVER_SENT = EndReport(outcome=EndOutcome.REFUSED, error="no coordinator could be asked")


def _error_name(code: int) -> str:
    return "" if code == 0 else str(kafka_errors.for_code(code).__name__)


def _raise_if_forbidden(code: int, what: str) -> None:
    kind = kafka_errors.for_code(code)
    if issubclass(kind, kafka_errors.AuthorizationError):
        raise kind(what)


async def _coordinators(net: Net, ids: Iterable[str]) -> dict[str, int]:
    """Coordinator of each id, as far as known now. Asked each time: it moves with its partition."""
    found: dict[str, int] = {}
    response = await net.send(
        FindCoordinatorRequest(key_type=_TRANSACTION_KEY, coordinator_keys=list(ids), min_version=4)
    )
    for row in response.coordinators:
        _raise_if_forbidden(row.error_code, f"coordinator of {row.key}")
        if row.error_code == 0:
            found[row.key] = row.node_id
    return found


async def _by_coordinator(net: Net, ids: Sequence[str]) -> dict[int, list[str]]:
    try:
        found = await _coordinators(net, ids)
    except REFUSED_CREDENTIALS:
        raise
    except kafka_errors.KafkaError as err:
        log.debug("finding coordinators: error=%s", err)
        return {}
    groups: dict[int, list[str]] = defaultdict(list)
    for transactional_id, node_id in found.items():
        groups[node_id].append(transactional_id)
    return groups


async def _describe(
    net: Net, ids: Sequence[str], found: dict[str, TransactionDescription | None]
) -> None:
    """Fills ``found`` as answers come, so that a late one costs only itself."""
    while True:
        open_ids = [i for i in dict.fromkeys(ids) if i not in found][:_BATCH]
        if not open_ids:
            return
        groups = await _by_coordinator(net, open_ids)
        waiting = [
            net.send(DescribeTransactionsRequest(transactional_ids=group), node_id)
            for node_id, group in groups.items()
        ]
        for answer in waiting:
            try:
                response = await answer
            except kafka_errors.KafkaError as err:
                log.debug("describing transactions: error=%s", err)
                continue
            for row in response.transaction_states:
                _take_description(row, found)
        if any(i not in found for i in open_ids) and not await net.pause():
            return


def _take_description(row: Message, found: dict[str, TransactionDescription | None]) -> None:
    _raise_if_forbidden(row.error_code, f"describe {row.transactional_id}")
    if _error_name(row.error_code) == "TransactionalIdNotFoundError":
        found[row.transactional_id] = None
    elif row.error_code == 0:
        found[row.transactional_id] = TransactionDescription(
            transactional_id=row.transactional_id,
            state=_state(row.transaction_state),
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            timeout_s=row.transaction_timeout_ms / 1000,
            started_at_ms=row.transaction_start_time_ms
            if row.transaction_start_time_ms >= 0
            else None,
            partitions=tuple(
                (topic.topic, partition) for topic in row.topics for partition in topic.partitions
            ),
        )


def _state(name: str) -> TransactionState:
    try:
        return TransactionState(name)
    except ValueError:
        return TransactionState.UNKNOWN


async def _transaction_version(net: Net, node_id: int | None) -> int:
    """Finalised level of ``transaction.version`` as this broker knows it; 0 when absent."""
    response = await net.send(
        ApiVersionsRequest(
            client_software_name="sluice", client_software_version="1", min_version=3
        ),
        node_id,
    )
    if response.error_code != 0:
        raise kafka_errors.for_code(response.error_code)("ApiVersions")
    for feature in response.finalized_features or ():
        if feature.name == "transaction.version":
            return int(feature.max_version_level)
    return 0


async def _end(
    net: Net,
    transactions: Sequence[TransactionIdentity],
    reports: dict[TransactionIdentity, EndReport],
    *,
    commit: bool,
) -> None:
    """One EndTxn each; asked again only after an answer that says that nothing was done."""
    while True:
        ours = {t.transactional_id: t for t in transactions if not _is_final(reports.get(t))}
        if not ours:
            return
        groups = await _by_coordinator(net, list(ours)[:_BATCH])
        started = [
            net.begin(
                partial(_end_at, net, node_id, [ours[i] for i in ids], reports, commit=commit)
            )
            for node_id, ids in groups.items()
        ]
        for group in started:
            await group
        if any(not _is_final(reports.get(t)) for t in ours.values()) and not await net.pause():
            return


async def _end_at(
    net: Net,
    node_id: int,
    transactions: list[TransactionIdentity],
    reports: dict[TransactionIdentity, EndReport],
    *,
    commit: bool,
) -> None:
    try:
        # Of the very broker that gets the request, each time: this is rule 2's "after each
        # reconnect" without having to notice reconnects.
        level = await _transaction_version(net, node_id)
    except kafka_errors.KafkaError as err:
        log.debug("reading features: broker=%s error=%s", node_id, err)
        return
    answers = []
    for transaction in transactions:
        reports[transaction] = _NO_ANSWER  # until there is one
        answers.append(net.send(_end_request(transaction, commit=commit, level=level), node_id))
    for transaction, answer in zip(transactions, answers, strict=True):
        reports[transaction] = await _end_report(answer)


_NO_ANSWER = EndReport(outcome=EndOutcome.UNKNOWN, error="no answer")


def _end_request(transaction: TransactionIdentity, *, commit: bool, level: int) -> Message:
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commit,
        max_version=5 if level >= 1 else 4,
    )


async def _end_report(answer: Awaitable[Message]) -> EndReport:
    try:
        response = await answer
    except (kafka_errors.NodeNotReadyError, kafka_errors.UnknownBrokerIdError) as err:
        return EndReport(outcome=EndOutcome.REFUSED, error=type(err).__name__)  # never sent
    except kafka_errors.KafkaError as err:
        return EndReport(outcome=EndOutcome.UNKNOWN, error=type(err).__name__)
    name = _error_name(response.error_code)
    outcome = EndOutcome.REFUSED if name else EndOutcome.DONE
    return EndReport(outcome=outcome, error=name)


def _is_final(report: EndReport | None) -> bool:
    if report is None:
        return False
    return report.outcome is not EndOutcome.REFUSED or report.error not in _NOT_YET


async def _list(net: Net, prefix: str, states: list[str]) -> Listing:
    leaders, brokers = await _log_leaders(net)
    offline = [f"{STATE_TOPIC}-{index}" for index, node in leaders.items() if node not in brokers]
    ids_at: dict[int, list[str]] = defaultdict(list)
    for index, transactional_id in enumerate(id_for_each_partition(prefix, len(leaders))):
        if leaders[index] in brokers:
            ids_at[leaders[index]].append(transactional_id)
    # A broker that has not loaded a partition yet leaves it out and says nothing: each is asked
    # for before and after, so that none moves in between unnoticed.
    before = await _not_loaded(net, ids_at)
    rows, silent = await _list_at(net, brokers, prefix, states)
    after = await _not_loaded(net, ids_at)
    missing = dict.fromkeys(offline + before + silent + after)
    return Listing(transactions=tuple(rows), missing=tuple(missing))


async def _list_at(
    net: Net, brokers: Sequence[int], prefix: str, states: list[str]
) -> tuple[list[ListedTransaction], list[str]]:
    """What the brokers list, and those that did not."""
    waiting = {
        node_id: net.send(
            ListTransactionsRequest(state_filters=states, producer_id_filters=[], min_version=0),
            node_id,
        )
        for node_id in brokers
    }
    missing: list[str] = []
    rows: list[ListedTransaction] = []
    for node_id, answer in waiting.items():
        try:
            response = await answer
        except kafka_errors.KafkaError as err:
            log.debug("listing transactions: broker=%s error=%s", node_id, err)
            missing.append(f"broker {node_id}")
            continue
        _raise_if_forbidden(response.error_code, "list transactions")
        if response.error_code != 0:
            missing.append(f"broker {node_id}")
            continue
        rows += [
            ListedTransaction(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                state=_state(row.transaction_state),
            )
            for row in response.transaction_states
            if row.transactional_id.startswith(prefix)
        ]
    return rows, missing


async def _log_leaders(net: Net) -> tuple[dict[int, int], list[int]]:
    """The leader of each partition of the transaction log, and all brokers."""
    response = await net.send(_metadata_request([STATE_TOPIC]))
    for topic in response.topics:
        error = kafka_errors.for_code(topic.error_code)
        # Without its partitions a listing that leaves some out would pass for a whole one.
        if error not in (kafka_errors.NoError, kafka_errors.UnknownTopicOrPartitionError):
            raise error(f"describe topic {STATE_TOPIC}")
    leaders = {
        partition.partition_index: partition.leader_id
        for topic in response.topics
        for partition in topic.partitions
    }
    return leaders, [broker.node_id for broker in response.brokers]


async def _not_loaded(net: Net, ids_at: Mapping[int, list[str]]) -> list[str]:
    """Brokers that do not answer for an id of each partition of the log they lead (rule 28).

    A leader says of an id that it "was not found" only once it has read that id's partition.
    Metadata names it as leader some time before it begins to read.
    """
    waiting = {
        node_id: net.send(DescribeTransactionsRequest(transactional_ids=ids), node_id)
        for node_id, ids in ids_at.items()
    }
    loaded: dict[str, TransactionDescription | None] = {}
    for node_id, answer in waiting.items():
        try:
            response = await answer
        except kafka_errors.KafkaError as err:
            log.debug("asking what is loaded: broker=%s error=%s", node_id, err)
            continue
        for row in response.transaction_states:
            _take_description(row, loaded)
    return [f"broker {node_id}" for node_id, ids in ids_at.items() if not loaded.keys() >= set(ids)]


def _metadata_request(topics: list[str]) -> Message:
    rows = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=rows, allow_auto_topic_creation=False)


async def _missing(net: Net, topics: list[str]) -> tuple[str, ...]:
    response = await net.send(_metadata_request(topics))
    for topic in response.topics:
        _raise_if_forbidden(topic.error_code, f"describe topic {topic.name}")
    return tuple(
        topic.name
        for topic in response.topics
        if _error_name(topic.error_code) == "UnknownTopicOrPartitionError"
    )


async def _cluster(net: Net) -> Cluster:
    response = await net.send(_metadata_request([]))
    level = await _transaction_version(net, None)
    limits = [await _max_timeout_s(net, broker.node_id) for broker in response.brokers]
    known = [limit for limit in limits if limit is not None]
    return Cluster(
        cluster_id=response.cluster_id or "",
        transaction_version=level,
        max_transaction_timeout_s=min(known) if known else None,
    )


async def _max_timeout_s(net: Net, node_id: int) -> float | None:
    """``transaction.max.timeout.ms`` of a broker; None where ACLs or the broker say nothing."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE,
        resource_name=str(node_id),
        configuration_keys=["transaction.max.timeout.ms"],
    )
    try:
        response = await net.send(DescribeConfigsRequest(resources=[resource]), node_id)
    except kafka_errors.KafkaError as err:
        log.debug("reading the transaction timeout: broker=%s error=%s", node_id, err)
        return None
    values = [c.value for result in response.results for c in result.configs if c.value]
    return int(values[0]) / 1000 if values else None
