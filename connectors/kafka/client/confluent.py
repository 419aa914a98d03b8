"""The edge to confluent-kafka: the only module that imports it.

Everybody else takes the classes from here and makes clients with `make_producer`,
`make_consumer` and `make_admin`, so that librdkafka's own log lines reach Python's logging, and
`translate` turns its errors into ours.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # has no __all__
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    FencedError,
    SourceChangedError,
    StreamError,
    TransactionAbortedError,
    UnreachableError,
)

__all__ = [
    "CLIENT_VERSION",
    "LOG_TRUNCATION",
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "PARTITION_EOF",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "UNKNOWN_PARTITION",
    "AdminClient",
    "ClusterMetadata",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupTopicPartitions",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "ResourceType",
    "ToldOnceAMinute",
    "TopicCollection",
    "TopicPartition",
    "error_codes",
    "librdkafka_path",
    "make_admin",
    "make_consumer",
    "make_producer",
    "translate",
]

CLIENT_VERSION = str(confluent_kafka.__version__)
"""Of confluent-kafka, which brings the librdkafka of the same version."""

# librdkafka's lines arrive here while the client is polled.
_librdkafka_log = logging.getLogger("sluice.connectors.kafka.librdkafka")

_CONNECTION_LOST = re.compile(
    r": (Connect to \S+ failed|Connection setup timed out|Disconnected|Receive failed)"
)

_UNRESOLVED = re.compile(r"Failed to resolve '([^']+)'")
_SAME_AGAIN_S = 60.0


class ToldOnceAMinute(logging.Filter):
    """Lets a broker's name that does not resolve be told once a minute.

    librdkafka says it with each of its tries, of each client: hundreds of lines for one misspelt
    host. It stays a warning, for the name may be one that brokers advertise, and then the records
    of their partitions stay away and nothing else says why. Process-wide; any thread.
    """

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told_s: dict[str, float] = {}  # as many as brokers have names

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told."""
        found = _UNRESOLVED.search(record.getMessage())
        if found is None:
            return True
        now_s, told_s = self._clock(), self._told_s.get(found[1])
        if told_s is not None and now_s - told_s < _SAME_AGAIN_S:
            return False
        self._told_s[found[1]] = now_s
        return True


class _MendedByItself(logging.Filter):
    """Makes a lost connection INFO: librdkafka calls it an error each time, and connects again.

    Python writes unhandled warnings to stderr, so a worker without logging printed lines for each
    producer whenever a broker stopped. What lasts reaches the caller as an error, and what no
    further try can mend (credentials, TLS, a wrong ``security.protocol``) stays as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.INFO or not _is_mended(record):
            return True
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return _librdkafka_log.isEnabledFor(logging.INFO)


def _is_mended(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if text.startswith("GETPID "):
        return text.endswith(": retrying")
    lost = text.startswith("FAIL ") and _CONNECTION_LOST.search(text) is not None
    return lost and "security.protocol" not in text


_librdkafka_log.addFilter(_MendedByItself())
_librdkafka_log.addFilter(ToldOnceAMinute())


def error_codes(*names: str) -> frozenset[int]:
    """librdkafka's codes by name: half of them begin with an underscore but are public."""
    return frozenset(getattr(KafkaError, name) for name in names)


(PARTITION_EOF,) = error_codes("_PARTITION_EOF")
"""A consumer has reached the end of a partition."""

(_LOG_TRUNCATION,) = error_codes("_LOG_TRUNCATION")
LOG_TRUNCATION = KafkaError(_LOG_TRUNCATION).str()
"""How librdkafka says, inside of an event, that a new leader lacks records that it has fetched."""

(UNKNOWN_PARTITION,) = error_codes("_UNKNOWN_PARTITION")
"""A record is for a partition that the topic has not, or not yet."""

(_NO_LOG_IN,) = error_codes("_AUTHENTICATION")
(_LOST,) = error_codes("_TRANSPORT")
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"
_Client = TypeVar("_Client")

_UNREACHABLE = error_codes(
    "_ALL_BROKERS_DOWN",
    "_DESTROY_BROKER",  # gone from the cluster while it was asked, as in a rolling restart
    "_FAIL",
    "_NODE_UPDATE",
    "_RESOLVE",
    "_RETRY",
    "_MSG_TIMED_OUT",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_UNKNOWN_BROKER",
    "_WAIT_CACHE",
    "_WAIT_COORD",
    "BROKER_NOT_AVAILABLE",
    "CONCURRENT_TRANSACTIONS",  # an InitProducerId of the same id has not ended at its coordinator
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_COORDINATOR",
    "REQUEST_TIMED_OUT",
)
# A partition between two leaders, or a group between two coordinators: other words a moment later.
_MOVING = error_codes(
    "_NOENT",  # none of the partitions that are asked for has a leader
    "FENCED_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "UNSTABLE_OFFSET_COMMIT",
)
_REFUSED_CREDENTIALS = error_codes(
    "_AUTHENTICATION",
    "_SSL",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
)
_SOURCE_CHANGED = error_codes(
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
    "UNKNOWN_TOPIC_ID",
    "UNKNOWN_TOPIC_OR_PART",
)
_FENCED = error_codes(
    "_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "PRODUCER_FENCED",
    "TRANSACTION_COORDINATOR_FENCED",
)
_REFUSED_RECORD = error_codes(
    "INVALID_MSG",
    "INVALID_MSG_SIZE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "MSG_SIZE_TOO_LARGE",
    "POLICY_VIOLATION",
    "RECORD_LIST_TOO_LARGE",
    "UNSUPPORTED_COMPRESSION_TYPE",
)
_ABORTED = error_codes(
    # Records thrown away because of an error that another report, or the client itself, names.
    "_PURGE_INFLIGHT",
    "_PURGE_QUEUE",
    "INVALID_TXN_STATE",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "TRANSACTION_ABORTABLE",
    "UNKNOWN_PRODUCER_ID",
)
_MISCONFIGURED = error_codes(
    "_INVALID_ARG",
    "_NOT_CONFIGURED",
    "INVALID_CONFIG",
    "INVALID_TRANSACTION_TIMEOUT",
)


def librdkafka_path() -> Path | None:
    """The shared library that confluent-kafka's wheel brings and has loaded; None: it has none."""
    libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    return next(iter(sorted(libraries.glob("librdkafka*.so*"))), None)


def make_producer(config: Mapping[str, Any]) -> Producer:
    """A producer whose log goes to Python's logging.

    Args:
        config: `KafkaConnection.librdkafka` and the caller's own settings.
    Raises:
        ConfigError: librdkafka refuses a setting.
        UnreachableError, AuthenticationError: it needs a token, and none can be had.
    """
    return _made(Producer, config, "producer")


def make_consumer(config: Mapping[str, Any]) -> Consumer:
    """A consumer whose log goes to Python's logging; as `make_producer`."""
    return _made(Consumer, config, "consumer")


def make_admin(config: Mapping[str, Any]) -> AdminClient:
    """An admin client whose log goes to Python's logging; as `make_producer`."""
    return _made(AdminClient, config, "admin")


def _made(kind: Callable[..., _Client], config: Mapping[str, Any], name: str) -> _Client:
    try:
        return kind(_with_reasons(config), logger=_librdkafka_log)
    except KafkaException as err:
        raise _token_failure(config) or translate(err, {"client": name}) from None


def _token_failure(config: Mapping[str, Any]) -> StreamError | None:
    """Why the client was given no token; None: it was, or needs none."""
    failure = getattr(config.get("oauth_cb"), "failure", None)
    return failure if isinstance(failure, StreamError) else None


def _with_reasons(config: Mapping[str, Any]) -> dict[str, Any]:
    """An issuer that is away looks to librdkafka like refused credentials, which end a job."""
    tell = config.get("error_cb")
    if tell is None or "oauth_cb" not in config:
        return dict(config)

    def told(error: KafkaError) -> None:
        failure = _token_failure(config)
        is_ours = error.code() == _NO_LOG_IN and _NO_TOKEN in error.str()
        if is_ours and isinstance(failure, UnreachableError):
            error = KafkaError(_LOST, str(failure))
        tell(error)

    return {**config, "error_cb": told}


def translate(
    error: KafkaException | KafkaError, where: Mapping[str, object] | None = None
) -> StreamError:
    """Our error for librdkafka's; raise it ``from`` the original.

    Args:
        error: what was raised, or what a delivery report or message carried.
        where: names of topic, partition, servers, ids; no secrets.
    """
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if not isinstance(cause, KafkaError):
        return DeliveryError("the Kafka client failed", {**(where or {}), "cause": cause}, _AGAIN)
    kind, remedy = _classify(cause)
    said = (cause.str() or cause.name()).rstrip(".")  # brokers speak in sentences
    return kind(f"Kafka: {said}", {**(where or {}), "code": cause.name()}, remedy)


_CHECK_BROKERS = "Check that the brokers run and can be reached from here."
_TOPIC_NAMES = (
    "A topic's name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is neither "
    "'.' nor '..'."
)
_AGAIN = "Look at the broker's log, then start again from the last checkpoint."


def _classify(error: KafkaError) -> tuple[type[StreamError], str]:
    code = error.code()
    if code in _REFUSED_CREDENTIALS:
        return AuthenticationError, "Check kafka.security.protocol, credentials and ACLs."
    if code in _UNREACHABLE:
        return UnreachableError, _CHECK_BROKERS
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return ConfigError, "Choose another name, or use it as it is."
    if code == KafkaError.TOPIC_EXCEPTION:
        return SourceChangedError, _TOPIC_NAMES
    if code in _SOURCE_CHANGED:
        return SourceChangedError, "Create the topic, or correct its name."
    if code in _FENCED:
        return FencedError, "A newer owner has this transactional id; this process must stop."
    if code in _MISCONFIGURED:
        return ConfigError, "Correct the kafka.* options."
    if code in _ABORTED or (error.txn_requires_abort() and code not in _REFUSED_RECORD):
        return TransactionAbortedError, "It is written again in a new transaction."
    if code in _MOVING:
        return UnreachableError, _CHECK_BROKERS
    return DeliveryError, _AGAIN
