"""Progress of the ranges of one read: the next position, never a count of records. Pure.

Markers, aborted records and compaction leave gaps, and a range may end in one
(`read-committed-end`). So a range is finished by a message at or after its end, or by a partition
end at or after it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import key_of
from sluice.runtime.model.splits import SplitRange

__all__ = ["NewestTimestamps", "RangeProgress", "in_rounds", "last_rows"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def in_rounds(splits: Sequence[SplitRange]) -> list[list[SplitRange]]:
    """Group splits so that no group has two ranges of one partition; empty ones are left out."""
    rounds: list[list[SplitRange]] = []
    used: list[set[PartitionKey]] = []
    for split in splits:
        if split.is_empty:
            continue
        at = next((i for i, keys in enumerate(used) if key_of(split) not in keys), len(used))
        if at == len(used):
            rounds.append([])
            used.append(set())
        rounds[at].append(split)
        used[at].add(key_of(split))
    return rounds


def last_rows(slots: IntArray, wanted: BoolArray | None) -> dict[int, int]:
    """Return, by slot, the row of its last record, or of its last wanted record.

    Args:
        slots: of each record.
    """
    rows = np.arange(len(slots)) if wanted is None else np.flatnonzero(wanted)
    if not len(rows):
        return {}
    # NumPy keeps the last of several values for one slot.
    last = np.full(int(slots.max()) + 1, -1, np.int64)
    last[slots[rows]] = rows
    return {int(slot): int(last[slot]) for slot in np.flatnonzero(last >= 0)}


class RangeProgress:
    """Positions of several ranges; a slot is an index into ``splits``."""

    def __init__(self, splits: Sequence[SplitRange]) -> None:
        self._ends = np.array([split.end_offset for split in splits], np.int64)
        self._positions = np.array([split.start_offset for split in splits], np.int64)
        # Only messages move this: an end reported early must not turn records away.
        self._received = self._positions.copy()
        self._reported = np.zeros(len(splits), np.bool_)

    def accept(self, slots: IntArray, offsets: IntArray) -> BoolArray | None:
        """Advance past these messages; return which of them are wanted, None for all.

        Args:
            slots: of each message; offsets of one slot ascend.
            offsets: of each message.
        """
        wanted: BoolArray = (offsets < self._ends[slots]) & (offsets >= self._received[slots])
        # NumPy keeps the last of several values for one slot, which is the largest.
        self._received[slots] = np.maximum(self._received[slots], offsets + 1)
        self._positions = np.maximum(self._positions, self._received)
        return None if wanted.all() else wanted

    def move_to(self, slot: int, offset: int) -> bool:
        """Advance to ``offset``, the partition's end or the first record after a loss.

        Returns whether that is progress: an end may be reported again.
        """
        ahead = offset > self.position(slot)
        if ahead:
            self._positions[slot] = offset
        return ahead

    def position(self, slot: int) -> int:
        """The next offset to read."""
        return int(self._positions[slot])

    def finished(self) -> list[int]:
        """Slots that have reached their ends since the last call."""
        reached = (self._positions >= self._ends) & ~self._reported
        self._reported |= reached
        return [int(slot) for slot in np.flatnonzero(reached)]

    def unfinished(self) -> list[int]:
        """Slots that have not reached their ends."""
        return [int(slot) for slot in np.flatnonzero(self._positions < self._ends)]

    @property
    def remaining(self) -> int:
        """Offsets between positions and ends; an upper bound on the messages to come."""
        return int(np.maximum(self._ends - self._positions, 0).sum())


class NewestTimestamps:
    """The largest timestamp of each range that is read; a slot is an index into the splits."""

    def __init__(self, slots: int) -> None:
        self._largest_ms = np.full(slots, -1, np.int64)

    def note(self, slots: IntArray, timestamps_ms: IntArray) -> None:
        """Update the largest timestamps; a negative one means that a message has none."""
        np.maximum.at(self._largest_ms, slots, timestamps_ms)

    def known(self) -> list[tuple[int, int]]:
        """Slots that had a timestamp, and the largest one in ms."""
        return [(slot, ms) for slot, ms in enumerate(self._largest_ms.tolist()) if ms >= 0]
