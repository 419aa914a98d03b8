"""The transaction of each input record, and the transactions that are only partly present."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.runtime.checker.records.history import Location
from sluice.runtime.errors import ConfigError

__all__ = ["TransactionRange", "Transactions"]

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRange:
    """Input records of one transaction.

    Attributes:
        transaction: name of the transaction, the same for all its ranges.
        topic, partition: of the input.
        start_offset, end_offset: inclusive, exclusive.
    """

    transaction: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int


class Transactions:
    """Counts, per transaction, the records that are present and those that are missing.

    Records outside all ranges belong to no transaction. Takes 50 bytes a range, for any number of
    records.

    Raises:
        ConfigError: two ranges share records.
    """

    def __init__(self, ranges: Iterable[TransactionRange] = ()) -> None:
        self._ranges = sorted(ranges, key=lambda r: (r.topic, r.partition, r.start_offset))
        names = dict.fromkeys(one.transaction for one in self._ranges)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._present = np.zeros(len(names), dtype=np.int64)
        self._missing = np.zeros(len(names), dtype=np.int64)
        self._by_lane: dict[tuple[str, int], tuple[_Ints, _Ints, _Ints]] = {}
        for lane in dict.fromkeys((one.topic, one.partition) for one in self._ranges):
            self._by_lane[lane] = self._index(lane)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def count(
        self,
        lane_names: Sequence[tuple[str, int]],
        lanes: npt.NDArray[np.int32],
        offsets: _Ints,
        *,
        are_present: bool,
    ) -> None:
        """Count input records, given by position, as present or missing."""
        if not self._ranges or not len(lanes):
            return
        counts = self._present if are_present else self._missing
        for number in np.unique(lanes):
            index = self._by_lane.get(lane_names[number])
            if index is not None:
                starts, ends, numbers = index
                mine = offsets[lanes == number]
                at = np.searchsorted(starts, mine, side="right") - 1
                inside = (at >= 0) & (mine < ends[at])
                np.add.at(counts, numbers[at[inside]], 1)

    def torn(self) -> Iterator[tuple[Location, str]]:
        """The first range of each transaction that is partly present, and its counts."""
        for one in self._first_ranges():
            number = self._numbers[one.transaction]
            present, missing = int(self._present[number]), int(self._missing[number])
            if present and missing:
                location = Location(one.topic, one.partition, one.start_offset)
                yield location, f"{one.transaction}: {present} of {present + missing} records"

    def _first_ranges(self) -> Iterator[TransactionRange]:
        seen: set[str] = set()
        for one in self._ranges:
            if one.transaction not in seen:
                seen.add(one.transaction)
                yield one

    def _index(self, lane: tuple[str, int]) -> tuple[_Ints, _Ints, _Ints]:
        mine = [one for one in self._ranges if (one.topic, one.partition) == lane]
        starts = np.array([one.start_offset for one in mine], dtype=np.int64)
        ends = np.array([one.end_offset for one in mine], dtype=np.int64)
        shared = np.flatnonzero(starts[1:] < ends[:-1])
        if len(shared):
            raise ConfigError(
                "the same input records belong to two transactions",
                {"first": mine[int(shared[0])], "second": mine[int(shared[0]) + 1]},
                "Give the transactions of one job's decided checkpoints; they have no ranges "
                "after a shuffle.",
            )
        return starts, ends, np.array([self._numbers[one.transaction] for one in mine])
