"""Rows of a fixed width in numbered files, which are appended and read in the same order."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sluice.runtime.checker.records.history import Columns
from sluice.runtime.errors import StorageError

__all__ = ["ROW", "RowFiles", "columns_of", "rows_of"]

_Rows = npt.NDArray[np.void]

ROW = np.dtype(
    [
        ("fingerprints", "u8"),
        ("names", "u8"),
        ("positions", "i8"),
        ("offsets", "i8"),
        ("lanes", "i4"),
    ]
)
"""A record of a history."""


class RowFiles:
    """Used by one thread; no file is open between two calls.

    Args:
        directory: created if it is missing.
        name: of this set of files in it.
    Raises:
        StorageError: a file cannot be written or read, usually because the disk is full.
    """

    def __init__(self, directory: Path, name: str, dtype: np.dtype[np.void]) -> None:
        self.directory = directory
        self.name = name
        self._dtype = dtype
        self._rows: Counter[int] = Counter()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise self._failed(err) from err

    def append(self, rows: _Rows, parts: npt.NDArray[np.int64]) -> None:
        """Append row i to file ``parts[i]``; the rows of one file keep their order."""
        if not len(rows):
            return
        order = np.argsort(parts, kind="stable")
        numbers, starts = np.unique(parts[order], return_index=True)
        for number, mine in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            self._write(number, rows[mine])

    def rows(self, number: int) -> int:
        """The number of rows in a file."""
        return self._rows[number]

    def read(self, number: int, start: int, count: int) -> _Rows:
        """At most ``count`` rows of a file, from row ``start`` on."""
        if start >= self._rows[number]:
            return np.empty(0, dtype=self._dtype)
        try:
            return np.fromfile(
                self._path(number),
                dtype=self._dtype,
                count=min(count, self._rows[number] - start),
                offset=start * self._dtype.itemsize,
            )
        except OSError as err:
            raise self._failed(err) from err

    def pieces(self, number: int, count: int) -> Iterator[_Rows]:
        """A whole file, ``count`` rows at a time."""
        for start in range(0, self._rows[number], count):
            yield self.read(number, start, count)

    def take(self, number: int) -> _Rows:
        """All rows of a file; deletes the file."""
        rows = self.read(number, 0, self._rows[number])
        self.delete(number)
        return rows

    def delete(self, number: int) -> None:
        """Delete a file if it exists."""
        del self._rows[number]
        self._path(number).unlink(missing_ok=True)

    def _write(self, number: int, rows: _Rows) -> None:
        try:
            with self._path(number).open("ab") as file:
                file.write(rows.tobytes())
        except OSError as err:
            raise self._failed(err) from err
        self._rows[number] += len(rows)

    def _path(self, number: int) -> Path:
        return self.directory / f"{self.name}-{number}"

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            "a history cannot be written to disk",
            {"directory": self.directory, "reason": error},
            "Free some space there, about 100 bytes for each record, or choose another directory.",
        )


def rows_of(columns: Columns) -> _Rows:
    """The records as rows."""
    rows = np.empty(len(columns), dtype=ROW)
    for name in ROW.names or ():
        rows[name] = getattr(columns, name)
    return rows


def columns_of(rows: _Rows) -> Columns:
    """The rows as arrays of their own."""
    return Columns(**{name: np.ascontiguousarray(rows[name]) for name in ROW.names or ()})
