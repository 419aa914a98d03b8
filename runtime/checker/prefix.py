"""A reader that ran during the whole run must have seen a prefix of each partition's final content.

The prefix breaks if a committed record vanishes, if a record appears before ones already read, or
if the reader saw a record that was never committed. The records that it saw are in a file for each
topic-partition. The final content is read once after it and compared on arrival, a buffer at a
time.
"""

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from sluice.runtime.checker.records.history import Columns, History, Lanes, Location
from sluice.runtime.checker.records.record import Identity, Record
from sluice.runtime.checker.row_files import ROW, RowFiles, columns_of, rows_of

__all__ = ["PrefixVerdict", "SpilledPrefix", "first_difference"]

_BUFFERED_RECORDS = 50_000
"""Measured: 7 MiB of memory at most, copies included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixVerdict:
    """Result of `SpilledPrefix.check`.

    Attributes:
        seen: number of records that the reader saw.
        final: number of records in the partitions.
        broken: the first position of each partition where the reader saw another record than the
            final one.
    """

    seen: int
    final: int
    broken: tuple[Location, ...]

    @property
    def is_clean(self) -> bool:
        """Every partition continues exactly after the records that the reader saw.

        A reader that saw none of the records proves nothing. If there are no records, it saw all of
        them; the verdict on the output decides whether there should be some.
        """
        return not self.broken and (self.seen > 0 or self.final == 0)

    def __str__(self) -> str:
        if self.final and not self.seen:
            return f"seen 0 of {self.final}: nothing was compared"
        where = f", broken at {', '.join(map(str, self.broken))}" if self.broken else ""
        return f"seen {self.seen} of {self.final}{where}"


class SpilledPrefix:
    """The records that a reader has seen so far, 36 bytes of disk each; memory does not grow with
    them.

    Used by one thread, as a context manager that deletes its files at the end.

    Args:
        directory: for its files; created, and deleted at the end; it may hold no other file.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity | None = None,
        *,
        buffered_records: int = _BUFFERED_RECORDS,
    ) -> None:
        self.identity = identity or Identity()
        self._lanes = Lanes()
        self._directory = directory
        self._files = RowFiles(directory, "seen", ROW)
        self._most = buffered_records
        self._spilled = 0
        self._buffer = History(self.identity, lanes=self._lanes)

    def append(self, record: Record) -> None:
        """Add the next records of the reader.

        Raises:
            StorageError: its files cannot be written.
        """
        self._buffer.append(record)
        if len(self._buffer) >= self._most:
            self._spill()

    def __len__(self) -> int:
        return self._spilled + len(self._buffer)

    def check(self, final: Iterable[Record]) -> PrefixVerdict:
        """Compare the records seen with the final content.

        Args:
            final: the whole content, each partition in offset order; consumed once.
        Raises:
            StorageError: its files cannot be read.
        """
        self._spill()
        comparison = _Comparison(self._files, self._lanes)
        buffer = History(self.identity, lanes=self._lanes)
        for record in final:
            buffer.append(record)
            if len(buffer) >= self._most:
                comparison.feed(buffer)
                buffer = History(self.identity, lanes=self._lanes)
        comparison.feed(buffer)
        return comparison.verdict(seen=len(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _spill(self) -> None:
        columns = self._buffer.columns()
        self._files.append(rows_of(columns), columns.lanes.astype("i8"))
        self._spilled += len(columns)
        self._buffer = History(self.identity, lanes=self._lanes)


class _Comparison:
    """How far each topic-partition has been compared, and where it first differed."""

    def __init__(self, seen: RowFiles, lanes: Lanes) -> None:
        self._seen, self._lanes = seen, lanes
        self._compared: Counter[int] = Counter()
        self._broken: dict[int, int] = {}  # offset by lane
        self._final = 0

    def feed(self, final: History) -> None:
        """The next part of the final content."""
        columns = final.columns()
        self._final += len(columns)
        for lane in sorted(set(columns.lanes.tolist())):
            there = columns.at(columns.lanes == lane)
            seen = columns_of(self._seen.read(lane, self._compared[lane], len(there)))
            at = first_difference(seen, there)
            if at is not None:
                self._broken.setdefault(lane, int(seen.offsets[at]))
            self._compared[lane] += len(there)

    def verdict(self, *, seen: int) -> PrefixVerdict:
        """Call this after the whole final content."""
        for lane in range(len(self._lanes.names)):
            for row in self._seen.read(lane, self._compared[lane], 1):  # seen, and absent
                self._broken.setdefault(lane, int(row["offsets"]))
        locations = (
            Location(*self._lanes.names[lane], at) for lane, at in sorted(self._broken.items())
        )
        return PrefixVerdict(seen=seen, final=self._final, broken=tuple(locations))


def first_difference(seen: Columns, final: Columns) -> int | None:
    """The number of the first record of a topic-partition that was seen and is absent now."""
    shared = min(len(seen), len(final))
    same = (seen.offsets[:shared] == final.offsets[:shared]) & (
        seen.fingerprints[:shared] == final.fingerprints[:shared]
    )
    if not same.all():
        return int(np.argmin(same))
    return shared if len(seen) > shared else None
