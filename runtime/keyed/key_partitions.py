"""Whether partitions have different keys, as ``key_by(…, partitioned=True)`` says."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyedRows
from sluice.runtime.errors import ConfigError

__all__ = ["KeyPartitions"]

_PER_BATCH = 32
_MOST = 10_000


class KeyPartitions:
    """Remembers the partition of a sample of keys. Executor, the task's thread.

    It finds a key in two partitions that one task reads; other tasks may read the second one. Any
    partitioner is right that sends a key to one partition, so none is assumed.
    """

    def __init__(self) -> None:
        self._partition_of: dict[bytes, str] = {}

    def require_one_each(
        self, rows: KeyedRows, partitions: Mapping[int, str], *, name: str
    ) -> None:
        """Check a few of the rows.

        Args:
            partitions: topic and partition of each split, as ``rows`` numbers it.
            name: of the ``key_by``.
        Raises:
            ConfigError: a key is in two partitions: it would have two states.
        """
        count = rows.batch.num_rows
        chosen = np.arange(0, count, max(1, count // _PER_BATCH))
        keys = rows.keys.take(pa.array(chosen)).to_pylist()
        for key, split in zip(keys, rows.splits[chosen].tolist(), strict=True):
            partition = partitions[split]
            known = self._partition_of.get(key)
            if known is None and len(self._partition_of) < _MOST:
                self._partition_of[key] = partition
            elif known is not None and known != partition:
                raise ConfigError(
                    "a key is in two partitions, although key_by says partitioned",
                    {"key_by": name, "partitions": f"{known},{partition}"},
                    "Leave partitioned out, or send all records of a key to one partition. If the "
                    "topic got more partitions, older records of a key are in other ones.",
                )
