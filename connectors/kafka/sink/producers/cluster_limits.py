"""The limits of a cluster, as far as its brokers have reported them. Decides without requests of
its own.

Requests the limits of a cluster, from each broker separately. Executor, where producers are made.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    ConfigResource,
    KafkaError,
    KafkaException,
    ResourceType,
    TopicCollection,
    make_admin,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.login_refusals import LoginRefusals
from sluice.connectors.kafka.sink.producers.producer_errors import UnsentError
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError

__all__ = ["ClusterLimits", "KnownLimits", "LimitsAnswer", "fetch_limits"]

_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLimits:
    """The limits of a cluster; None if no broker has reported one, or it cannot be read.

    Attributes:
        transaction_timeout_s: the least ``transaction.max.timeout.ms`` of its brokers.
        batch_bytes: the least ``max.message.bytes`` of the sink's topics. A broker refuses a whole
            batch that is larger. librdkafka, unlike Java's producer, does not split and repeat it.
        partitions: of all topics of the sink.
    """

    transaction_timeout_s: float | None = None
    batch_bytes: int | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsAnswer:
    """Answers of brokers; None is an answer: the value cannot be read.

    Attributes:
        timeouts_s: ``transaction.max.timeout.ms`` by broker.
        batch_bytes: ``max.message.bytes`` by topic.
        partitions: of all topics together, counted among the rest; None: they cannot be counted.
        unanswered: names of requests without an answer in time.
        refusal: a broker has refused the login, perhaps only for now.
    """

    timeouts_s: Mapping[str, float | None] = field(default_factory=dict)
    batch_bytes: Mapping[str, int | None] = field(default_factory=dict)
    partitions: int | None = None
    unanswered: frozenset[str] = frozenset()
    refusal: AuthenticationError | None = None

    @property
    def is_enough(self) -> bool:
        """Whether a producer may be made: a broker has answered, and all values of topics are
        known.

        Brokers are alike in most clusters; but a batch that its topic does not take ends the job.
        """
        is_topic_open = any(name.startswith("topic ") for name in self.unanswered)
        return bool(self.timeouts_s) and not is_topic_open

    @property
    def is_partial(self) -> bool:
        """Whether another request may find more."""
        return bool(self.unanswered)

    @property
    def limits(self) -> ClusterLimits:
        """The least of each."""
        timeouts = [each for each in self.timeouts_s.values() if each is not None]
        sizes = [each for each in self.batch_bytes.values() if each is not None]
        return ClusterLimits(
            transaction_timeout_s=min(timeouts, default=None),
            batch_bytes=min(sizes, default=None),
            partitions=self.partitions,
        )

    def after(self, known: "LimitsAnswer") -> "LimitsAnswer":
        """These answers, and earlier ones for requests that have no answer this time."""
        is_counted = "partitions" not in self.unanswered and bool(self.timeouts_s)
        return LimitsAnswer(
            timeouts_s={**known.timeouts_s, **self.timeouts_s},
            batch_bytes={**known.batch_bytes, **self.batch_bytes},
            partitions=self.partitions if is_counted else known.partitions,
            unanswered=self.unanswered,
            refusal=self.refusal,
        )


class KnownLimits:
    """Collects limits until enough are known. Executor, any thread; one for each pool.

    No producer is made while too little is known: its settings may be refused for good, which would
    end the job. A broker that is unreachable, or refuses the login, delays no task: the answers of
    other brokers are used. One request each half minute asks for the rest.

    Args:
        fetch: sends all requests once; blocks for some seconds.
        clock: monotonic seconds.
    """

    def __init__(self, fetch: Callable[[], LimitsAnswer], *, clock: Clock = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._requesting = threading.Lock()
        self._refusals = LoginRefusals(clock=clock)
        self._known: LimitsAnswer | None = None
        self._next_request_s = 0.0

    def __call__(self) -> ClusterLimits:
        """The known limits, after at most one request.

        Raises:
            UnsentError: too little is known yet; the caller asks again if it needs a producer.
            AuthenticationError: no broker answers, and the log-in is refused for good.
            ConfigError: the client refuses a setting.
        """
        known = self._known
        if known is None:
            with self._requesting:  # a second caller uses the first one's answer
                return (self._known or self._first()).limits
        if not known.is_partial or not self._requesting.acquire(blocking=False):
            return known.limits
        try:
            return self._renewed(known).limits
        finally:
            self._requesting.release()

    def refreshed(self) -> ClusterLimits:
        """After a refusal: the limits after one more request, at once, if some broker has not
        answered. That broker may be back, and may be the one that refuses."""
        with self._requesting:
            known = self._known or LimitsAnswer()
            return (self._once_more(known) if known.is_partial else known).limits

    # --- below, the lock is held ------------------------------------------------------------

    def _first(self) -> LimitsAnswer:
        if self._clock() >= self._next_request_s:
            self._refusals.forget()  # of an older task: a waiting one asks more often
        try:
            found = self._fetch()
        finally:
            self._next_request_s = self._clock() + _INTERVAL_S
        if not found.is_enough:
            raise self._failure(found)
        self._known = found
        return found

    def _renewed(self, known: LimitsAnswer) -> LimitsAnswer:
        return known if self._clock() < self._next_request_s else self._once_more(known)

    def _once_more(self, known: LimitsAnswer) -> LimitsAnswer:
        # Set before the request: one that takes long, or fails, counts, too.
        self._next_request_s = self._clock() + _INTERVAL_S
        self._known = found = self._fetch().after(known)
        return found

    def _failure(self, found: LimitsAnswer) -> StreamError:
        if found.timeouts_s or found.refusal is None:
            # Some broker accepts the credentials, or none has refused them: each request logs in
            # again.
            self._refusals.forget()
        else:
            self._refusals.add(found.refusal)
        refused = self._refusals.last
        return self._refusals.lasting() or UnsentError(
            "the cluster does not report its limits of transactions and batches",
            {"unanswered": ", ".join(sorted(found.unanswered))}
            | ({} if refused is None else {"log_in_refused": refused.args[0]}),
            "Check that its brokers run and are reachable from here.",
        )


log = logging.getLogger(__name__)

_ANSWER_S = 0.5  # after its timeout the client still has to report a request
T = TypeVar("T")


def fetch_limits(
    connection: KafkaConnection, topics: Sequence[str], *, timeout_s: float
) -> LimitsAnswer:
    """The answers of these brokers; blocks for twice the timeout at most.

    Args:
        timeout_s: of the request for the list of brokers, and of the requests sent together.
    Raises:
        ConfigError: the client refuses a setting, or its token function does.
    """
    refusals = LoginRefusals()
    try:
        admin = make_admin({**connection.librdkafka(Role.ADMIN), "error_cb": refusals.note})
    except (UnreachableError, AuthenticationError) as err:  # there is no token for it
        log.info("limits of the cluster cannot be read: error=%s", err)
        refusal = err if isinstance(err, AuthenticationError) else None
        return LimitsAnswer(unanswered=frozenset({"cluster"}), refusal=refusal)
    requests = _Requests(connection, time.monotonic() + 2 * timeout_s + _ANSWER_S)
    try:
        brokers = [str(each) for each in admin.list_topics(topic="", timeout=timeout_s).brokers]
    except KafkaException as err:
        requests.add_unanswered("cluster", err)
        found = LimitsAnswer()
    else:
        found = _request(admin, requests, brokers, topics, timeout_s)
    admin.poll(0)  # the client reports the reason there
    return replace(found, unanswered=frozenset(requests.unanswered), refusal=refusals.last)


def _request(
    admin: AdminClient,
    requests: "_Requests",
    brokers: Sequence[str],
    topics: Sequence[str],
    timeout_s: float,
) -> LimitsAnswer:
    timeouts = _begin(admin, ResourceType.BROKER, brokers, timeout_s)
    sizes = _begin(admin, ResourceType.TOPIC, topics, timeout_s)
    # Not list_topics: a missing topic named there makes the broker create it.
    counts = (
        admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        if topics
        else {}
    )
    return LimitsAnswer(
        timeouts_s=requests.answers("broker", timeouts, _timeout_s),
        batch_bytes=requests.answers("topic", sizes, _batch_bytes),
        partitions=requests.sum_of(counts),
    )


class _Requests:
    """Answers to requests that were sent together.

    Attributes:
        unanswered: names of requests without one.
    """

    def __init__(self, connection: KafkaConnection, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s
        self.unanswered: set[str] = set()

    def answers(
        self, kind: str, requests: Mapping[str, "Future[Any]"], read: Callable[[Any], T | None]
    ) -> dict[str, T | None]:
        """By name, of the answers; None: it cannot be read."""
        found: dict[str, T | None] = {}
        for name, future in requests.items():
            try:
                found[name] = read(self._result(future))
            except KafkaException as err:
                if _is_unanswered(err.args[0]):
                    self.add_unanswered(f"{kind} {name}", err)
                    continue
                log.info("a configuration cannot be read: %s=%s error=%s", kind, name, err)
                found[name] = None
            except FutureTimeoutError as err:
                self.add_unanswered(f"{kind} {name}", err)
        return found

    def sum_of(self, counts: Mapping[str, "Future[Any]"]) -> int | None:
        """The partitions of all topics; None if one is unknown, or there is no topic to ask
        about."""
        counted = self.answers("partitions of", counts, lambda described: len(described.partitions))
        if len(counted) < len(counts):
            self.unanswered -= {f"partitions of {name}" for name in counts}
            self.unanswered.add("partitions")
        numbers = [number for number in counted.values() if number is not None]
        return sum(numbers) if numbers and len(numbers) == len(counts) else None

    def add_unanswered(self, name: str, err: Exception) -> None:
        """Nobody has answered that."""
        self.unanswered.add(name)
        reason = self._connection.scrub(f"{type(err).__name__}: {err}")
        log.info("limits of the cluster cannot be read: requested=%s error=%s", name, reason)

    def _result(self, future: "Future[Any]") -> Any:  # noqa: ANN401 - as the client gives it
        return future.result(max(0.0, self._until_s - time.monotonic()))


def _begin(
    admin: AdminClient, kind: ResourceType, names: Sequence[str], timeout_s: float
) -> dict[str, "Future[Any]"]:
    # One by one: librdkafka cannot query several brokers in one call.
    requests: dict[str, Future[Any]] = {}
    for name in names:
        started = admin.describe_configs([ConfigResource(kind, name)], request_timeout=timeout_s)
        (requests[name],) = started.values()
    return requests


def _timeout_s(entries: Mapping[str, Any]) -> float | None:
    timeout_ms = _number(entries, "transaction.max.timeout.ms")
    return None if timeout_ms is None else timeout_ms / 1000


def _batch_bytes(entries: Mapping[str, Any]) -> int | None:
    return _number(entries, "max.message.bytes")


def _number(entries: Mapping[str, Any], name: str) -> int | None:
    entry = entries.get(name)
    return None if entry is None else int(entry.value)


def _is_unanswered(error: KafkaError) -> bool:
    """Whether no broker has answered; "cannot be read" and "unknown" are answers.

    Only the client reports a refused login, with a negative code.
    """
    found = translate(error)
    is_log_in = isinstance(found, AuthenticationError) and error.code() < 0
    return is_log_in or isinstance(found, UnreachableError)
