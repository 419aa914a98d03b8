"""The states of `process` as users see them: read for a chunk of keys at once, and written back."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, cast

import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime, Due, OperatorScope, TableSpec
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.declarations import ListState, MapState, State, ValueState
from sluice.runtime.keyed.operators.operator_memory import FORGETTING_PARTS
from sluice.runtime.model.timestamps import duration_ms
from sluice.runtime.state.codec.row_codec import RowCodec
from sluice.runtime.state.codec.schema_text import Clock, schema_to_json

__all__ = ["HandleSet", "specs_of"]

_STAMP = struct.Struct(">q")  # of `sluice.runtime.state.codec.expiry`
_UNKNOWN = (1 << 63) - 1
_EARLIEST = -(1 << 62)


def specs_of(name: str, state: State) -> list[TableSpec]:
    """The tables of a declared state."""
    clock = None if state.ttl is None else cast(Clock, state.ttl_time)
    spec = TableSpec(
        name=name,
        kind=_HANDLES[type(state)].kind + ("" if clock is None else f" ttl by {clock} time"),
        value_schema=schema_to_json(_schema(state), expires_by=clock),
    )
    expiry = TableSpec(name=f"{name} expiry", kind="timers", is_timed=True)
    return [spec] if clock is None else [spec, expiry]


def _schema(state: State) -> pa.Schema:
    if isinstance(state, ValueState):
        kind = state.type
    elif isinstance(state, ListState):
        kind = pa.list_(state.type)
    else:
        kind = pa.map_(state.key_type, state.type)
    return pa.schema([("value", kind)])


class _Handle:
    """One declared state. ``at`` is the place of the current key in the chunk."""

    # Without a dict: assigning to a misspelt ``value`` fails, and is not lost without a message.
    __slots__ = (
        "_changed",
        "_codec",
        "_expiry",
        "_is_event_time",
        "_is_new",
        "_keys",
        "_name",
        "_over",
        "_schema",
        "_split",
        "_table",
        "_touched",
        "_ttl_ms",
        "_values",
        "at",
    )
    kind = ""

    def __init__(self, name: str, state: State, scope: OperatorScope) -> None:
        self._name = name
        self._schema = _schema(state)
        self._codec = RowCodec(self._schema)
        self._table = scope.tables.table(scope.numbers[name])
        self._ttl_ms = None if state.ttl is None else duration_ms(state.ttl, setting="ttl")
        self._is_event_time = state.ttl_time == "event"
        if self._ttl_ms is not None:
            self._expiry = scope.tables.timed_table(scope.numbers[f"{name} expiry"])
        self._touched: dict[int, dict[bytes, bool]] = {}  # of the epoch; whether the key is new
        self._begin(0, ())

    def _begin(self, split: int, keys: Sequence[bytes]) -> None:
        self._split, self._keys = split, keys
        self._over: bytes | None = None
        self._values: list[Any] | None = None
        self._changed: set[int] = set()
        self.at = 0

    def clear(self) -> None:
        """Remove the state of this key."""
        self._set(None)

    def _get(self) -> Any:  # noqa: ANN401 - of the declared type
        values = self._values if self._values is not None else self._load()
        return values[self.at]

    def _set(self, value: object) -> None:
        values = self._values if self._values is not None else self._load()
        values[self.at] = value
        self._changed.add(self.at)

    def _load(self) -> list[Any]:
        stored = self._table.get(self._split, self._keys)
        self._is_new = [value is None for value in stored]
        over = self._over
        if over is not None:
            gone = [at for at, value in enumerate(stored) if value is not None and value < over]
            stored = [None if value is None or value < over else value for value in stored]
            self._changed.update(gone)  # they stay removed, whatever the barrier's time is
        has = [at for at, value in enumerate(stored) if value is not None]
        self._values = [None] * len(stored)
        if has:
            skip = 0 if self._ttl_ms is None else _STAMP.size
            rows = self._codec.decode([value[skip:] for value in stored if value is not None])
            for at, value in zip(has, rows.column(0).to_pylist(), strict=True):
                self._values[at] = value
        return self._values

    def begin_chunk(self, split: int, keys: Sequence[bytes], now_ms: int) -> None:
        """Calls for these keys of a split follow.

        Args:
            now_ms: processing time: values that have expired by then are gone, also if no barrier
                has removed them. In event time, the last barrier has.
        """
        self._begin(split, keys)
        if self._ttl_ms is not None and not self._is_event_time:
            self._over = _STAMP.pack(now_ms + 1)  # a value with an earlier stamp is less

    def due(self, splits: Sequence[int]) -> Due:
        """When a barrier has to remove the first value."""
        if self._ttl_ms is None:
            return Due()
        times = (self._expiry.earliest_ms(split) for split in splits)
        first = min((ms for ms in times if ms is not None), default=None)
        if first is None or self._is_event_time:
            return Due(expiry_ms=first)
        return Due(time_ms=first + self._ttl_ms // FORGETTING_PARTS)

    def end_chunk(self) -> None:
        """Write the changes.

        Raises:
            ConfigError: a value has another type than the declared one.
        """
        if not self._changed or self._values is None:
            return
        places = sorted(self._changed)
        keys = [self._keys[at] for at in places]
        kept = [self._stored_form(self._values[at]) for at in places]
        try:
            values = pa.array([value for value in kept if value is not None], self._schema.types[0])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as err:
            raise _wrong_type(self._name, self._schema.types[0], err) from err
        encoded = iter(
            self._codec.encode(pa.RecordBatch.from_arrays([values], schema=self._schema))
        )
        if self._ttl_ms is not None:
            head = _STAMP.pack(_UNKNOWN)
            encoded = (head + value for value in encoded)
            touched = self._touched.setdefault(self._split, {})
            for at, key in zip(places, keys, strict=True):
                touched[key] = touched.get(key, False) or self._is_new[at]
        self._table.put(
            self._split, keys, [None if value is None else next(encoded) for value in kept]
        )

    def _stored_form(self, value: Any) -> Any:  # noqa: ANN401 - of the declared type
        """The value as Arrow takes it; None: there is nothing to store."""
        return value

    def rollback(self) -> None:
        """The epoch under way is read again."""
        self._touched = {}
        self._begin(0, ())

    def at_barrier(self, time: BarrierTime, splits: Sequence[int]) -> None:
        """Give changed values their time of expiry, and remove values that have expired."""
        if self._ttl_ms is None:
            return
        now = time.watermark_ms if self._is_event_time else time.now_ms
        for split, touched in self._touched.items():
            self._stamp(split, list(touched), now)
            new = [key for key, is_new in touched.items() if is_new]
            until = _EARLIEST if now is None else now + self._ttl_ms
            self._expiry.put(split, [until] * len(new), new, [b""] * len(new))
        self._touched = {}
        for split in splits if now is not None else ():
            for until, entries in list(self._expiry.due(split, now or 0)):
                self._expire(split, until, [key for key, _ in entries], now or 0)

    def _stamp(self, split: int, keys: list[bytes], now: int | None) -> None:
        assert self._ttl_ms is not None
        head = _STAMP.pack(_UNKNOWN if now is None else now + self._ttl_ms)
        stored = self._table.get(split, keys)
        self._table.put(
            split, keys, [None if value is None else head + value[8:] for value in stored]
        )

    def _expire(self, split: int, until: int, keys: list[bytes], now: int) -> None:
        """The entries that were to expire at ``until``: remove them, or expire them later."""
        assert self._ttl_ms is not None
        self._expiry.put(split, [until] * len(keys), keys, [None] * len(keys))
        ends = [
            (key, _STAMP.unpack_from(value)[0])
            for key, value in zip(keys, self._table.get(split, keys), strict=True)
            if value is not None
        ]
        gone = [key for key, end in ends if end <= now]
        self._table.put(split, gone, [None] * len(gone))
        self._stamp(split, [key for key, end in ends if end == _UNKNOWN], now)
        later = [
            (now + self._ttl_ms if end == _UNKNOWN else end, k) for k, end in ends if end > now
        ]
        self._expiry.put(
            split, [end for end, _ in later], [k for _, k in later], [b""] * len(later)
        )


class ValueHandle(_Handle):
    """A `ValueState` of the current key."""

    __slots__ = ()
    kind = "value"

    @property
    def value(self) -> Any:  # noqa: ANN401 - of the declared type
        """The value; None: it is not set. Assign to set it; None removes it."""
        return self._get()

    @value.setter
    def value(self, value: object) -> None:
        self._set(value)

    def __bool__(self) -> bool:
        """Refuse it: a declared state would always be true."""
        raise ConfigError(
            "a function of process tests a state instead of its value",
            {"state": self._name},
            f"Write state.{self._name}.value; it is None until it is set.",
        )


class ListHandle(_Handle, MutableSequence[Any]):
    """A `ListState` of the current key: a list."""

    __slots__ = ()
    kind = "list"

    def _items(self, *, changes: bool = False) -> list[Any]:
        items: list[Any] = self._get()
        if items is None:
            items = []
        if changes:
            self._set(items)
        return items

    def __len__(self) -> int:
        return len(self._items())

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as a list's
        return self._items()[index]

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401 - as a list's
        self._items(changes=True)[index] = value

    def __delitem__(self, index: Any) -> None:  # noqa: ANN401 - as a list's
        del self._items(changes=True)[index]

    def insert(self, index: int, value: Any) -> None:  # noqa: ANN401 - an item
        """See `list.insert`."""
        self._items(changes=True).insert(index, value)

    def _stored_form(self, value: Any) -> Any:  # noqa: ANN401 - a list
        return value or None


class MapHandle(_Handle, MutableMapping[Any, Any]):
    """A `MapState` of the current key: a dict."""

    __slots__ = ()
    kind = "map"

    def _entries(self, *, changes: bool = False) -> dict[Any, Any]:
        entries = self._get()
        if not isinstance(entries, dict):
            assert self._values is not None
            entries = self._values[self.at] = dict(entries or ())
        if changes:
            self._changed.add(self.at)
        return entries

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - of the declared type
        return self._entries()[key]

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401 - of the declared type
        self._entries(changes=True)[key] = value

    def __delitem__(self, key: Any) -> None:  # noqa: ANN401 - of the declared type
        del self._entries(changes=True)[key]

    def clear(self) -> None:
        """Remove the map of this key."""
        self._set(None)

    def _stored_form(self, value: Any) -> Any:  # noqa: ANN401 - a dict
        return list(value.items()) if value else None


_HANDLES: Mapping[type, type[_Handle]] = {
    ValueState: ValueHandle,
    ListState: ListHandle,
    MapState: MapHandle,
}


_ASSIGNED = {
    "value": "state.{}.value = …",
    "list": "state.{0}.clear(), then state.{0}.extend(…)",
    "map": "state.{}[key] = …",
}


class HandleSet:
    """The states of a function: ``state.name`` is the handle of a declared state."""

    def __init__(self, states: Mapping[str, State], scope: OperatorScope) -> None:
        for name, state in states.items():
            self.__dict__[name] = _HANDLES[type(state)](name, state, scope)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a handle
        raise _undeclared(name, self.__dict__)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse it: the value would belong to every key, and to no checkpoint."""
        handle = self.__dict__.get(name)
        if handle is None:
            raise _undeclared(name, self.__dict__)
        if value is handle:  # of ``state.items += […]``
            return
        raise ConfigError(
            "a function of process assigns to a state instead of its value",
            {"state": name, "kind": handle.kind, "value": repr(value)[:100]},
            f"Write {_ASSIGNED[handle.kind].format(name)}.",
        )


def _undeclared(name: str, declared: Iterable[str]) -> ConfigError:
    return ConfigError(
        "a function of process uses a state that is not declared",
        {"state": name, "declared": ", ".join(declared) or "none"},
        f'Use a declared name, or add "{name}": ValueState(…) to state= of process.',
    )


def _wrong_type(name: str, kind: pa.DataType, err: Exception) -> ConfigError:
    return ConfigError(
        "a state was set to a value of another type",
        {"state": name, "type": kind, "error": err},
        "Set a value of the declared type, or declare another one.",
    )
