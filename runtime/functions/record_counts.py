"""How many records a function got, and how many of them failed: in a batch, and in total.

The counts of a batch are part of its acknowledgement; listeners get them once, when its checkpoint
is committed on record. The totals are part of the region's record, as a state of the function's
operator. So they are as exact as the positions in the same record.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sluice.runtime.functions.function_context import require_few
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number

__all__ = [
    "COUNTS_KIND",
    "COUNTS_VERSION",
    "added",
    "counter_totals",
    "decode_totals",
    "described",
    "encode_totals",
    "record_totals",
    "totals_after",
]

COUNTS_KIND = "record-counts"
COUNTS_VERSION = 1
_NAMES = ("read", "skipped", "dead_lettered")  # of a function; late rows are no function's


def added(parts: Iterable[Mapping[str, RecordCounts]]) -> dict[str, RecordCounts]:
    """The sums by key."""
    sums: dict[str, RecordCounts] = {}
    for part in parts:
        for key, counts in part.items():
            sums[key] = sums.get(key, RecordCounts()) + counts
    return sums


def described(counts: RecordCounts) -> dict[str, object]:
    """The counts of a function by name, as they are recorded."""
    return {**{name: getattr(counts, name) for name in _NAMES}, "counters": dict(counts.counters)}


def encode_totals(counts: RecordCounts, *, operator_id: str) -> StateEntry:
    """The state entry for an acknowledgement and for ``_metadata``."""
    entry = committable(
        described(counts), kind=COUNTS_KIND, version=COUNTS_VERSION, operator_id=operator_id
    )
    return replace(entry, state_name=COUNTS_KIND)


def decode_totals(entry: StateEntry) -> RecordCounts:
    """The counts inside a state.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
        ConfigError: a count is negative.
    """
    return content_of(
        entry,
        lambda content: RecordCounts(
            read=number(content["read"]),
            skipped=number(content["skipped"]),
            dead_lettered=number(content["dead_lettered"]),
            counters=_numbers(content["counters"]),
        ),
        kind=COUNTS_KIND,
        version=COUNTS_VERSION,
        what="counts of records",
    )


def _numbers(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError(f"not an object: {value!r}")
    return {name: number(count) for name, count in value.items()}


def counter_totals(states: Iterable[StateEntry]) -> dict[str, Mapping[str, int]]:
    """The totals of the user's counters by operator id, from operator states of all regions."""
    return {i: found.counters for i, found in _totals(states).items() if found.counters}


def record_totals(states: Iterable[StateEntry]) -> dict[str, Mapping[str, int]]:
    """``read``, ``skipped`` and ``dead_lettered`` of functions with an ``on_error`` policy, by
    operator id, from operator states of all regions."""
    return {
        i: {name: getattr(found, name) for name in _NAMES}
        for i, found in _totals(states).items()
        if found.read
    }


def _totals(states: Iterable[StateEntry]) -> dict[str, RecordCounts]:
    return added(
        {entry.operator_id: decode_totals(entry)} for entry in states if entry.kind == COUNTS_KIND
    )


def totals_after(
    states: Iterable[StateEntry], counts: Mapping[str, RecordCounts]
) -> tuple[StateEntry, ...]:
    """The totals in a region's record after a batch.

    Args:
        states: in the region's last decided record. Entries of one operator are added up, because
            a reassignment may have brought some from another region.
        counts: of the batch, by operator id; operators that no longer count are omitted.
    Raises:
        ConfigError: a function has too many counters.
    """
    before = _totals(states)
    after = {i: before.get(i, RecordCounts()) + found for i, found in sorted(counts.items())}
    for operator_id, totals in after.items():
        # Another number of regions may have brought more together: no reason to end the job.
        if operator_id not in before or totals.counters.keys() - before[operator_id].counters:
            require_few(totals.counters, function=operator_id)
    return tuple(encode_totals(totals, operator_id=i) for i, totals in after.items())
