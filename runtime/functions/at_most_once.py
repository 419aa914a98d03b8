"""Approximate recovery: the ranges of a failed task are dropped instead of being read again.

The record of the checkpoint that decides the epoch names each dropped range, and the sum since the
job's first start. `DropLimit` bounds both: per checkpoint, and in all.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sluice.runtime.errors import ConfigError, DropLimitError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.payloads import committable, content_of
from sluice.runtime.model.splits import SplitRange

__all__ = [
    "AT_MOST_ONCE",
    "DROPS_KIND",
    "DROPS_VERSION",
    "DropBudget",
    "DropLimit",
    "Drops",
    "decode_drops",
    "dropped_in_all",
    "drops_after",
    "encode_drops",
    "named",
    "offsets_in",
]

DROPS_KIND = "dropped-ranges"
DROPS_VERSION = 1
AT_MOST_ONCE = "approximate: at most once for what a failed task had to read"
"""The promise of a job with a `DropLimit`, as text for users."""

Range = tuple[str, int, int, int]
"""Topic, partition, start offset, end offset (exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLimit:
    """How much approximate recovery may drop, in offsets: an upper bound of the records.

    Attributes:
        per_checkpoint: in the epochs that one barrier ends, of all regions together; >= 1. The
            epoch of a timed-out region may be decided together with those of the next barrier.
        in_all: since the first start in the checkpoint directory; >= 1; None: unbounded.
    """

    per_checkpoint: int
    in_all: int | None = None

    def __post_init__(self) -> None:
        in_all = 1 if self.in_all is None else self.in_all
        if min(self.per_checkpoint, in_all) < 1:
            raise ConfigError(
                "a bound of approximate recovery is out of range",
                {"max_dropped_records": self.per_checkpoint, "max_dropped_in_all": self.in_all},
                "Use 1 or more; recovery='single-point' drops nothing.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drops:
    """The dropped offsets in a region's record.

    Attributes:
        in_all: dropped offsets since the first start.
        ranges: dropped in the region's last batch of this record; a record without a new batch
            repeats them.
    """

    in_all: int
    ranges: tuple[Range, ...]


def offsets_in(splits: Iterable[SplitRange]) -> int:
    """How many offsets the ranges cover."""
    return sum(split.end_offset - split.start_offset for split in splits)


def named(splits: Iterable[SplitRange]) -> str:
    """The ranges as text: ``orders-0:[10,20)``."""
    return " ".join(f"{s.name}:[{s.start_offset},{s.end_offset})" for s in splits)


# --- in the records -------------------------------------------------------------------------------


def encode_drops(drops: Drops, *, operator_id: str) -> StateEntry:
    """The state entry for an acknowledgement and for ``_metadata``, under the source's id."""
    entry = committable(
        to_json(drops), kind=DROPS_KIND, version=DROPS_VERSION, operator_id=operator_id
    )
    return replace(entry, state_name=DROPS_KIND)


def decode_drops(entry: StateEntry) -> Drops:
    """The drops inside a state.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
    """
    return content_of(
        entry,
        partial(from_json, Drops),
        kind=DROPS_KIND,
        version=DROPS_VERSION,
        what="dropped ranges",
    )


def dropped_in_all(states: Iterable[StateEntry]) -> int:
    """Offsets that a region has dropped since the first start, from its operator states."""
    return sum(decode_drops(entry).in_all for entry in states if entry.kind == DROPS_KIND)


def drops_after(
    states: Iterable[StateEntry], dropped: Sequence[SplitRange]
) -> tuple[StateEntry, ...]:
    """The drops in a region's record after a batch; empty if the region never dropped a range.

    Args:
        states: in the region's last decided record. Entries of one source are added up, because a
            reassignment may have brought some from another region.
        dropped: ranges that the batch drops.
    """
    before = dict.fromkeys((split.source_id for split in dropped), 0)
    for entry in states:
        if entry.kind == DROPS_KIND:
            so_far = before.get(entry.operator_id, 0)
            before[entry.operator_id] = so_far + decode_drops(entry).in_all
    made = []
    for source_id, in_all in sorted(before.items()):
        mine = [split for split in dropped if split.source_id == source_id]
        ranges = tuple((s.topic, s.partition, s.start_offset, s.end_offset) for s in mine)
        drops = Drops(in_all=in_all + offsets_in(mine), ranges=ranges)
        made.append(encode_drops(drops, operator_id=source_id))
    return tuple(made)


# --- in the driver --------------------------------------------------------------------------------


class DropBudget:
    """The offsets that one run of a job may still drop. Driver; every method thread-safe.

    Each region claims its drops before it acknowledges, so every decision is within the limit. A
    claim is open until the region's batch is committed on record, or until its next batch claims.

    Args:
        limit: of the job.
        in_all: offsets that each region has dropped so far, from its restored record.
    """

    def __init__(self, limit: DropLimit, in_all: Mapping[str, int]) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._decided = dict(in_all)
        self._open: dict[str, tuple[int, int]] = {}

    def left(self) -> int:
        """The most offsets that a single task may drop now; a task with more reads them again."""
        with self._lock:
            return min(self._limit.per_checkpoint, self._left_in_all(""))

    def claim(self, region: str, checkpoint_id: int, dropped: Sequence[SplitRange]) -> None:
        """Claim ``dropped`` for a region's batch.

        Raises:
            DropLimitError: it is above the limit; the region must read the whole epoch again.
        """
        offsets = offsets_in(dropped)
        with self._lock:
            claimed_by_others = sum(
                claimed
                for name, (at, claimed) in self._open.items()
                if name != region and at == checkpoint_id
            )
            left = min(self._limit.per_checkpoint - claimed_by_others, self._left_in_all(region))
            if offsets > max(0, left):
                raise DropLimitError(
                    "failed tasks of an epoch exceed the drop limit",
                    {
                        "region": region,
                        "checkpoint_id": checkpoint_id,
                        "offsets": offsets,
                        "left": max(0, left),
                        "ranges": named(dropped),
                    },
                    "Raise max_dropped_records or max_dropped_in_all if reading again takes too "
                    "long: the region drops nothing and reads this epoch again.",
                )
            self._open[region] = (checkpoint_id, offsets)

    def restored(self, region: str, in_all: int) -> None:
        """A new attempt begins with this sum; an open claim is part of it, or is withdrawn."""
        with self._lock:
            self._open.pop(region, None)
            self._decided[region] = in_all

    def committed(self, region: str) -> None:
        """The region's batch is committed on record."""
        with self._lock:
            _, offsets = self._open.pop(region, (0, 0))
            self._decided[region] = self._decided.get(region, 0) + offsets

    def _left_in_all(self, region: str) -> int:
        if self._limit.in_all is None:
            return self._limit.per_checkpoint
        others = sum(claimed for name, (_, claimed) in self._open.items() if name != region)
        return self._limit.in_all - sum(self._decided.values()) - others
