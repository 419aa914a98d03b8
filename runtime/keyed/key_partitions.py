"""Whether partitions have different keys, as ``key_by(…, partitioned=True)`` says."""

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyedRows
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.model.state.key_groups import murmur2_of_column
from sluice.runtime.model.state.key_sample import KeySample, in_two_partitions
from sluice.runtime.model.state.split_key import SplitKey

__all__ = ["KeyPartitions"]

_PER_BATCH = 32
_MOST = 10_000
_REPORTED = 64
_HASHED_ROWS = 1_024
_HASHED_EVERY_ROWS = 65_536  # and once in each epoch
_REPEATED_EVERY = 64


class KeyPartitions:
    """Remembers the partition of some keys. Executor, the task's thread.

    It finds a key in two partitions of this task. For partitions of other tasks, each task reports
    where a few keys are, and the coordinator compares the reports. A topic may have any
    partitioner that sends a key to one partition.
    """

    def __init__(self) -> None:
        self._split_of: dict[tuple[str, bytes], SplitKey] = {}
        self._smallest: dict[tuple[str, str], dict[int, SplitKey]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._rows, self._turn, self._calls = _HASHED_EVERY_ROWS, 0, 0

    def require_one_each(
        self, rows: KeyedRows, splits: Mapping[int, SplitKey], function: ChainedFunction
    ) -> None:
        """Check and remember a few of the rows.

        Args:
            splits: by number in ``rows``.
            function: the ``key_by``.
        Raises:
            ConfigError: a key is in two partitions: it would have two states.
        """
        count = rows.batch.num_rows
        chosen = np.arange(0, count, max(1, count // _PER_BATCH))
        keys = rows.keys.take(pa.array(chosen)).to_pylist()
        for key, number in zip(keys, rows.splits[chosen].tolist(), strict=True):
            split = splits[number]
            known = self._split_of.get((function.operator_id, key))
            if known is None and len(self._split_of) < _MOST:
                self._split_of[function.operator_id, key] = split
            elif known is not None and known != split:
                raise in_two_partitions(function.name, known, split)
        self._rows += count
        if self._rows >= _HASHED_EVERY_ROWS:
            self._rows = 0
            self._keep_smallest(rows, splits, function)

    def _keep_smallest(
        self, rows: KeyedRows, splits: Mapping[int, SplitKey], function: ChainedFunction
    ) -> None:
        """Keep the keys with the smallest hashes. Two tasks that have the same keys keep the same
        ones, whatever rows each of them has hashed."""
        self._turn += 1
        start = self._turn * 7_919 % max(1, rows.batch.num_rows - _HASHED_ROWS + 1)
        keys = rows.keys.slice(start, _HASHED_ROWS)
        hashes = murmur2_of_column(keys)
        owner = function.operator_id, function.name
        kept = self._smallest.setdefault(owner, {})
        limit = max(kept) >> 32 if len(kept) == _REPORTED else 1 << 32
        found = dict(kept)
        for at in np.flatnonzero(hashes < limit).tolist():
            more = int.from_bytes(blake2b(keys[at].as_py(), digest_size=4).digest(), "big")
            split = splits[int(rows.splits[start + at])]
            known = found.setdefault(int(hashes[at]) << 32 | more, split)
            if known != split:
                raise in_two_partitions(function.name, known, split)
        if found.keys() != kept.keys():
            self._smallest[owner] = dict(sorted(found.items())[:_REPORTED])
            self._changed.add(owner)

    def samples(self) -> tuple[KeySample, ...]:
        """The changes since the last call; now and then everything, since a coordinator may
        be new."""
        self._calls, self._rows = self._calls + 1, _HASHED_EVERY_ROWS
        owners = self._smallest.keys() if self._calls % _REPEATED_EVERY == 0 else self._changed
        made = tuple(
            KeySample(
                operator_id=owner[0],
                name=owner[1],
                split=split,
                hashes=tuple(each for each, at in self._smallest[owner].items() if at == split),
            )
            for owner in sorted(owners)
            for split in sorted(set(self._smallest[owner].values()))
        )
        self._changed = set()
        return made
