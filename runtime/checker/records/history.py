"""A history: records in reading order, kept as 28 bytes each instead of their content."""

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.runtime.checker.records.record import Identity, Record

__all__ = ["Columns", "History", "Lanes", "Location"]


class Location(NamedTuple):
    """Location of a record; a verdict shows it."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A history as arrays of equal length n, in reading order.

    Attributes:
        fingerprints: shape (n,), uint64.
        lanes: shape (n,), int32: number of the topic-partition the record was read from; its
            complement (``~number``, negative) if read_committed readers do not see it there.
        offsets: shape (n,), int64.
        positions: shape (n,), int64: number of the record in the whole history.
        names: shape (n,), uint64: see `Identity.name_hash`.
    """

    fingerprints: npt.NDArray[np.uint64]
    lanes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    names: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.fingerprints)

    def at(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "Columns":
        """The records at the given indexes of the arrays."""
        return Columns(
            fingerprints=self.fingerprints[chosen],
            lanes=self.lanes[chosen],
            offsets=self.offsets[chosen],
            positions=self.positions[chosen],
            names=self.names[chosen],
        )


class Lanes:
    """Numbers topic-partitions in the order in which they first occur."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        self.names: list[tuple[str, int]] = []

    def number(self, topic: str, partition: int) -> int:
        """The number of a topic-partition, a new one at its first occurrence."""
        name = (topic, partition)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def location(self, lane: int, offset: int) -> Location:
        """The position of an offset in a lane, or in the complement of a lane."""
        return Location(*self.names[max(lane, ~lane)], offset)


class History:
    """Records in the order in which they were read; order counts inside a topic-partition only.

    Used by one thread. A million records take 28 MB and, built from `Record` values, about 3 s.

    Args:
        lanes: numbers of topic-partitions that several histories share; None: its own.
        first_position: number of the first record in the whole history, of which this is a part.
    """

    def __init__(
        self,
        identity: Identity | None = None,
        *,
        lanes: Lanes | None = None,
        first_position: int = 0,
    ) -> None:
        self.identity = identity or Identity()
        self.lanes = lanes or Lanes()
        self._first_position = first_position
        self._fingerprints = array("Q")
        self._lane_numbers = array("i")
        self._offsets = array("q")
        self._names = array("Q")

    def append(
        self, record: Record, *, read_from: Location | None = None, is_hidden: bool = False
    ) -> None:
        """Add the next record; hidden ones last.

        Args:
            record: its content (of an expected record: the content that the output must have).
            read_from: the position that shows and orders it, if not the record's own: an expected
                output record is ordered by the position of its input record.
            is_hidden: read_committed readers do not see its input record, so it is not expected.
        """
        location = read_from or record
        lane = self.lanes.number(location.topic, location.partition)
        self._fingerprints.append(self.identity.fingerprint(record))
        self._lane_numbers.append(~lane if is_hidden else lane)
        self._offsets.append(location.offset)
        self._names.append(self.identity.name_hash(record))

    def __len__(self) -> int:
        return len(self._fingerprints)

    def columns(self) -> Columns:
        """A copy as numpy arrays; later appends do not change it."""
        return Columns(
            fingerprints=np.array(self._fingerprints, dtype=np.uint64),
            lanes=np.array(self._lane_numbers, dtype=np.int32),
            offsets=np.array(self._offsets, dtype=np.int64),
            positions=np.arange(len(self), dtype=np.int64) + self._first_position,
            names=np.array(self._names, dtype=np.uint64),
        )
