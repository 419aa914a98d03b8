"""Writing without a Python object per record: Arrow buffers straight into librdkafka's queue.

Every record carries a tag, which its delivery report brings back (`NativeProducer`). All records
take the one call ``rd_kafka_producev``, with headers and without, so the order of a partition is
that of its rows (`produce-order`).
"""

import ctypes

import numpy as np
import pyarrow as pa

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException, error_codes
from sluice.connectors.kafka.records.rows import HeaderParts, RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.sink.writer.produce import Prepared, Producing

__all__ = ["NativeProducing"]

(_QUEUE_FULL,) = error_codes("_QUEUE_FULL")


class _Bytes(ctypes.Structure):
    _fields_ = (
        ("validity", ctypes.c_void_p),
        ("first_bit", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    )


class _Columns(ctypes.Structure):
    _fields_ = (
        ("topics", ctypes.c_void_p),
        ("topic_of", ctypes.c_void_p),
        ("keys", ctypes.POINTER(_Bytes)),
        ("values", ctypes.POINTER(_Bytes)),
        ("partitions", ctypes.c_void_p),
        ("timestamps_ms", ctypes.c_void_p),
        ("header_bounds", ctypes.c_void_p),
        ("header_names", ctypes.POINTER(_Bytes)),
        ("header_values", ctypes.POINTER(_Bytes)),
    )


class NativeProducing(Producing):
    """Implements `sluice.connectors.kafka.sink.writer.produce.Producing`."""

    def __init__(self, producer: NativeProducer) -> None:
        self._producer = producer

    def prepare(
        self,
        rows: pa.RecordBatch,
        columns: RecordColumns,
        partitions: pa.Array | None,
        delivery: DeliveryLog,
    ) -> Prepared:
        return _NativePrepared(self._producer, rows, columns, partitions, delivery)


class _NativePrepared(Prepared):
    """Implements `Prepared`."""

    def __init__(
        self,
        producer: NativeProducer,
        rows: pa.RecordBatch,
        columns: RecordColumns,
        partitions: pa.Array | None,
        delivery: DeliveryLog,
    ) -> None:
        self._producer = producer
        self._count = rows.num_rows
        self._memory: list[object] = []  # keeps the memory that the pointers refer to
        self._names, self._topic_of = _topics(rows, columns)
        numbers = columns.partitions(rows, partitions)
        self._partitions = None if numbers is None else numbers.cast(pa.int32()).to_numpy()
        stamps = columns.timestamps_ms(rows)
        self._columns = _Columns(
            topic_of=None if self._topic_of is None else self._topic_of.ctypes.data,
            keys=None if columns.key is None else self._bytes(rows.column(columns.key)),
            values=self._bytes(rows.column(columns.value)),
            partitions=self._pointer(self._partitions),
            timestamps_ms=self._pointer(stamps),
        )
        headers = columns.header_parts(rows)
        if headers is not None:
            self._set_headers(headers)
        self._tag = producer.track(rows, delivery)

    def produce(self, start: int) -> tuple[int, Exception | None]:
        call, client = self._producer.library.call, self._producer.address
        error = ctypes.c_int32(0)
        handles = (ctypes.c_void_p * len(self._names))()
        try:
            for at, name in enumerate(self._names):
                if "\0" not in name:  # C would take the bytes before it for the name
                    handles[at] = call.sluice_topic(client, name.encode())
            self._columns.topics = ctypes.cast(handles, ctypes.c_void_p)
            taken: int = call.sluice_produce(
                client,
                ctypes.byref(self._columns),
                self._tag,
                start,
                self._count,
                ctypes.byref(error),
            )
        finally:
            for topic in filter(None, handles):
                call.sluice_topic_destroy(topic)
        return taken, _refusal(error.value)

    def target(self, row: int) -> tuple[str, int]:
        name = self._names[0 if self._topic_of is None else int(self._topic_of[row])]
        return name, -1 if self._partitions is None else int(self._partitions[row])

    def _set_headers(self, headers: HeaderParts) -> None:
        bounds = np.zeros(self._count + 1, np.int64)
        np.cumsum(headers.lengths.to_numpy(zero_copy_only=False), out=bounds[1:])
        self._columns.header_bounds = self._pointer(bounds)
        self._columns.header_names = self._bytes(headers.names)
        self._columns.header_values = self._bytes(headers.values)

    def _pointer(self, numbers: np.ndarray | None) -> int | None:
        if numbers is None:
            return None
        numbers = np.ascontiguousarray(numbers)
        self._memory.append(numbers)
        return numbers.ctypes.data

    def _bytes(self, column: pa.Array) -> "ctypes._Pointer[_Bytes]":
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        column = column.cast(pa.large_binary())  # of a string: its UTF-8
        validity, offsets, data = column.buffers()
        nowhere = ctypes.c_char()  # an empty value is not null, and needs an address
        found = _Bytes(
            validity=None if validity is None or not column.null_count else validity.address,
            first_bit=column.offset,
            offsets=offsets.address + 8 * column.offset,
            data=ctypes.addressof(nowhere) if data is None or not data.size else data.address,
        )
        self._memory += [column, nowhere, found]
        return ctypes.pointer(found)


def _topics(
    rows: pa.RecordBatch, columns: RecordColumns
) -> tuple[list[str], "np.ndarray[tuple[int], np.dtype[np.int32]] | None"]:
    """Their names, and the number of the names that each row has; None: the first."""
    column = columns.topics(rows)
    if column is None:
        return [columns.topic or ""], None
    if pa.types.is_dictionary(column.type):  # it may hold names of no row
        column = column.dictionary_decode()
    column = column.dictionary_encode()
    names: list[str] = column.dictionary.to_pylist()
    return names, np.ascontiguousarray(column.indices.cast(pa.int32()).to_numpy())


def _refusal(code: int) -> Exception | None:
    if not code:
        return None
    text = str(KafkaError(code).str())
    if code == _QUEUE_FULL:
        return BufferError(text)
    return KafkaException(KafkaError(code, f"Unable to produce message: {text}"))
