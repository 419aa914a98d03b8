"""Calls a function with the rows of one key, its state and its timers."""

from __future__ import annotations

import heapq
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    Due,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.declarations import State
from sluice.runtime.keyed.key_encoding import decode
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.operator_memory import MEMORY_TABLE, OperatorMemory, present
from sluice.runtime.keyed.operators.state_handles import HandleSet, specs_of

__all__ = ["Process", "ProcessFunction", "TimerFunction", "Timers"]

ProcessFunction = Callable[[Any, pa.RecordBatch, Any, "Timers"], Any]
"""(key, rows, state, timers) -> rows of the output."""
TimerFunction = Callable[[Any, int, Any, "Timers"], Any]
"""(key, time_ms, state, timers) -> rows of the output."""

_EVENT, _TIME = "event timers", "timers"
_TIMERS = tuple(TableSpec(name=name, kind="timers", is_timed=True) for name in (_EVENT, _TIME))
_FOREVER = (1 << 62) - 1
_MOST_FIRED = 100_000  # in one chunk of calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A `KeyedFunction`; see `sluice.runtime.job.stream.KeyedStream.process`."""

    function: ProcessFunction
    output: pa.Schema
    states: Mapping[str, State]
    on_timer: TimerFunction | None = None

    def __post_init__(self) -> None:
        _require_call(self.function, "function(key, rows, state, timers)")
        if self.on_timer is not None:
            _require_call(self.on_timer, "on_timer(key, time_ms, state, timers)")
        if not isinstance(self.output, pa.Schema):
            raise ConfigError(
                "the output of process is no schema",
                {"output": self.output},
                "Set output=pa.schema([(name, type), …]).",
            )

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`."""
        declared = [spec for name, state in self.states.items() for spec in specs_of(name, state)]
        return *declared, *_TIMERS, MEMORY_TABLE

    @property
    def late_topic(self) -> str | None:
        """See `KeyedFunction`."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        return _Operator(self, scope)


def _require_call(function: object, call: str) -> None:
    """A call with other parameters would fail in each attempt of the task."""
    if not callable(function):
        can_call = False
    else:
        try:
            inspect.signature(function).bind(*call.split(","))
            can_call = True
        except TypeError:
            can_call = False
        except ValueError:  # a function of C may have no signature
            can_call = True
    if not can_call:
        raise ConfigError(
            "a function of process cannot be called with its four arguments",
            {"function": getattr(function, "__name__", repr(function)), "call": call},
            "Give the function these four parameters.",
        )


class Timers:
    """The timers of the current key, and the time.

    Attributes:
        watermark_ms: of the last barrier before these rows. None: there was none, or no source has
            event time.
        now_ms: processing time of these rows: that of their barrier if they have waited for it.
    """

    def __init__(self, scope: OperatorScope, *, can_fire: bool) -> None:
        self._tables = {
            name: scope.tables.timed_table(scope.numbers[name]) for name in (_EVENT, _TIME)
        }
        self._can_fire = can_fire
        self._changes: dict[str, dict[tuple[int, bytes], bytes | None]] = {}
        self.key = b""
        self.watermark_ms: int | None = None
        self.now_ms = 0
        self._firing: _Firing | None = None
        self.rollback()

    def at_event_time(self, ms: int) -> None:
        """Call ``on_timer`` once a barrier's watermark is at ``ms`` (since 1970) or later.

        A timer that is set twice fires once.
        """
        self._set(_EVENT, ms, b"")

    def at_time(self, ms: int) -> None:
        """The same, by the processing time of barriers."""
        self._set(_TIME, ms, b"")

    def delete_event_time(self, ms: int) -> None:
        """Delete a timer of `at_event_time`, if there is one."""
        self._set(_EVENT, ms, None)

    def delete_time(self, ms: int) -> None:
        """Delete a timer of `at_time`, if there is one."""
        self._set(_TIME, ms, None)

    def _set(self, kind: str, ms: int, value: bytes | None) -> None:
        if not self._can_fire:
            raise ConfigError(
                "a function of process sets a timer, and there is no function for it",
                {"time_ms": ms},
                "Give on_timer to process(…).",
            )
        try:
            at = operator.index(ms)
        except TypeError:
            at = None
        if at is None or not -_FOREVER <= at <= _FOREVER:
            raise ConfigError(
                "a timer has no time in whole milliseconds",
                {"time_ms": repr(ms)},
                "Give milliseconds since 1970 as an int.",
            )
        self._changes[kind][at, self.key] = value
        if self._firing is not None and value is not None:
            self._firing.add(kind, at, self.key)

    def firing(
        self, kind: str, due: list[tuple[int, bytes]], until_ms: int | None
    ) -> Iterator[tuple[int, bytes]]:
        """The timers that fire, in order: those that are due, without those that a call before has
        deleted, and those up to ``until_ms`` that calls set meanwhile."""
        firing = self._firing = _Firing(kind, until_ms, due)
        changes = self._changes[kind]
        for timer in firing:
            if changes.pop(timer, b"") is not None:
                yield timer
        self._firing = None
        for timer in firing.left:
            changes.setdefault(timer, b"")

    def due(self, kind: str, split: int, until_ms: int) -> list[tuple[int, bytes]]:
        """The first timers up to a time, in order. They are removed."""
        found: list[tuple[int, bytes]] = []
        for ms, entries in self._tables[kind].due(split, until_ms):
            found += [(ms, key) for key, _ in entries]
            if len(found) >= _MOST_FIRED:
                break
        times, keys = [ms for ms, _ in found], [key for _, key in found]
        self._tables[kind].put(split, times, keys, [None] * len(found))
        return found

    def end_chunk(self, split: int) -> None:
        """Write the changes."""
        for kind, changes in self._changes.items():
            if changes:
                times, keys = [ms for ms, _ in changes], [key for _, key in changes]
                self._tables[kind].put(split, times, keys, list(changes.values()))
        self.rollback()

    def rollback(self) -> None:
        """Forget the changes."""
        self._changes = {_EVENT: {}, _TIME: {}}
        self._firing = None

    def earliest_ms(self, kind: str, splits: Sequence[int]) -> int | None:
        """The time of the first timer."""
        times = (self._tables[kind].earliest_ms(split) for split in splits)
        return min((ms for ms in times if ms is not None), default=None)


class _Firing:
    """The timers of a chunk in order, also those that are set meanwhile.

    Attributes:
        left: timers that do not fire in this chunk, because there are too many.
    """

    def __init__(self, kind: str, until_ms: int | None, due: list[tuple[int, bytes]]) -> None:
        self._kind, self._until_ms = kind, until_ms
        self.left = list(due)
        heapq.heapify(self.left)
        self._known = set(due)
        self._most = max(len(due), _MOST_FIRED)

    def add(self, kind: str, ms: int, key: bytes) -> None:
        """A timer was set, perhaps once more."""
        is_due = kind == self._kind and self._until_ms is not None and ms <= self._until_ms
        if is_due and (ms, key) not in self._known:
            self._known.add((ms, key))
            heapq.heappush(self.left, (ms, key))

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for _ in range(self._most):
            if not self.left:
                return
            timer = heapq.heappop(self.left)
            self._known.discard(timer)
            yield timer


class _Operator:
    """Executor, the task's thread."""

    def __init__(self, function: Process, scope: OperatorScope) -> None:
        self._function = function
        self._tables = scope.tables
        self._states = HandleSet(function.states, scope)
        self._handles = [getattr(self._states, name) for name in function.states]
        self._timers = Timers(scope, can_fire=function.on_timer is not None)
        self._memory = OperatorMemory(scope)
        self._buffer = RowBuffer(None)
        self._now_ms = scope.now_ms
        self._latest_ms = 0  # of the epoch's calls

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        if not self._buffer.add(rows):
            yield from self._call_waiting(self._clock_ms())
            self._buffer.add(rows)
        if self._buffer.rows >= RowBuffer.LARGEST:
            yield from self._call_waiting(self._clock_ms())

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        now_ms, self._latest_ms = max(time.now_ms, self._latest_ms), 0
        yield from self._call_waiting(now_ms)
        now = _FOREVER if time.is_end else time.watermark_ms
        for split in self._tables.splits():
            self._timers.watermark_ms, self._timers.now_ms = time.watermark_ms, now_ms
            if now is not None:
                yield from self._fire(_EVENT, split, now, once=time.is_end)
            yield from self._fire(_TIME, split, time.now_ms, once=time.is_end)
        for handle in self._handles:
            handle.at_barrier(time, self._tables.splits())
        self._memory.end_epoch(time, with_now=True)

    def rollback(self) -> None:
        self._buffer.clear()
        self._latest_ms = 0
        self._timers.rollback()
        self._memory.rollback()
        for handle in self._handles:
            handle.rollback()

    def due(self) -> Due:
        splits = self._tables.splits()
        found = [handle.due(splits) for handle in self._handles]
        if self._function.on_timer is not None:  # else timers of an earlier program do not fire
            event_ms = self._timers.earliest_ms(_EVENT, splits)
            time_ms = self._timers.earliest_ms(_TIME, splits)
            found.append(Due(event_ms=event_ms, time_ms=time_ms))
        return Due.first(found)

    def _clock_ms(self) -> int:
        """Processing time of calls before the barrier."""
        self._latest_ms = max(self._latest_ms, self._now_ms())
        return self._latest_ms

    def _call_waiting(self, now_ms: int) -> Iterator[KeyedRows]:
        rows = self._buffer.take()
        if rows is None or not rows.batch.num_rows:
            return
        self._memory.keep_schemas(present(rows.splits), rows.key_schema)
        encoded = rows.keys.dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        objects = _objects(encoded.dictionary, rows.key_schema)
        names = encoded.dictionary.to_pylist()
        order = np.lexsort((codes, rows.splits))
        batch, codes, splits = rows.batch.take(pa.array(order)), codes[order], rows.splits[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (codes[1:] != codes[:-1]) | (splits[1:] != splits[:-1])
        first = np.flatnonzero(is_first)
        lengths = np.diff(np.append(first, len(order)))
        for split in present(splits):
            mine = np.flatnonzero(splits[first] == split)
            groups = codes[first[mine]].tolist()
            calls = zip(groups, first[mine].tolist(), lengths[mine].tolist(), strict=True)
            self._timers.watermark_ms = self._memory.watermark_ms(split)
            last_ms = self._memory.now_ms(split)
            self._timers.now_ms = now_ms if last_ms is None else max(now_ms, last_ms)
            yield from self._chunk(
                split,
                [names[code] for code in groups],
                rows.key_schema,
                ((objects[code], batch.slice(start, length)) for code, start, length in calls),
                self._function.function,
            )

    def _chunk(
        self,
        split: int,
        keys: list[bytes],
        key_schema: pa.Schema,
        calls: Iterator[tuple[Any, Any]],
        function: Callable[[Any, Any, Any, Timers], Any],
    ) -> Iterator[KeyedRows]:
        """Call a function for each key, in order; each key once."""
        for handle in self._handles:
            handle.begin_chunk(split, keys, self._timers.now_ms)
        made = _Made(self._function.output)
        state, timers, handles = self._states, self._timers, self._handles
        for at, (key, given) in enumerate(calls):
            timers.key = keys[at]
            for handle in handles:
                handle.at = at
            made.add(at, function(key, given, state, timers))
        timers.end_chunk(split)
        yield from self._end_chunk(split, keys, key_schema, made)

    def _end_chunk(
        self, split: int, keys: Sequence[bytes], key_schema: pa.Schema, made: _Made
    ) -> Iterator[KeyedRows]:
        for handle in self._handles:
            handle.end_chunk()
        batch, owners = made.batch()
        if batch.num_rows:
            yield KeyedRows(
                batch=batch,
                splits=np.full(batch.num_rows, split, np.int16),
                keys=pa.array(keys, pa.large_binary()).take(pa.array(owners)),
                key_schema=key_schema,
            )

    def _fire(self, kind: str, split: int, until_ms: int, *, once: bool) -> Iterator[KeyedRows]:
        """Call ``on_timer`` for all timers up to a time, in order.

        Args:
            once: leave those that are set meanwhile. Else they fire in their order.
        """
        on_timer = self._function.on_timer
        if on_timer is None:
            return
        while due := self._timers.due(kind, split, until_ms):
            keys = list(dict.fromkeys(key for _, key in due))
            (key_schema,) = self._memory.schemas() or (pa.schema([]),)
            objects = _objects(pa.array(keys, pa.large_binary()), key_schema)
            places = {key: at for at, key in enumerate(keys)}
            for handle in self._handles:
                handle.begin_chunk(split, keys, self._timers.now_ms)
            made = _Made(self._function.output)
            is_all = len(due) < _MOST_FIRED
            until = None if once else until_ms if is_all else due[-1][0]
            for ms, key in self._timers.firing(kind, due, until):
                at = places[key]
                self._timers.key = key
                for handle in self._handles:
                    handle.at = at
                made.add(at, on_timer(objects[at], ms, self._states, self._timers))
            if not once:
                self._timers.end_chunk(split)
            yield from self._end_chunk(split, keys, key_schema, made)
        # At the end of the input, later chunks have to see which of their timers these deleted or
        # set again, and must not find those that were set meanwhile.
        self._timers.end_chunk(split)


class _Made:
    """The rows that a function has returned in a chunk of calls, in order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[Mapping[str, object]] = []
        self._owners: list[int] = []

    def add(self, owner: int, returned: object) -> None:
        """Add what a call for the key of this place has returned.

        Raises:
            ConfigError: it is no rows of the declared schema.
        """
        if returned is None:
            return
        if isinstance(returned, dict):
            self._rows.append(returned)
            self._owners.append(owner)
        elif isinstance(returned, list):
            self._rows += returned
            self._owners += [owner] * len(returned)
        elif isinstance(returned, pa.RecordBatch | pa.Table):
            self._flush()
            if not returned.schema.equals(self._schema):
                raise _not_output(self._schema, returned.schema)
            is_batch = isinstance(returned, pa.RecordBatch)
            self._batches += [returned] if is_batch else returned.to_batches()
            self._owners += [owner] * returned.num_rows
        else:
            raise _not_output(self._schema, type(returned).__name__)

    def batch(self) -> tuple[pa.RecordBatch, list[int]]:
        """All rows, and the place of the key of each."""
        self._flush()
        if not self._batches:
            return pa.RecordBatch.from_pylist([], schema=self._schema), []
        return pa.concat_batches(self._batches), self._owners

    def _flush(self) -> None:
        if self._rows:
            try:
                unknown = set[object]().union(*self._rows).difference(self._schema.names)
                if unknown:  # Arrow would leave them out
                    raise ValueError(f"unknown columns: {sorted(map(str, unknown))}")
                made = pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
            except (pa.ArrowException, TypeError, ValueError, AttributeError) as err:
                raise _not_output(self._schema, err) from err
            self._batches.append(made)
            self._rows = []


def _objects(keys: pa.LargeBinaryArray, schema: pa.Schema) -> list[Any]:
    """Keys as Python values; a tuple if there are several columns."""
    columns = [column.to_pylist() for column in decode(keys, schema)]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _not_output(schema: pa.Schema, returned: object) -> ConfigError:
    shown = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return ConfigError(
        "a function of process returned no rows of its output",
        {"output": shown, "returned": str(returned).replace("\n", ", ")},
        "Return a RecordBatch or Table of this schema, a dict, a list of dicts, or None.",
    )
