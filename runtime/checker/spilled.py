"""Histories larger than memory: kept in files, and compared part by part.

Rows go to 256 files by the first byte of their fingerprint, so that all rows of one content are in
one file. A file that is too large is divided again by the next byte. Pairs go to files by their
position, because order must be judged in reading order. Each file is deleted after its use. The
bytes on disk are 36 a record on each side, and 32 a pair after the rows of its file are deleted.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from sluice.runtime.checker.examination import Examination
from sluice.runtime.checker.order import NONE_LATER, PAIR, least_by_flow
from sluice.runtime.checker.records.history import Columns, History, Lanes, Location
from sluice.runtime.checker.records.record import Identity, Record
from sluice.runtime.checker.records.transactions import Transactions
from sluice.runtime.checker.row_files import ROW, RowFiles, columns_of, rows_of
from sluice.runtime.checker.verdict import FindingSink, HistoryVerdict
from sluice.runtime.errors import ConfigError

__all__ = ["LEAST_MEMORY_BYTES", "SpilledHistory", "check_spilled", "require_same_identity"]

LEAST_MEMORY_BYTES = 1 << 20
"""Smaller buffers would spend the time on opening files."""

_BYTES_PER_ROW = 512
"""Bytes of memory for a row that is compared: measured 300, sorting included."""

_FAN_OUT_BITS = 8
_FAN_OUT = 1 << _FAN_OUT_BITS
_KEY_BITS = 64


class SpilledHistory:
    """As `History`, with its records on disk. As a context manager it deletes its files.

    Used by one thread. `check_spilled` uses it up.

    Args:
        directory: for its files; created, and deleted at the end; it may hold no other file.
        memory_bytes: limit for both histories of a comparison together, and the comparison.
    """

    def __init__(
        self, directory: Path, identity: Identity | None = None, *, memory_bytes: int
    ) -> None:
        if memory_bytes < LEAST_MEMORY_BYTES:
            raise ConfigError(
                "too little memory to compare histories",
                {"memory_bytes": memory_bytes, "minimum_bytes": LEAST_MEMORY_BYTES},
                "Raise the memory limit.",
            )
        self.identity = identity or Identity()
        self.lanes = Lanes()
        self.directory = directory
        self.files = RowFiles(directory, "records", ROW)
        self.rows_in_memory = memory_bytes // _BYTES_PER_ROW
        self._spilled = self._hidden = 0
        self._buffer = self._new_buffer()

    def append(
        self, record: Record, *, read_from: Location | None = None, is_hidden: bool = False
    ) -> None:
        """See `History.append`."""
        self._buffer.append(record, read_from=read_from, is_hidden=is_hidden)
        self._hidden += is_hidden
        if len(self._buffer) >= max(self.rows_in_memory // 4, 1):
            self.spill()

    def append_columns(self, columns: Columns) -> None:
        """Add records with given fingerprints; ``positions`` must continue here."""
        self.spill()
        divide(self.files, columns, columns.fingerprints, depth=0)
        self._spilled += len(columns)
        self._buffer = self._new_buffer()

    def spill(self) -> None:
        """Write the buffered rows to disk."""
        columns = self._buffer.columns()
        divide(self.files, columns, columns.fingerprints, depth=0)
        self._spilled += len(columns)
        self._buffer = self._new_buffer()

    def __len__(self) -> int:
        """The number of records that are not hidden."""
        return self._spilled + len(self._buffer) - self._hidden

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _new_buffer(self) -> History:
        return History(self.identity, lanes=self.lanes, first_position=self._spilled)


def check_spilled(
    expected: SpilledHistory,
    found: SpilledHistory,
    *,
    transactions: Transactions | None = None,
    sink: FindingSink | None = None,
) -> HistoryVerdict:
    """Compare the expected output with the one that a read_committed reader found.

    Records are compared by content (`Identity`), so the verdict is most exact for records that
    carry a unique number (`payload`). Content that is expected more than once is counted as a
    multiset: as often as expected, no more and no less. Memory does not grow with the number of
    records.

    The count of reordered records is minimal unless one flow is in disorder over more records than
    memory holds (`HistoryVerdict.is_reordered_exact`).

    Args:
        expected: the output that the input must become, with the identity of ``found``.
        found: the whole output, each partition in offset order.
        transactions: the input records of each transaction; this call uses it up.
        sink: receives every finding.
    Raises:
        ConfigError: the two histories compare records by different rules.
    """
    require_same_identity(expected.identity, found.identity)
    return _Comparison(expected, found, transactions, sink).run()


def require_same_identity(expected: Identity, found: Identity) -> None:
    """Raise `ConfigError` if two histories compare records by different rules."""
    if expected != found:
        raise ConfigError(
            "the histories were made with different identities",
            {"expected": expected, "found": found},
            "Give both histories the same Identity.",
        )


class _Comparison:
    def __init__(
        self,
        expected: SpilledHistory,
        found: SpilledHistory,
        transactions: Transactions | None,
        sink: FindingSink | None,
    ) -> None:
        self._expected, self._found = expected, found
        self._rows = min(expected.rows_in_memory, found.rows_in_memory)
        self._examination = Examination(
            expected.lanes,
            found.lanes,
            transactions=transactions,
            sink=sink,
            order_limit=max(self._rows // 4, 1),
        )
        directory = found.directory
        self._pairs = RowFiles(directory, "pairs", PAIR)
        self._lost = RowFiles(directory, "lost", ROW)
        self._unexpected = RowFiles(directory, "unexpected", ROW)

    def run(self) -> HistoryVerdict:
        for history in (self._expected, self._found):
            history.spill()
        for number in range(_FAN_OUT):
            self._pair_contents(self._expected.files, self._found.files, number, depth=1)
        for number in range(_FAN_OUT):
            self._pair_names(self._lost, self._unexpected, number, depth=1)
        self._judge_order()
        return self._examination.verdict(expected=len(self._expected), found=len(self._found))

    # --- contents ---------------------------------------------------------------------------------

    def _pair_contents(self, want: RowFiles, have: RowFiles, number: int, depth: int) -> None:
        """One file of each side; ``depth`` bytes of its fingerprints are the same."""
        size = want.rows(number) + have.rows(number)
        if not size:
            return
        if size <= self._rows:
            taken = columns_of(want.take(number)), columns_of(have.take(number))
            self._keep(*self._examination.pair_contents(*taken))
        elif depth * _FAN_OUT_BITS >= _KEY_BITS:
            self._pair_equal(want, have, number)
        else:
            deeper = [
                self._assign_again(files, "fingerprints", number, depth) for files in (want, have)
            ]
            for part in range(_FAN_OUT):
                self._pair_contents(deeper[0], deeper[1], part, depth + 1)

    def _pair_equal(self, want: RowFiles, have: RowFiles, number: int) -> None:
        """One content that is so frequent that it is compared piece by piece."""
        is_expected = bool(want.rows(number))
        is_ambiguous = any(len(self._lanes(files, number)) > 1 for files in (want, have))
        piece = max(self._rows // 4, 1)
        at = 0
        while at < max(want.rows(number), have.rows(number)):
            e, f = (columns_of(files.read(number, at, piece)) for files in (want, have))
            kept = self._examination.pair_equal(
                e, f, is_expected=is_expected, is_ambiguous=is_ambiguous
            )
            self._keep(*kept)
            at += piece
        want.delete(number)
        have.delete(number)

    def _lanes(self, files: RowFiles, number: int) -> set[int]:
        return {
            lane
            for rows in files.pieces(number, max(self._rows // 4, 1))
            for lane in np.unique(rows["lanes"]).tolist()
        }

    def _keep(self, pairs: npt.NDArray[np.void], lost: Columns, unexpected: Columns) -> None:
        block = pairs["position"] // self._block_rows()
        self._pairs.append(pairs, block)
        divide(self._lost, lost, lost.names, depth=0)
        divide(self._unexpected, unexpected, unexpected.names, depth=0)

    # --- names ------------------------------------------------------------------------------------

    def _pair_names(self, lost: RowFiles, unexpected: RowFiles, number: int, depth: int) -> None:
        size = lost.rows(number) + unexpected.rows(number)
        if not size:
            return
        if size <= self._rows or depth * _FAN_OUT_BITS >= _KEY_BITS:
            # A name that so many records have identifies none of them, so any division is equally
            # good.
            piece = size if size <= self._rows else max(self._rows // 4, 1)
            most = max(lost.rows(number), unexpected.rows(number))
            for at in range(0, most, piece):
                self._examination.pair_names(
                    columns_of(lost.read(number, at, piece)),
                    columns_of(unexpected.read(number, at, piece)),
                )
            lost.delete(number)
            unexpected.delete(number)
            return
        deeper = [self._assign_again(files, "names", number, depth) for files in (lost, unexpected)]
        for part in range(_FAN_OUT):
            self._pair_names(deeper[0], deeper[1], part, depth + 1)

    def _assign_again(self, files: RowFiles, key: str, number: int, depth: int) -> RowFiles:
        deeper = RowFiles(files.directory, f"{files.name}-{number}", ROW)
        for rows in files.pieces(number, max(self._rows // 4, 1)):
            columns = columns_of(rows)
            divide(deeper, columns, rows[key], depth=depth)
        files.delete(number)
        return deeper

    # --- order ------------------------------------------------------------------------------------

    def _judge_order(self) -> None:
        blocks = range(-(-len(self._found) // self._block_rows()))
        later: dict[int, int] = {}
        after: dict[int, dict[int, int]] = {}  # of the flows in the block
        for number in reversed(blocks):
            leasts = dict(self._least(number))
            after[number] = {flow: later.get(flow, NONE_LATER) for flow in leasts}
            for flow, least in leasts.items():
                later[flow] = min(least, later.get(flow, least))
        for number in blocks:
            later |= after.pop(number)
            pairs = self._pairs.take(number)
            self._examination.judge_order(np.sort(pairs, order="position"), later)

    def _least(self, number: int) -> Iterator[tuple[int, int]]:
        yield from least_by_flow(self._pairs.read(number, 0, self._block_rows())).items()

    def _block_rows(self) -> int:
        return max(self._rows // 2, 1)


def divide(files: RowFiles, columns: Columns, keys: npt.NDArray[np.uint64], *, depth: int) -> None:
    """Append records to files by byte ``depth`` of their keys, the first one being 0."""
    shift = np.uint64(_KEY_BITS - _FAN_OUT_BITS * (depth + 1))
    parts = (keys >> shift) & np.uint64(_FAN_OUT - 1)
    files.append(rows_of(columns), parts.astype(np.int64))
