"""Batches as a Kafka source reads them."""

from collections.abc import Iterable

import pyarrow as pa

from sluice.connectors.kafka.records.columns import columns_with, schema_of

__all__ = ["FIRST_MS", "source_rows", "values_of"]

FIRST_MS = 1_700_000_000_000


def source_rows(
    *values: bytes | None, first_offset: int = 0, headers: bool = True
) -> pa.RecordBatch:
    """Records of one partition, ``orders-3``, with consecutive offsets and times."""
    names = columns_with(headers=headers)
    schema = schema_of(names)
    rows = [
        {
            "key": b"k%d" % at,
            "value": value,
            "topic": "orders",
            "partition": 3,
            "offset": first_offset + at,
            "timestamp": (FIRST_MS + at) * 1000,
            "timestampType": 0,
            "headers": [{"key": "trace", "value": b"%d" % at}],
        }
        for at, value in enumerate(values)
    ]
    columns = [pa.array([row[name] for row in rows], schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def values_of(batches: Iterable[pa.RecordBatch]) -> list[bytes | None]:
    """The column ``value`` of all of them."""
    return [value for batch in batches for value in batch.column("value").to_pylist()]
