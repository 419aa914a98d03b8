"""Deserializers in a pipeline: a function that replaces a column of bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index

__all__ = [
    "DeserializedColumn",
    "Deserializer",
    "HeaderDeserializer",
    "last_headers",
    "require_deserializable",
]

_HEADERS = "headers"


class Deserializer(Protocol):
    """Turns the bytes of records into values. Picklable; executor, called by one thread.

    Deterministic and row by row. `docs/guide/functions.md` describes records that it fails for.
    """

    @property
    def type(self) -> pa.DataType:
        """Type of the values."""
        ...

    def deserialize(self, column: pa.Array) -> pa.Array:
        """The values of a column of bytes; as long as it, null where it is null.

        Raises:
            Exception: a record cannot be read; further calls with parts find which one.
        """
        ...


class HeaderDeserializer(Deserializer, Protocol):
    """A deserializer of records whose schema id may be in a header, as Confluent's writers put it:
    ``__key_schema_id``, ``__value_schema_id``."""

    @property
    def needs_headers(self) -> bool:
        """Whether the source must read the headers."""
        ...

    def deserialize(self, column: pa.Array, schema_ids: pa.Array | None = None) -> pa.Array:
        """See `Deserializer.deserialize`.

        Args:
            schema_ids: the header of each record, null where it has none.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeserializedColumn:
    """A function of `map_batches` that replaces one column by its values.

    Attributes:
        column: ``key`` or ``value``.
        deserializer: of its bytes.
    """

    is_row_wise: ClassVar[bool] = True  # so a task may look for the record that it fails for

    column: str
    deserializer: Deserializer

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with values instead of the bytes."""
        at = column_index(batch.schema, self.column)
        assert at is not None  # `require_deserializable` has checked it
        made, column = self.deserializer, batch.column(at)
        if _needs_headers(made):
            name = f"__{self.column}_schema_id"
            values = made.deserialize(column, last_headers(batch.column(_HEADERS), name))
        else:
            values = made.deserialize(column)
        return batch.set_column(at, pa.field(self.column, self.deserializer.type), values)


def _needs_headers(made: Deserializer | None) -> TypeGuard[HeaderDeserializer]:
    """Does not read `Deserializer.type`, as ``isinstance`` would: a user's may ask a server."""
    return bool(getattr(made, "needs_headers", False))


def last_headers(headers: pa.Array, name: str) -> pa.Array | None:
    """The last header of this name of each record, null where it has none; None: no record has."""
    names, values = headers.flatten().flatten()
    found = np.flatnonzero(pc.fill_null(pc.equal(names, name), False))
    if not len(found):
        return None
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    owners = np.repeat(np.arange(len(headers)), counts)
    places = np.full(len(headers), -1)
    places[owners[found]] = found  # the last one of a record counts
    return values.take(pa.array(places, mask=places < 0))


def require_deserializable(
    deserializers: Mapping[str, Deserializer | None], columns: tuple[str, ...]
) -> None:
    """Check that deserialized columns are read, and the headers that deserializers need.

    Raises:
        ConfigError: one is left out.
    """
    needed = [name for name, each in deserializers.items() if each]
    if any(_needs_headers(each) for each in deserializers.values()):
        needed.append(_HEADERS)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ConfigError(
            "a deserializer needs a column that its source does not read",
            {"missing": ",".join(missing), "columns": ",".join(columns)},
            "Read the column, too (headers: include_headers=True), or leave the deserializer out.",
        )
