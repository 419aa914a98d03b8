"""Turns what the user says about positions into numbers, asked for once (`start-offsets-once`)."""

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
    """The position of every partition as a number.

    Args:
        option: names what is resolved in errors: ``startingOffsets`` or ``endingOffsets``.
        all_before_ms: of an ending: where no record is as young as a timestamp before that, it is
            the end of the log, behind transactions that are open, for all before it is older.
    Raises:
        ConfigError: positions are not given for exactly these partitions, or no record is as
            young as a timestamp and that was not allowed for.
        SourceChangedError: a partition is gone.
    """
    keys = tuple(keys)
    if isinstance(position, Edge):
        return _ask(cluster, dict.fromkeys(keys, position), NoMatch.ERROR, timeout_s)
    if isinstance(position, Committed):
        return _committed(cluster, position.group_id, keys, timeout_s)
    if isinstance(position, AtTimestamp):
        times = dict.fromkeys(keys, position.timestamp_ms)
        return _ask(cluster, times, position.no_match, timeout_s, all_before_ms)
    if isinstance(position, PerPartitionTimestamp):
        require_all(keys, position.timestamps_ms, option=f"{option}ByTimestamp")
        times = dict(position.timestamps_ms)
        return _ask(cluster, times, position.no_match, timeout_s, all_before_ms)
    return _per_partition(cluster, position, keys, option, timeout_s)


def _per_partition(
    cluster: SourceCluster,
    position: PerPartition,
    keys: tuple[PartitionKey, ...],
    option: str,
    timeout_s: float,
) -> dict[PartitionKey, int]:
    require_all(keys, position.offsets, option=option)
    edges = {key: what for key, what in position.offsets.items() if isinstance(what, Edge)}
    numbers = {key: what for key, what in position.offsets.items() if isinstance(what, int)}
    return {**numbers, **_ask(cluster, edges, NoMatch.ERROR, timeout_s)}


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
    earliest = _ask(cluster, dict.fromkeys(rest, Edge.EARLIEST), NoMatch.ERROR, timeout_s)
    return {**{key: found[key] for key in keys if key in found}, **earliest}


def _is_before(what: Edge | int, at_ms: int | None) -> bool:
    return at_ms is not None and not isinstance(what, Edge) and what <= at_ms


def _ask(
    cluster: SourceCluster,
    wanted: Mapping[PartitionKey, Edge | int],
    no_match: NoMatch,
    timeout_s: float,
    all_before_ms: int | None = None,
) -> dict[PartitionKey, int]:
    latest: dict[PartitionKey, int] = {}
    if no_match is NoMatch.LATEST:
        # Before the timestamps: what comes between the two questions is read by a start, and left
        # to the next read by an ending.
        older = {key for key, what in wanted.items() if _is_before(what, all_before_ms)}
        rest = [key for key in wanted if key not in older]
        latest = _ask(cluster, dict.fromkeys(rest, Edge.LATEST), NoMatch.ERROR, timeout_s)
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
            "no record is as young as the timestamp",
            {
                f"{topic}-{number}": f"timestamp_ms={wanted[topic, number]}"
                for topic, number in sorted(unmatched)
            },
            "Give an earlier one, or set startingOffsetsByTimestampStrategy=latest.",
        )
    return {key: latest[key] if fact is None else fact.offset for key, fact in found.items()}
