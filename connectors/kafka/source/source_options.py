"""The options of the Kafka source: those of Spark's ``kafka`` format, and ours. Pure.

Names are case-insensitive. A misspelt name is an error that names the nearest right one. Spark
ignores misspelt names, and the job then reads something else than its author thinks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

from sluice.connectors.kafka.client.client_options import PREFIX, is_sendable, seconds_of
from sluice.connectors.kafka.client.client_tuning import HotPath, hot_path_of
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import TokenFunction
from sluice.connectors.kafka.source.positions import (
    AtTimestamp,
    Committed,
    Edge,
    NoMatch,
    PerPartition,
    PerPartitionTimestamp,
    Position,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from sluice.connectors.kafka.source.subscription import Assigned, Pattern, Subscription, Topics
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest
from sluice.runtime.model.task_memory import checked_mib

__all__ = ["SOURCE_OPTIONS", "SourceOptions"]

T = TypeVar("T")

SOURCE_OPTIONS = (
    "assign",
    "commitGroupOffsets",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "forgetTopics",
    "groupIdPrefix",
    "guarantee",
    "hotPath",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "partitionDiscoveryIntervalMs",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "taskMemoryMiB",
)
"""Every option that does not begin with ``kafka.``."""

_CANONICAL = {name.lower(): name for name in SOURCE_OPTIONS}
# Options that Spark's source accepts and ignores in a batch read stay accepted. Our own options and
# limits are refused: the read would return more than requested.
_STREAM_ONLY = {
    "commitGroupOffsets": "A batch read publishes no offsets; remove it.",
    "forgetTopics": "A batch read has no earlier positions; remove it.",
    "guarantee": "A batch read promises nothing about a later run; remove it.",
    "maxOffsetsPerTrigger": "A batch read has no triggers; remove it.",
    "maxTriggerDelay": "A batch read has no triggers; remove it.",
    "minOffsetsPerTrigger": "A batch read has no triggers; remove it.",
    "partitionDiscoveryIntervalMs": "A batch read discovers partitions once; remove it.",
}
_ENDINGS = dict.fromkeys(
    ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
    "A stream does not end; use trigger(availableNow=True).",
)
_GUARANTEES = ("exactly-once", "at-least-once", "none")
_GROUP_ID = "kafka.group.id"
_ISOLATION = "kafka.isolation.level"
_NO_NAMES: tuple[str, ...] = ()
_LARGEST = (1 << 63) - 1  # Java's Long.MAX_VALUE


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of a Kafka source. Picklable.

    Attributes:
        connection: how to reach the brokers.
        subscription: which partitions.
        forgotten: topics that an earlier run has read and that this one gives up.
        starting: where to begin, the very first time.
        ending: where a bounded read ends; resolved at its start.
        max_offsets: largest number of offsets of an epoch; None: no limit.
        min_offsets: a barrier waits for this many offsets; None: it does not wait.
        max_trigger_delay_s: longest wait for ``min_offsets``.
        min_partitions: about this many read tasks; None: one for each partition.
        max_records_per_partition: largest number of offsets of a read task.
        include_headers: whether there is a column ``headers``.
        fail_on_data_loss: stop if retention or a deletion removed records, or skip them.
        group_id: the consumer group under which offsets are published; None: a name made of
            ``group_id_prefix``.
        group_id_prefix: see ``group_id``.
        commit_group_offsets: whether offsets are published at all.
        no_progress_timeout_s: a read for which the client fetches nothing for this long fails.
        discovery_interval_s: shortest time between two discoveries of partitions and topics; None:
            discover at each call.
        read_committed: isolation level.
        task_memory_mib: of a drop-in query's tasks; None: as little as its settings need. A Job
            has its own setting.
        hot_path: native or plain clients.
    """

    connection: KafkaConnection
    subscription: Subscription
    forgotten: frozenset[str] = frozenset()
    starting: Position = Edge.EARLIEST
    ending: Position = Edge.LATEST
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_s: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    group_id: str | None = None
    group_id_prefix: str = "sluice"
    commit_group_offsets: bool = True
    no_progress_timeout_s: float = 120.0
    discovery_interval_s: float | None = None
    read_committed: bool = True
    task_memory_mib: int | None = None
    hot_path: HotPath = HotPath.AUTO

    @classmethod
    def of(
        cls,
        options: Mapping[str, str],
        *,
        bounded: bool,
        stream: bool,
        oauth_token: TokenFunction | None = None,
    ) -> "SourceOptions":
        """Parse Spark options.

        Args:
            options: names in any case.
            bounded: the source ends by itself, so ``ending…`` options apply.
            stream: the source runs in epochs; starting ``latest`` and limits per trigger apply.
            oauth_token: gives tokens for SASL OAUTHBEARER.
        Raises:
            ConfigError: an unknown, malformed, conflicting, missing or unsafe option.
        """
        given = _Given(options)
        group_id, read_committed = _reading(given)
        connection = KafkaConnection.of(given.kafka, oauth_token=oauth_token)
        # A batch read promises nothing about a later run, so it may see uncommitted records.
        guarantee = given.read("guarantee", _one_of(*_GUARANTEES), _GUARANTEES[0])
        is_exact = stream and guarantee == _GUARANTEES[0]
        connection.refuse_owned(exactly_once=is_exact, reads_only=True)
        starting = _starting(given, group_id, stream=stream)
        if not bounded:
            given.refuse(_ENDINGS)
        if not stream:
            given.refuse(_STREAM_ONLY)
        forgotten = frozenset[str](given.read("forgetTopics", _names, _NO_NAMES))
        return cls(
            connection=connection,
            subscription=_subscription(given, forgotten),
            forgotten=forgotten,
            starting=starting,
            ending=_ending(given),
            max_offsets=given.read("maxOffsetsPerTrigger", _positive, None),
            min_offsets=given.read("minOffsetsPerTrigger", _positive, None),
            max_trigger_delay_s=given.read("maxTriggerDelay", _delay_s, 900.0),
            min_partitions=given.read("minPartitions", _positive, None),
            max_records_per_partition=given.read("maxRecordsPerPartition", _positive, None),
            include_headers=given.read("includeHeaders", _flag, False),
            fail_on_data_loss=given.read("failOnDataLoss", _flag, True),
            group_id=group_id,
            group_id_prefix=given.read("groupIdPrefix", _sendable, "sluice"),
            commit_group_offsets=given.read("commitGroupOffsets", _flag, True),
            no_progress_timeout_s=given.read("kafkaConsumer.pollTimeoutMs", _millis_s, 120.0),
            discovery_interval_s=given.read("partitionDiscoveryIntervalMs", _millis_s, None),
            read_committed=read_committed,
            task_memory_mib=given.read("taskMemoryMiB", _memory_mib, None),
            hot_path=hot_path_of(given.read("hotPath", str, HotPath.AUTO.value)),
        )

    def __post_init__(self) -> None:
        if self.max_offsets is not None and (self.min_offsets or 0) > self.max_offsets:
            raise ConfigError(
                "minOffsetsPerTrigger is larger than maxOffsetsPerTrigger",
                {
                    "minOffsetsPerTrigger": self.min_offsets,
                    "maxOffsetsPerTrigger": self.max_offsets,
                },
                "Lower minOffsetsPerTrigger, or raise maxOffsetsPerTrigger.",
            )

    def group_name(self, of: str) -> str:
        """Return the consumer group to publish under; ``of``: its suffix by default."""
        return self.group_id or f"{self.group_id_prefix}-{of}"


class _Given:
    """The options as given: found by canonical name, shown by the name the user wrote."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.kafka: dict[str, str] = {}
        self._own: dict[str, str] = {}
        for name, value in options.items():
            lower = name.strip().lower()
            if lower.startswith(PREFIX):
                self.kafka[lower] = str(value)
            elif lower in _CANONICAL:
                self._own[_CANONICAL[lower]] = str(value).strip()
            else:
                _unknown(name)

    def __contains__(self, name: str) -> bool:
        return name in self._own

    def read(self, name: str, convert: Callable[[str], T], default: T) -> T:
        """The converted value, or the default."""
        if name not in self._own:
            return default
        try:
            return convert(self._own[name])
        except ValueError as err:
            raise ConfigError(
                "an option has a value that is not valid",
                {"option": name, "value": self._own[name]},
                f"Give {err}.",
            ) from None

    def refuse(self, remedies: Mapping[str, str]) -> None:
        """ConfigError when one of these names is given."""
        for name, remedy in remedies.items():
            if name in self._own:
                raise ConfigError("this option does not apply here", {"option": name}, remedy)


def _unknown(name: str) -> NoReturn:
    guess = nearest(name.strip().lower(), set(_CANONICAL))
    raise ConfigError(
        "unknown option of the Kafka source",
        {"option": name},
        f"Did you mean {_CANONICAL[guess]}?" if guess else "Remove it.",
    )


def _reading(given: _Given) -> tuple[str | None, bool]:
    """Take the consumer group and the isolation level out of the client's options."""
    group_id = given.kafka.pop(_GROUP_ID, None)
    if group_id is not None and not (group_id.strip() and is_sendable(group_id)):
        raise ConfigError(
            "the consumer group has an empty or invalid name",
            {"option": _GROUP_ID, "value": ascii(group_id)},
            "Name it without null characters, or leave the option out.",
        )
    level = given.kafka.get(_ISOLATION, "read_committed").strip().lower()
    if level not in ("read_committed", "read_uncommitted"):
        raise ConfigError(
            "there is no such isolation level",
            {"option": _ISOLATION, "value": level},
            "Use read_committed.",
        )
    return group_id, level == "read_committed"


def _subscription(given: _Given, forgotten: frozenset[str]) -> Subscription:
    found = _subscribed(given)
    if isinstance(found, Pattern):
        return replace(found, without=forgotten)
    both = sorted(topic for topic in forgotten if found.reads(topic))
    if both:
        raise ConfigError(
            "a topic is subscribed and forgotten",
            {"topics": ",".join(both), "option": "forget / forgetTopics"},
            "Remove it from one of the two.",
        )
    return found


def _subscribed(given: _Given) -> Subscription:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if len(ways) != 1:
        raise ConfigError(
            "exactly one of three subscription options must be set",
            {"given": ",".join(ways) or "nothing"},
            "Set one of subscribe, subscribePattern and assign.",
        )
    if ways == ["assign"]:
        return Assigned(
            keys=given.read("assign", lambda t: parse_assignment(t, option="assign"), frozenset())
        )
    if ways == ["subscribePattern"]:
        return Pattern(regex=given.read("subscribePattern", _text, ""))
    return Topics(names=given.read("subscribe", _names, ()))


def _starting(given: _Given, group_id: str | None, *, stream: bool) -> Position:
    """In Spark's order of precedence: one timestamp, timestamps, offsets."""
    no_match = NoMatch(
        given.read("startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error")
    )
    timed = _timed(given, "startingTimestamp", "startingOffsetsByTimestamp", no_match)
    if timed is not None:
        return timed
    default = Edge.LATEST if stream else Edge.EARLIEST
    text = given.read("startingOffsets", _text, default.value)
    if text.lower() == "committed":
        if group_id is None:
            raise ConfigError(
                "starting at committed offsets needs a consumer group",
                {"option": "startingOffsets", "value": text},
                f"Set {_GROUP_ID}.",
            )
        return Committed(group_id=group_id)
    found = _offsets_or_edge(text, "startingOffsets")
    if not stream and _mentions(found, Edge.LATEST):
        raise ConfigError(
            "a batch read cannot start at the latest offset",
            {"option": "startingOffsets", "value": text},
            "Use earliest, a timestamp or offsets.",
        )
    return found


def _ending(given: _Given) -> Position:
    timed = _timed(given, "endingTimestamp", "endingOffsetsByTimestamp", NoMatch.LATEST)
    if timed is not None:
        return timed
    text = given.read("endingOffsets", _text, Edge.LATEST.value)
    found = _offsets_or_edge(text, "endingOffsets")
    if _mentions(found, Edge.EARLIEST):
        raise ConfigError(
            "a read cannot end at the earliest offset",
            {"option": "endingOffsets", "value": text},
            "Use latest, a timestamp or offsets.",
        )
    return found


def _timed(given: _Given, single: str, each: str, no_match: NoMatch) -> Position | None:
    if single in given:
        return AtTimestamp(timestamp_ms=given.read(single, _whole, 0), no_match=no_match)
    if each in given:
        return PerPartitionTimestamp(
            timestamps_ms=given.read(each, lambda text: parse_timestamps(text, option=each), {}),
            no_match=no_match,
        )
    return None


def _offsets_or_edge(text: str, option: str) -> Edge | PerPartition:
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    if not text.startswith("{"):
        is_start = option == "startingOffsets"
        names, edge = ("earliest, latest, committed", -2) if is_start else ("latest", -1)
        raise ConfigError(
            "an option has a value that is not valid",
            {"option": option, "value": text},
            f'Use {names} or JSON such as {{"topic": {{"0": 23, "1": {edge}}}}}.',
        )
    return parse_offsets(text, option=option)


def _mentions(position: Edge | PerPartition, edge: Edge) -> bool:
    return position is edge if isinstance(position, Edge) else position.mentions(edge)


# --- values: a ValueError's text completes "Give …" -----------------------------------------


def _text(value: str) -> str:
    if not value:
        raise ValueError("a value that is not empty")
    return value


def _names(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError("at least one topic")
    return names


def _whole(value: str) -> int:
    # Longer numbers would overflow in a client, a clock or Python's own parser.
    if not _is_long(value):
        raise ValueError(f"a whole number from 0 to {_LARGEST}")
    return int(value)


def _is_long(value: str) -> bool:
    return value.isdecimal() and len(value) <= len(str(_LARGEST)) and int(value) <= _LARGEST


def _sendable(value: str) -> str:
    if not is_sendable(value):
        raise ValueError("a name without null characters")
    return value


def _memory_mib(text: str) -> int:
    return checked_mib(_positive(text), name="taskMemoryMiB")


def _positive(value: str) -> int:
    if not _is_long(value) or int(value) < 1:
        raise ValueError(f"a whole number from 1 to {_LARGEST}")
    return int(value)


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def _millis_s(value: str) -> float:
    return _positive(value) / 1000


def _delay_s(value: str) -> float:
    found = seconds_of(value, bare="ms")
    if found is None:
        raise ValueError("a time such as 15m, 10s or 500ms")
    return found


def _one_of(*allowed: str) -> Callable[[str], str]:
    def convert(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return value.lower()

    return convert
