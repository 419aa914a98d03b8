"""Logs whose records, leaders and first offsets change, and a consumer that reads them as
librdkafka does; both as far as a Kafka source sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sluice.connectors.kafka.client.confluent import LOG_TRUNCATION
from sluice.connectors.kafka.source.positions import PartitionKey
from tests.kit.source.fake_source_cluster import FakeLog

_END: int = getattr(KafkaError, "_PARTITION_EOF")  # noqa: B009 - public, underscored
_ABSENT = KafkaError.UNKNOWN_TOPIC_OR_PART
_OUT_OF_RANGE: int = getattr(KafkaError, "_AUTO_OFFSET_RESET")  # noqa: B009 - public, underscored
_MOST_FETCHED = 6
_NONE = -1  # of all leaders


@dataclass(frozen=True, slots=True)
class Kept:
    """A record of a log.

    Attributes:
        offset: where it is.
        leader_epoch: of the leader that wrote it.
        name: no other record has it; None: it is a marker, or aborted; readers are not shown it.
    """

    offset: int
    leader_epoch: int
    name: int | None


@dataclass
class LedLog(FakeLog):
    """A partition with its records. ``end`` is where it ends, ``latest`` what readers see.

    Attributes:
        names: gives a new one.
        kept: what is there, by offset.
        open_at: where the first open transaction begins; None: there is none.
    """

    names: Callable[[], int] = lambda: 0
    kept: list[Kept] = field(default_factory=list)
    open_at: int | None = None

    def __post_init__(self) -> None:
        self.end = 0

    def write(self, count: int, *, markers: bool = False) -> None:
        """So many records, or markers."""
        for _ in range(count):
            name = None if markers else self.names()
            self.kept.append(Kept(self._end, self.leader_epoch, name))
            self._move_to(self._end + 1)

    def compact(self, random: Random) -> None:
        """Some records are gone; never the last one."""
        self.kept = [e for e in self.kept if e is self.kept[-1] or random.random() < 0.8]

    def begin(self, count: int) -> None:
        """A transaction with so many records, unless there is one."""
        if self.open_at is None:
            self.open_at = self._end
            self.write(count)

    def finish(self, *, commits: bool) -> None:
        """The transaction ends; an aborted one's records are shown to nobody."""
        if self.open_at is not None:
            at, self.open_at = self.open_at, None
            if not commits:
                self.kept = [e if e.offset < at else replace(e, name=None) for e in self.kept]
            self.write(1, markers=True)

    def change_leader(self, *, loses: int = 0) -> None:
        """The next leader's log lacks so many of the newest offsets."""
        at = max(self.earliest, self._end - loses)
        self.kept = [each for each in self.kept if each.offset < at]
        if self.open_at is not None and self.open_at >= at:
            self.open_at = None
        self.leader_epoch += 1
        self.began = {epoch: start for epoch, start in self.began.items() if start < at}
        self.began[self.leader_epoch] = at
        self._move_to(at)

    def delete_before(self, offset: int) -> None:
        """As retention and DeleteRecords do."""
        self.earliest = max(self.earliest, min(offset, self.latest))
        self.kept = [each for each in self.kept if each.offset >= self.earliest]
        first = self.first_epoch
        self.began = {
            epoch: max(start, self.earliest) if epoch == first else start
            for epoch, start in self.began.items()
            if epoch == first or start > self.earliest
        }

    def epoch_end(self, leader_epoch: int) -> int | None:
        """See `FakeLog.epoch_end`; the present leader's records end with the log."""
        return self._end if leader_epoch == self.leader_epoch else super().epoch_end(leader_epoch)

    @property
    def _end(self) -> int:
        assert self.end is not None
        return self.end

    def _move_to(self, end: int) -> None:
        self.end = end
        self.latest = end if self.open_at is None else min(self.open_at, end)


@dataclass(slots=True)
class _Place:
    """Of an assigned partition: what is fetched next, and what was fetched and not yet taken."""

    offset: int
    leader_epoch: int | None = None
    seen_epoch: int | None = None
    told_end: int | None = None
    stands: bool = False
    fetched: list[Message] = field(default_factory=list)


class LedConsumer:
    """What `Reading` needs of a consumer. It fetches ahead, so that what it gives may be older than
    the log; asks each new leader for the epoch of what it has fetched; and reports an end once.

    Args:
        find: the log, if it has a leader; LookupError: there is no such partition.
        random: how much comes when.
    """

    def __init__(self, find: Callable[[PartitionKey], LedLog | None], random: Random) -> None:
        self._find = find
        self._random = random
        self._places: dict[PartitionKey, _Place] = {}

    def consume(self, most: int, timeout_s: float) -> Sequence[Message]:
        """At most so many of what was fetched, or is there now."""
        found: list[Message] = []
        for key, place in self._places.items():
            self._fetch(key, place)
            if len(found) < most:
                count = self._random.randint(1, most - len(found))
                found += place.fetched[:count]
                del place.fetched[:count]
        return found

    def fetch_ahead(self) -> None:
        """In the background, while nobody asks."""
        for key, place in self._places.items():
            self._fetch(key, place)

    def _fetch(self, key: PartitionKey, place: _Place) -> None:
        try:
            log = self._find(key)
        except LookupError:
            if not place.stands:
                place.stands = True
                place.fetched.append(_event(key, place, _ABSENT, "absent"))
            return
        if log is None or place.stands or len(place.fetched) >= _MOST_FETCHED:
            return
        if place.seen_epoch not in (None, log.leader_epoch) and place.leader_epoch is not None:
            self._validate(key, place, log)
        place.seen_epoch = log.leader_epoch
        if place.stands:
            return
        if not log.earliest <= place.offset <= (log.end or 0):
            place.stands = True
            place.fetched.append(_event(key, place, _OUT_OF_RANGE, "out of range"))
        elif place.offset == log.latest and place.told_end != log.latest:
            place.told_end = log.latest
            place.fetched.append(_event(key, place, _END, "end"))
        else:
            self._fetch_records(key, place, log)

    def _fetch_records(self, key: PartitionKey, place: _Place, log: LedLog) -> None:
        there = [each for each in log.kept if place.offset <= each.offset < log.latest]
        for each in there[: self._random.randint(1, _MOST_FETCHED)]:
            place.offset, place.leader_epoch = each.offset + 1, each.leader_epoch
            if each.name is not None:
                place.fetched.append(_record(key, each, each.name))
        if not there:
            place.offset = max(place.offset, log.latest)

    def _validate(self, key: PartitionKey, place: _Place, log: LedLog) -> None:
        end = log.epoch_end(place.leader_epoch or 0)
        if end is None or end < place.offset:
            place.stands = True
            place.fetched.append(_event(key, place, _OUT_OF_RANGE, LOG_TRUNCATION))

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """These and no others."""
        self._places.clear()
        self.incremental_assign(places)

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        """These, too. An assignment is believed."""
        for each in places:
            self._places[each.topic, each.partition] = _Place(each.offset)

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        """Not these any more, nor what was fetched of them."""
        for each in places:
            self._places.pop((each.topic, each.partition), None)

    def unassign(self) -> None:
        """None."""
        self._places.clear()

    def seek(self, place: TopicPartition) -> None:
        """After it the leader is asked first."""
        key, epoch = (place.topic, place.partition), place.leader_epoch
        self._places[key] = _Place(place.offset, epoch, seen_epoch=_NONE)

    def get_watermark_offsets(self, place: TopicPartition, **_: Any) -> tuple[int, int] | None:
        """First offset, and the end that readers see."""
        try:
            log = self._find((place.topic, place.partition))
        except LookupError:
            raise KafkaException(KafkaError(_ABSENT)) from None
        return None if log is None else (log.earliest, log.latest)

    def list_topics(self, topic: str, timeout: float) -> None:
        """Leaders are known at once."""

    def close(self) -> None:
        """Nothing is held."""


def _record(key: PartitionKey, kept: Kept, name: int) -> Message:
    return Message(
        topic=key[0],
        partition=key[1],
        offset=kept.offset,
        value=b"%d" % name,
        leader_epoch=kept.leader_epoch,
    )


def _event(key: PartitionKey, place: _Place, code: int, text: str) -> Message:
    return Message(
        topic=key[0], partition=key[1], offset=place.offset, error=KafkaError(code, text)
    )
