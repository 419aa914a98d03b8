"""The comparison in three steps; each may receive its records part by part.

First, records are paired by content: all records of one content must be in the same part. Second,
the leftovers are paired by name. Third, the pairs are judged for order, in reading order. Pure:
`sluice.runtime.checker.spilled` reads the parts from files.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from sluice.runtime.checker.order import PAIR, OrderJudge
from sluice.runtime.checker.pairing import Pairing, in_several_lanes, pair
from sluice.runtime.checker.records.history import Columns, Lanes, Location
from sluice.runtime.checker.records.transactions import Transactions
from sluice.runtime.checker.verdict import FindingSink, HistoryVerdict, Kind, Tally

__all__ = ["Examination"]

_Pairs = npt.NDArray[np.void]


class Examination:
    """One comparison of an expected with a found history. Used by one thread, once.

    Args:
        wanted, had: topic-partitions of the expected and of the found history.
        transactions: to find torn ones; None: no record belongs to a known one.
        sink: receives every finding.
        order_limit: see `OrderJudge`.
    """

    def __init__(
        self,
        wanted: Lanes,
        had: Lanes,
        *,
        transactions: Transactions | None = None,
        sink: FindingSink | None = None,
        order_limit: int,
    ) -> None:
        self._wanted, self._had = wanted, had
        self._transactions = transactions or None
        self._tally = Tally(sink)
        self._order = OrderJudge(limit=order_limit)
        self._unordered = 0

    def pair_contents(self, want: Columns, have: Columns) -> tuple[_Pairs, Columns, Columns]:
        """Step 1, for all records of some contents, each side in reading order.

        Returns:
            Returns pairs whose order can be judged (dtype `PAIR`), and the lost and unexpected
                records
            that have a name, for step 2.
        """
        want, in_several_wanted = _by_place(want, self._wanted)
        have, in_several_had = _by_place(have, self._had)
        pairing = pair(want.fingerprints, have.fingerprints)
        # Also those without a partner: any record of a content may be the lost or duplicated one.
        is_ambiguous = in_several_wanted[pairing.e] | in_several_had[pairing.f]
        return self._settle(want, have, pairing, is_ambiguous)

    def pair_equal(
        self, want: Columns, have: Columns, *, is_expected: bool, is_ambiguous: bool
    ) -> tuple[_Pairs, Columns, Columns]:
        """Step 1, for the next records of one content that is too frequent for one part.

        Args:
            want, have: the same number of each, until one side has no more.
            is_expected: the content is expected, so a surplus is duplicated and not unexpected.
            is_ambiguous: several partitions hold the content.
        """
        shared = min(len(want), len(have))
        both = np.arange(shared)
        surplus, nothing = np.arange(shared, len(have)), np.arange(0)
        pairing = Pairing(
            e=both,
            f=both,
            lost=np.arange(shared, len(want)),
            duplicated=surplus if is_expected else nothing,
            unexpected=nothing if is_expected else surplus,
        )
        return self._settle(want, have, pairing, np.full(shared, is_ambiguous))

    def pair_names(self, lost: Columns, unexpected: Columns) -> None:
        """Step 2, for all leftovers of some names."""
        pairing = pair(lost.names, unexpected.names)
        self._mark(lost.at(pairing.e), are_present=True)
        corrupted = unexpected.at(pairing.f)
        sources = lost.at(pairing.e)
        self._add(Kind.CORRUPTED, corrupted, self._had, sources=sources)
        self._lose(lost.at(pairing.lost))
        strays = np.concatenate([pairing.duplicated, pairing.unexpected])
        self._add(Kind.UNEXPECTED, unexpected.at(np.sort(strays)), self._had)

    def judge_order(self, pairs: _Pairs, later: Mapping[int, int]) -> None:
        """Step 3: see `OrderJudge.feed`."""
        faults = np.sort(self._order.feed(pairs, later), order="position")
        lanes = faults["flow"] & 0xFFFFFFFF
        ranked = (
            (int(row["position"]), self._had.location(int(lane), int(row["offset"])), "")
            for row, lane in zip(faults, lanes, strict=True)
        )
        self._tally.add(Kind.REORDERED, ranked, len(faults))

    def verdict(self, *, expected: int, found: int) -> HistoryVerdict:
        """After the last step; the counts are those of the two histories."""
        if self._transactions is not None:
            torn = [(n, *one) for n, one in enumerate(self._transactions.torn())]
            self._tally.add(Kind.TORN, torn, len(torn))
        return HistoryVerdict(
            expected=expected,
            found=found,
            **{kind.value: count for kind, count in self._tally.counts.items()},
            unordered=self._unordered,
            is_reordered_exact=self._order.is_exact,
            examples=self._tally.examples(),
        )

    def _settle(
        self,
        want: Columns,
        have: Columns,
        pairing: Pairing,
        is_ambiguous: npt.NDArray[np.bool_],
    ) -> tuple[_Pairs, Columns, Columns]:
        e, f = want.at(pairing.e), have.at(pairing.f)
        is_hidden = e.lanes < 0
        if is_hidden.any():
            self._add(Kind.ABORTED, f.at(is_hidden), self._had, sources=e.at(is_hidden))
            # Any record of such a content may be the one that is too many: their order is open.
            is_ambiguous = is_ambiguous | np.isin(e.fingerprints, e.fingerprints[is_hidden])
            e, f, is_ambiguous = e.at(~is_hidden), f.at(~is_hidden), is_ambiguous[~is_hidden]
        self._mark(e, are_present=True)
        self._add(Kind.DUPLICATED, have.at(pairing.duplicated), self._had)
        lost, unexpected = want.at(pairing.lost), have.at(pairing.unexpected)
        lost = lost.at(lost.lanes >= 0)
        self._lose(lost.at(lost.names == 0))
        self._add(Kind.UNEXPECTED, unexpected.at(unexpected.names == 0), self._had)
        self._unordered += int(np.count_nonzero(is_ambiguous))
        pairs = _pairs(e.at(~is_ambiguous), f.at(~is_ambiguous))
        return pairs, lost.at(lost.names != 0), unexpected.at(unexpected.names != 0)

    def _lose(self, lost: Columns) -> None:
        self._mark(lost, are_present=False)
        self._add(Kind.LOST, lost, self._wanted)

    def _mark(self, wanted: Columns, *, are_present: bool) -> None:
        if self._transactions is not None:
            names = self._wanted.names
            self._transactions.count(names, wanted.lanes, wanted.offsets, are_present=are_present)

    def _add(
        self, kind: Kind, records: Columns, lanes: Lanes, *, sources: Columns | None = None
    ) -> None:
        self._tally.add(kind, self._ranked(records, lanes, sources), len(records))

    def _ranked(
        self, records: Columns, lanes: Lanes, sources: Columns | None
    ) -> Iterator[tuple[int, Location, str]]:
        for number in np.argsort(records.positions, kind="stable").tolist():
            location = lanes.location(int(records.lanes[number]), int(records.offsets[number]))
            detail = ""
            if sources is not None:
                lane, offset = int(sources.lanes[number]), int(sources.offsets[number])
                detail = f"of {self._wanted.location(lane, offset)}"
            yield int(records.positions[number]), location, detail


def _by_place(records: Columns, lanes: Lanes) -> tuple[Columns, npt.NDArray[np.bool_]]:
    """The records, and which of them have a content that several partitions hold.

    Then they are in the order of partition and offset, hidden ones last: the verdict names the same
    ones each time, although a reader mixes partitions differently.
    """
    in_several = in_several_lanes(records)
    if not in_several.any():
        return records, in_several
    ranks = np.argsort(sorted(range(len(lanes.names)), key=lanes.names.__getitem__))
    is_hidden = records.lanes < 0
    numbers = np.where(is_hidden, ~records.lanes, records.lanes)
    order = np.lexsort((records.offsets, ranks[numbers], is_hidden))
    return records.at(order), in_several[order]


def _pairs(e: Columns, f: Columns) -> _Pairs:
    pairs = np.empty(len(f), dtype=PAIR)
    pairs["position"], pairs["expected"] = f.positions, e.positions
    pairs["flow"] = e.lanes.astype(np.int64) << 32 | f.lanes
    pairs["offset"] = f.offsets
    return pairs
