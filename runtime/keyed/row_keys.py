"""The keys of rows, as ``key_by`` says."""

from dataclasses import dataclass

import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyBy
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.key_encoding import encode, key_schema
from sluice.runtime.keyed.missing_columns import require_columns

__all__ = ["RowKeys"]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Finds and encodes the keys of rows. Picklable as far as the user's function is.

    Attributes:
        key_by: how rows get their key.
        name: of the operator, for messages.
    """

    key_by: KeyBy
    name: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.LargeBinaryArray, pa.Schema]:
        """The encoded key of each row, and the schema of the keys.

        Raises:
            ConfigError: a column is missing, a type cannot be a key, or the function returns
                something else than one key for each row.
        """
        keys = self._column(batch)
        return encode(keys), key_schema(keys, self.key_by.columns)

    def _column(self, batch: pa.RecordBatch) -> pa.Array:
        columns = self.key_by.columns
        if self.key_by.function is not None:
            keys = self.key_by.function(batch)
        else:
            found = require_columns(batch, columns, what="key_by").columns
            if len(found) == 1:
                return found[0]
            keys = pa.StructArray.from_arrays(found, names=list(columns))
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if not isinstance(keys, pa.Array) or len(keys) != batch.num_rows:
            raise ConfigError(
                "a function of key_by did not return one key for each row",
                {"function": self.name, "returned": type(keys).__name__, "rows": batch.num_rows},
                "Return a pyarrow.Array with as many values as the batch has rows.",
            )
        return keys
