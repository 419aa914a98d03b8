"""The checks of `sluice.runtime.checker` in memory: for tests, and as a second opinion on it."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from sluice.runtime.checker import History, Identity, Location, PrefixVerdict, Record
from sluice.runtime.checker.examination import Examination
from sluice.runtime.checker.prefix import first_difference
from sluice.runtime.checker.records.history import Columns
from sluice.runtime.checker.records.transactions import Transactions
from sluice.runtime.checker.spilled import require_same_identity
from sluice.runtime.checker.verdict import FindingSink, HistoryVerdict

__all__ = ["Mapping", "by_lane", "check", "check_prefix", "expect", "history_of", "wanted_of"]

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


def check_prefix(seen: History, final: History) -> PrefixVerdict:
    """Compare the records that a read_committed reader saw during kills with the final content.

    In memory; for more records there is `SpilledPrefix`.

    Args:
        seen: from the first record of every partition on, each in offset order.
        final: the whole content, each partition in offset order.
    """
    require_same_identity(seen.identity, final.identity)
    contents = dict(by_lane(final))
    broken = []
    for (topic, partition), columns in by_lane(seen):
        final_columns = contents.get((topic, partition), columns.at(np.arange(0)))
        at = first_difference(columns, final_columns)
        if at is not None:
            broken.append(Location(topic, partition, int(columns.offsets[at])))
    return PrefixVerdict(seen=len(seen), final=len(final), broken=tuple(broken))


def history_of(records: Iterable[Record], identity: Identity | None = None) -> History:
    """The history of ``records``, consumed once."""
    history = History(identity)
    for record in records:
        history.append(record)
    return history


def by_lane(history: History) -> Iterator[tuple[tuple[str, int], Columns]]:
    """Each topic-partition with its own records, in reading order."""
    columns = history.columns()
    for number, name in enumerate(history.lanes.names):
        yield name, columns.at(columns.lanes == number)
