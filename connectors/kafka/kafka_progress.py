"""The progress of drop-in Kafka sources in the form of Spark's own Kafka source. Pure.

Spark takes ``metrics`` of a source only from a JVM stream that implements ``ReportsSourceMetrics``;
its stream of a Python data source does not. And ``startOffset`` and ``endOffset`` are the offsets
of Spark's log, which for Sluice hold more than numbers. So `kafka_progress` computes both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.runtime.model import offsets

__all__ = ["KafkaProgress", "kafka_progress", "lags_of"]

_Offsets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaProgress:
    """One drop-in Kafka source of a query.

    Attributes:
        start_offset, end_offset: of the batch, ``{"topic": {"0": 23}}``; None: Spark has none yet.
        latest_offset: the ends of the partitions when the batch was cut.
        metrics: ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest``,
            as text; empty while the ends are not known.
    """

    start_offset: _Offsets | None
    end_offset: _Offsets | None
    latest_offset: _Offsets | None
    metrics: Mapping[str, str]


def kafka_progress(progress: Mapping[str, Any]) -> list[KafkaProgress]:
    """Return the progress of each drop-in Kafka source of a query, in Spark's order of sources.

    Args:
        progress: ``query.lastProgress``, or ``event.progress`` of a listener.
    """
    sources = [
        tuple(_parsed(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
        for source in progress["sources"]
    ]
    return [_of(*found) for found in sources if any(_is_ours(offset) for offset in found[:2])]


def lags_of(progress: Mapping[str, Any]) -> list[int | None]:
    """Unread records of each drop-in Kafka source at the end of a batch; None: not known."""
    return [
        sum(
            last - read
            for topic, ends in (source.latest_offset or {}).items()
            for number, last in ends.items()
            if (read := (source.end_offset or {}).get(topic, {}).get(number)) is not None
        )
        if source.metrics
        else None
        for source in kafka_progress(progress)
    ]


def _parsed(text: object) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:  # of another source, or "None", as PySpark shows a missing offset
        return None


def _is_ours(offset: object) -> bool:
    return isinstance(offset, dict) and "splits" in offset and "format" in offset


def _of(start: Any, end: Any, latest: _Offsets | None) -> KafkaProgress:  # noqa: ANN401 - JSON
    read = _positions(end)
    behind = [
        last - read[topic][number]
        for topic, ends in (latest or {}).items()
        for number, last in ends.items()
        if number in (read or {}).get(topic, {})
    ]
    metrics = (
        {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        }
        if behind
        else {}
    )
    return KafkaProgress(
        start_offset=_positions(start), end_offset=read, latest_offset=latest, metrics=metrics
    )


def _positions(offset: Any) -> Any:  # noqa: ANN401 - JSON
    """The next offset of each partition; None: there is no offset."""
    if not _is_ours(offset):
        return None
    found: dict[str, dict[str, int]] = {}
    for split in offsets.decode(offset).splits:
        found.setdefault(split.topic, {})[str(split.partition)] = split.end_offset
    return found
