"""Requests to the brokers about topics, offsets and groups: the driver's I/O for a Kafka source.

A request about many partitions is one request per broker. Topics are described first, so that the
client knows the leaders (`topics`); then all offsets are requested at the same time.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    ClusterMetadata,
    IsolationLevel,
    KafkaException,
    OffsetSpec,
    TopicPartition,
    make_admin,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.login_refusals import LoginRefusals
from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.source.enumerator.group_offsets import GroupOffsets
from sluice.connectors.kafka.source.enumerator.topics import (
    Descriptions,
    KnownLeaders,
    answers_deadline,
    described,
    facts,
    is_absence,
    result,
)
from sluice.connectors.kafka.source.positions import Edge, PartitionKey
from sluice.connectors.kafka.source.splits import TopicFacts
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError

if TYPE_CHECKING:
    from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochRequest

__all__ = [
    "ClusterView",
    "KafkaCluster",
    "OffsetFact",
    "SourceCluster",
    "require_located",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_PAUSE_S = 0.1
# Shorter than most callers' timeouts, so that a refused log-in is reported before those end.
_ATTEMPT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFact:
    """An offset in a partition, and the epoch of the leader that reported it."""

    offset: int
    leader_epoch: int | None = None

    def leader_up_to(self, offset: int) -> int | None:
        """The leader epoch, if the leader's log reaches ``offset``: no earlier record is of a later
        leader."""
        return self.leader_epoch if offset <= self.offset else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Topics and offsets at one moment. Missing topics and partitions are absent.

    Attributes:
        topics: by name.
        earliest: first record that is left.
        latest: end of what a reader of the source's isolation level may read.
        log_ends: ends of logs, records of open transactions included; only of the partitions that
            they were requested for.
    """

    topics: Mapping[str, TopicFacts]
    earliest: Mapping[PartitionKey, OffsetFact]
    latest: Mapping[PartitionKey, OffsetFact]
    log_ends: Mapping[PartitionKey, OffsetFact] = field(default_factory=dict)


class SourceCluster(Protocol):
    """The requests of an enumerator. Driver, one thread at a time.

    Raises: UnreachableError, AuthenticationError.
    """

    def cluster_id(self, *, timeout_s: float) -> str:
        """Kafka's cluster id."""
        ...

    def topic_names(self, *, timeout_s: float) -> frozenset[str]:
        """All topics that the client may describe."""
        ...

    def describe(self, names: Collection[str], *, timeout_s: float) -> Mapping[str, TopicFacts]:
        """Those that exist."""
        ...

    def fetch_view(self, keys: Collection[PartitionKey], *, timeout_s: float) -> ClusterView:
        """Topics, then both ends of the partitions that exist, at the same time."""
        ...

    def offsets(
        self, wanted: Mapping[PartitionKey, Edge | int], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact | None]:
        """Per partition an edge, or the first offset at or after a timestamp; None: there is none.

        The record at a timestamp may be one that readers cannot see yet.
        """
        ...

    def log_ends(
        self, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact]:
        """Ends of the partitions that exist, records of open transactions included."""
        ...

    def epoch_ends(
        self, requests: Mapping[PartitionKey, "EpochRequest"], *, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        """End of each requested epoch; absent if the leader does not know that epoch."""
        ...

    def committed(
        self, group_id: str, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        """Offsets that the group committed; partitions without one are absent."""
        ...

    def commit(
        self, group_id: str, offsets: Mapping[PartitionKey, int], *, timeout_s: float
    ) -> None:
        """Publish a group's offsets."""
        ...

    def missing_requests(self, *, timeout_s: float) -> tuple[str, ...]:
        """Names of `broker_requests.REQUESTS` that a broker lacks, as far as brokers answer."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class KafkaCluster(SourceCluster):
    """A `SourceCluster` over librdkafka's admin client, which connects at the first request."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        read_committed: bool = True,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._connection = connection
        self._isolation = (
            IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        )
        self._pause = pause
        self._client: AdminClient | None = None
        self._leaders = KnownLeaders()
        self._groups: dict[str, GroupOffsets] = {}
        self._refusals = LoginRefusals(self._where())
        self._lookup_refusals = LoginRefusals(self._where())  # of epoch requests' clients
        self._timed_out = False  # the last request
        self._lock = threading.Lock()

    def cluster_id(self, *, timeout_s: float) -> str:
        return str(self._request(lambda left_s: self._listed(left_s).cluster_id, timeout_s))

    def topic_names(self, *, timeout_s: float) -> frozenset[str]:
        return self._request(lambda left_s: frozenset(self._listed(left_s).topics), timeout_s)

    def describe(self, names: Collection[str], *, timeout_s: float) -> Mapping[str, TopicFacts]:
        return self._request(lambda left_s: facts(self._described(names, left_s)), timeout_s)

    def fetch_view(self, keys: Collection[PartitionKey], *, timeout_s: float) -> ClusterView:
        def fetch(left_s: float) -> ClusterView:
            deadline = Deadline(left_s)
            topics = self._described({topic for topic, _ in keys}, left_s)
            there, left_s = self._leaders.located(keys), deadline.request_s
            earliest = self._listing(dict.fromkeys(there, Edge.EARLIEST), left_s)
            latest = self._listing(dict.fromkeys(there, Edge.LATEST), left_s)
            return ClusterView(
                topics=facts(topics),
                earliest=_existing(_offsets(earliest, left_s)),
                latest=_existing(_offsets(latest, left_s)),
            )

        return self._request(fetch, timeout_s)

    def offsets(
        self, wanted: Mapping[PartitionKey, Edge | int], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact | None]:
        # With READ_COMMITTED a broker finds no record after the start of an open transaction.
        every = IsolationLevel.READ_UNCOMMITTED

        def fetch(left_s: float) -> dict[PartitionKey, OffsetFact | None]:
            there, left_s = self._located(wanted, left_s)
            edges = {key: wanted[key] for key in there if isinstance(wanted[key], Edge)}
            times = {key: wanted[key] for key in there if key not in edges}
            at_edges, at_times = self._listing(edges, left_s), self._listing(times, left_s, every)
            return {**_offsets(at_edges, left_s), **_offsets(at_times, left_s)}

        return self._request(fetch, timeout_s)

    def log_ends(
        self, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact]:
        every = IsolationLevel.READ_UNCOMMITTED

        def fetch(left_s: float) -> dict[PartitionKey, OffsetFact]:
            there, left_s = self._located(keys, left_s)
            ends = self._listing(dict.fromkeys(there, Edge.LATEST), left_s, every)
            return _existing(_offsets(ends, left_s))

        return self._request(fetch, timeout_s)

    def epoch_ends(
        self, requests: Mapping[PartitionKey, "EpochRequest"], *, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        # Imported here: it imports the wire client, which few runs need.
        from sluice.connectors.kafka.source.enumerator.leader_epochs import (
            LoginRefusedError,
            fetch_epoch_ends,
        )

        try:
            ends = fetch_epoch_ends(self._connection, requests, timeout_s=timeout_s)
        except LoginRefusedError as err:
            self._lookup_refusals.add(err.reason)
            lasting = self._lookup_refusals.lasting()
            raise (lasting or err) from err.__cause__
        self._lookup_refusals.answered()
        return ends

    def committed(
        self, group_id: str, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        group = self._group(group_id)
        return self._request(lambda left_s: group.read(keys, timeout_s=left_s), timeout_s)

    def commit(
        self, group_id: str, offsets: Mapping[PartitionKey, int], *, timeout_s: float
    ) -> None:
        group = self._group(group_id)
        self._request(lambda left_s: group.publish(offsets, timeout_s=left_s), timeout_s)

    def missing_requests(self, *, timeout_s: float) -> tuple[str, ...]:
        # Imported here, as `fetch_epoch_ends`: only the driver needs the wire client.
        from sluice.connectors.kafka.client.broker_requests import fetch_missing_requests

        return fetch_missing_requests(self._connection, timeout_s=timeout_s)

    def close(self) -> None:
        with self._lock:
            self._client = None
            self._leaders.forget()
            groups, self._groups = self._groups, {}
        for group in groups.values():
            group.close()

    def _group(self, group_id: str) -> GroupOffsets:
        with self._lock:
            if group_id not in self._groups:
                config = {
                    **self._connection.librdkafka(Role.CONSUMER),
                    "error_cb": self._refusals.note,
                }
                self._groups[group_id] = GroupOffsets(config, group_id)
            return self._groups[group_id]

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                config = self._connection.librdkafka(Role.ADMIN)
                self._client = make_admin({**config, "error_cb": self._refusals.note})
            return self._client

    def _where(self) -> dict[str, object]:
        return {"servers": self._connection.bootstrap_servers}

    def _where_and_why(self) -> dict[str, object]:
        refused, unreached = self._refusals.last, self._refusals.unreached
        why = {
            "client_error": unreached,
            "log_in_refused": None if refused is None else refused.args[0],
        }
        return self._where() | {key: reason for key, reason in why.items() if reason is not None}

    def _listed(self, timeout_s: float) -> ClusterMetadata:
        self._leaders.forget()
        return self._admin().list_topics(timeout=timeout_s)

    def _described(self, names: Collection[str], timeout_s: float) -> Descriptions:
        found = described(self._admin(), names, timeout_s=timeout_s)
        self._leaders.learn(names, found)
        return found

    def _located(
        self, keys: Collection[PartitionKey], timeout_s: float
    ) -> tuple[list[PartitionKey], float]:
        """Return the partitions that exist, and the time that is left."""
        deadline = Deadline(timeout_s)
        self._described(self._leaders.undescribed(keys), timeout_s)
        return self._leaders.located(keys), deadline.request_s

    def _listing(
        self,
        wanted: Mapping[PartitionKey, Edge | int],
        timeout_s: float,
        isolation: IsolationLevel | None = None,
    ) -> Mapping[TopicPartition, "Future[Any]"]:
        if not wanted:
            return {}
        found: Mapping[TopicPartition, Future[Any]] = self._admin().list_offsets(
            {TopicPartition(*key): _spec(what) for key, what in wanted.items()},
            isolation_level=self._isolation if isolation is None else isolation,
            request_timeout=timeout_s,
        )
        return found

    def _request(self, fetch: Callable[[float], T], timeout_s: float) -> T:
        """Repeat a request until it is answered or the time is up: a leader may move meanwhile."""
        deadline = Deadline(timeout_s)
        self._forget_old_refusals()
        if self._timed_out and timeout_s > 0:
            # A call may have time for one try only, which must not go to the same broker again.
            self._refresh_metadata(Deadline(timeout_s / 2).request_s)
        while True:
            left_s = min(deadline.request_s, _ATTEMPT_S)
            try:
                answer = fetch(left_s)
            except (KafkaException, FutureTimeoutError) as err:
                self._leaders.forget()
                self._admin().poll(0)  # serves `LoginRefusals.note`
                is_over = deadline.left_s <= _RETRY_PAUSE_S
                failure = self._refused(is_over=is_over) or _failure(err, self._where_and_why())
                self._timed_out = isinstance(failure, UnreachableError)
                if is_over or not self._timed_out:
                    raise failure from err
                log.debug("repeating a request: reason=%s", failure)
            else:
                self._timed_out = False
                self._refusals.answered()
                return answer
            self._pause(_RETRY_PAUSE_S)
            self._refresh_metadata(deadline.request_s)

    def _forget_old_refusals(self) -> None:
        """Forget refusals since the last answer: a lasting one is reported again."""
        if self._refusals.last is None and self._client is not None:
            self._client.poll(0)
            self._refusals.forget()

    def _refused(self, *, is_over: bool) -> AuthenticationError | None:
        """Return the refusal that explains a timeout.

        If a broker has accepted these credentials before, only a lasting refusal counts: a broker
        that has just started may not know its users for a moment.
        """
        first = is_over and not self._refusals.has_answered
        return self._refusals.last if first else self._refusals.lasting()

    def _refresh_metadata(self, left_s: float) -> None:
        """Request metadata from any broker.

        An admin client sends its requests to the broker that it believes to be the controller, and
        does not notice by itself that this broker is gone. Measured with librdkafka 2.16: no answer
        in 100 s and most of a core busy with retries, but an answer at once after a metadata
        request.
        """
        try:
            self._listed(min(left_s, _ATTEMPT_S))
        except KafkaException as err:
            log.debug("metadata cannot be refreshed: reason=%s", err)
        else:
            self._refusals.reached()


def _failure(err: KafkaException | FutureTimeoutError, where: Mapping[str, object]) -> StreamError:
    if isinstance(err, KafkaException):
        return translate(err, where)
    return UnreachableError(
        "the brokers did not answer in time",
        where,
        "Check that the brokers run and can be reached from here.",
    )


def _spec(what: Edge | int) -> OffsetSpec:
    spec: OffsetSpec
    if what is Edge.EARLIEST:
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # has no types
    elif what is Edge.LATEST:
        spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # has no types
    else:
        spec = OffsetSpec.for_timestamp(what)
    return spec


def _offsets(
    futures: Mapping[TopicPartition, "Future[Any]"], timeout_s: float
) -> dict[PartitionKey, OffsetFact | None]:
    found: dict[PartitionKey, OffsetFact | None] = {}
    deadline = answers_deadline(timeout_s)
    for partition, future in futures.items():
        try:
            answer = result(future, deadline)
        except KafkaException as err:
            if not is_absence(err):
                raise
            continue
        found[partition.topic, partition.partition] = (
            None
            if answer.offset < 0
            else OffsetFact(offset=answer.offset, leader_epoch=answer.leader_epoch)
        )
    return found


def _existing(found: Mapping[PartitionKey, OffsetFact | None]) -> dict[PartitionKey, OffsetFact]:
    return {key: fact for key, fact in found.items() if fact is not None}


def require_located(wanted: Collection[PartitionKey], found: Container[PartitionKey]) -> None:
    """UnreachableError with the partitions that have no leader."""
    absent = sorted(key for key in wanted if key not in found)
    if absent:
        raise UnreachableError(
            "partitions have no leader yet",
            {"partitions": ",".join(f"{topic}-{number}" for topic, number in absent)},
            "Check that all brokers are up; Sluice retries.",
        )
