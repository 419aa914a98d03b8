"""The partitions in a region's record, and how a batch changes them. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

__all__ = [
    "STATE_KIND",
    "STATE_VERSION",
    "Marked",
    "OpenPartition",
    "PartitionState",
    "after_batch",
    "decode_state",
    "encode_state",
    "state_in",
    "transferred_state",
]

STATE_KIND = "open-partitions"
STATE_VERSION = 1
STATE_NAME = "partitions"

Marked = Mapping[str, Mapping[str, int]]
"""By partition and region: the checkpoint id of the newest file that a mark covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPartition:
    """A partition with files that no mark covered when the region wrote its record.

    Attributes:
        path: relative to the target.
        first_seen_ms: when the region first wrote into it; the driver's wall clock.
        checkpoint_id: the first that its newest file can be part of; grows from batch to batch.
        is_late: it was marked before these files came, and perhaps forgotten since.
        is_pending: files of it are staged, and no decision has published them yet.
    """

    path: str
    first_seen_ms: int
    checkpoint_id: int
    is_late: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A region's partitions after one of its batches.

    Attributes:
        checkpoint_id: the first that the batch can be part of.
        opened: by path.
        marked: the newest marks of this run at that time.
        forgotten_ms: the latest time of a partition whose mark was dropped from ``marked``.
        target: URI of the directory that the partitions are in.
    """

    checkpoint_id: int
    opened: Mapping[str, OpenPartition] = field(default_factory=dict)
    marked: Marked = field(default_factory=dict)
    forgotten_ms: int | None = None
    target: str = ""

    @property
    def has_rows(self) -> bool:
        """Whether the batch itself had rows."""
        return any(one.checkpoint_id == self.checkpoint_id for one in self.opened.values())

    def only(self, path: str) -> "PartitionState":
        """The state reduced to one partition."""
        return replace(self, opened={path: self.opened[path]} if path in self.opened else {})

    def unmarked(self, region: str, marked: Marked) -> dict[str, OpenPartition]:
        """The region's partitions with files that no mark covers."""
        return {
            path: found
            for path, found in self.opened.items()
            if found.checkpoint_id > marked.get(path, {}).get(region, -1)
        }


def after_batch(
    previous: PartitionState | None,
    *,
    region: str,
    written: Collection[str],
    pending: Collection[str],
    late: Collection[str],
    marked: Marked,
    forgotten_ms: int | None,
    checkpoint_id: int,
    now_ms: int,
    target: str,
) -> PartitionState:
    """The state that stands in the record with a batch's files.

    Args:
        previous: in the region's last decided record.
        written: partitions that the batch has rows for.
        pending: partitions with staged files that this batch's decision does not publish.
        late: those of ``written`` that had been marked before.
        marked, forgotten_ms: the marks now.
        target: of the sink.
    """
    opened = {} if previous is None else previous.unmarked(region, marked)
    kept = {
        path: OpenPartition(
            path=path,
            # If the clock was ahead and is set back, the partition does not wait for the old time.
            first_seen_ms=min(opened[path].first_seen_ms, now_ms) if path in opened else now_ms,
            checkpoint_id=checkpoint_id if path in written else opened[path].checkpoint_id,
            is_late=path in late or (path in opened and opened[path].is_late),
            is_pending=path in pending,
        )
        for path in sorted({*opened, *written})
    }
    return PartitionState(
        checkpoint_id=checkpoint_id,
        opened=kept,
        marked=marked,
        forgotten_ms=forgotten_ms,
        target=target,
    )


def encode_state(state: PartitionState, *, operator_id: str) -> StateEntry:
    """The entry that stands in the region's record."""
    content = {
        "checkpoint_id": state.checkpoint_id,
        "open": [
            [p.path, p.first_seen_ms, p.checkpoint_id, int(p.is_late), int(p.is_pending)]
            for p in state.opened.values()
        ],
        "marked": [
            [path, region, checkpoint_id]
            for path, through in state.marked.items()
            for region, checkpoint_id in through.items()
        ],
        "forgotten_ms": state.forgotten_ms,
        "target": state.target,
    }
    entry = committable(content, kind=STATE_KIND, version=STATE_VERSION, operator_id=operator_id)
    return replace(entry, state_name=STATE_NAME, redistribution=Redistribution.UNION)


def decode_state(entry: StateEntry) -> PartitionState:
    """The state inside an entry.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
    """
    return content_of(
        entry, _from_content, kind=STATE_KIND, version=STATE_VERSION, what="a state of partitions"
    )


def state_in(entries: Iterable[StateEntry], *, target: str) -> PartitionState | None:
    """The state of a target among an operator's entries, which may have other kinds.

    A region that takes over from removed regions has several states: they become one.
    """
    states = (decode_state(entry) for entry in entries if entry.kind == STATE_KIND)
    # An earlier run may have written to another target: its partitions do not count here.
    found = [state for state in states if state.target == target]
    return found[0] if len(found) == 1 else _joined(found)


def transferred_state(state: PartitionState, *, region: str) -> PartitionState:
    """The state of a region for a new job, whose checkpoint ids begin at 0.

    Open partitions stay open: no mark of the new job covers their files yet. Marked partitions stay
    marked, so late files are noticed.
    """
    opened = {
        path: replace(one, checkpoint_id=1)
        for path, one in state.unmarked(region, state.marked).items()
    }
    marked = {path: dict.fromkeys(regions, 0) for path, regions in state.marked.items()}
    return replace(state, checkpoint_id=0, opened=opened, marked=marked)


def _joined(states: Sequence[PartitionState]) -> PartitionState | None:
    """The state of several regions that became one.

    All their open partitions stay open, with numbers above every mark of the remaining region: its
    marks do not cover files of other regions.
    """
    if not states:
        return None
    through = max(state.checkpoint_id for state in states)
    opened: dict[str, OpenPartition] = {}
    marked: dict[str, dict[str, int]] = {}
    for state in states:
        for path, regions in state.marked.items():
            mine = marked.setdefault(path, {})
            for region, checkpoint_id in regions.items():
                mine[region] = max(checkpoint_id, mine.get(region, -1))
        for path, one in state.opened.items():
            other = opened.get(path, one)
            opened[path] = OpenPartition(
                path=path,
                first_seen_ms=min(one.first_seen_ms, other.first_seen_ms),
                checkpoint_id=through + 1,
                is_late=one.is_late or other.is_late,
                is_pending=one.is_pending or other.is_pending,
            )
    forgotten = [state.forgotten_ms for state in states if state.forgotten_ms is not None]
    return PartitionState(
        checkpoint_id=through,
        opened=opened,
        marked=marked,
        forgotten_ms=max(forgotten, default=None),
        target=states[0].target,
    )


def _from_content(content: Mapping[str, object]) -> PartitionState:
    opened = [
        OpenPartition(
            path=text(path),
            first_seen_ms=number(first_seen_ms),
            checkpoint_id=number(checkpoint_id),
            is_late=bool(number(is_late)),
            is_pending=bool(number(is_pending)),
        )
        for path, first_seen_ms, checkpoint_id, is_late, is_pending in rows(content["open"])
    ]
    marked: dict[str, dict[str, int]] = {}
    for path, region, checkpoint_id in rows(content["marked"]):
        marked.setdefault(text(path), {})[text(region)] = number(checkpoint_id)
    forgotten_ms = content["forgotten_ms"]
    return PartitionState(
        checkpoint_id=number(content["checkpoint_id"]),
        opened={found.path: found for found in opened},
        marked=marked,
        forgotten_ms=None if forgotten_ms is None else number(forgotten_ms),
        target=text(content["target"]),
    )
