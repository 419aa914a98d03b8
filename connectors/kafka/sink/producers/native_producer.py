"""A producer of Sluice's own: it gets delivery reports as events, so no error is overlooked."""

import collections
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException
from sluice.connectors.kafka.native.library import NativeLibrary
from sluice.connectors.kafka.native.native_client import PRODUCER, NativeClient, to_ms
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog

__all__ = ["NativeProducer"]

ROW_BITS = 20  # of a record's tag; the rest is the number of its rows' batch
_REPORTS = 1_000  # of one look into an event
_KEPT_RECORDS = 1_000_000  # twice what librdkafka's queue holds by default
_PURGE_QUEUE_AND_FLIGHT = 0x1 | 0x2
_STEP_S = 0.2
_SOURCE_COLUMNS = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class _Sent:
    """Sent rows: their delivery, and their source ranges for errors."""

    delivery: DeliveryLog
    rows: pa.RecordBatch


class NativeProducer(NativeClient):
    """Implements `Client`, by the same calls of librdkafka
    as confluent-kafka's ``Producer`` makes.

    Delivery reports are events (``RD_KAFKA_EVENT_DR``), only for errors
    (``delivery.report.only.error``). librdkafka counts a record until its report's event is
    destroyed, and `serve` judges each event first. So `flush` cannot return 0 while an error is
    unread (`pre-commit-confirmed`).
    """

    def __init__(self, library: NativeLibrary, config: Mapping[str, Any]) -> None:
        super().__init__(library, PRODUCER, config)
        self._sent: collections.OrderedDict[int, _Sent] = collections.OrderedDict()
        self._sent_rows = 0
        self._batches = 0
        self._last: DeliveryLog | None = None

    @property
    def library(self) -> NativeLibrary:
        """The compiled code that made it."""
        return self._library

    def track(self, rows: pa.RecordBatch, delivery: DeliveryLog) -> int:
        """The tag of the first of these rows, before they are produced; row i has tag plus i.

        Only the origin of rows is kept, until all are delivered or a million later records have
        been sent. Until then an error names the ranges.
        """
        assert rows.num_rows < 1 << ROW_BITS
        if not len(self):
            self._forget_sent()
        self._batches += 1
        kept = [name for name in _SOURCE_COLUMNS if rows.schema.get_field_index(name) >= 0]
        self._sent[self._batches] = _Sent(delivery, rows.select(kept))
        self._last = delivery
        self._sent_rows += rows.num_rows
        while self._sent_rows > _KEPT_RECORDS and len(self._sent) > 1:
            _, oldest = self._sent.popitem(last=False)
            self._sent_rows -= oldest.rows.num_rows
        return self._batches << ROW_BITS

    def poll(self, timeout: float, /) -> int:
        """See `NativeClient.serve`."""
        return self.serve(timeout)

    def flush(self, timeout: float, /) -> int:
        """Send all buffered records now, and wait; returns the number of records without a
        result."""
        unsettled = self._kafka.rd_kafka_flush(self.address, to_ms(timeout))
        self.serve(0)
        if not unsettled:
            self._forget_sent()
            return 0
        return max(1, len(self))

    def purge(self) -> None:
        """Discard unacknowledged records; each is reported."""
        self.require(self._kafka.rd_kafka_purge(self.address, _PURGE_QUEUE_AND_FLIGHT))

    def init_transactions(self, timeout: float, /) -> None:
        """As confluent-kafka's."""
        self.require_done(self._kafka.rd_kafka_init_transactions(self.address, to_ms(timeout)))

    def begin_transaction(self) -> None:
        """As confluent-kafka's."""
        self.require_done(self._kafka.rd_kafka_begin_transaction(self.address))

    def commit_transaction(self, timeout: float, /) -> None:
        """As confluent-kafka's."""
        self._end_transaction(self._kafka.rd_kafka_commit_transaction, timeout)

    def abort_transaction(self, timeout: float, /) -> None:
        """As confluent-kafka's."""
        self._end_transaction(self._kafka.rd_kafka_abort_transaction, timeout)

    def _end_transaction(self, end: Any, timeout_s: float) -> None:  # noqa: ANN401 - of ctypes
        # librdkafka's flush waits until no record is left, and does not serve the reports itself.
        # The flush runs in steps: each continues the last one.
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self.require_done(end(self.address, to_ms(min(_STEP_S, max(0.0, left_s)))))
            except KafkaException as err:
                if not err.args[0].retriable() or left_s <= 0:
                    raise
            self.serve(0)

    def list_topics(self, topic: str, timeout: float, /) -> SimpleNamespace:
        """The used part of confluent-kafka's method: a topic's partitions."""
        partitions = range(self.partitions_of(topic, timeout))
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions)})

    def __len__(self) -> int:
        """Records without a result: sent, or with an error that is still to be served."""
        events: int = self._kafka.rd_kafka_queue_length(self._events)
        both: int = self._kafka.rd_kafka_outq_len(self.address)
        return max(0, both - events)

    def __bool__(self) -> bool:
        return True

    def _forget_sent(self) -> None:
        self._sent.clear()
        self._sent_rows = 0

    def _take_reports(self, event: int) -> None:
        messages = np.empty(_REPORTS, np.uint64)
        errors, partitions = np.empty(_REPORTS, np.int32), np.empty(_REPORTS, np.int32)
        tags, sizes = np.empty(_REPORTS, np.int64), np.empty(_REPORTS, np.int64)
        pointers = [each.ctypes.data for each in (errors, tags, sizes, partitions)]
        while count := self._library.call.sluice_reports(
            event, messages.ctypes.data, _REPORTS, *pointers
        ):
            found = errors[:count]
            for code in np.unique(found[found != 0]).tolist():
                # A refused batch fails every record in it: the largest is the likely cause.
                alike = np.flatnonzero(found == code)
                worst = int(alike[sizes[alike].argmax()])
                topic = self._library.call.sluice_topic_of(int(messages[worst]))
                self._note(
                    KafkaError(code),
                    topic=(topic or b"").decode(errors="replace"),
                    partition=int(partitions[worst]),
                    tag=int(tags[worst]),
                    size=int(sizes[worst]),
                    count=len(alike),
                )

    def _note(
        self, error: KafkaError, *, topic: str, partition: int, tag: int, size: int, count: int
    ) -> None:
        sent = self._sent.get(tag >> ROW_BITS)
        delivery = self._last if sent is None else sent.delivery
        assert delivery is not None  # each report belongs to a record, and records are tracked
        delivery.refused(
            error,
            topic=topic,
            partition=partition,
            rows=None if sent is None else sent.rows,
            row=None if sent is None else tag & ((1 << ROW_BITS) - 1),
            size=size,
            count=count,
        )
