"""How far splits that nobody reads are behind, as the brokers say now."""

from collections.abc import Mapping, Sequence

from connectors.kafka.discovery import Look, SourceCluster
from connectors.kafka.positions import PartitionKey
from connectors.kafka.splits import key_of
from runtime.contracts import Backlog
from runtime.model import SplitKey, SplitRange

__all__ = ["measured"]


def measured(
    cluster: SourceCluster,
    positions: Sequence[SplitRange],
    ends: Mapping[PartitionKey, int] | None,
    *,
    timeout_s: float,
) -> Mapping[SplitKey, Backlog]:
    """Offsets behind each position, and those of them that retention took; driver.

    A topic that is gone, or was made anew under its name, is left out: the next cut judges it.

    Args:
        cluster: is asked once.
        positions: their ``end_offset`` is where to go on.
        ends: of a bounded run; None: it has none.
    Raises:
        UnreachableError: nobody answers.
    """
    if not positions:
        return {}
    look = cluster.look([key_of(split) for split in positions], timeout_s=timeout_s)
    return {
        split.key: _backlog(split, look, ends)
        for split in positions
        if key_of(split) in look.latest and _is_same(split, look)
    }


def _is_same(split: SplitRange, look: Look) -> bool:
    """Whether the topic is the one that was read; an end may have come just before its deletion."""
    found = look.topics.get(split.topic)
    return found is not None and found.topic_id == split.topic_id


def _backlog(split: SplitRange, look: Look, ends: Mapping[PartitionKey, int] | None) -> Backlog:
    key = key_of(split)
    latest = look.latest[key].offset
    end = latest if ends is None else min(latest, ends.get(key, latest))
    records = max(0, end - split.end_offset)
    first = look.earliest[key].offset if key in look.earliest else 0
    return Backlog(records=records, lost_records=min(max(0, first - split.end_offset), records))
