"""The edge to confluent-kafka: the only module that imports it.

Other modules import the classes from here, and make clients with `make_producer`, `make_consumer`
and `make_admin`. So librdkafka's log lines reach Python's logging, and `translate` turns its errors
into ours.
"""

import contextlib
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
    "OncePerMinute",
    "Producer",
    "ResourceType",
    "TopicCollection",
    "TopicPartition",
    "error_codes",
    "librdkafka_path",
    "make_admin",
    "make_consumer",
    "make_producer",
    "translate",
    "with_token_reasons",
]

CLIENT_VERSION = str(confluent_kafka.__version__)
"""Version of confluent-kafka, and of the librdkafka in its wheel."""

# librdkafka's lines arrive here while the client is polled.
_librdkafka_log = logging.getLogger("sluice.connectors.kafka.librdkafka")

_CONNECTION_LOST = re.compile(
    r": (Connect to \S+ failed|Connection setup timed out|Disconnected|Receive failed)"
)

_UNRESOLVED = re.compile(r"Failed to resolve '([^']+)'")
_REPEAT_S = 60.0
_NO_MECHANISM = "No provider for SASL mechanism"


class OncePerMinute(logging.Filter):
    """Logs a host name that does not resolve once a minute.

    librdkafka logs it at each try of each client: hundreds of lines for one misspelt host. It stays
    a warning: if brokers advertise the name, no other line explains why records of their partitions
    are missing. Process-wide; any thread.
    """

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged_s: dict[str, float] = {}  # one entry per host name

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        found = _UNRESOLVED.search(record.getMessage())
        if found is None:
            return True
        now_s, logged_s = self._clock(), self._logged_s.get(found[1])
        if logged_s is not None and now_s - logged_s < _REPEAT_S:
            return False
        self._logged_s[found[1]] = now_s
        return True


class _SelfRepairing(logging.Filter):
    """Logs a lost connection at INFO: librdkafka logs an error each time, and reconnects.

    Python writes unhandled warnings to stderr, so a worker without logging would print lines for
    each producer whenever a broker stops. A lasting failure reaches the caller as an error. Errors
    that a retry cannot fix (credentials, TLS, a wrong ``security.protocol``) keep their level.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.INFO or not _is_self_repairing(record):
            return True
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return _librdkafka_log.isEnabledFor(logging.INFO)


def _is_self_repairing(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if text.startswith("GETPID "):
        return text.endswith(": retrying")
    lost = text.startswith("FAIL ") and _CONNECTION_LOST.search(text) is not None
    return lost and "security.protocol" not in text


_librdkafka_log.addFilter(_SelfRepairing())
_librdkafka_log.addFilter(OncePerMinute())


def error_codes(*names: str) -> frozenset[int]:
    """Return librdkafka's codes by name: half of them begin with an underscore but are public."""
    return frozenset(getattr(KafkaError, name) for name in names)


(PARTITION_EOF,) = error_codes("_PARTITION_EOF")
"""A consumer has reached the end of a partition."""

(_LOG_TRUNCATION,) = error_codes("_LOG_TRUNCATION")
LOG_TRUNCATION = KafkaError(_LOG_TRUNCATION).str()
"""Text of librdkafka's event that a new leader lacks records which the client has fetched."""

(UNKNOWN_PARTITION,) = error_codes("_UNKNOWN_PARTITION")
"""A record is for a partition that the topic does not have, or not yet."""

(_NO_LOGIN,) = error_codes("_AUTHENTICATION")
(_LOST,) = error_codes("_TRANSPORT")
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"
_METHOD = "sasl.oauthbearer.method"  # librdkafka requests tokens itself
# Texts of curl, which librdkafka requests tokens with. An issuer's own answer is JSON.
_ISSUER_AWAY = re.compile(r"connect to|not resolve|timed out|[Ee]mpty reply|(Recv|Send) failure")
_Client = TypeVar("_Client")

_UNREACHABLE = error_codes(
    "_ALL_BROKERS_DOWN",
    "_DESTROY_BROKER",  # left the cluster during a request, as in a rolling restart
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
# A partition between two leaders, or a group between two coordinators, for a moment.
_MOVING = error_codes(
    "_NOENT",  # no requested partition has a leader
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
    # Records discarded after an error that another report, or the client itself, names.
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
    """Return the shared library that confluent-kafka uses; None: it is not known."""
    libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    return next(iter(sorted(libraries.glob("librdkafka*.so*"))), None) or _loaded_librdkafka()


def _loaded_librdkafka() -> Path | None:
    """The library of a confluent-kafka that was built from its source: the loader found it."""
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            path = Path(line.rpartition(" ")[2])
            if path.name.startswith("librdkafka.so"):
                return path
    return None


def make_producer(config: Mapping[str, Any]) -> Producer:
    """A producer whose log goes to Python's logging.

    Args:
        config: `KafkaConnection.librdkafka` and the caller's own settings.
    Raises:
        ConfigError: librdkafka refuses a setting.
        UnreachableError, AuthenticationError: no token is available for its log-in.
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
        return kind(with_token_reasons(config), logger=_librdkafka_log)
    except KafkaException as err:
        if _NO_MECHANISM in str(err):
            raise _without_kerberos(config) from None
        raise _token_failure(config) or translate(err, {"client": name}) from None


def _without_kerberos(config: Mapping[str, Any]) -> ConfigError:
    version, _ = confluent_kafka.libversion()
    return ConfigError(
        "this confluent-kafka cannot log in by Kerberos",
        {
            "kafka.sasl.mechanism": config.get("sasl.mechanism"),
            "confluent-kafka": CLIENT_VERSION,
            "librdkafka": librdkafka_path(),
        },
        f"Replace its wheel, which lacks GSSAPI: build librdkafka {version} "
        "with libsasl2-dev, then run pip install --no-binary confluent-kafka "
        f"confluent-kafka=={CLIENT_VERSION}; see docs/guide/security.md. Or use SCRAM.",
    )


def _token_failure(config: Mapping[str, Any]) -> StreamError | None:
    """Return why no token was available; None: one was, or none is needed."""
    failure = getattr(config.get("oauth_cb"), "failure", None)
    return failure if isinstance(failure, StreamError) else None


def with_token_reasons(config: Mapping[str, Any]) -> dict[str, Any]:
    """Report an unreachable token issuer as such: librdkafka reports refused credentials."""
    report = config.get("error_cb")
    if report is None or not ("oauth_cb" in config or _METHOD in config):
        return dict(config)

    def translated(error: KafkaError) -> None:
        if error.code() == _NO_LOGIN and _NO_TOKEN in error.str():
            failure = _token_failure(config)
            if isinstance(failure, UnreachableError):
                error = KafkaError(_LOST, str(failure))
            elif _METHOD in config and _ISSUER_AWAY.search(error.str()):
                error = KafkaError(_LOST, error.str())
        report(error)

    return {**config, "error_cb": translated}


def translate(
    error: KafkaException | KafkaError, where: Mapping[str, object] | None = None
) -> StreamError:
    """Return our error for librdkafka's; raise it ``from`` the original.

    Args:
        error: an exception, or the error of a delivery report or message.
        where: names of topic, partition, servers, ids; no secrets.
    """
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if not isinstance(cause, KafkaError):
        return DeliveryError("the Kafka client failed", {**(where or {}), "cause": cause}, _AGAIN)
    kind, remedy = _classify(cause)
    text = (cause.str() or cause.name()).rstrip(".")  # brokers end texts with a full stop
    return kind(f"Kafka: {text}", {**(where or {}), "code": cause.name()}, remedy)


_CHECK_BROKERS = "Check that the brokers run and can be reached from here."
_TOPIC_NAMES = (
    "Use a topic name of 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', but not '.' "
    "or '..'."
)
_AGAIN = "Read the broker's log, then start again from the last checkpoint."


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
        return FencedError, "Stop this process: a newer owner has its transactional id."
    if code in _MISCONFIGURED:
        return ConfigError, "Correct the kafka.* options."
    if code in _ABORTED or (error.txn_requires_abort() and code not in _REFUSED_RECORD):
        return (
            TransactionAbortedError,
            "Wait: Sluice writes the records again in a new transaction.",
        )
    if code in _MOVING:
        return UnreachableError, _CHECK_BROKERS
    return DeliveryError, _AGAIN
