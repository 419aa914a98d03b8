"""Turns the user's starting and ending positions into offsets, once (`start-offsets-once`)."""

import logging
from collections.abc import Iterable, Mapping

from sluice.connectors.kafka.source.enumerator.discovery import SourceCluster, require_located
from sluice.connectors.kafka.source.positions import (
    AtTimestamp,
    Committed,
    Edge,
    NoMatch,
    PartitionKey,
    PerPartition,
    PerPartitionTimestamp,
    Position,
    require_all,
)
from sluice.runtime.errors import ConfigError, SourceChangedError

__all__ = ["resolve"]

log = logging.getLogger(__name__)


def resolve(
    cluster: SourceCluster,
    position: Position,
    keys: Iterable[PartitionKey],
    *,
    option: str,
    timeout_s: float,
    all_before_ms: int | None = None,
) -> dict[PartitionKey, int]:
    """Return the position of every partition as an offset.

    Args:
        option: name for errors, ``startingOffsets`` or ``endingOffsets``.
        all_before_ms: for an ending. A timestamp before this that is later than every record means
            the end of the log, after open transactions: all their records are older.
    Raises:
        ConfigError: positions are not given for exactly these partitions, or a timestamp is later
            than every record and no strategy allows that.
        SourceChangedError: a partition was deleted.
    """
    keys = tuple(keys)
    if isinstance(position, Edge):
        return _fetch(cluster, dict.fromkeys(keys, position), NoMatch.ERROR, timeout_s)
    if isinstance(position, Committed):
        return _committed(cluster, position.group_id, keys, timeout_s)
    if isinstance(position, AtTimestamp):
        times = dict.fromkeys(keys, position.timestamp_ms)
        return _fetch(cluster, times, position.no_match, timeout_s, all_before_ms)
    if isinstance(position, PerPartitionTimestamp):
        require_all(keys, position.timestamps_ms, option=f"{option}ByTimestamp")
        times = dict(position.timestamps_ms)
        return _fetch(cluster, times, position.no_match, timeout_s, all_before_ms)
    return _per_partition(cluster, position, keys, option, timeout_s)


def _per_partition(
    cluster: SourceCluster,
    position: PerPartition,
    keys: tuple[PartitionKey, ...],
    option: str,
    timeout_s: float,
) -> dict[PartitionKey, int]:
    offsets = position.of(keys)
    require_all(keys, offsets, option=option)
    edges = {key: what for key, what in offsets.items() if isinstance(what, Edge)}
    numbers = {key: what for key, what in offsets.items() if isinstance(what, int)}
    return {**numbers, **_fetch(cluster, edges, NoMatch.ERROR, timeout_s)}


def _committed(
    cluster: SourceCluster, group_id: str, keys: tuple[PartitionKey, ...], timeout_s: float
) -> dict[PartitionKey, int]:
    if not keys:
        return {}
    found = cluster.committed(group_id, keys, timeout_s=timeout_s)
    rest = [key for key in keys if key not in found]
    if rest:
        log.warning(
            "no committed offset, starting at the earliest: group=%s partitions=%s",
            group_id,
            ",".join(f"{topic}-{number}" for topic, number in rest),
        )
    earliest = _fetch(cluster, dict.fromkeys(rest, Edge.EARLIEST), NoMatch.ERROR, timeout_s)
    return {**{key: found[key] for key in keys if key in found}, **earliest}


def _is_before(what: Edge | int, at_ms: int | None) -> bool:
    return at_ms is not None and not isinstance(what, Edge) and what <= at_ms


def _fetch(
    cluster: SourceCluster,
    wanted: Mapping[PartitionKey, Edge | int],
    no_match: NoMatch,
    timeout_s: float,
    all_before_ms: int | None = None,
) -> dict[PartitionKey, int]:
    latest: dict[PartitionKey, int] = {}
    if no_match is NoMatch.LATEST:
        # Fetched before the timestamps: a start reads a record that arrives between the two
        # requests, and an ending leaves it to the next read.
        older = {key for key, what in wanted.items() if _is_before(what, all_before_ms)}
        rest = [key for key in wanted if key not in older]
        latest = _fetch(cluster, dict.fromkeys(rest, Edge.LATEST), NoMatch.ERROR, timeout_s)
        ends = cluster.log_ends(older, timeout_s=timeout_s) if older else {}
        require_located(older, ends)
        latest |= {key: fact.offset for key, fact in ends.items()}
    found = cluster.offsets(wanted, timeout_s=timeout_s) if wanted else {}
    gone = sorted(key for key in wanted if key not in found)
    if gone:
        raise SourceChangedError(
            "a partition does not exist or has no leader",
            {"partitions": ",".join(f"{topic}-{number}" for topic, number in gone)},
            "Check the topic, then start again.",
        )
    unmatched = [key for key, fact in found.items() if fact is None]
    if unmatched and no_match is NoMatch.ERROR:
        raise ConfigError(
            "no record is as recent as the timestamp",
            {
                f"{topic}-{number}": f"timestamp_ms={wanted[topic, number]}"
                for topic, number in sorted(unmatched)
            },
            "Give an earlier timestamp, or set startingOffsetsByTimestampStrategy=latest.",
        )
    return {key: latest[key] if fact is None else fact.offset for key, fact in found.items()}
