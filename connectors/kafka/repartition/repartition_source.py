"""`RepartitionSource`: reads a repartition topic. The driver's and the executors' side."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from sluice.connectors.kafka.client.client_options import Role, translate_names
from sluice.connectors.kafka.client.client_tuning import claimed_by_reader, read_settings
from sluice.connectors.kafka.records.columns import schema_ddl
from sluice.connectors.kafka.repartition.repartition_decoder import RepartitionDecoder
from sluice.connectors.kafka.repartition.repartition_messages import COLUMNS_READ
from sluice.connectors.kafka.repartition.repartition_sink import RepartitionSink
from sluice.connectors.kafka.repartition.repartition_topics import (
    TopicFound,
    create_repartition_topic,
    describe_topic,
    require_safe,
    topic_name,
)
from sluice.connectors.kafka.repartition.topic_copies import copy_rows
from sluice.connectors.kafka.source.enumerator.discovery import (
    KafkaCluster,
    SourceCluster,
    require_located,
)
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.reader.streaming_reader import KafkaStreamingReader
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.source.splits import key_of
from sluice.connectors.kafka.source.subscription import Topics
from sluice.runtime.contracts import (
    Backlog,
    ContinuousSource,
    JobTopic,
    JobTopicEnumerator,
    JobTopicSink,
    JobTopicSource,
    Repartition,
    RepartitioningSource,
    SplitEnumerator,
    SplitReader,
    StreamingReader,
    TimedSource,
    TopicStart,
    TunedSource,
)
from sluice.runtime.errors import ConfigError, SourceChangedError, StreamError
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.key_groups import LARGEST_MAX_PARALLELISM, default_partitions
from sluice.runtime.model.task_memory import TaskMemory

__all__ = ["RepartitionSource", "repartition_topic"]

_ENDS_S = 3.0
_OWN_TOPIC = (
    "Restore the job from a savepoint into a new checkpoint directory: it gets a topic of its own. "
    "Do not add partitions to it: keys would leave their state."
)


def repartition_topic(
    options: SourceOptions, topic: Repartition
) -> tuple[tuple[JobTopicSink, ...], JobTopicSource]:
    """Both ends of a topic of the cluster that a source with these options reads."""
    names = ["rows"] if len(topic.keys) == 1 else ["left", "right"]
    sinks = tuple(
        RepartitionSink(
            connection=options.connection,
            keys=keys,
            side=side,
            name=f"{topic.name}-{names[side]}",
            uid=None if topic.uid is None else f"{topic.uid}-{names[side]}",
            hot_path=options.hot_path,
        )
        for side, keys in enumerate(topic.keys)
    )
    return sinks, RepartitionSource(options, topic)


class RepartitionSource(
    ContinuousSource, TunedSource, TimedSource, RepartitioningSource, JobTopicSource
):
    """Reads a repartition topic. Made on the driver; picklable; holds no connection.

    Args:
        options: of the upstream source: connection and timeouts.
        repartition: what ``key_by`` says of the topic.
    Raises:
        ConfigError: the number of partitions is out of range.
    """

    def __init__(self, options: SourceOptions, repartition: Repartition) -> None:
        wanted = repartition.partitions
        if wanted is not None and not 1 <= wanted <= LARGEST_MAX_PARALLELISM:
            raise ConfigError(
                "a repartition topic has a number of partitions that is out of range",
                {"key_by": repartition.name, "partitions": wanted},
                f"Use 1 to {LARGEST_MAX_PARALLELISM}, or leave partitions out.",
            )
        self._options = SourceOptions(
            connection=options.connection,
            subscription=Topics(names=()),
            include_headers=True,
            no_progress_timeout_s=options.no_progress_timeout_s,
            hot_path=options.hot_path,
        )
        self._repartition = repartition
        self._topic_name = ""
        self._new_partitions = wanted or default_partitions(repartition.regions)
        self._run = JobTopic(partitions=0, max_parallelism=0)
        self._memory = TaskMemory()

    @property
    def name(self) -> str:
        """Operator name."""
        return f"{self._repartition.name}-topic"

    @property
    def uid(self) -> str | None:
        """From that of ``key_by``."""
        uid = self._repartition.uid
        return None if uid is None else f"{uid}-topic"

    @property
    def bounded(self) -> bool:
        """It ends by itself when its writers have ended."""
        return True

    @property
    def yields_only_committed(self) -> bool:
        """Always."""
        return True

    @property
    def topic(self) -> str:
        return self._topic_name

    @property
    def event_time(self) -> EventTime | None:
        """That of the upstream source. No split is idle: the coordinator knows how far each is."""
        time = self._repartition.event_time
        return time and replace(time, idle_after=None, max_drift=None, max_future=None)

    def of_job(self, job_name: str, job_uid: str, source_id: str) -> Self:
        name = topic_name(job_name, job_uid, source_id)
        options = replace(self._options, subscription=Topics(names=(name,)))
        return self._with(_topic_name=name, _options=options)

    def on_topic(self, topic: JobTopic) -> Self:
        return self._with(_run=topic)

    @property
    def max_parallelism(self) -> int:
        return self._run.max_parallelism

    def _with(self, **attributes: object) -> Self:
        made = copy.copy(self)
        vars(made).update(attributes)
        return made

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `Source.check`; the topic may not exist yet."""
        cluster = self._cluster()
        try:
            cluster_id = cluster.cluster_id(timeout_s=timeout_s)
        finally:
            cluster.close()
        return {"cluster_id": cluster_id, "partitions": str(self._count(timeout_s))}

    def prepare_topic(self, start: TopicStart, *, timeout_s: float) -> None:
        connection, topic = self._options.connection, self._topic_name
        found = describe_topic(connection, topic, timeout_s=timeout_s)
        if found is None and not start.is_first:
            raise self._gone("a checkpoint needs it")
        if found is None:
            create_repartition_topic(
                connection, topic, partitions=start.partitions, timeout_s=timeout_s
            )
            found = describe_topic(connection, topic, timeout_s=timeout_s)
        if found is None:
            raise self._gone("the brokers do not show it after its creation")
        if self._checked(found) != start.partitions:
            raise SourceChangedError(
                "a repartition topic has another number of partitions than the checkpoint",
                {
                    "topic": topic,
                    "checkpoint_has": start.partitions,
                    "topic_has": found.partitions,
                },
                _OWN_TOPIC,
            )
        if start.copy is not None:
            run = JobTopic(partitions=start.partitions, max_parallelism=start.max_parallelism)
            copy_rows(connection, start.copy, topic, run)

    def _gone(self, why: str) -> SourceChangedError:
        return SourceChangedError(
            "the repartition topic of the job does not exist",
            {"topic": self._topic_name, "key_by": self._repartition.name, "reason": why},
            "Restore the topic. Without it, start from a new checkpoint directory: the rows in it "
            "cannot be made again.",
        )

    def _checked(self, found: TopicFound) -> int:
        """The topic's partitions, if all its settings are safe."""
        wanted = self._repartition.partitions
        if wanted is not None and wanted != found.partitions:
            raise SourceChangedError(
                "the repartition topic has another number of partitions than key_by",
                {"topic": self._topic_name, "key_by": wanted, "topic_has": found.partitions},
                "Give key_by the number of the topic. For another number, rewrite a savepoint with "
                "sluice state recompute.",
            )
        require_safe(self._topic_name, found)
        return found.partitions

    def enumerator(self, source_id: str) -> SplitEnumerator:
        """Driver side."""
        cluster = self._cluster()
        inner = KafkaSplitEnumerator(
            self._options,
            cluster,
            source_id=source_id,
            group_id=self._options.group_name(self.name),
        )
        return RepartitionEnumerator(
            inner, cluster, source_id=source_id, topic=self._topic_name, count=self._count
        )

    def _cluster(self) -> KafkaCluster:
        return KafkaCluster(self._options.connection)

    def _count(self, timeout_s: float) -> int:
        """Partitions of the topic, or of the one that will be created."""
        found = describe_topic(self._options.connection, self._topic_name, timeout_s=timeout_s)
        return self._new_partitions if found is None else self._checked(found)

    def reader(self) -> SplitReader:
        """Executor side: messages as records; see `decoder`."""
        return self._records_reader()

    def streaming_reader(self) -> StreamingReader:
        return KafkaStreamingReader(reader=self._records_reader())

    def decoder(self) -> RepartitionDecoder:
        return RepartitionDecoder(
            topic=self._topic_name, run=self._run, sides=len(self._repartition.keys)
        )

    def _records_reader(self) -> KafkaSplitReader:
        return KafkaSplitReader(
            connection=self._options.connection,
            columns=COLUMNS_READ,
            no_progress_timeout_s=self._options.no_progress_timeout_s,
            settings=read_settings(self._memory, self._consumer_options),
            hot_path=self._options.hot_path,
        )

    @property
    def _consumer_options(self) -> Mapping[str, str]:
        return translate_names(self._options.connection.options, Role.CONSUMER)

    @property
    def claimed_bytes(self) -> int:
        return claimed_by_reader(self._consumer_options)

    def within(self, memory: TaskMemory) -> Self:
        read_settings(memory, self._consumer_options)  # refuses what does not fit
        return self._with(_memory=memory)

    def compression(self, *, timeout_s: float) -> str | None:
        """See `TunedSource`: outputs choose a codec of their own."""
        del timeout_s
        return None

    def hindrance(self) -> str | None:
        """See `ContinuousSource`: none."""
        return None

    def repartition(self, topic: Repartition) -> tuple[tuple[JobTopicSink, ...], JobTopicSource]:
        """See `RepartitioningSource`: another ``key_by`` follows."""
        return repartition_topic(self._options, topic)

    def schema_ddl(self) -> str:
        """The columns of messages."""
        return schema_ddl(COLUMNS_READ)

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        return {
            **self._options.connection.redacted(),
            "repartition_topic": self._topic_name,
            "task_memory_mib": str(self._memory.total_bytes >> 20),
        }


class RepartitionEnumerator(JobTopicEnumerator):
    """Splits and barriers of a repartition topic, which may not exist yet. Driver.

    Args:
        inner: of the topic as any other.
        cluster: of ``inner``, which closes it.
        source_id: operator id.
        topic: its name.
        count: partitions of the topic, or of the one that will be created; takes a timeout.
    """

    def __init__(
        self,
        inner: SplitEnumerator,
        cluster: SourceCluster,
        *,
        source_id: str,
        topic: str,
        count: Callable[[float], int],
    ) -> None:
        self._inner = inner
        self._cluster = cluster
        self._source_id = source_id
        self._topic = topic
        self._count = count
        self._partitions = 0
        self._topic_id = ""
        self._positions: tuple[SplitRange, ...] = ()

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        self._partitions = self._count(timeout_s)
        self._positions = tuple(
            SplitRange(
                source_id=self._source_id,
                topic=self._topic,
                topic_id="",
                partition=partition,
                start_offset=0,
                end_offset=0,
            )
            for partition in range(self._partitions)
        )
        return self._positions

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """See `SplitEnumerator.restore`. Also SourceChangedError: another number of partitions."""
        self._positions, self._partitions = tuple(positions), len(positions)
        known = [split for split in positions if split.topic_id]
        if self._is_there(timeout_s) or known:
            self._open(timeout_s)

    def _is_there(self, timeout_s: float) -> bool:
        facts = self._cluster.describe([self._topic], timeout_s=timeout_s).get(self._topic)
        if facts is None:
            return False
        self._topic_id = facts.topic_id
        self._require_count(len(facts.partitions))
        return True

    def _require_count(self, found: int) -> None:
        if found != self._partitions:
            raise SourceChangedError(
                "a repartition topic has another number of partitions than before",
                {"topic": self._topic, "before": self._partitions, "now": found},
                _OWN_TOPIC,
            )

    def _open(self, timeout_s: float) -> None:
        self._inner.restore(self._named(self._positions), timeout_s=timeout_s)
        self._positions = ()

    def _opened(self, timeout_s: float) -> bool:
        """Whether the topic can be read: it exists since the start, or since it was prepared."""
        if not self._topic_id and self._is_there(timeout_s):
            self._open(timeout_s)
        return bool(self._topic_id)

    def _named(self, splits: Sequence[SplitRange]) -> list[SplitRange]:
        return [
            split if split.topic_id else replace(split, topic_id=self._topic_id) for split in splits
        ]

    def adopt(self, positions: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.adopt`: the rows in flight are copied to the begin of the topic."""
        del timeout_s
        return tuple(
            replace(split, topic_id="", start_offset=0, end_offset=0) for split in positions
        )

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        if not self._opened(timeout_s):
            return tuple(ranges)
        return self._inner.readable(self._named(ranges), timeout_s=timeout_s)

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
    ) -> tuple[SplitRange, ...]:
        if not self._opened(timeout_s):
            return tuple(ranges)
        return self._inner.replayable(self._named(ranges), timeout_s=timeout_s, pause=pause)

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """No split is new: SourceChangedError if the topic has got other partitions."""
        if self._opened(timeout_s):
            found = self._inner.discover(timeout_s=timeout_s)
            if found:
                self._require_count(self._partitions + len(found))
        return ()

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        if not self._opened(timeout_s):
            return tuple(split.at_end() for split in positions)
        return self._inner.cut(self._named(positions), max_records=max_records, timeout_s=timeout_s)

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """Whether these end where the logs end: asked only after all writers have ended.

        The end that readers may see is not enough: it is earlier while markers of commits are not
        written yet.
        """
        try:
            ends = self.log_ends(positions, timeout_s=_ENDS_S)
        except StreamError:
            return False  # the next barrier asks again
        return bool(ends) and all(split.end_offset >= ends[split.key] for split in positions)

    def log_ends(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, int]:
        if not self._opened(timeout_s):
            return {}
        keys = [key_of(split) for split in positions]
        found = self._cluster.log_ends(keys, timeout_s=timeout_s)
        require_located(keys, found)
        return {split.key: found[key_of(split)].offset for split in positions}

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        return None

    def committed(self, positions: Sequence[SplitRange]) -> None:
        if self._topic_id:
            self._inner.committed(positions)

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        return self._inner.lag_records(positions)

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        if not self._opened(timeout_s):
            return {}
        return self._inner.measure(self._named(positions), timeout_s=timeout_s)

    def close(self) -> None:
        self._inner.close()
