"""Rows of a batch put together by partition, because librdkafka is twice as fast that way. Pure.

It allocates a record where it is produced and walks its partition's records when it sends and
frees them: with partitions alternating record by record every step misses the processor's cache.
Measured (90-byte values, 4 partitions): 2.2 us of processor time per record when they alternate,
1.1 us in runs of 100 or more; putting 10,000 rows together takes 0.02 us per row.
The order within a partition, the only one that Kafka has, is kept. A key has one partition: where
it is worked out here, it counts for all rows with keys, whichever way they go, for the client may
know another number of partitions by now.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors.kafka.partitioner import partitions_for_keys
from connectors.kafka.records import RecordColumns

__all__ = ["Grouped", "by_partition"]

_LONG_RUN_ROWS = 64

Grouped = tuple[pa.RecordBatch, pa.Array | None]
"""Rows, and the partition of each where the column does not say it (-1: the client chooses)."""


def by_partition(
    rows: pa.RecordBatch, columns: RecordColumns, partition_count: int | None
) -> Grouped:
    """The rows in another order, or as they are where that would win nothing or could lose order.

    Args:
        partition_count: of the sink's one topic, where keys are partitioned as Java does; None:
            leave rows without a partition of their own as they are.
    """
    partitions = _partitions(rows, columns, partition_count)
    if partitions is None:
        return rows, None
    known = pa.array(partitions)
    if not _alternates(partitions) or partitions.min() < 0:
        return rows, known
    order = pc.array_sort_indices(known)  # stable
    try:
        return rows.take(order), known.take(order)
    except pa.ArrowNotImplementedError:
        return rows, known  # a column of a type that Arrow cannot reorder, such as a view


def _partitions(
    rows: pa.RecordBatch, columns: RecordColumns, partition_count: int | None
) -> npt.NDArray[np.int32] | None:
    """Each row's partition, -1 where the client must choose; None: the column is to be read."""
    chosen = None
    if columns.partition is not None and rows.column(columns.partition).type != pa.null():
        chosen = rows.column(columns.partition)
        try:
            chosen = chosen.cast(pa.int32())
        except pa.ArrowInvalid:
            return None  # no partition has such a number, which `RecordColumns` says by its row
        if chosen.null_count == 0:
            explicit: npt.NDArray[np.int32] = chosen.to_numpy()
            return explicit
    if partition_count is None or columns.key is None:
        return None
    by_key = partitions_for_keys(_large_binary(rows.column(columns.key)), partition_count)
    if chosen is None or chosen.null_count == len(chosen):
        return by_key
    return np.where(
        chosen.is_null().to_numpy(zero_copy_only=False),
        by_key,
        chosen.fill_null(-1).to_numpy(zero_copy_only=False),
    )


def _alternates(partitions: npt.NDArray[np.int32]) -> bool:
    runs = int(np.count_nonzero(partitions[1:] != partitions[:-1])) + 1
    return runs > 1 and len(partitions) < runs * _LONG_RUN_ROWS


def _large_binary(keys: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    return keys.cast(pa.large_binary())
