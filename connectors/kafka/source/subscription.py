"""Which partitions a source reads. Pure."""

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import NewStart, TopicFacts, key_of
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitRange

__all__ = ["Assigned", "Pattern", "Subscription", "Topics", "require_named"]

# Kafka's own bookkeeping; Java consumers leave these out of a pattern, too.
_INTERNAL = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})

_TOKEN = re.compile(
    r"\\(?P<octal>0|[0-3][0-7]{2})|\\.|\[\^?\]?(?P<set>(?:\\.|[^\]\\])*)", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """All partitions of the named topics."""

    names: tuple[str, ...]
    needs_names: ClassVar[bool] = False

    def __str__(self) -> str:
        return ",".join(self.names)

    def choose(self, existing: Iterable[str]) -> frozenset[str]:
        """Return the names to describe."""
        del existing
        return frozenset(self.names)

    def partitions(self, found: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
        """Return the described topics, with the partitions that the source reads."""
        return dict(found)

    def missing(
        self, found: Mapping[str, TopicFacts], read: Collection[PartitionKey]
    ) -> frozenset[str]:
        """Return names that do not exist and that the source has not read."""
        return frozenset(self.names) - set(found) - {topic for topic, _ in read}

    def grows_by(self, topic: str, known: Collection[str], *, was_absent: bool) -> bool:
        """Whether a new partition of a topic was created just now.

        ``known``: topics that were read. ``was_absent``: this run has seen the topic without it.
        """
        del was_absent
        return topic in known  # other topics were missing or not subscribed before

    def covers(self, topic: str, partition: int) -> bool:
        """Whether this partition belongs to it."""
        del partition
        return self.reads(topic)

    def reads(self, topic: str) -> bool:
        """Whether a partition of this topic may belong to it."""
        return topic in self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """All partitions of every topic whose whole name matches, now or later.

    ``without``: topics that are left out.
    """

    regex: str
    without: frozenset[str] = frozenset()
    needs_names: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            with warnings.catch_warnings():
                # A later Python may read the pattern in another way; this one accepts it.
                warnings.simplefilter("ignore", FutureWarning)
                re.compile(self.regex)
        except re.error as err:
            raise ConfigError(
                "the topic pattern is not a regular expression",
                {"option": "subscribePattern", "value": self.regex, "reason": str(err)},
                "Write it in the syntax of Python's re module.",
            ) from None
        self._refuse_other_meanings()

    def _refuse_other_meanings(self) -> None:
        """ConfigError for what Java, whose syntax Spark's option has, reads in another way."""
        for token in _TOKEN.finditer(self.regex):
            members = re.sub(r"\\.", "", token["set"] or "", flags=re.DOTALL)
            if token["octal"] or "[" in members or "&&" in members:
                raise ConfigError(
                    "Java and Python read this topic pattern differently",
                    {"option": "subscribePattern", "value": self.regex, "part": token[0]},
                    "Write it without octal escapes, and without && or [ inside of […]; for "
                    "example (?:(?!x)[a-z])* instead of [a-z&&[^x]]*.",
                )

    def __str__(self) -> str:
        return self.regex

    def choose(self, existing: Iterable[str]) -> frozenset[str]:
        """Names that match; Kafka's internal topics never do."""
        return frozenset(filter(self.reads, existing))

    def partly_matched(self, existing: Iterable[str]) -> frozenset[str]:
        """Names of which only a part matches: Spark's own source reads these, too."""
        return frozenset(
            name
            for name in existing
            if name not in _INTERNAL and re.search(self.regex, name) and not self.reads(name)
        )

    def partitions(self, found: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
        """Return the described topics, with the partitions that the source reads."""
        return dict(found)

    def missing(
        self, found: Mapping[str, TopicFacts], read: Collection[PartitionKey]
    ) -> frozenset[str]:
        """Return names that do not exist and that the source has not read."""
        del found, read
        return frozenset()

    def grows_by(self, topic: str, known: Collection[str], *, was_absent: bool) -> bool:
        """See `Topics.grows_by`."""
        # An earlier run may have had another pattern, or no permission to see the topic.
        return was_absent or topic in known

    def covers(self, topic: str, partition: int) -> bool:
        """Whether this partition belongs to it."""
        del partition
        return self.reads(topic)

    def reads(self, topic: str) -> bool:
        """Whether a partition of this topic may belong to it."""
        is_left_out = topic in _INTERNAL or topic in self.without
        return not is_left_out and re.fullmatch(self.regex, topic) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Explicit partitions, and no others that appear later."""

    keys: frozenset[PartitionKey]
    needs_names: ClassVar[bool] = False

    def __str__(self) -> str:
        return ",".join(f"{topic}-{partition}" for topic, partition in sorted(self.keys))

    def choose(self, existing: Iterable[str]) -> frozenset[str]:
        """Names to describe."""
        del existing
        return frozenset(topic for topic, _ in self.keys)

    def partitions(self, found: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
        """Return the described topics, with the partitions that the source reads."""
        return {
            name: TopicFacts(
                topic_id=facts.topic_id,
                partitions=frozenset(n for n in facts.partitions if (name, n) in self.keys),
            )
            for name, facts in found.items()
        }

    def missing(
        self, found: Mapping[str, TopicFacts], read: Collection[PartitionKey]
    ) -> frozenset[str]:
        """Return names that do not exist and that the source has not read."""
        return frozenset(
            f"{topic}-{number}"
            for topic, number in self.keys.difference(read)
            if topic not in found or number not in found[topic].partitions
        )

    def grows_by(self, topic: str, known: Collection[str], *, was_absent: bool) -> bool:
        """See `Topics.grows_by`."""
        del topic, known, was_absent
        return False  # it was not subscribed before

    def covers(self, topic: str, partition: int) -> bool:
        """Whether this partition belongs to it."""
        return (topic, partition) in self.keys

    def reads(self, topic: str) -> bool:
        """Whether a partition of this topic may belong to it."""
        return any(topic == name for name, _ in self.keys)


Subscription: TypeAlias = Topics | Pattern | Assigned


def require_named(
    subscription: Subscription, positions: Collection[SplitRange], start: NewStart
) -> None:
    """ConfigError with the partitions that were read and are no longer subscribed.

    ``positions``: of all partitions that were read.
    """
    unnamed = {split.key for split in positions if not subscription.covers(*key_of(split))}
    if unnamed:
        names = ",".join(f"{topic}-{partition}" for _, topic, partition in sorted(unnamed))
        raise ConfigError(
            "the checkpoint has partitions that the source does not subscribe to",
            {"partitions": names, "source": str(subscription), **start.offsets},
            f"Subscribe to them. {start.give_up}",
        )
