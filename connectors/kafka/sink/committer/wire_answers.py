"""Meaning of brokers' answers about transactions, by their error codes; pure.

An unknown error, of a later Kafka or of a proxy, proves nothing: neither that a transaction was
ended, nor that it was not, nor that there is none.

Also finds the partition of the transaction log of an id, and an id for each partition.
"""

from functools import lru_cache
from itertools import count

from sluice.connectors.kafka.client.wire_client import Message, kafka_errors
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    EndReport,
    TransactionDescription,
    TransactionState,
)

__all__ = [
    "STATE_TOPIC",
    "add_description",
    "end_report",
    "error_name",
    "id_for_each_partition",
    "is_answered_later",
    "partition_of",
    "raise_if_forbidden",
    "state_of",
]

# Answers of Kafka 3.9 to 4.3 before they write anything to the transaction's log
# (`TransactionCoordinator.endTransaction`, `KafkaApis.handleEndTxnRequest`). Without
# NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE: a broker also returns them for an end that is in
# its log, if other replicas did not confirm it in time or before it lost the partition.
_NOTHING_WRITTEN = frozenset(
    kind.errno
    for kind in (
        kafka_errors.ConcurrentTransactionsError,
        kafka_errors.CoordinatorLoadInProgressError,
        kafka_errors.InvalidProducerEpochError,  # PRODUCER_FENCED in versions 0 and 1
        kafka_errors.InvalidProducerIdMappingError,
        kafka_errors.InvalidRequestError,
        kafka_errors.InvalidTxnStateError,
        kafka_errors.ProducerFencedError,
        kafka_errors.TransactionalIdAuthorizationFailedError,
        kafka_errors.UnsupportedVersionError,
    )
)
_NOT_YET = frozenset(
    {
        "ConcurrentTransactionsError",
        "CoordinatorLoadInProgressError",
        "NodeNotReadyError",
        "UnknownBrokerIdError",
    }
)


def end_report(code: int) -> EndReport:
    """Meaning of an EndTxn answer for the transaction."""
    if code == 0:
        return EndReport(outcome=EndOutcome.DONE)
    outcome = EndOutcome.REFUSED if code in _NOTHING_WRITTEN else EndOutcome.UNKNOWN
    return EndReport(outcome=outcome, error=error_name(code))


def is_answered_later(report: EndReport | None) -> bool:
    """Whether the request may succeed later, and certainly had no effect."""
    return report is None or (report.outcome is EndOutcome.REFUSED and report.error in _NOT_YET)


def error_name(code: int) -> str:
    """An error's name, "" for none; with its number if this client does not know it."""
    if code == 0:
        return ""
    name = str(kafka_errors.for_code(code).__name__)
    return name if code in kafka_errors.kafka_errors else f"{name} {code}"


def raise_if_forbidden(code: int, what: str) -> None:
    """Raise if permissions are missing: a further try cannot succeed."""
    kind = kafka_errors.for_code(code)
    if issubclass(kind, kafka_errors.AuthorizationError):
        raise kind(what)


def add_description(row: Message, found: dict[str, TransactionDescription | None]) -> None:
    """Add a row of DescribeTransactions; adds nothing if the row is inconclusive."""
    raise_if_forbidden(row.error_code, f"describe {row.transactional_id}")
    if row.error_code == kafka_errors.TransactionalIdNotFoundError.errno:
        found[row.transactional_id] = None
    elif row.error_code == 0:
        found[row.transactional_id] = TransactionDescription(
            transactional_id=row.transactional_id,
            state=state_of(row.transaction_state),
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


def state_of(name: str) -> TransactionState:
    """A state by Kafka's name; UNKNOWN for a state of later versions."""
    try:
        return TransactionState(name)
    except ValueError:
        return TransactionState.UNKNOWN


STATE_TOPIC = "__transaction_state"


def partition_of(transactional_id: str, partitions: int) -> int:
    """The partition of the log, of ``partitions``, that has the state of this id.

    Brokers use Java's hash of the string, without its sign.
    """
    hashed = 0
    units = transactional_id.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    if hashed >= 1 << 31:
        hashed = (1 << 32) - hashed
    # Java has no positive counterpart of its smallest number; brokers use 0 for it.
    return 0 if hashed == 1 << 31 else hashed % partitions


@lru_cache(maxsize=16)
def id_for_each_partition(prefix: str, partitions: int) -> tuple[str, ...]:
    """For each partition of the log, by its number, an id that starts with ``prefix``.

    Takes about ``partitions * log(partitions)`` tries, once per prefix: 1 ms for Kafka's 50.
    """
    found: dict[int, str] = {}
    numbers = count()
    while len(found) < partitions:
        candidate = f"{prefix}{next(numbers)}"
        found.setdefault(partition_of(candidate, partitions), candidate)
    return tuple(found[partition] for partition in range(partitions))
