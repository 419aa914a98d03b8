"""Starting and ending positions, before they are resolved to offsets. Pure.

Spark writes -2 for earliest and -1 for latest inside its JSON; those numbers stop here.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.json_text import RepeatedNameError, parsed_json

__all__ = [
    "AtTimestamp",
    "Committed",
    "Edge",
    "NoMatch",
    "PartitionKey",
    "PerPartition",
    "PerPartitionTimestamp",
    "Position",
    "named_ends",
    "parse_assignment",
    "parse_offsets",
    "parse_timestamps",
    "require_all",
]

PartitionKey: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Edge(enum.Enum):
    """One end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


class NoMatch(enum.Enum):
    """The action if a timestamp is later than every record."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The offsets that a consumer group committed; earliest if it committed none."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """The first record of each partition at or after a moment."""

    timestamp_ms: int
    no_match: NoMatch = NoMatch.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class PerPartition:
    """An offset, or an edge, for every partition.

    Attributes:
        offsets: by partition.
        topics: an edge for all partitions of a topic.
    """

    offsets: Mapping[PartitionKey, int | Edge]
    topics: Mapping[str, Edge] = field(default_factory=dict)

    def of(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, int | Edge]:
        """The offsets of these partitions, and others that are given.

        Raises:
            ConfigError: a topic has no partition among ``keys``.
        """
        expanded = {key: self.topics[key[0]] for key in keys if key[0] in self.topics}
        absent = sorted(self.topics.keys() - {topic for topic, _ in expanded})
        if absent:
            raise ConfigError(
                "positions are given for topics that are not read",
                {"topics": ",".join(absent)},
                "Remove them, or subscribe to them.",
            )
        return {**expanded, **self.offsets}

    def mentions(self, edge: Edge) -> bool:
        """Whether a partition or a topic is at this edge."""
        return edge in self.offsets.values() or edge in self.topics.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class PerPartitionTimestamp:
    """A moment for every partition; as `AtTimestamp`."""

    timestamps_ms: Mapping[PartitionKey, int]
    no_match: NoMatch = NoMatch.ERROR


Position: TypeAlias = Edge | Committed | AtTimestamp | PerPartition | PerPartitionTimestamp


def named_ends(
    ending: Position, ends: Mapping[PartitionKey, int], now_ms: int
) -> dict[PartitionKey, int]:
    """Return the ends that the user has named; the rest are the present visible ends."""
    if isinstance(ending, PerPartition):
        wanted = ending.of(ends)
        return {key: end for key, end in ends.items() if wanted.get(key) is not Edge.LATEST}
    if isinstance(ending, AtTimestamp):
        return dict(ends) if ending.timestamp_ms <= now_ms else {}
    if isinstance(ending, PerPartitionTimestamp):
        times = ending.timestamps_ms
        return {key: end for key, end in ends.items() if times.get(key, now_ms) <= now_ms}
    return {}


_ASSIGNMENT = '{"topic": [0, 1]}'
_OFFSETS = '{"topic": {"0": 23, "1": -2}}'
_EDGES = {edge.value: edge for edge in Edge}
_ENDS = '{"topic": {"0": 23, "1": -1}}'
_TIMESTAMPS = '{"topic": {"0": 1700000000000, "1": 0}}'
_SPARK_EDGES = {-2: Edge.EARLIEST, -1: Edge.LATEST}


def parse_offsets(text: str, *, option: str) -> PerPartition:
    """``{"orders": {"0": 23, "1": -2}, "payments": "earliest"}``; -2 is earliest, -1 latest.

    Raises:
        ConfigError: names ``option`` and shows the form.
    """
    topics: dict[str, Edge] = {}
    found: dict[PartitionKey, int | Edge] = {}
    form = _ENDS if option.startswith("ending") else _OFFSETS
    for key, number in _numbers(text, option, form, topics):
        if number < -2:
            raise _malformed(option, text, form)
        found[key] = _SPARK_EDGES.get(number, number)
    return PerPartition(offsets=found, topics=topics)


def parse_timestamps(text: str, *, option: str) -> dict[PartitionKey, int]:
    """``{"orders": {"0": 1700000000000}}``, milliseconds."""
    found = dict(_numbers(text, option, _TIMESTAMPS))
    if any(number < 0 for number in found.values()):
        raise _malformed(option, text, _TIMESTAMPS)
    return found


def parse_assignment(text: str, *, option: str) -> frozenset[PartitionKey]:
    """``{"orders": [0, 1]}``."""
    found = set[PartitionKey]()
    for topic, numbers in _objects(text, option, _ASSIGNMENT):
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n < 2**31 for n in numbers
        ):
            raise _malformed(option, text, _ASSIGNMENT)
        found |= {(topic, number) for number in numbers}
    if not found:
        raise _malformed(option, text, _ASSIGNMENT)
    return frozenset(found)


_MOST_DIGITS = 9  # of a partition


def _numbers(
    text: str, option: str, form: str, edges: dict[str, Edge] | None = None
) -> Iterable[tuple[PartitionKey, int]]:
    """The numbers by partition; ``edges`` takes those of whole topics, if these may be given."""
    for topic, by_partition in _objects(text, option, form):
        if edges is not None and str(by_partition).lower() in _EDGES:
            edges[topic] = _EDGES[str(by_partition).lower()]
            continue
        if not isinstance(by_partition, dict):
            raise _malformed(option, text, form)
        spelt: dict[int, str] = {}
        for partition, number in by_partition.items():
            if not partition.isdecimal() or len(partition) > _MOST_DIGITS:
                raise _malformed(option, text, form)
            if type(number) is not int or number >= 2**63:
                raise _malformed(option, text, form)
            first = spelt.setdefault(int(partition), partition)
            if first != partition:
                raise _twice(option, text, f'"{first}" and "{partition}" of {topic}')
            yield (topic, int(partition)), number


def _objects(text: str, option: str, form: str) -> Iterable[tuple[str, object]]:
    try:
        found = parsed_json(text, once=True)
    except RepeatedNameError as err:
        raise _twice(option, text, f'"{err}" and "{err}"') from None
    except ValueError:
        raise _malformed(option, text, form) from None
    if not isinstance(found, dict):
        raise _malformed(option, text, form)
    return found.items()


def _malformed(option: str, text: str, form: str) -> ConfigError:
    return ConfigError(
        "the option's value is not of the right form",
        {"option": option, "value": text},
        f"Write it as {form}.",
    )


def _twice(option: str, text: str, names: str) -> ConfigError:
    return ConfigError(
        "the option names a topic or a partition twice",
        {"option": option, "value": text, "twice": names},
        "Name each once, a partition without leading zeros.",
    )


def require_all(
    wanted: Iterable[PartitionKey], given: Iterable[PartitionKey], *, option: str
) -> None:
    """ConfigError unless exactly the wanted partitions are given, as Spark asks for."""
    wanted, given = set(wanted), set(given)
    if wanted == given:
        return
    raise ConfigError(
        "positions are not given for exactly the partitions that are read",
        {"option": option, "missing": _names(wanted - given), "unknown": _names(given - wanted)},
        "Give each partition an offset (-2 for earliest, -1 for latest) or a timestamp.",
    )


def _names(keys: set[PartitionKey]) -> str:
    return ",".join(f"{topic}-{partition}" for topic, partition in sorted(keys)) or "none"
