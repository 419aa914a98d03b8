"""Asks a cluster what it accepts, each broker by itself. Executor, where a producer is made."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, TypeVar

from connectors.kafka._client import (
    AdminClient,
    ConfigResource,
    KafkaError,
    KafkaException,
    ResourceType,
    TopicCollection,
    make_admin,
    translate,
)
from connectors.kafka.client_options import Role
from connectors.kafka.cluster_limits import LimitsLook
from connectors.kafka.log_ins import Refusals
from connectors.kafka.security import KafkaConnection
from runtime.errors import AuthenticationError, UnreachableError

__all__ = ["look_at_limits"]

log = logging.getLogger(__name__)

_ANSWER_S = 0.5  # behind its time-out a request still has to be told
T = TypeVar("T")


def look_at_limits(
    connection: KafkaConnection, topics: Sequence[str], *, timeout_s: float
) -> LimitsLook:
    """What those brokers say that answer; blocks for twice the time-out at most.

    Args:
        timeout_s: of the question who is there, and of those that all are asked at a time.
    Raises:
        ConfigError: the client refuses a setting, or its token function does.
    """
    refusals = Refusals()
    try:
        admin = make_admin({**connection.librdkafka(Role.ADMIN), "error_cb": refusals.note})
    except (UnreachableError, AuthenticationError) as err:  # there is no token for it
        log.info("limits of the cluster cannot be read: error=%s", err)
        refusal = err if isinstance(err, AuthenticationError) else None
        return LimitsLook(unanswered=frozenset({"cluster"}), refusal=refusal)
    asked = _Asked(connection, time.monotonic() + 2 * timeout_s + _ANSWER_S)
    try:
        brokers = [str(each) for each in admin.list_topics(topic="", timeout=timeout_s).brokers]
    except KafkaException as err:
        asked.silence("cluster", err)
        found = LimitsLook()
    else:
        found = _ask(admin, asked, brokers, topics, timeout_s)
    admin.poll(0)  # why, the client says there
    return replace(found, unanswered=frozenset(asked.unanswered), refusal=refusals.last)


def _ask(
    admin: AdminClient,
    asked: "_Asked",
    brokers: Sequence[str],
    topics: Sequence[str],
    timeout_s: float,
) -> LimitsLook:
    timeouts = _begin(admin, ResourceType.BROKER, brokers, timeout_s)
    sizes = _begin(admin, ResourceType.TOPIC, topics, timeout_s)
    # Not list_topics: naming a missing topic there makes the broker create it.
    counts = (
        admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        if topics
        else {}
    )
    return LimitsLook(
        timeouts_s=asked.answers("broker", timeouts, _timeout_s),
        batch_bytes=asked.answers("topic", sizes, _batch_bytes),
        partitions=asked.sum_of(counts),
    )


class _Asked:
    """Answers to questions that were asked at a time.

    Attributes:
        unanswered: names of those without one.
    """

    def __init__(self, connection: KafkaConnection, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s
        self.unanswered: set[str] = set()

    def answers(
        self, kind: str, asked: Mapping[str, "Future[Any]"], read: Callable[[Any], T | None]
    ) -> dict[str, T | None]:
        """By name, of those that have answered; None: that it may not be read."""
        found: dict[str, T | None] = {}
        for name, future in asked.items():
            try:
                found[name] = read(self._result(future))
            except KafkaException as err:
                if _is_silence(err.args[0]):
                    self.silence(f"{kind} {name}", err)
                    continue
                log.info("a configuration cannot be read: %s=%s error=%s", kind, name, err)
                found[name] = None
            except FutureTimeoutError as err:
                self.silence(f"{kind} {name}", err)
        return found

    def sum_of(self, counts: Mapping[str, "Future[Any]"]) -> int | None:
        """The partitions of all; None where one does not say, or there is none to ask about."""
        counted = self.answers("partitions of", counts, lambda told: len(told.partitions))
        if len(counted) < len(counts):
            self.unanswered -= {f"partitions of {name}" for name in counts}
            self.unanswered.add("partitions")
        numbers = [number for number in counted.values() if number is not None]
        return sum(numbers) if numbers and len(numbers) == len(counts) else None

    def silence(self, name: str, err: Exception) -> None:
        """Nobody has answered that."""
        self.unanswered.add(name)
        reason = self._connection.scrub(f"{type(err).__name__}: {err}")
        log.info("limits of the cluster cannot be read: asked=%s error=%s", name, reason)

    def _result(self, future: "Future[Any]") -> Any:  # noqa: ANN401 - as the client gives it
        return future.result(max(0.0, self._until_s - time.monotonic()))


def _begin(
    admin: AdminClient, kind: ResourceType, names: Sequence[str], timeout_s: float
) -> dict[str, "Future[Any]"]:
    # One by one: librdkafka refuses to ask for several brokers in one call.
    asked: dict[str, Future[Any]] = {}
    for name in names:
        begun = admin.describe_configs([ConfigResource(kind, name)], request_timeout=timeout_s)
        (asked[name],) = begun.values()
    return asked


def _timeout_s(entries: Mapping[str, Any]) -> float | None:
    timeout_ms = _number(entries, "transaction.max.timeout.ms")
    return None if timeout_ms is None else timeout_ms / 1000


def _batch_bytes(entries: Mapping[str, Any]) -> int | None:
    return _number(entries, "max.message.bytes")


def _number(entries: Mapping[str, Any], name: str) -> int | None:
    entry = entries.get(name)
    return None if entry is None else int(entry.value)


def _is_silence(error: KafkaError) -> bool:
    """Whether nobody has answered; that something may not be read, or is not known, is an answer.

    A log-in that is refused is told by the client alone, with a negative code.
    """
    found = translate(error)
    is_log_in = isinstance(found, AuthenticationError) and error.code() < 0
    return is_log_in or isinstance(found, UnreachableError)
