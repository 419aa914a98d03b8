"""Deserializers in a pipeline: a function that replaces a column of bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sluice.runtime.errors import ConfigError

__all__ = ["DeserializedColumn", "Deserializer", "require_deserializable"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeserializedColumn:
    """A function of `map_batches` that replaces one column by its values.

    Attributes:
        column: ``key`` or ``value``.
        deserializer: of its bytes.
    """

    column: str
    deserializer: Deserializer

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with values instead of the bytes."""
        at = batch.schema.get_field_index(self.column)
        values = self.deserializer.deserialize(batch.column(at))
        return batch.set_column(at, pa.field(self.column, self.deserializer.type), values)


def require_deserializable(
    deserializers: Mapping[str, Deserializer | None], columns: tuple[str, ...]
) -> None:
    """Check that deserialized columns are read.

    Raises:
        ConfigError: a column has a deserializer and is left out.
    """
    missing = [name for name, each in deserializers.items() if each and name not in columns]
    if missing:
        raise ConfigError(
            "a source deserializes a column that it does not read",
            {"missing": ",".join(missing), "columns": ",".join(columns)},
            "Read the column, too, or leave its deserializer out.",
        )
