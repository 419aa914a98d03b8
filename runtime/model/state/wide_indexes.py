"""Columns with dictionaries of which batches can be put together. Pure.

A column of at most 127 different values in each batch may have indexes of 8 bits, as a categorical
of pandas has. Several batches together may have more values than that.
"""

import pyarrow as pa

__all__ = ["with_wide_indexes", "with_wide_types"]


def with_wide_indexes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, with indexes of 32 bits at least."""
    for at, (field, wide) in enumerate(
        zip(batch.schema, with_wide_types(batch.schema), strict=True)
    ):
        if wide.type != field.type:
            batch = batch.set_column(at, wide, batch.column(at).cast(wide.type))
    return batch


def with_wide_types(schema: pa.Schema) -> pa.Schema:
    """The schema of a batch after `with_wide_indexes`."""
    fields = [field.with_type(_wide(field.type)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _wide(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_dictionary(kind) or kind.index_type.bit_width >= 32:
        return kind
    return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
