"""Consumers kept between the epochs of one worker process: a new one costs connections and TLS."""

import contextlib
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.client_tuning import HotPath, ReadSettings
from sluice.connectors.kafka.client.confluent import (
    Consumer,
    KafkaException,
    make_consumer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.login_refusals import LoginRefusals
from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.native.native_consumer import NativeConsumer
from sluice.connectors.kafka.source.reader.fetch_positions import FetchPositions, reporting
from sluice.runtime.contracts import Clock
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.process.closing import close_logged

__all__ = ["ConsumerPool", "PooledConsumer", "process_pool"]

log = logging.getLogger(__name__)

_IDLE_CONSUMERS = 4
_LEARN_S = 5.0  # for all topics together
_LEAST_S = 1.0  # for one of them, as long as that is left: the first one also connects
_MOST_NAMED = 10
_REACH_S = 1.0
_CLOSE_S = 10.0

# A user's kafka.* option wins over these.
_TUNING = {
    # After a full queue librdkafka waits this long before it fetches again; its default is 1 s.
    "fetch.queue.backoff.ms": 5,
    # Every range exists when it is read, so the broker never has to wait for records; but a request
    # that waits there when a range ends would delay the next range.
    "fetch.wait.max.ms": 5,
    # As the Java client does; without it damaged bytes are records like any other.
    "check.crcs": True,
    # A slow sink is back-pressure, not a dead consumer.
    "max.poll.interval.ms": 86_400_000,
}
# A consumer of a stream requests records that do not exist yet: the request waits at the broker
# until there are some.
_STREAMING = {"fetch.wait.max.ms": 500}
_OWNED = {
    "group.id": "sluice-reader",  # required by librdkafka; no consumer joins it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # A deleted position must be an error, never another position.
    "auto.offset.reset": "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    connection: KafkaConnection
    read_committed: bool
    settings: ReadSettings
    follows: bool
    hot_path: HotPath
    reports: bool


@dataclass(slots=True, eq=False)
class PooledConsumer:
    """A consumer, and what it has reported: refused log-ins, and how far it has fetched."""

    consumer: Consumer | NativeConsumer
    key: _Key
    refusals: LoginRefusals = field(default_factory=LoginRefusals)
    fetched: FetchPositions = field(default_factory=FetchPositions)
    clock: Clock = time.monotonic
    _leaders: dict[str, dict[int, int]] = field(default_factory=dict)

    def learn(self, splits: Iterable[SplitRange]) -> None:
        """Fetch the leaders of splits before their assignment, if this client may not know them.

        An assignment does not fetch them: it waits for librdkafka's next metadata check, one per
        second, unless the topic was part of the client's first connection. Until then the client
        fetches from the earlier leader, which may be paused, and may have other records than the
        leader of the range. So topics of which this client knows an earlier leader come first.

        All topics share one deadline. A warning names those that miss it, and the next read tries
        again.
        """
        wanted: dict[str, dict[int, int]] = defaultdict(dict)
        for split in splits:
            epoch = -1 if split.leader_epoch is None else split.leader_epoch
            wanted[split.topic][split.partition] = epoch
        unknown = [topic for topic, epochs in wanted.items() if not self._knows(topic, epochs)]
        unknown.sort(key=lambda topic: (topic not in self._leaders, topic))
        deadline = Deadline(_LEARN_S, self.clock)
        missed: list[str] = []
        for at, topic in enumerate(unknown):
            left_s = deadline.left_s
            share_s = min(left_s, max(_LEAST_S, left_s / (len(unknown) - at)))
            if share_s <= 0.0 or not self._learn(topic, wanted[topic], timeout_s=share_s):
                missed.append(topic)
        if missed:
            log.warning(
                "leaders are not known before the read: topics=%d of %d (%s)",
                len(missed),
                len(unknown),
                ",".join(missed[:_MOST_NAMED]),
            )

    def _knows(self, topic: str, epochs: Mapping[int, int]) -> bool:
        known = self._leaders.get(topic)
        return known is not None and all(at <= known.get(p, -1) for p, at in epochs.items())

    def _learn(self, topic: str, epochs: Mapping[int, int], *, timeout_s: float) -> bool:
        """Fetch a topic's leaders; return whether that worked. The read itself has a timeout."""
        try:
            self.consumer.list_topics(topic, timeout=timeout_s)
        except KafkaException:
            return False
        self.refusals.answered()
        self._leaders[topic] = {**self._leaders.get(topic, {}), **epochs}
        return True

    def watch(self, splits: Iterable[SplitRange]) -> bool:
        """Replace the client by one that reports how far it has fetched; return whether it was
        replaced.

        Only a new client can report (`reporting`). The old one stays if the new one reaches no
        broker: the bootstrap servers may be down while other brokers run.
        """
        fresh = _connect(replace(self.key, reports=True))
        topics = {split.topic for split in splits}
        if not all(fresh._learn(topic, {}, timeout_s=_REACH_S) for topic in topics):  # noqa: SLF001 - this class
            _close(fresh.consumer)
            return False
        _close(self.consumer)
        self.consumer, self.key, self._leaders = fresh.consumer, fresh.key, fresh._leaders  # noqa: SLF001 - this class
        self.refusals, self.fetched = fresh.refusals, fresh.fetched
        return True

    def wake(self) -> None:
        """Drop reports from the time when the consumer was idle."""
        if isinstance(self.consumer, NativeConsumer):
            with contextlib.suppress(KafkaException):
                while self.consumer.serve(0):
                    pass
        self.refusals.forget()

    def require_log_in(self, topic: str) -> None:
        """After a refused log-in and without records: check whether any broker answers.

        Raises:
            AuthenticationError: no broker answers, and the refusal lasts.
        """
        if self.refusals.last is None:
            return
        try:
            self.consumer.list_topics(topic, timeout=_REACH_S)
        except KafkaException as err:
            lasting = self.refusals.lasting()
            if lasting is not None:
                raise lasting from err
            return
        log.warning(
            "one broker refused a log-in, another one accepts it: error=%s", self.refusals.last
        )
        self.refusals.answered()


class ConsumerPool:
    """Idle consumers of this process. Executor; one task at a time uses a consumer."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: list[PooledConsumer] = []
        self._inherited: list[PooledConsumer] = []

    def borrow(
        self,
        connection: KafkaConnection,
        *,
        read_committed: bool,
        settings: ReadSettings,
        follows: bool = False,
        hot_path: HotPath = HotPath.AUTO,
    ) -> PooledConsumer:
        """Return a consumer without assignment; ``follows``: for streams, which have no end."""
        key = _Key(
            connection=connection,
            read_committed=read_committed,
            settings=settings,
            follows=follows,
            hot_path=hot_path,
            reports=follows,
        )
        self._leave_to_parent()
        for pooled in list(self._idle):
            if pooled.key == key:
                self._idle.remove(pooled)
                pooled.wake()
                return pooled
        return _connect(key)

    def _leave_to_parent(self) -> None:
        """Leave consumers of a parent process alone: without threads, even a close would hang."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._inherited += self._idle
            self._idle = []

    def give_back(self, pooled: PooledConsumer) -> None:
        """Keep a consumer for the next epoch; close the oldest idle one if there are too many."""
        is_sound = not isinstance(pooled.consumer, NativeConsumer) or pooled.consumer.is_sound
        if pooled.key.reports or not is_sound:
            self.discard(pooled)
            return
        pooled.consumer.unassign()
        self._idle.append(pooled)
        while len(self._idle) > _IDLE_CONSUMERS:
            _close(self._idle.pop(0).consumer)

    def discard(self, pooled: PooledConsumer) -> None:
        """Close a consumer; after an error its queue may hold records."""
        _close(pooled.consumer)

    def close(self) -> None:
        """Close all idle consumers."""
        while self._idle:
            _close(self._idle.pop().consumer)


def _close(consumer: Consumer | NativeConsumer) -> None:
    """Close it. After a time limit the task goes on without: it may have an error to report.

    After several brokers were away, librdkafka 2.16.1 fetched nothing any more, and its close did
    not return (seen once, with all partitions on one new leader).
    """
    closing = threading.Thread(
        target=close_logged, args=(consumer.close, "consumer"), name="sluice-close", daemon=True
    )
    closing.start()
    closing.join(_CLOSE_S)
    if closing.is_alive():
        log.warning("consumer does not close, the task goes on without: waited_s=%.0f", _CLOSE_S)


process_pool = ConsumerPool()
"""The pool of this process."""


def _connect(key: _Key) -> PooledConsumer:
    refusals = LoginRefusals({"servers": key.connection.bootstrap_servers})
    fetched = FetchPositions()
    config = {
        **_TUNING,
        **key.settings.librdkafka(),
        **(_STREAMING if key.follows else {}),
        **key.connection.librdkafka(Role.CONSUMER),
        **_OWNED,
        **(reporting(fetched.report) if key.reports else {}),
        "isolation.level": "read_committed" if key.read_committed else "read_uncommitted",
        "error_cb": refusals.note,
    }
    consumer = _make(config, key.hot_path)
    return PooledConsumer(consumer=consumer, key=key, refusals=refusals, fetched=fetched)


def _make(config: Mapping[str, Any], hot_path: HotPath) -> Consumer | NativeConsumer:
    library = library_for(config, hot_path)
    if library is None:
        return make_consumer(config)
    try:
        return NativeConsumer(library, config)
    except KafkaException as err:
        raise translate(err, {"client": "consumer"}) from None
