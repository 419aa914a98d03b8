"""Reading without a Python object per record: librdkafka's messages straight into Arrow buffers."""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.client.confluent import KafkaError
from sluice.connectors.kafka.native.native_consumer import Addresses, NativeConsumer
from sluice.connectors.kafka.records.columns import HEADERS, ColumnBuilder, headers_of, times_of
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.reader.fetching import (
    LINGER_S,
    Event,
    Fetched,
    Fetcher,
    slot_names,
)
from sluice.connectors.kafka.source.reader.ranges import BoolArray, IntArray
from sluice.runtime.errors import ConfigError

__all__ = ["NativeFetcher"]

_SERVE_S = 1.0

Int32Array = npt.NDArray[np.int32]


class _Slots(ctypes.Structure):
    _fields_ = (
        ("topics", ctypes.c_int32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("bases", ctypes.c_void_p),
        ("partitions", ctypes.c_void_p),
        ("slot_of", ctypes.c_void_p),
    )


class _RowPointers(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "errors",
            "slots",
            "offsets",
            "key_lengths",
            "value_lengths",
            "timestamps_ms",
            "timestamp_types",
            "headers",
        )
    )


class _HeaderPointers(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "list_offsets",
            "list_validity",
            "name_offsets",
            "names",
            "value_offsets",
            "value_validity",
            "values",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Messages and their properties; see ``rows_t`` in ``_hot_path.c``."""

    messages: Addresses
    errors: Int32Array
    slots: Int32Array
    offsets: IntArray
    key_lengths: IntArray
    value_lengths: IntArray
    timestamps_ms: IntArray
    timestamp_types: Int32Array
    headers: IntArray | None

    @classmethod
    def room_for(cls, messages: Addresses, *, headers: bool) -> "_Rows":
        count = len(messages)
        return cls(
            messages=messages,
            errors=np.empty(count, np.int32),
            slots=np.empty(count, np.int32),
            offsets=np.empty(count, np.int64),
            key_lengths=np.empty(count, np.int64),
            value_lengths=np.empty(count, np.int64),
            timestamps_ms=np.empty(count, np.int64),
            timestamp_types=np.empty(count, np.int32),
            headers=np.empty((count, 3), np.int64) if headers else None,
        )

    def __len__(self) -> int:
        return len(self.messages)

    def at(self, chosen: slice | BoolArray) -> "_Rows":
        return _Rows(
            messages=self.messages[chosen],
            errors=self.errors[chosen],
            slots=self.slots[chosen],
            offsets=self.offsets[chosen],
            key_lengths=self.key_lengths[chosen],
            value_lengths=self.value_lengths[chosen],
            timestamps_ms=self.timestamps_ms[chosen],
            timestamp_types=self.timestamp_types[chosen],
            headers=None if self.headers is None else self.headers[chosen],
        )

    def pointers(self) -> _RowPointers:
        headers = None if self.headers is None else self.headers.ctypes.data
        return _RowPointers(
            self.errors.ctypes.data,
            self.slots.ctypes.data,
            self.offsets.ctypes.data,
            self.key_lengths.ctypes.data,
            self.value_lengths.ctypes.data,
            self.timestamps_ms.ctypes.data,
            self.timestamp_types.ctypes.data,
            headers,
        )

    def fitting(self, batch_bytes: int) -> int:
        """Return how many of the first rows fit into one batch; at least one."""
        sizes = np.maximum(self.key_lengths, 0) + np.maximum(self.value_lengths, 0)
        if self.headers is not None:
            sizes += self.headers[:, 1] + self.headers[:, 2]
        return max(1, int(np.searchsorted(np.cumsum(sizes), batch_bytes, side="right")))


class NativeFetcher(Fetcher):
    """Implements `sluice.connectors.kafka.source.reader.fetching.Fetcher`."""

    def __init__(
        self,
        consumer: NativeConsumer,
        keys: Sequence[PartitionKey],
        builder: ColumnBuilder,
        *,
        batch_bytes: int,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._consumer = consumer
        self._builder = builder
        self._slots, self._kept = _slots(keys)
        self._has_headers = HEADERS in builder.schema.names
        self._left: _Rows | None = None
        self._served_at_s = time.monotonic()

    def fetch(self, most: int, idle_s: float | None) -> Fetched | None:
        rows, self._left = self._left, None
        if rows is None:
            if time.monotonic() - self._served_at_s > _SERVE_S:
                self._serve()
            rows = self._take(most, 0 if idle_s is None else LINGER_S)
        if rows is None:
            self._serve()
            rows = None if idle_s is None else self._take(1, idle_s)
        if rows is None:
            return None
        try:
            count = rows.fitting(self._batch_bytes)
            found = _NativeFetched(self._consumer, rows.at(slice(count)), self._builder)
            self._left = rows.at(slice(count, None)) if count < len(rows) else None
        except BaseException:
            self._consumer.give_back(rows.messages)
            raise
        return found

    def forget(self, slot: int) -> None:
        """See `Fetcher`. librdkafka cannot leave out messages that were taken from its queue."""
        left = self._left
        if left is not None:
            of_slot = left.slots == slot
            self._consumer.give_back(left.messages[of_slot])
            self._left = None if of_slot.all() else left.at(~of_slot)

    def close(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            self._consumer.give_back(left.messages)

    def _serve(self) -> None:
        self._served_at_s = time.monotonic()
        self._consumer.serve(0)

    def _take(self, most: int, timeout_s: float) -> _Rows | None:
        messages = self._consumer.take(most, timeout_s)
        if not len(messages):
            return None
        try:
            rows = _Rows.room_for(messages, headers=self._has_headers)
            pointers = rows.pointers()
        except BaseException:
            self._consumer.give_back(messages)
            raise
        self._consumer.library.call.sluice_describe(
            messages.ctypes.data,
            len(messages),
            ctypes.byref(self._slots),
            ctypes.byref(pointers),
        )
        return rows


def _slots(keys: Sequence[PartitionKey]) -> tuple[_Slots, tuple[object, ...]]:
    """Return the table that finds a message's slot, and the objects that must live as long."""
    by_topic = slot_names(keys)
    sizes = np.array([1 + max(p for p, _ in found) for found in by_topic.values()], np.int32)
    bases = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int32)
    slot_of = np.full(int(sizes.sum()), -1, np.int32)
    for base, found in zip(bases, by_topic.values(), strict=True):
        for partition, slot in found:
            slot_of[base + partition] = slot
    names = (ctypes.c_char_p * len(by_topic))(*(topic.encode() for topic in by_topic))
    table = _Slots(
        len(by_topic),
        ctypes.cast(names, ctypes.POINTER(ctypes.c_char_p)),
        bases.ctypes.data,
        sizes.ctypes.data,
        slot_of.ctypes.data,
    )
    return table, (names, bases, sizes, slot_of)


class _NativeFetched:
    """Implements `sluice.connectors.kafka.source.reader.fetching.Fetched`."""

    def __init__(self, consumer: NativeConsumer, rows: _Rows, builder: ColumnBuilder) -> None:
        self._consumer = consumer
        self._builder = builder
        self._all = rows.messages
        failed = rows.errors != 0
        self.events: Sequence[Event] = ()
        if failed.any():
            self.events = self._events(rows.at(failed))
        # A message without a range is left from an earlier assignment.
        others = failed | (rows.slots < 0)
        if others.any():
            rows = rows.at(~others)
        self._rows = rows
        self.slots: IntArray = rows.slots.astype(np.int64)
        self.offsets = rows.offsets

    def batch(self, wanted: BoolArray | None) -> pa.RecordBatch:
        rows = self._kept(wanted)
        content: dict[str, pa.Array] = {}
        names = self._builder.schema.names
        if "key" in names:
            content["key"] = self._bytes(rows.messages, rows.key_lengths, is_key=True)
        if "value" in names:
            content["value"] = self._bytes(rows.messages, rows.value_lengths, is_key=False)
        if {"timestamp", "timestampType"} & set(names):
            content |= times_of(rows.timestamp_types, rows.timestamps_ms)
        if rows.headers is not None:
            content[HEADERS] = self._headers(rows, rows.headers)
        return self._builder.assemble(content, rows.slots.astype(np.int64), rows.offsets)

    def timestamps_ms(self, wanted: BoolArray | None) -> IntArray:
        rows = self._kept(wanted)
        found: IntArray = np.where(rows.timestamp_types == 0, -1, rows.timestamps_ms)
        return found

    def leader_epoch(self, row: int) -> int | None:
        message = int(self._rows.messages[row])
        found: int = self._consumer.library.kafka.rd_kafka_message_leader_epoch(message)
        return None if found < 0 else found

    def close(self) -> None:
        messages, self._all = self._all, self._all[:0]
        self._consumer.give_back(messages)

    def _kept(self, wanted: BoolArray | None) -> _Rows:
        return self._rows if wanted is None else self._rows.at(wanted)

    def _events(self, rows: _Rows) -> list[Event]:
        texts = (self._consumer.library.call.sluice_errstr(int(each)) for each in rows.messages)
        return [
            Event(
                KafkaError(code, (text or b"").decode(errors="replace")),
                None if slot < 0 else slot,
                max(0, offset),
            )
            for code, text, slot, offset in zip(
                rows.errors.tolist(),
                texts,
                rows.slots.tolist(),
                rows.offsets.tolist(),
                strict=True,
            )
        ]

    def _bytes(self, messages: Addresses, lengths: IntArray, *, is_key: bool) -> pa.Array:
        count = len(messages)
        nulls = int(np.count_nonzero(lengths < 0))
        offsets = pa.allocate_buffer(4 * (count + 1))
        data = pa.allocate_buffer(int(np.maximum(lengths, 0).sum()))
        validity = _zeroed(count) if nulls else None
        self._consumer.library.call.sluice_copy(
            messages.ctypes.data,
            count,
            int(is_key),
            offsets.address,
            None if validity is None else validity.ctypes.data,
            data.address,
        )
        buffers = [None if validity is None else pa.py_buffer(validity), offsets, data]
        return pa.Array.from_buffers(pa.binary(), count, buffers, nulls)

    def _headers(self, rows: _Rows, sizes: IntArray) -> pa.Array:
        self._refuse_unread(sizes[:, 0] < 0, rows)
        count, (entries, name_bytes, value_bytes) = len(rows), sizes.sum(axis=0).tolist()
        if not entries:
            return headers_of(count, None)
        bounds, name_bounds, value_bounds = (
            np.empty(each + 1, np.int32) for each in (count, entries, entries)
        )
        names, values = np.empty(name_bytes, np.uint8), np.empty(value_bytes, np.uint8)
        list_validity, value_validity = _zeroed(count), _zeroed(entries)
        target = _HeaderPointers(
            *(
                each.ctypes.data
                for each in (
                    bounds,
                    list_validity,
                    name_bounds,
                    names,
                    value_bounds,
                    value_validity,
                    values,
                )
            )
        )
        is_ascii = self._consumer.library.call.sluice_copy_headers(
            rows.messages.ctypes.data, count, ctypes.byref(target)
        )
        name_column = pa.Array.from_buffers(
            pa.string(), entries, [None, pa.py_buffer(name_bounds), pa.py_buffer(names)]
        )
        if not is_ascii:
            self._refuse_other_text(name_column, bounds, rows)
        value_column = pa.Array.from_buffers(
            pa.binary(),
            entries,
            [pa.py_buffer(each) for each in (value_validity, value_bounds, values)],
        )
        return headers_of(count, (bounds, list_validity, name_column, value_column))

    def _refuse_unread(self, unread: BoolArray, rows: _Rows) -> None:
        if unread.any():
            raise ConfigError(
                "a record has headers that librdkafka does not read",
                self._place(rows, int(unread.argmax())),
                "Read without headers: there are more than 100,000, or they are damaged.",
            )

    def _refuse_other_text(self, names: pa.Array, bounds: Int32Array, rows: _Rows) -> None:
        try:
            names.validate(full=True)
        except pa.ArrowInvalid as err:
            bad = next(entry for entry, name in enumerate(names) if not _is_text(name))
            row = int(np.searchsorted(bounds, bad, side="right")) - 1
            raise ConfigError(
                "a record has a header whose name is not UTF-8",
                self._place(rows, row),
                "Read without headers: a column of strings cannot hold this name.",
            ) from err

    def _place(self, rows: _Rows, row: int) -> dict[str, object]:
        topic, partition = self._builder.key_at(int(rows.slots[row]))
        return {"topic": topic, "partition": partition, "offset": int(rows.offsets[row])}


def _zeroed(bits: int) -> npt.NDArray[np.uint8]:
    return np.zeros((bits + 7) // 8, np.uint8)


def _is_text(name: pa.StringScalar) -> bool:
    try:
        name.as_buffer().to_pybytes().decode()
    except UnicodeDecodeError:
        return False
    return True
