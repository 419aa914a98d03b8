"""Whether partitions have different keys, as ``key_by(…, partitioned=True)`` says."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyedRows
from sluice.runtime.errors import ConfigError

__all__ = ["KeyPlaces"]

_PER_BATCH = 32
_MOST = 10_000


class KeyPlaces:
    """Remembers where a sample of keys was seen. Executor, the task's thread.

    It finds a key in two partitions that one task reads; other tasks may read the second one. Any
    partitioner is right that sends a key to one partition, so none is assumed.
    """

    def __init__(self) -> None:
        self._place_of: dict[bytes, str] = {}

    def require_one_place(self, rows: KeyedRows, places: Mapping[int, str], *, name: str) -> None:
        """Check a few of the rows.

        Args:
            places: partition of each split, as ``rows`` numbers it.
            name: of the ``key_by``.
        Raises:
            ConfigError: a key is in two partitions: it would have two states.
        """
        count = rows.batch.num_rows
        chosen = np.arange(0, count, max(1, count // _PER_BATCH))
        keys = rows.keys.take(pa.array(chosen)).to_pylist()
        for key, split in zip(keys, rows.splits[chosen].tolist(), strict=True):
            place = places[split]
            known = self._place_of.get(key)
            if known is None and len(self._place_of) < _MOST:
                self._place_of[key] = place
            elif known is not None and known != place:
                raise ConfigError(
                    "a key is in two partitions, although key_by says partitioned",
                    {"key_by": name, "partitions": f"{known},{place}"},
                    "Leave partitioned out: rows then pass through a repartition topic. A topic "
                    "that got more partitions has older keys in other ones.",
                )
