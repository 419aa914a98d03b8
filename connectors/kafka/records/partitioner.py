"""Java's default partitioning of keyed records, so that Sluice and Java producers agree.

librdkafka's ``partitioner=murmur2_random`` hashes every key that is not null, an empty one too,
exactly as Java's producer does; null keys stick to one partition for a while. The functions here
give the same partitions, one by one for user code, and for whole columns.

`by_partition` groups the rows of a batch by partition: librdkafka is twice as fast then. It
allocates a record when it is produced, and walks its partition's records when it sends and frees
them. If the partitions alternate, every step misses the processor's cache. Measured with 90-byte
values and 4 partitions: 2.2 us of processor time per record if they alternate, 1.1 us in runs of
100 or more. Grouping 10,000 rows takes 0.02 us per row. The order within a partition is kept. If
this module computes partitions of keys, it does so for all rows with keys: the client may know
another number of partitions.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.key_groups import murmur2, murmur2_of_column

__all__ = [
    "LIBRDKAFKA_PARTITIONER",
    "Grouped",
    "by_partition",
    "partition_for_key",
    "partitions_for_keys",
]

LIBRDKAFKA_PARTITIONER = "murmur2_random"
"""Value of librdkafka's ``partitioner`` that agrees with Java's default."""

Int32Array = npt.NDArray[np.int32]


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a keyed record when it names none.

    Args:
        key: not null; may be empty.
        partitions: of the topic; >= 1.
    Source: ``BuiltInPartitioner.partitionForKey``.
    """
    if partitions < 1:
        raise ConfigError(
            "a topic has at least one partition",
            {"partitions": partitions},
            "Pass the topic's number of partitions.",
        )
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_for_keys(keys: pa.Array, partitions: int) -> Int32Array:
    """`partition_for_key` of each key of a column; -1 for null keys.

    Args:
        keys: of type large_binary, any slice of one.
    Returns:
        Shape (n,), int32. Measured: 25 ns per key of 10 bytes.
    """
    hashes = murmur2_of_column(keys)
    chosen = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        chosen[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return chosen


_LONG_RUN_ROWS = 64

Grouped = tuple[pa.RecordBatch, pa.Array | None]
"""Rows, and the partition of each if the column does not have it (-1: the client chooses)."""


def by_partition(
    rows: pa.RecordBatch, columns: RecordColumns, partition_count: int | None
) -> Grouped:
    """Group the rows by partition, or return them unchanged if that is no faster or loses order.

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
    """Return each row's partition, -1: the client chooses; None: use the column."""
    chosen = None
    if columns.partition is not None and rows.column(columns.partition).type != pa.null():
        chosen = rows.column(columns.partition)
        try:
            chosen = chosen.cast(pa.int32())
        except pa.ArrowInvalid:
            return None  # an invalid number; `RecordColumns` raises the error with its row
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
