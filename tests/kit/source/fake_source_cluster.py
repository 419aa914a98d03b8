"""A cluster in memory that answers what a Kafka source asks; time passes only when told to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sluice.connectors.kafka.source.enumerator.discovery import ClusterView, OffsetFact
from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochRequest
from sluice.connectors.kafka.source.positions import Edge, PartitionKey
from sluice.connectors.kafka.source.splits import TopicFacts
from sluice.runtime.errors import AuthenticationError, UnreachableError

__all__ = ["FakeClock", "FakeLog", "FakeSourceCluster"]


@dataclass
class FakeClock:
    """Seconds that a test owns."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_time(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds


@dataclass
class FakeLog:
    """A partition: offsets it holds, what a read_committed reader may see, when records came, and
    where each leader that wrote to it began.

    Attributes:
        end: where the log ends behind an open transaction; None: there is none, at `latest`.
        end_epoch: of the leader that tells it; None: the present one.
    """

    earliest: int = 0
    latest: int = 0
    end: int | None = None
    end_epoch: int | None = None
    times_ms: dict[int, int] = field(default_factory=dict)
    leader_epoch: int = 0
    began: dict[int, int] = field(default_factory=lambda: {0: 0})

    def elect(self, *, cut_off_at: int | None = None, grown_to: int | None = None) -> None:
        """A new leader, whose log may lack the newest records, and have others in their place."""
        self.latest = self.latest if cut_off_at is None else cut_off_at
        self.leader_epoch += 1
        self.began[self.leader_epoch] = self.latest
        self.latest = self.latest if grown_to is None else grown_to

    @property
    def first_epoch(self) -> int | None:
        """Of the first record that is left: as ``UnifiedLog.fetchOffsetByTimestamp`` answers."""
        return max((e for e, at in self.began.items() if at <= self.earliest), default=None)

    @property
    def end_fact(self) -> OffsetFact:
        """As a broker answers whoever reads uncommitted records, too."""
        return OffsetFact(
            offset=self.latest if self.end is None else max(self.end, self.latest),
            leader_epoch=self.leader_epoch if self.end_epoch is None else self.end_epoch,
        )

    def epoch_end(self, leader_epoch: int) -> int | None:
        """As a broker's ``LeaderEpochFileCache.endOffsetFor``."""
        if leader_epoch == self.leader_epoch:
            return self.latest
        return min((at for epoch, at in self.began.items() if epoch > leader_epoch), default=None)


class FakeSourceCluster:
    """A `SourceCluster`; tests change `topics` as an administrator or retention would."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[str, dict[int, FakeLog]]] = {}
        self.groups: dict[str, dict[PartitionKey, int]] = {}
        self.is_reachable = True
        self.leaderless: set[PartitionKey] = set()
        self.refused: set[str] = set()
        self.looks = 0
        self.epoch_requests: list[Mapping[PartitionKey, EpochRequest]] = []
        self.end_requests: list[set[PartitionKey]] = []
        self.lacks: tuple[str, ...] = ()

    def create(self, name: str, *logs: FakeLog, topic_id: str | None = None) -> None:
        """Make a topic with these partitions."""
        self.topics[name] = (topic_id or f"id-of-{name}", dict(enumerate(logs)))

    def log(self, name: str, partition: int = 0) -> FakeLog:
        """A partition."""
        return self.topics[name][1][partition]

    def cluster_id(self, *, timeout_s: float) -> str:
        self._require_reachable()
        return "fake"

    def missing_requests(self, *, timeout_s: float) -> tuple[str, ...]:
        return self.lacks

    def topic_names(self, *, timeout_s: float) -> frozenset[str]:
        self._require_reachable()
        return frozenset(self.topics)

    def describe(self, names: Collection[str], *, timeout_s: float) -> Mapping[str, TopicFacts]:
        self._require_reachable()
        self._require_permitted(names)
        return {
            name: TopicFacts(
                topic_id=self.topics[name][0], partitions=frozenset(self.topics[name][1])
            )
            for name in names
            if name in self.topics
        }

    def fetch_view(self, keys: Collection[PartitionKey], *, timeout_s: float) -> ClusterView:
        self._require_reachable()
        self._require_permitted([topic for topic, _ in keys])
        self.looks += 1
        led = [key for key in keys if key not in self.leaderless]
        logs = {key: log for key in led if (log := self._find(key)) is not None}
        return ClusterView(
            topics=self.describe({topic for topic, _ in keys}, timeout_s=timeout_s),
            earliest={
                k: OffsetFact(offset=log.earliest, leader_epoch=log.first_epoch)
                for k, log in logs.items()
            },
            latest={
                k: OffsetFact(offset=log.latest, leader_epoch=log.leader_epoch)
                for k, log in logs.items()
            },
        )

    def offsets(
        self, wanted: Mapping[PartitionKey, Edge | int], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact | None]:
        self._require_reachable()
        return {
            key: _offset(log, what)
            for key, what in wanted.items()
            if key not in self.leaderless and (log := self._find(key)) is not None
        }

    def log_ends(
        self, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact]:
        self._require_reachable()
        self.end_requests.append(set(keys))
        led = [key for key in keys if key not in self.leaderless]
        return {key: log.end_fact for key in led if (log := self._find(key)) is not None}

    def epoch_ends(
        self, questions: Mapping[PartitionKey, EpochRequest], *, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        self._require_reachable()
        self.epoch_requests.append(questions)
        found = {key: self.log(*key).epoch_end(q.leader_epoch) for key, q in questions.items()}
        return {key: end for key, end in found.items() if end is not None}

    def committed(
        self, group_id: str, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        self._require_reachable()
        held = self.groups.get(group_id, {})
        return {key: held[key] for key in keys if key in held}

    def commit(
        self, group_id: str, offsets: Mapping[PartitionKey, int], *, timeout_s: float
    ) -> None:
        self._require_reachable()
        self.groups.setdefault(group_id, {}).update(offsets)

    def close(self) -> None:
        pass

    def _find(self, key: PartitionKey) -> FakeLog | None:
        topic, partition = key
        return self.topics[topic][1].get(partition) if topic in self.topics else None

    def _require_reachable(self) -> None:
        if not self.is_reachable:
            raise UnreachableError("no broker answers", {"servers": "fake"}, "Start one.")

    def _require_permitted(self, names: Collection[str]) -> None:
        if refused := self.refused.intersection(names):
            raise AuthenticationError("refused", {"topics": sorted(refused)}, "Ask for it.")


def _offset(log: FakeLog, what: Edge | int) -> OffsetFact | None:
    if what is Edge.EARLIEST:
        return OffsetFact(offset=log.earliest)
    if what is Edge.LATEST:
        return OffsetFact(offset=log.latest)
    young = [offset for offset, time_ms in sorted(log.times_ms.items()) if time_ms >= what]
    return OffsetFact(offset=young[0]) if young else None
