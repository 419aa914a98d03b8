"""HyperLogLog sketches of many groups at once, in numpy.

A sketch is a sorted list of (register, rank) for the registers that are not empty. Hash and packing
are frozen by test vectors: they are in the state of jobs.

Source: Flajolet et al., "HyperLogLog", 2007. The estimator is algorithm 6 of Ertl, "New cardinality
estimation algorithms for HyperLogLog sketches", arXiv:1702.01284. It needs no tables.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.keyed.key_encoding import bytes_and_offsets, encode

__all__ = ["Sketches", "hashed"]

_RANK_BITS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SEED = np.uint64(0x9E3779B97F4A7C15)
_Ids = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]


class Sketches:
    """The sketches of groups 0 to n - 1.

    Args:
        error: standard deviation of the relative error: 1.04 / sqrt(registers).
    """

    types = (pa.list_(pa.uint32()),)

    def __init__(self, *, error: float) -> None:
        self._bits = max(4, math.ceil(2 * math.log2(1.04 / error)))
        self._groups = 0
        self._pairs = np.zeros(0, np.uint64)  # group << 32 | register << 6 | rank, sorted

    def resize(self, groups: int) -> None:
        """Have so many groups."""
        self._groups = groups

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        """Fold the values that are not null into their groups."""
        assert values is not None
        if values.null_count:
            ids = ids[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        hashes = hashed(values)
        registers = hashes >> np.uint64(64 - self._bits)
        rest = (hashes << np.uint64(self._bits)) | np.uint64(1 << (self._bits - 1))
        packed = (registers << np.uint64(_RANK_BITS)) | _leading_zeros(rest) + np.uint64(1)
        self._merge(ids, packed)

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        """Fold sketches into groups."""
        lengths = state[0].value_lengths().fill_null(0).to_numpy()
        self._merge(np.repeat(ids, lengths), state[0].flatten().to_numpy().astype(np.uint64))

    def state(self) -> list[pa.Array]:
        """One row for each group."""
        groups = (self._pairs >> np.uint64(32)).astype(np.int64)
        offsets = np.zeros(self._groups + 1, np.int32)
        np.cumsum(np.bincount(groups, minlength=self._groups), out=offsets[1:])
        return [
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(self._pairs.astype(np.uint32)))
        ]

    def results(self) -> pa.Array:
        """The estimates, as int64."""
        groups = (self._pairs >> np.uint64(32)).astype(np.int64)
        ranks = (self._pairs & np.uint64((1 << _RANK_BITS) - 1)).astype(np.int64)
        longest = 64 - self._bits + 1
        counts = np.bincount(
            groups * (longest + 1) + ranks, minlength=self._groups * (longest + 1)
        ).reshape(self._groups, longest + 1)
        counts[:, 0] = (1 << self._bits) - counts[:, 1:].sum(axis=1)
        return pa.array(np.rint(_estimates(counts, 1 << self._bits)).astype(np.int64))

    def _merge(self, ids: _Ids, packed: npt.NDArray[np.uint64]) -> None:
        pairs = (ids.astype(np.uint64) << np.uint64(32)) | packed
        every = np.unique(np.concatenate([self._pairs, pairs]))
        place = every >> np.uint64(_RANK_BITS)
        is_last = np.append(place[1:] != place[:-1], True)  # the largest rank of a register
        self._pairs = every[is_last] if len(every) else every


def hashed(values: pa.Array) -> _Hashes:
    """64 bits for each value; equal values have equal bits.

    Args:
        values: without nulls, of a type that keys may have.
    Raises:
        ConfigError: their type is another one.
    """
    data, offsets = bytes_and_offsets(encode(values))
    lengths = np.diff(offsets)
    hashes = _mixed(lengths.astype(np.uint64) + _SEED)
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.lib.stride_tricks.sliding_window_view(padded, 8)
    starts, rest = offsets[:-1], lengths
    active = np.arange(len(values))
    while len(active):
        word = np.ascontiguousarray(words[starts]).view("<u8").ravel()
        short = np.minimum(rest, 8).astype(np.uint64) * np.uint64(8)
        mask = np.where(short == 64, np.uint64(0), np.uint64(1) << (short % np.uint64(64)))
        hashes[active] = _mixed(hashes[active] ^ (word & (mask - np.uint64(1))))
        more = rest > 8
        active, starts, rest = active[more], starts[more] + 8, rest[more] - 8
    return hashes


def _mixed(numbers: _Hashes) -> _Hashes:
    """The finalizer of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MULTIPLIERS[0]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MULTIPLIERS[1]
    return numbers ^ (numbers >> np.uint64(31))


def _leading_zeros(numbers: _Hashes) -> _Hashes:
    """The zero bits before the first one; the numbers are not zero."""
    zeros = np.zeros(len(numbers), np.uint64)
    for width in (32, 16, 8, 4, 2, 1):
        is_small = numbers < np.uint64(1 << (64 - width))
        zeros += np.where(is_small, np.uint64(width), np.uint64(0))
        numbers = np.where(is_small, numbers << np.uint64(width), numbers)
    return zeros


def _estimates(counts: npt.NDArray[np.int64], registers: int) -> npt.NDArray[np.float64]:
    """Algorithm 6 for each row: how many registers have each rank."""
    longest = counts.shape[1] - 1
    total = registers * _tau(1.0 - counts[:, longest] / registers)
    for rank in range(longest - 1, 0, -1):
        total = 0.5 * (total + counts[:, rank])
    total += registers * _sigma(counts[:, 0] / registers)
    return registers * registers / (2 * math.log(2)) / total  # 0 where it is infinite


def _sigma(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    is_full, y, z = x == 1.0, 1.0, x
    for _ in range(64):
        x = x * x
        z, y = z + x * y, y + y
    return np.where(is_full, np.inf, z)


def _tau(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    is_edge = (x == 0.0) | (x == 1.0)
    y, z = 1.0, 1.0 - x
    for _ in range(64):
        x = np.sqrt(x)
        y *= 0.5
        z = z - (1.0 - x) ** 2 * y
    return np.where(is_edge, 0.0, z / 3.0)
