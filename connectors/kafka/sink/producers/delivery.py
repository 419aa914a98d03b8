"""Result of the records of one epoch: the first error that matters, and its record.

A broker refuses a whole batch. Since Kafka 2.4 it names the records that caused it, and librdkafka
reports ``_INVALID_DIFFERENT_RECORD`` for all others of the batch. Without such names every record
of the batch gets one code. Then an error has the ranges of the task, because any offset could be
that of an innocent record.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.client.confluent import (
    UNKNOWN_PARTITION,
    KafkaError,
    KafkaException,
    Message,
    error_codes,
    translate,
)
from sluice.runtime.contracts import TaskScope
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
from sluice.runtime.model.splits import SplitRange, ranges_text

__all__ = ["DeliveryLog", "OnDelivery", "is_consequence", "source_position"]

OnDelivery = Callable[[KafkaError | None, Message], None]


(_TOO_LARGE,) = error_codes("MSG_SIZE_TOO_LARGE")
(_INVALID,) = error_codes("INVALID_RECORD")
(_INNOCENT,) = error_codes("_INVALID_DIFFERENT_RECORD")
# Records discarded because of an error that another report, or the client itself, names.
_CONSEQUENCES = error_codes("_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE", "_FATAL") | {_INNOCENT}
# Every record with one of these is a cause; of those that are too large, the largest.
_OF_ITS_RECORD = {UNKNOWN_PARTITION, _TOO_LARGE}
_CLAMP = (
    "Clamp or drop the column timestamp: the topic's message.timestamp.after.max.ms and "
    "message.timestamp.before.max.ms limit it."
)
_GIVE_A_KEY = "Give each record a key: a compacted topic refuses records without one."
_REMEDIES = {
    UNKNOWN_PARTITION: (
        "Give the topic more partitions, or correct the column (null: by key). A function "
        "that keeps it sends records to the partition that they were read from: drop it."
    ),
    _TOO_LARGE: (
        "Drop or split the record, or raise the topic's max.message.bytes; if only their "
        "batch is too large, set kafka.batch.size below it."
    ),
    KafkaError.INVALID_TIMESTAMP: _CLAMP,
    _INVALID: f"{_GIVE_A_KEY} {_CLAMP}",
    KafkaError.INVALID_MSG: (  # also for a missing key, before Kafka 2.4
        "Give each record a key if the topic is compacted; else start again: a batch was damaged."
    ),
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: (
        "Set kafka.compression.type to one that the brokers support (zstd: Kafka 2.1)."
    ),
}


def is_consequence(error: KafkaError) -> bool:
    """Whether the error only follows from another one, which names the reason."""
    return error.code() in _CONSEQUENCES


@dataclass(slots=True)
class _Failure:
    error: KafkaError
    topic: str | None
    partition: int | None
    key: bytes | None = None
    value: bytes | None = None
    rows: pa.RecordBatch | None = None
    row: int | None = None
    size: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """A refused batch fails every record in it: the largest is the likely cause."""
        size = self.size or len(self.value or b"") + len(self.key or b"")
        code = self.error.code()
        return (code not in _CONSEQUENCES, size if code == _TOO_LARGE else 0)


class DeliveryLog:
    """Delivery errors of one epoch of one task. Executor, the writer's thread.

    It costs nothing without errors: the client calls back only for errors, and releases the rows of
    a callback after their delivery.

    Attributes:
        scope: of the task and epoch; an error names it.
        failed_records: so far.
    """

    def __init__(self, scope: TaskScope) -> None:
        self.scope = scope
        self._failure: _Failure | None = None
        self._reported: Counter[tuple[str | None, int | None, int]] = Counter()
        self._client_error: KafkaError | None = None
        self._abort_reason: Callable[[], KafkaError | None] = lambda: None
        self.failed_records = 0

    def ask(self, abort_reason: Callable[[], KafkaError | None]) -> None:
        """Returns the reason for discarded records, if neither a report nor a callback has named
        it."""
        self._abort_reason = abort_reason

    def ends(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """Set the ranges that the epoch has read, and its checkpoint."""
        self.scope = replace(self.scope, source_ranges=tuple(ranges), checkpoint_id=checkpoint_id)

    def on_delivery(self, rows: pa.RecordBatch) -> OnDelivery:
        """The callback for records made of ``rows``; names them in the message of an error."""

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note(
                    _Failure(
                        error,
                        message.topic(),
                        message.partition(),
                        _as_bytes(message.key()),
                        _as_bytes(message.value()),
                        rows,
                    )
                )

        return report

    def client_failed(self, error: KafkaError) -> None:
        """The client itself gave up (fenced, not authorised): the reason for discarded records."""
        if error.fatal() or self._client_error is None:
            self._client_error = error

    def refused(
        self,
        error: KafkaError,
        *,
        topic: str,
        partition: int,
        rows: pa.RecordBatch | None,
        row: int | None,
        size: int = 0,
        count: int = 1,
    ) -> None:
        """`produce` itself refused a record; or a report about ``count`` equal records, of which
        this one, of ``size`` bytes, is the largest.
        """
        self._note(_Failure(error, topic, partition, rows=rows, row=row, size=size), count)

    def located(self, error: ConfigError, rows: pa.RecordBatch) -> ConfigError:
        """An error about a row of ``rows``, with the source position instead of the row."""
        what, where, remedy = error.args
        row = where.pop("row", None)
        return ConfigError(what, {**where, **self._source(rows, row), **self._task()}, remedy)

    @property
    def knows_cause(self) -> bool:
        """Whether a record's report, or a fatal error, has named the cause of the failure."""
        reported = self._failure is not None and not is_consequence(self._failure.error)
        return reported or (self._client_error is not None and self._client_error.fatal())

    def check(self) -> None:
        """Raise the error of this epoch, if there is one.

        Raises:
            DeliveryError, UnreachableError, AuthenticationError, FencedError,
            TransactionAbortedError: with topic, partition, code and source.
        """
        failure, fatal = self._failure, self._client_error
        if failure is None:
            if fatal is not None and fatal.fatal():
                raise self.error(fatal, _ranges_text(self.scope.source_ranges))
            return
        error = failure.error
        if is_consequence(error):
            error = fatal or self._abort_reason() or error
        elif error.code() == _INVALID:  # of each of several; the client has the broker's own code
            reason = self._abort_reason()
            error = error if reason is None else KafkaError(reason.code())
        rows, row = failure.rows if self._is_certain(failure) else None, failure.row
        if rows is not None and row is None:
            row = _row_of(rows, failure)
        raise self.error(error, {**self._target(failure), **self._source(rows, row)})

    def _is_certain(self, failure: _Failure) -> bool:
        """Whether the error is that of its record, and not of its batch."""
        place, code = (failure.topic, failure.partition), failure.error.code()
        is_named = code not in _CONSEQUENCES and self._reported[*place, _INNOCENT] > 0
        return is_named or code in _OF_ITS_RECORD or self._reported[*place, code] == 1

    def error(self, error: KafkaError, where: dict[str, object]) -> StreamError:
        """The error of Sluice for librdkafka's, from a sink's point of view."""
        records = {"failed_records": max(1, self.failed_records)}
        found = translate(KafkaException(error), {**where, **self._task(), **records})
        if isinstance(found, AuthenticationError):
            return found
        what, place, remedy = found.args
        if isinstance(found, FencedError):
            # Kafka reports "a newer producer" also for a transaction that it aborted as too old.
            remedy = (
                "If the transaction exceeded its timeout (transactionTimeout, by default the "
                "broker's transaction.max.timeout.ms), make epochs smaller or raise it. If a newer "
                "run has fenced this one, let this one end."
            )
            return FencedError(str(what), place, remedy)
        if error.code() in _REMEDIES:
            remedy = _REMEDIES[error.code()]
        elif not isinstance(found, SourceChangedError):
            remedy = f"{remedy} Nothing of this epoch is visible."
        # Brokers that did not answer in time may answer later: another try may succeed.
        again = isinstance(found, UnreachableError | TransactionAbortedError)
        kind = type(found) if again else DeliveryError
        return kind(str(what), place, str(remedy))

    def _note(self, failure: _Failure, count: int = 1) -> None:
        self.failed_records += count
        self._reported[failure.topic, failure.partition, failure.error.code()] += count
        if self._failure is None or failure.rank > self._failure.rank:
            self._failure = failure

    def _target(self, failure: _Failure) -> dict[str, object]:
        partition = failure.partition
        known = partition is not None and partition >= 0
        return {"topic": failure.topic, "partition": partition if known else "by key"}

    def _source(self, rows: pa.RecordBatch | None, row: int | None) -> dict[str, object]:
        ranges = self.scope.source_ranges
        found = None if rows is None else source_position(rows, row, ranges)
        return found or _ranges_text(ranges)

    def _task(self) -> dict[str, object]:
        batch = self.scope.batch
        return {
            "region": batch.region,
            "batch_id": batch.batch_id,
            "checkpoint_id": self.scope.checkpoint_id,
        }


def source_position(
    rows: pa.RecordBatch, row: int | None, ranges: Sequence[SplitRange]
) -> dict[str, object] | None:
    """The source position of a row, if the batch still has the source's ``offset`` column.

    The columns ``topic`` and ``partition`` may name the record's target instead. So they are used
    only if they are within the ranges that the task reads.
    """
    offset = _cell(rows, "offset", row)
    if not isinstance(offset, int):
        return None
    topic, partition = _cell(rows, "topic", row), _cell(rows, "partition", row)
    holding = [r for r in ranges if r.start_offset <= offset < r.end_offset]
    named = [r for r in holding if (r.topic, r.partition) == (topic, partition)]
    if not ranges:
        return {"source_topic": topic, "source_partition": partition, "source_offset": offset}
    chosen = named or holding
    if len(chosen) != 1:
        return {**_ranges_text(ranges), "source_offset": offset}
    return {
        "source_topic": chosen[0].topic,
        "source_partition": chosen[0].partition,
        "source_offset": offset,
    }


def _cell(rows: pa.RecordBatch, name: str, row: int | None) -> object:
    index = rows.schema.get_field_index(name)
    return None if row is None or index < 0 else rows.column(index)[row].as_py()


def _row_of(rows: pa.RecordBatch, failure: _Failure) -> int | None:
    """The row that made this record; None if several have its key and value. If the record is too
    large, all of them are, and the first one is the answer."""
    mask = _equals(rows, "value", failure.value)
    if mask is not None and rows.schema.get_field_index("key") >= 0:
        mask = pc.and_(mask, _equals(rows, "key", failure.key))
    count = 0 if mask is None else pc.sum(mask).as_py() or 0
    is_one = count == 1 or (count > 1 and failure.error.code() == _TOO_LARGE)
    return int(pc.index(mask, True).as_py()) if is_one else None


def _equals(rows: pa.RecordBatch, name: str, wanted: bytes | None) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    if index < 0:
        return None
    column = rows.column(index)
    if wanted is None:
        return pc.is_null(column)
    if pa.types.is_null(column.type):
        return pa.array([False] * len(column))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Use a large type on both sides: views and fixed sizes have no comparison of their own.
    matches = pc.equal(column.cast(pa.large_binary()), pa.scalar(wanted, pa.large_binary()))
    return matches.fill_null(False)


def _ranges_text(ranges: Sequence[SplitRange]) -> dict[str, object]:
    return {"source_ranges": ranges_text(ranges)} if ranges else {}


def _as_bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
