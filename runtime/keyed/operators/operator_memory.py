"""The memory of an operator about each split, apart from its keys: types of rows, and barriers.

Types are known only once rows come, and windows close before that in a new attempt. A late row is
known by the barriers that its split has seen. So both are state, and move with the split.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime, OperatorScope, TableSpec
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.wide_indexes import with_wide_types
from sluice.runtime.model.timestamps import duration_ms
from sluice.runtime.state.codec.schema_text import schema_from_json, schema_to_json

__all__ = ["FORGETTING_PARTS", "MEMORY_TABLE", "OperatorMemory", "declared_as", "present"]

FORGETTING_PARTS = 16
"""A region without records gets a barrier once its oldest state is over, and one part more of the
time that state is kept. So it gets few barriers. Until then, what is over does not count."""

MEMORY_TABLE = TableSpec(name="memory", kind="memory")
_SCHEMAS, _TIME = b"schemas of ", b"time"
_PAIR = struct.Struct(">qq")
_NONE = -(1 << 63)


_DURATIONS = frozenset({"size", "slide", "offset", "gap"})


def declared_as(spec: TableSpec, *declared: object) -> TableSpec:
    """A state whose kind has what the function declares: a start refuses the state of another
    declaration, whose values have the same types and another meaning. Pure.

    Args:
        declared: what the values depend on: dataclasses, mappings and plain values.
    """
    return replace(spec, kind=" ".join([spec.kind, *map(_described, declared)]))


def _described(declared: object) -> str:
    if isinstance(declared, Mapping):
        return ", ".join(f"{name}={_described(each)}" for name, each in declared.items())
    if not is_dataclass(declared):
        return repr(declared)
    found = {each.name: getattr(declared, each.name) for each in fields(declared)}
    shown = {
        name: duration_ms(value, setting=name) if name in _DURATIONS else value
        for name, value in found.items()
        if value is not None
    }
    text = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    return f"{type(declared).__name__}({text})"


class OperatorMemory:
    """The memory of one operator, in `MEMORY_TABLE`. Executor, the task's thread."""

    def __init__(self, scope: OperatorScope) -> None:
        self._tables = scope.tables
        self._table = scope.tables.table(scope.numbers[MEMORY_TABLE.name])
        self._checked: dict[tuple[int, str], tuple[str, ...]] = {}
        self._times: dict[int, tuple[int | None, int | None]] = {}
        self._last: tuple[tuple[pa.Schema, ...], tuple[str, ...]] = (), ()

    def rollback(self) -> None:
        """The epoch under way is read again."""
        self._checked.clear()
        self._times.clear()

    def keep_schemas(self, splits: Iterable[int], *schemas: pa.Schema, of: str = "rows") -> None:
        """Remember the schemas of a split's rows.

        Args:
            schemas: of the key, of the rows, and of the state's values, as far as there are any.
            of: which rows, if an operator has rows of several kinds.
        Raises:
            ConfigError: a split of the task has state of rows with other schemas: the values of all
                splits are read and written together.
        """
        if schemas != self._last[0]:
            self._last = schemas, tuple(map(schema_to_json, schemas))
        texts = self._last[1]
        for split in self._tables.splits():
            known = self._known(split, of)
            if known is not None and known != texts:
                raise _other_schema(known, texts)
        for split in splits:
            if self._known(split, of) is None:
                self._table.put(split, [_SCHEMAS + of.encode()], [json.dumps(texts).encode()])
                self._checked[split, of] = texts

    def schemas(self, of: str = "rows") -> list[pa.Schema] | None:
        """The schemas of any split; None: no split has rows yet."""
        for split in self._tables.splits():
            known = self._known(split, of)
            if known is not None:
                return [schema_from_json(text) for text in known]
        return None

    def watermark_ms(self, split: int) -> int | None:
        """The watermark of the last barrier that the split has seen; None: it had none."""
        return self._time(split)[0]

    def now_ms(self, split: int) -> int | None:
        """Processing time of the last barrier that the split has seen."""
        return self._time(split)[1]

    def end_epoch(self, time: BarrierTime, *, with_now: bool = False) -> None:
        """Every split of the task has seen this barrier.

        Args:
            with_now: remember the processing time, too: it changes with each barrier.
        """
        for split in self._tables.splits():
            then = time.watermark_ms, time.now_ms if with_now else None
            if then != self._time(split):
                stored = _PAIR.pack(*(_NONE if each is None else each for each in then))
                self._table.put(split, [_TIME], [stored])
                self._times[split] = then

    def replace_flag(self, split: int, name: str, *, value: bool) -> bool:
        """Remember a flag of a split; returns whether it was another one. It begins as False."""
        key = name.encode()
        (stored,) = self._table.get(split, [key])
        if (stored is not None) == value:
            return False
        self._table.put(split, [key], [b"" if value else None])
        return True

    def _known(self, split: int, of: str) -> tuple[str, ...] | None:
        known = self._checked.get((split, of))
        if known is None:
            (stored,) = self._table.get(split, [_SCHEMAS + of.encode()])
            if stored is not None:
                known = self._checked[split, of] = tuple(map(_widened, json.loads(stored)))
        return known

    def _time(self, split: int) -> tuple[int | None, int | None]:
        known = self._times.get(split)
        if known is None:
            (stored,) = self._table.get(split, [_TIME])
            read = (_NONE, _NONE) if stored is None else _PAIR.unpack(stored)
            watermark, now = (None if each == _NONE else each for each in read)
            known = self._times[split] = watermark, now
        return known


def present(splits: npt.NDArray[np.int16]) -> list[int]:
    """The splits of some rows, in order."""
    return np.flatnonzero(np.bincount(splits)).tolist()


def _widened(text: str) -> str:
    """The schema as rows have it now: values are stored alike, whatever their indexes were."""
    if '"dictionary"' not in text:
        return text
    return schema_to_json(with_wide_types(schema_from_json(text)))


def _other_schema(known: tuple[str, ...], given: tuple[str, ...]) -> ConfigError:
    changed = [pair for pair in zip(known, given, strict=True) if pair[0] != pair[1]]
    return ConfigError(
        "rows have other types than those that the state is of",
        {"state": " ".join(a for a, _ in changed), "rows": " ".join(b for _, b in changed)},
        "Cast the columns to the earlier types, or begin without state by another uid.",
    )
