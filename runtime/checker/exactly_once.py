"""The verdict on a run: what of the expected output is lost, doubled, foreign or out of order.

Records are told apart by content (`Identity`), so a run is judged best on records that carry a
number of their own (`payload`). Content that is expected more than once is counted
as a multiset: as often as expected, no more and no less.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from sluice.runtime.checker.examination import Examination
from sluice.runtime.checker.records.history import History, Place
from sluice.runtime.checker.records.record import Identity, Record
from sluice.runtime.checker.records.transactions import Transactions
from sluice.runtime.checker.verdict import FindingSink, HistoryVerdict
from sluice.runtime.errors import ConfigError

__all__ = ["Mapping", "check", "expect", "require_same_identity", "wanted_of"]

Mapping = Callable[[Record], Iterable[Record]]
"""From an input record to the output records that it must become, in order.

Topic (and partition, where `Identity.partition`) of the results are those of the output."""


def expect(inputs: Iterable[Record], mapping: Mapping, identity: Identity | None = None) -> History:
    """The history that the output must hold: each input record through ``mapping``."""
    history = History(identity)
    for wanted, place in wanted_of(inputs, mapping):
        history.append(wanted, read_from=place)
    return history


def wanted_of(inputs: Iterable[Record], mapping: Mapping) -> Iterator[tuple[Record, Place]]:
    """Each output record that there must be, and the place of its input record."""
    for record in inputs:
        place = Place(record.topic, record.partition, record.offset)
        for wanted in mapping(record):
            yield wanted, place


def check(
    expected: History,
    found: History,
    *,
    transactions: Transactions | None = None,
    sink: FindingSink | None = None,
) -> HistoryVerdict:
    """Compare what must be there with what a read_committed reader found, in memory.

    For what memory cannot hold there is `check_spilled`.

    Args:
        expected: from `expect`, with the identity of ``found``.
        found: the whole output, each partition in offset order.
        transactions: which input records were written together; used up by this call.
        sink: is given every fault.
    Raises:
        ConfigError: the two histories tell records apart by different rules.
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
    """Raise `ConfigError` where two histories tell records apart by different rules."""
    if expected != found:
        raise ConfigError(
            "the histories were made with different identities",
            {"expected": expected, "found": found},
            "Give both the same Identity.",
        )
