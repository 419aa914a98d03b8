"""Approximate recovery: what a failed task had to read is left out instead of being read again.

What is left out is exact: it stands, range by range, in the record of the checkpoint that decides
the epoch, with the sum over the job's life. So it is bounded, too: per checkpoint, and in all.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.runtime.errors import ConfigError, DropLimitError
from sluice.runtime.model.model import SplitRange, StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

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
"""What a job with a `DropLimit` promises, for people."""

Range = tuple[str, int, int, int]
"""Topic, partition, start offset, end offset (exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLimit:
    """How much approximate recovery may leave out, in offsets: an upper bound of the records.

    Attributes:
        per_checkpoint: in the epochs that one barrier ends, of all regions together; >= 1. A late
            region's epoch may be decided beside those of the next barrier.
        in_all: in the life of the checkpoint directory; >= 1; None: as often as tasks fail.
    """

    per_checkpoint: int
    in_all: int | None = None

    def __post_init__(self) -> None:
        in_all = 1 if self.in_all is None else self.in_all
        if min(self.per_checkpoint, in_all) < 1:
            raise ConfigError(
                "a bound of approximate recovery is out of range",
                {"max_dropped_records": self.per_checkpoint, "max_dropped_in_all": self.in_all},
                "Use 1 or more; recovery='single-point' leaves nothing out.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drops:
    """What a region's record says is left out.

    Attributes:
        in_all: offsets, since the first start.
        ranges: of the region's last batch in this record; one without a batch repeats them.
    """

    in_all: int
    ranges: tuple[Range, ...] = ()


def offsets_in(splits: Iterable[SplitRange]) -> int:
    """How many offsets the ranges cover."""
    return sum(split.end_offset - split.start_offset for split in splits)


def named(splits: Iterable[SplitRange]) -> str:
    """The ranges for people: ``orders-0:[10,20)``."""
    return " ".join(f"{s.name}:[{s.start_offset},{s.end_offset})" for s in splits)


# --- in the records -------------------------------------------------------------------------------


def encode_drops(drops: Drops, *, operator_id: str) -> StateEntry:
    """The state that stands in an acknowledgement and in ``_metadata``, under the source's id."""
    content = {"in_all": drops.in_all, "ranges": [list(found) for found in drops.ranges]}
    entry = committable(content, kind=DROPS_KIND, version=DROPS_VERSION, operator_id=operator_id)
    return replace(entry, state_name=DROPS_KIND)


def decode_drops(entry: StateEntry) -> Drops:
    """The drops inside a state.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
    """
    return content_of(
        entry, _from_content, kind=DROPS_KIND, version=DROPS_VERSION, what="dropped ranges"
    )


def _from_content(content: Mapping[str, object]) -> Drops:
    return Drops(
        in_all=number(content["in_all"]),
        ranges=tuple(
            (text(topic), number(partition), number(start), number(end))
            for topic, partition, start, end in rows(content["ranges"])
        ),
    )


def dropped_in_all(states: Iterable[StateEntry]) -> int:
    """Offsets that a region has left out since the first start, by its operator states."""
    return sum(decode_drops(entry).in_all for entry in states if entry.kind == DROPS_KIND)


def drops_after(
    states: Iterable[StateEntry], dropped: Sequence[SplitRange]
) -> tuple[StateEntry, ...]:
    """What a region's record says once it contains a batch; nothing if nothing was ever left out.

    Args:
        states: in the region's last decided record; those of one source count together, for a
            region may have got some of another one.
        dropped: of the batch.
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
    """What may still be left out, in one run of a job. Driver; every method thread-safe.

    Each region claims before it acknowledges, so what is decided is within the limit. A claim is
    open until the region's batch is committed on record, or until its next batch claims.

    Args:
        limit: of the job.
        in_all: offsets that each region has left out so far, by its restored record.
    """

    def __init__(self, limit: DropLimit, in_all: Mapping[str, int]) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._decided = dict(in_all)
        self._open: dict[str, tuple[int, int]] = {}

    def left(self) -> int:
        """The most that a single task may leave out now; a larger one reads again."""
        with self._lock:
            return min(self._limit.per_checkpoint, self._left_in_all(""))

    def claim(self, region: str, checkpoint_id: int, dropped: Sequence[SplitRange]) -> None:
        """Ask to leave ``dropped`` out of a region's batch.

        Raises:
            DropLimitError: it would be too much; the epoch must be read again, as a whole.
        """
        offsets = offsets_in(dropped)
        with self._lock:
            beside = sum(
                claimed
                for name, (at, claimed) in self._open.items()
                if name != region and at == checkpoint_id
            )
            left = min(self._limit.per_checkpoint - beside, self._left_in_all(region))
            if offsets > max(0, left):
                raise DropLimitError(
                    "failed tasks of an epoch had more to read than may be left out",
                    {
                        "region": region,
                        "checkpoint_id": checkpoint_id,
                        "offsets": offsets,
                        "left": max(0, left),
                        "ranges": named(dropped),
                    },
                    "Nothing of it is left out: the region reads this epoch again. Raise "
                    "max_dropped_records, or max_dropped_in_all, if that takes too long.",
                )
            self._open[region] = (checkpoint_id, offsets)

    def restored(self, region: str, in_all: int) -> None:
        """A new life begins with a record that says so: an open claim is in it, or given up."""
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
