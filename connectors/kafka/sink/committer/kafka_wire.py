"""Transaction requests to a real cluster: `Wire` by means of kafka-python."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from sluice.connectors.kafka.client.broker_requests import missing_requests, versions_of
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import (
    REFUSED_CREDENTIALS,
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    Message,
    Net,
    WireClient,
    kafka_errors,
)
from sluice.connectors.kafka.sink.committer.transaction_listing import (
    list_transactions,
    metadata_of,
)
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    Cluster,
    EndOutcome,
    EndReport,
    Listing,
    TransactionDescription,
    TransactionState,
    Wire,
)
from sluice.connectors.kafka.sink.committer.wire_answers import (
    add_description,
    end_report,
    error_name,
    is_answered_later,
    raise_if_forbidden,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError

__all__ = ["TransactionWire"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRANSACTION_KEY = 1  # FindCoordinator's key type
_BROKER_RESOURCE = 4  # DescribeConfigs' resource type
_BATCH = 500  # ids in one request
_RENEWAL_S = 2.0
_SLOW = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)


class TransactionWire(Wire):
    """Transaction requests to a real cluster; implements `Wire`.

    Driver or command line; any thread. kafka-python runs one I/O thread per client; callers wait on
    an event, with a timeout. A failed client is replaced by a new one, so that a cluster whose
    brokers have all moved is found again from the bootstrap servers. A client that reaches only
    some brokers is replaced when another one can be made: certificates and addresses may have
    changed, or the unreachable brokers are the bootstrap servers.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._client: WireClient | None = None
        self._is_doubted = False
        self._closed = False

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        found: dict[str, TransactionDescription | None] = {}
        try:
            self._call(lambda net: _describe(net, transactional_ids, found), timeout_s)
        except (UnreachableError, AuthenticationError) as err:
            # A coordinator that refuses or is unreachable does not delay requests to other ones.
            if isinstance(err, AuthenticationError) and not found:
                raise
            log.debug("describing transactions: answered=%d error=%s", len(found), err)
        return dict(found)

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
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
        names = [state.value for state in states]
        try:
            return self._call(lambda net: list_transactions(net, prefix, names), timeout_s)
        except UnreachableError as err:
            log.debug("listing transactions: error=%s", err)
            return Listing(transactions=(), missing=("the cluster",))

    def cluster(self, *, timeout_s: float) -> Cluster:
        return self._call(_cluster, timeout_s)

    def missing_topics(self, topics: Sequence[str], *, timeout_s: float) -> tuple[str, ...]:
        wanted = list(topics)
        return self._call(lambda net: _missing(net, wanted), timeout_s)

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float) -> Mapping[str, str | None]:
        wanted = list(topics)
        return self._call(lambda net: _topic_ids(net, wanted), timeout_s)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client = self._client
        if client is not None:
            self._drop(client)

    def _call(self, request: Callable[[Net], Awaitable[_T]], timeout_s: float) -> _T:
        """Run ``request`` on the client's I/O thread, within the timeout."""
        deadline = time.monotonic() + timeout_s
        try:
            client = self._connected(deadline)
            net = Net(client, deadline)
            try:
                return client.run(lambda: request(net), deadline)
            except kafka_errors.AuthorizationError:
                raise  # a broker's answer; if it refuses the login, the client reports that, too
            except (kafka_errors.KafkaError, OSError, RuntimeError):
                self._drop(client)
                raise
            finally:
                if net.unreached:
                    self._doubt(client)
                # The client would repeat one broker's passing answer for all further calls.
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
            elif self._is_doubted:
                self._client = self._renewed(self._client, deadline)
            self._is_doubted = False
            return self._client

    def _renewed(self, client: WireClient, deadline: float) -> WireClient:
        """Another client, or this one if none can be made: it may still reach some brokers."""
        try:
            now_s = time.monotonic()
            until = now_s + min(_RENEWAL_S, (deadline - now_s) / 2)  # the rest is for this call
            made = WireClient.connect(self._connection.wire(), until)
        except (kafka_errors.KafkaError, StreamError, OSError, RuntimeError) as err:
            log.debug(
                "no new client, the old one stays in use: error=%s",
                self._connection.scrub(str(err)),
            )
            return client
        client.close()
        return made

    def _doubt(self, client: WireClient) -> None:
        """Replace the client before the next call."""
        with self._lock:
            self._is_doubted = self._is_doubted or self._client is client

    def _drop(self, client: WireClient) -> None:
        """Close it, unless another thread has done so; a newer one stays."""
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
                "(docs/guide/kafka-sink.md names those that a sink needs).",
            )
        return self._unreachable(self._connection.scrub(f"{type(error).__name__}: {error}"))

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            "the Kafka cluster cannot be reached",
            {"servers": self._connection.bootstrap_servers, "reason": reason},
            "Check that the brokers run, their addresses, and kafka.security.protocol.",
        )


_NEVER_SENT = EndReport(outcome=EndOutcome.REFUSED, error="no coordinator was reachable")


async def _coordinators(net: Net, ids: Iterable[str]) -> dict[str, int]:
    """Coordinator of each id, as far as known now. Requested each time: it moves with its
    partition."""
    found: dict[str, int] = {}
    response = await net.send(
        FindCoordinatorRequest(key_type=_TRANSACTION_KEY, coordinator_keys=list(ids), min_version=4)
    )
    for row in response.coordinators:
        raise_if_forbidden(row.error_code, f"coordinator of {row.key}")
        if row.error_code == 0:
            found[row.key] = row.node_id
    return found


async def _by_coordinator(
    net: Net, ids: Sequence[str], failures: list[BaseException]
) -> dict[int, list[str]]:
    try:
        found = await _coordinators(net, ids)
    except REFUSED_CREDENTIALS:
        raise
    except kafka_errors.KafkaError as err:
        log.debug("finding coordinators: error=%s", err)
        failures.append(err)
        return {}
    groups: dict[int, list[str]] = defaultdict(list)
    for transactional_id, node_id in found.items():
        groups[node_id].append(transactional_id)
    return groups


async def _describe(
    net: Net, ids: Sequence[str], found: dict[str, TransactionDescription | None]
) -> None:
    """Fills ``found`` as answers come, so that a late answer affects only itself."""
    open_ids = list(dict.fromkeys(ids))
    failures: list[BaseException] = []
    while open_ids:
        batch, others = open_ids[:_BATCH], open_ids[_BATCH:]
        groups = await _by_coordinator(net, batch, failures)
        waiting = [
            net.send(DescribeTransactionsRequest(transactional_ids=group), node_id)
            for node_id, group in groups.items()
        ]
        for answer in waiting:
            try:
                response = await answer
            except kafka_errors.KafkaError as err:
                log.debug("describing transactions: error=%s", err)
                failures.append(err)
                continue
            for row in response.transaction_states:
                add_description(row, found)
        left = [i for i in batch if i not in found]
        open_ids = others + left  # ids with an unreachable coordinator do not delay the rest
        if left and not await net.pause():
            net.unreached = _is_unreachable(failures)
            return


def _is_unreachable(failures: Iterable[BaseException]) -> bool:
    """Whether brokers were unreachable, and not only slow."""
    return any(not isinstance(err, _SLOW) for err in failures)


async def _transaction_version(net: Net, node_id: int | None) -> int:
    """Finalised level of ``transaction.version`` as this broker knows it; 0 when absent."""
    for feature in (await versions_of(net, node_id)).finalized_features or ():
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
    """One EndTxn each; repeated only after an answer that proves that it had no effect."""
    open_ones = list(transactions)
    failures: list[BaseException] = []
    while open_ones:
        ours = {t.transactional_id: t for t in open_ones[:_BATCH]}
        groups = await _by_coordinator(net, list(ours), failures)
        started = [
            net.begin(
                partial(
                    _end_at, net, node_id, [ours[i] for i in ids], reports, failures, commit=commit
                )
            )
            for node_id, ids in groups.items()
        ]
        for group in started:
            await group
        left = [t for t in open_ones[:_BATCH] if is_answered_later(reports.get(t))]
        open_ones = open_ones[_BATCH:] + left
        if left and not await net.pause():
            net.unreached = _is_unreachable(failures)
            return


async def _end_at(
    net: Net,
    node_id: int,
    transactions: list[TransactionIdentity],
    reports: dict[TransactionIdentity, EndReport],
    failures: list[BaseException],
    *,
    commit: bool,
) -> None:
    try:
        # Versions of the broker that gets the request, each time: "after each reconnect" of rule
        # `endtxn-version`, without noticing reconnects.
        level = await _transaction_version(net, node_id)
    except kafka_errors.KafkaError as err:
        log.debug("reading features: broker=%s error=%s", node_id, err)
        failures.append(err)
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
    return end_report(response.error_code)


async def _missing(net: Net, topics: list[str]) -> tuple[str, ...]:
    there = await _topic_ids(net, topics)
    return tuple(topic for topic in topics if topic not in there)


async def _topic_ids(net: Net, topics: list[str]) -> dict[str, str | None]:
    response = await metadata_of(net, topics)
    for topic in response.topics:
        raise_if_forbidden(topic.error_code, f"describe topic {topic.name}")
    return {
        topic.name: str(topic.topic_id) if topic.topic_id else None
        for topic in response.topics
        if error_name(topic.error_code) != "UnknownTopicOrPartitionError"
    }


async def _cluster(net: Net) -> Cluster:
    response = await metadata_of(net, [])
    level = await _transaction_version(net, None)
    missing = await missing_requests(net, [broker.node_id for broker in response.brokers])
    limits = [await _max_timeout_s(net, broker.node_id) for broker in response.brokers]
    known = [limit for limit in limits if limit is not None]
    return Cluster(
        cluster_id=response.cluster_id or "",
        transaction_version=level,
        max_transaction_timeout_s=min(known) if known else None,
        missing_requests=missing,
    )


async def _max_timeout_s(net: Net, node_id: int) -> float | None:
    """``transaction.max.timeout.ms`` of a broker; None if ACLs or the broker hide it."""
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
