"""The verdict on a run: expected output that is lost, duplicated, unexpected or out of order.

Records are compared by content (`Identity`), so the verdict is most exact for records that carry a
unique number (`payload`). Content that is expected more than once is counted as a multiset: as
often as expected, no more and no less.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from sluice.runtime.checker.examination import Examination
from sluice.runtime.checker.records.history import History, Location
from sluice.runtime.checker.records.record import Identity, Record
from sluice.runtime.checker.records.transactions import Transactions
from sluice.runtime.checker.verdict import FindingSink, HistoryVerdict
from sluice.runtime.errors import ConfigError

__all__ = ["Mapping", "check", "expect", "require_same_identity", "wanted_of"]

Mapping = Callable[[Record], Iterable[Record]]
"""From an input record to the output records that it must become, in order.

Topic (and partition, if `Identity.partition`) of the results are those of the output."""


def expect(inputs: Iterable[Record], mapping: Mapping, identity: Identity | None = None) -> History:
    """The history that the output must have: each input record through ``mapping``."""
    history = History(identity)
    for wanted, location in wanted_of(inputs, mapping):
        history.append(wanted, read_from=location)
    return history


def wanted_of(inputs: Iterable[Record], mapping: Mapping) -> Iterator[tuple[Record, Location]]:
    """Each expected output record, and the position of its input record."""
    for record in inputs:
        location = Location(record.topic, record.partition, record.offset)
        for wanted in mapping(record):
            yield wanted, location


def check(
    expected: History,
    found: History,
    *,
    transactions: Transactions | None = None,
    sink: FindingSink | None = None,
) -> HistoryVerdict:
    """Compare the expected output with the one that a read_committed reader found, in memory.

    For more records than memory holds there is `check_spilled`.

    Args:
        expected: from `expect`, with the identity of ``found``.
        found: the whole output, each partition in offset order.
        transactions: the input records of each transaction; this call uses it up.
        sink: receives every finding.
    Raises:
        ConfigError: the two histories compare records by different rules.
    """
    require_same_identity(expected.identity, found.identity)
    examination = Examination(
        expected.lanes,
        found.lanes,
        transactions=transactions,
        sink=sink,
        order_limit=max(len(found), 1),
    )
    pairs, lost, unexpected = examination.pair_contents(expected.columns(), found.columns())
    examination.pair_names(lost, unexpected)
    examination.judge_order(np.sort(pairs, order="position"), {})
    return examination.verdict(expected=len(expected), found=len(found))


def require_same_identity(expected: Identity, found: Identity) -> None:
    """Raise `ConfigError` if two histories compare records by different rules."""
    if expected != found:
        raise ConfigError(
            "the histories were made with different identities",
            {"expected": expected, "found": found},
            "Give both histories the same Identity.",
        )
