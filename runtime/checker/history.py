"""A history: records in reading order, kept as 20 bytes each instead of their content."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.checker.record import Identity, Record

__all__ = ["Columns", "History", "Place"]


class Place(NamedTuple):
    """Where a record lies; what a verdict shows of it."""

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
        lanes: shape (n,), int32: number of the topic-partition the record was read from.
        offsets: shape (n,), int64.
    """

    fingerprints: npt.NDArray[np.uint64]
    lanes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]


class History:
    """Records in the order in which they were read; order counts inside a topic-partition only.

    Used by one thread. A million records take 20 MB and, built from `Record` values, about 3 s.
    """

    def __init__(self, identity: Identity | None = None) -> None:
        self.identity = identity or Identity()
        self._fingerprints = array("Q")
        self._lanes = array("i")
        self._offsets = array("q")
        self._lane_numbers: dict[tuple[str, int], int] = {}
        self._lane_names: list[tuple[str, int]] = []

    @classmethod
    def of(cls, records: Iterable[Record], identity: Identity | None = None) -> "History":
        """The history of ``records``, consumed once."""
        history = cls(identity)
        for record in records:
            history.append(record)
        return history

    def append(self, record: Record, *, read_from: Place | None = None) -> None:
        """Add the next record.

        Args:
            record: its content (of an expected record: what the output shall hold).
            read_from: the place that shows and orders it, if not the record's own: an expected
                output record is ordered by the place of its input record.
        """
        place = read_from or record
        self._fingerprints.append(self.identity.fingerprint(record))
        self._lanes.append(self._lane(place.topic, place.partition))
        self._offsets.append(place.offset)

    def __len__(self) -> int:
        return len(self._fingerprints)

    def columns(self) -> Columns:
        """A copy as numpy arrays; later appends do not show in it."""
        return Columns(
            fingerprints=np.array(self._fingerprints, dtype=np.uint64),
            lanes=np.array(self._lanes, dtype=np.int32),
            offsets=np.array(self._offsets, dtype=np.int64),
        )

    def place(self, position: int) -> Place:
        """Where the record at a reading position lies."""
        topic, partition = self._lane_names[self._lanes[position]]
        return Place(topic, partition, self._offsets[position])

    def lane_names(self) -> list[tuple[str, int]]:
        """(topic, partition) by lane number."""
        return list(self._lane_names)

    def by_lane(self) -> Iterator[tuple[tuple[str, int], Columns]]:
        """Each topic-partition with its own records, in reading order."""
        columns = self.columns()
        for number, name in enumerate(self._lane_names):
            mine = columns.lanes == number
            yield (
                name,
                Columns(
                    fingerprints=columns.fingerprints[mine],
                    lanes=columns.lanes[mine],
                    offsets=columns.offsets[mine],
                ),
            )

    def _lane(self, topic: str, partition: int) -> int:
        name = (topic, partition)
        number = self._lane_numbers.get(name)
        if number is None:
            number = self._lane_numbers[name] = len(self._lane_names)
            self._lane_names.append(name)
        return number
