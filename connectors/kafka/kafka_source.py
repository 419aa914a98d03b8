"""`KafkaSource`: what ``Job.source(…)`` takes."""

import copy
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Self, TypeAlias

import pyarrow as pa

from sluice.connectors.kafka.client.client_options import Role, translate_names
from sluice.connectors.kafka.client.client_tuning import (
    HotPath,
    claimed_by_reader,
    hot_path_of,
    read_settings,
)
from sluice.connectors.kafka.client.credentials import TokenFunction
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.records.columns import columns_with, schema_ddl, schema_of
from sluice.connectors.kafka.records.row_times import KafkaRowTimes, columns_for
from sluice.connectors.kafka.records.serde.deserializing import (
    DeserializedColumn,
    Deserializer,
    require_deserializable,
)
from sluice.connectors.kafka.repartition.repartition_source import repartition_topic
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.enumerator.outlived_records import (
    fetch_retention_ms,
    find_outlived,
)
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.reader.streaming_reader import KafkaStreamingReader
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.source.subscription import Subscription
from sluice.runtime.contracts import (
    AgeingSource,
    ContinuousSource,
    DeserializingSource,
    EndableSource,
    ForgettingSource,
    JobTopicSink,
    JobTopicSource,
    NarrowingSource,
    RateLimitedSource,
    Repartition,
    RepartitioningSource,
    RereadingSource,
    Sink,
    SourceFunction,
    SplitEnumerator,
    SplitReader,
    StreamingReader,
    TimedSource,
    TunedSource,
)
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.on_error import OnError, Policy, policy_of
from sluice.runtime.model.rate_limit import PidRateLimit
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.task_memory import TaskMemory

__all__ = ["KafkaSource", "StartingOffsets"]

log = logging.getLogger(__name__)

_CHEAPEST = "partition"
_MOST_NAMED = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

StartingOffsets: TypeAlias = str | datetime | Mapping[str, Mapping[int, int]]
"""``earliest``, ``latest``, ``committed``, a moment, or an offset for each partition."""


class KafkaSource(
    RateLimitedSource,
    DeserializingSource,
    EndableSource,
    ForgettingSource,
    NarrowingSource,
    TunedSource,
    ContinuousSource,
    RereadingSource,
    AgeingSource,
    RepartitioningSource,
    TimedSource,
):
    """Records of Kafka topics. Picklable; connects nowhere until a job starts.

    Args:
        bootstrap_servers: ``host:port``, comma-separated.
        topics: names; or
        pattern: a regular expression for whole names, with later topics; or
        partitions: partition numbers by topic, without later ones.
        starting_offsets: where to begin the very first time: ``earliest``, ``latest``,
            ``committed`` (needs ``group_id``), a `datetime` with a time zone, or
            ``{"orders": {0: 23, 1: -2}}`` for every partition (-2 earliest, -1 latest).
            Partitions that appear later are read from their first record.
        forget: topics that an earlier run has read and that this job gives up. Their positions
            leave the checkpoint with the next decision, and all other topics continue. They are
            not read, also if a pattern matches them.
        bounded: the run ends when everything present at its start has been read.
        include_headers: whether there is a column ``headers``.
        columns: columns to create; fewer cost less. None: all, except those that a ``transform``
            does not read.
        group_id: consumer group for published offsets, once a second.
        name: of the operator; None: made from the topics.
        uid: stable id of the operator; set it before you rename.
        options: further options as for ``format("sluice-kafka")``, ``kafka.*`` included.
        oauth_token: gives tokens for SASL OAUTHBEARER.
        key_deserializer: turns the keys' bytes into values, in the tasks and before all functions;
            not before a transform.
        value_deserializer: the same for values.
        on_error: policy for records that a deserializer fails for, as in ``map_batches``.
        rate_limit: keeps each region's epochs as short as the job's interval by reading less.
            None: a backlog is read in epochs of about ten intervals in micro-batches.
        hot_path: ``auto``, ``native`` or ``plain``; see docs/guide/kafka-source.md.
        time: the event time of the rows, for windows, timers and joins. None: they have none.
    Raises:
        ConfigError: an option is misspelt, or settings conflict, are missing or are unsafe.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str = "",
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        partitions: Mapping[str, Sequence[int]] | None = None,
        starting_offsets: StartingOffsets = "earliest",
        forget: Sequence[str] = (),
        bounded: bool = False,
        include_headers: bool = True,
        columns: Sequence[str] | None = None,
        group_id: str | None = None,
        name: str | None = None,
        uid: str | None = None,
        options: Mapping[str, str] | None = None,
        oauth_token: TokenFunction | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        on_error: OnError = "fail",
        rate_limit: PidRateLimit | None = None,
        hot_path: HotPath | str | None = None,
        time: EventTime | None = None,
    ) -> None:
        own = _as_options(topics, pattern, partitions, starting_offsets)
        if forget:
            own["forgetTopics"] = _joined("forget", forget)
        if bootstrap_servers:
            own["kafka.bootstrap.servers"] = bootstrap_servers
        own |= {"includeHeaders": str(include_headers).lower()}
        if group_id is not None:
            own["kafka.group.id"] = group_id
        if hot_path is not None:
            own["hotPath"] = hot_path_of(hot_path).value
        self._options = SourceOptions.of(
            _merge(options or {}, own), bounded=bounded, stream=True, oauth_token=oauth_token
        )
        self._bounded = bounded
        self._uid = uid
        self._rate_limit = rate_limit
        self._memory = TaskMemory()
        self._name = name or f"kafka-{self._options.subscription}"
        chosen = () if columns is None else tuple(columns)
        self._columns = chosen or columns_with(headers=include_headers)
        self._are_chosen = bool(chosen)
        schema_of(self._columns)  # refuses unknown names
        deserializers = {"key": key_deserializer, "value": value_deserializer}
        require_deserializable(deserializers, self._columns)
        self._deserializers = {name: each for name, each in deserializers.items() if each}
        self._policy = self._policy_of(on_error)
        self._time = time
        self._timed_columns = columns_for(time, self._columns)

    def _policy_of(self, on_error: OnError) -> Policy | None:
        policy = policy_of(on_error)
        if policy is not None and not self._deserializers:
            raise ConfigError(
                "on_error needs a deserializer in this source",
                {"source": self._name, "on_error": on_error},
                "Give on_error to map_batches, or add a deserializer.",
            )
        return policy

    @property
    def name(self) -> str:
        """Operator name."""
        return self._name

    @property
    def uid(self) -> str | None:
        """The user's stable id, if given."""
        return self._uid

    @property
    def bounded(self) -> bool:
        """Whether the run ends by itself."""
        return self._bounded

    def until_end(self) -> Self:
        """The same source, bounded."""
        made = copy.copy(self)
        made._bounded = True  # noqa: SLF001 - a source like this one
        return made

    @property
    def rate_limit(self) -> PidRateLimit | None:
        return self._rate_limit

    @property
    def functions(self) -> tuple[SourceFunction, ...]:
        made = [
            self._function(column, DeserializedColumn(column=column, deserializer=deserializer))
            for column, deserializer in self._deserializers.items()
        ]
        if self._time is not None:
            clocks = SplitClocks(self._time, KafkaRowTimes(of=self._time.of))
            made.append(replace(self._function("time", clocks), policy=None))
        return tuple(made)

    def _function(self, name: str, function: Callable[..., pa.RecordBatch]) -> SourceFunction:
        return SourceFunction(
            name=f"{self._name}-{name}",
            uid=None if self._uid is None else f"{self._uid}-{name}",
            function=function,
            policy=self._policy,
        )

    @property
    def event_time(self) -> EventTime | None:
        return self._time

    @property
    def forgotten(self) -> frozenset[str]:
        return self._options.forgotten

    @property
    def yields_only_committed(self) -> bool:
        return self._options.read_committed

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """Check that the brokers answer and the topics exist; changes nothing.

        Raises: UnreachableError, AuthenticationError, SourceChangedError.
        """
        cluster = self._cluster()
        try:
            cluster_id = cluster.cluster_id(timeout_s=timeout_s)
            missing = cluster.missing_requests(timeout_s=timeout_s)
            self._require_requests(missing)
            enumerator = self._made("", cluster)
            partitions = enumerator.check(timeout_s=timeout_s)
            self._warn_without_topic_ids(missing, is_found=enumerator.lacks_topic_ids)
        finally:
            cluster.close()
        if not partitions:
            log.warning(
                "the source has no partitions: source=%s subscription=%s servers=%s. %s",
                self._name,
                self._options.subscription,
                self._options.connection.bootstrap_servers,
                "It ends at once." if self._bounded else "Discovery continues.",
            )
        return {"cluster_id": cluster_id, "partitions": str(partitions)}

    def _require_requests(self, missing: Sequence[str]) -> None:
        """Refuse brokers that cannot serve a source, at its start and not at a timeout."""
        # Imported here, for it brings in the wire client, which no executor needs.
        from sluice.connectors.kafka.client.broker_requests import READING, TRUNCATION

        where = {"servers": self._options.connection.bootstrap_servers}
        lacking = [name for name in missing if name in READING]
        if lacking:
            raise ConfigError(
                "the brokers lack requests that a source sends",
                {"missing": ", ".join(lacking), **where},
                "Use Kafka 2.1 or later. Nothing of Sluice works without them.",
            )
        lacking = [name for name in missing if name in TRUNCATION]
        if lacking:
            log.warning(
                "the brokers lack a request, so truncated logs are not detected: "
                "source=%s missing=%s servers=%s. An unclean leader election may lose records.",
                *(self._name, ", ".join(lacking), where["servers"]),
            )

    def _warn_without_topic_ids(self, missing: Sequence[str], *, is_found: bool) -> None:
        from sluice.connectors.kafka.client.broker_requests import TOPIC_IDS

        # Brokers that know the request give no ids while their inter.broker.protocol.version is
        # below 2.8.
        if is_found or any(name in TOPIC_IDS for name in missing):
            log.warning(
                "the brokers give no topic ids, so a topic that is deleted and created again is "
                "not noticed: source=%s missing=%s servers=%s. Records of the new topic may be "
                "skipped: stop the job first, and use a new checkpoint directory.",
                *(self._name, ", ".join(TOPIC_IDS), self._options.connection.bootstrap_servers),
            )

    def enumerator(self, source_id: str) -> SplitEnumerator:
        """Driver side."""
        return self._made(source_id, self._cluster())

    def reader(self) -> SplitReader:
        """Executor side."""
        return self._split_reader()

    def narrowed(self, columns: Collection[str]) -> "KafkaSource":
        columns = {*columns, *self._timed_columns}
        kept = tuple(name for name in self._columns if name in columns)
        if self._are_chosen or self._deserializers or kept == self._columns:
            return self
        made = copy.copy(self)
        # A batch without columns has no rows; the partition is the cheapest column.
        made._columns = kept or (_CHEAPEST,)  # noqa: SLF001 - a source like this one
        return made

    def _split_reader(self) -> KafkaSplitReader:
        return KafkaSplitReader(
            connection=self._options.connection,
            columns=self._columns,
            read_committed=self._options.read_committed,
            fail_on_data_loss=self._options.fail_on_data_loss,
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
        made = copy.copy(self)
        made._memory = memory  # noqa: SLF001 - a source like this one
        return made

    def compression(self, *, timeout_s: float) -> str | None:
        # Imported here: it imports the wire client, which no executor needs.
        from sluice.connectors.kafka.source.enumerator.topic_compression import fetch_topic_load

        cluster = self._cluster()
        try:
            keys = _keys_now(cluster, self._options.subscription, timeout_s)
        except StreamError as err:  # the job's own check says so, where it lasts
            log.info("the source's compression is not known: source=%s error=%s", self._name, err)
            return None
        finally:
            cluster.close()
        found = fetch_topic_load(self._options.connection, keys, timeout_s=timeout_s)
        if len(found.codecs) > 1:
            log.info(
                "the source's partitions are compressed differently: source=%s codecs=%s chosen=%s",
                self._name,
                ",".join(found.codecs),
                found.codec,
            )
        fetch_bytes = read_settings(self._memory, self._consumer_options).fetch_bytes
        if (found.batch_bytes or 0) > max(fetch_bytes, self._memory.reading_bytes // 4):
            log.warning(
                "the source's topics allow record batches too large for a task's memory: "
                "source=%s max.message.bytes=%d task_memory_mib=%d",
                self._name,
                found.batch_bytes,
                self._memory.total_bytes >> 20,
            )
        return found.codec

    def hindrance(self) -> str | None:
        options = self._options
        bounds = {
            "maxOffsetsPerTrigger": options.max_offsets,
            "minOffsetsPerTrigger": options.min_offsets,
            "rate_limit": self._rate_limit,
        }
        return next((name for name, value in bounds.items() if value is not None), None)

    def streaming_reader(self) -> StreamingReader:
        return KafkaStreamingReader(reader=self._split_reader())

    def rereads(self, sink: Sink, topics: Sequence[str] | None = None) -> str | None:
        if not isinstance(sink, KafkaSink):
            return None
        options, own = self._options, () if sink.topic is None else (sink.topic,)
        if not set(options.connection.servers).intersection(sink.connection.servers):
            return None
        written = own if topics is None else topics
        return next((topic for topic in written if options.subscription.reads(topic)), None)

    def outlived(
        self, sink: Sink, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> str | None:
        if (
            not isinstance(sink, KafkaSink)
            or sink.topic is None
            or "timestamp" not in self._columns
        ):
            return None
        retention_ms = fetch_retention_ms(sink.connection, sink.topic, timeout_s=timeout_s)
        if retention_ms is None:
            return None
        cluster, before_ms = self._cluster(), round(time.time() * 1000) - retention_ms
        try:
            old = find_outlived(cluster, positions, before_ms=before_ms, timeout_s=timeout_s)
        except StreamError as err:
            log.info("ages of records cannot be read: source=%s error=%s", self._name, err)
            return None
        finally:
            cluster.close()
        if not old:
            return None
        ranges = " ".join(map(str, old[:_MOST_NAMED]))
        return f"topic={sink.topic} retention.ms={retention_ms} partitions={len(old)} ({ranges})"

    def repartition(self, topic: Repartition) -> tuple[tuple[JobTopicSink, ...], JobTopicSource]:
        """See `RepartitioningSource`: a topic of this source's cluster."""
        return repartition_topic(self._options, topic)

    def schema_ddl(self) -> str:
        """Spark DDL of the columns."""
        return schema_ddl(self._columns)

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        options = self._options
        return {
            **options.connection.redacted(),
            "subscription": str(options.subscription),
            "starting": _shown(options.starting),
            "bounded": str(self._bounded).lower(),
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
            "failOnDataLoss": str(options.fail_on_data_loss).lower(),
            "group.id": self._group_id(),
            "rate_limit": str(self._rate_limit or "none"),
            "task_memory_mib": str(self._memory.total_bytes >> 20),
        }

    def _cluster(self) -> KafkaCluster:
        return KafkaCluster(self._options.connection, read_committed=self._options.read_committed)

    def _made(self, source_id: str, cluster: KafkaCluster) -> KafkaSplitEnumerator:
        return KafkaSplitEnumerator(
            self._options,
            cluster,
            source_id=source_id,
            group_id=self._group_id(),
            bounded=self._bounded,
        )

    def _group_id(self) -> str:
        return self._options.group_name(self._name)


def _keys_now(
    cluster: KafkaCluster, subscription: Subscription, timeout_s: float
) -> list[PartitionKey]:
    existing = cluster.topic_names(timeout_s=timeout_s) if subscription.needs_names else ()
    found = cluster.describe(subscription.choose(existing), timeout_s=timeout_s)
    return [
        (name, number)
        for name, facts in subscription.partitions(found).items()
        for number in sorted(facts.partitions)
    ]


def _as_options(
    topics: Sequence[str] | None,
    pattern: str | None,
    partitions: Mapping[str, Sequence[int]] | None,
    starting: StartingOffsets,
) -> dict[str, str]:
    own: dict[str, str] = {}
    if topics is not None:
        own["subscribe"] = _joined("topics", topics)
    if pattern is not None:
        own["subscribePattern"] = pattern
    if partitions is not None:
        own["assign"] = json.dumps({name: list(n) for name, n in partitions.items()})
    return own | _starting_option(starting)


def _joined(argument: str, topics: Sequence[str]) -> str:
    if isinstance(topics, str):
        raise ConfigError(
            f"{argument} must be a list of names",
            {argument: topics},
            f"Write {argument}=[{topics!r}].",
        )
    return ",".join(topics)


def _starting_option(starting: StartingOffsets) -> dict[str, str]:
    if isinstance(starting, datetime):
        if starting.tzinfo is None:
            raise ConfigError(
                "a starting timestamp needs a time zone",
                {"starting_offsets": starting.isoformat()},
                "Write datetime(…, tzinfo=timezone.utc).",
            )
        # Rounded up: Kafka counts milliseconds, and an earlier record must not match.
        return {"startingTimestamp": str(-((_EPOCH - starting) // timedelta(milliseconds=1)))}
    if isinstance(starting, str):
        return {"startingOffsets": starting}
    return {"startingOffsets": json.dumps(starting)}


_NOT_OF_A_JOB = {
    "maxRecordsPerPartition": "A job reads a partition in one task and in order; remove it.",
    "minPartitions": "A job reads a partition in one task and in order; remove it.",
    "partitionDiscoveryIntervalMs": "Use Job(discovery_interval_s=…).",
    "taskMemoryMiB": "Use Job(task_memory_mib=…).",
}


def _merge(options: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Merge options and arguments; refuse an option that repeats an argument."""
    given = {name.strip().lower() for name in options}
    for name, remedy in _NOT_OF_A_JOB.items():
        if name.lower() in given:
            raise ConfigError("this option does not apply here", {"option": name}, remedy)
    twice = sorted(name for name in own if name.lower() in given)
    if twice:
        raise ConfigError(
            "an option repeats an argument of KafkaSource",
            {"options": ",".join(twice)},
            "Leave it out of options.",
        )
    return {**options, **own}


def _shown(position: object) -> str:
    return getattr(position, "value", None) or repr(position)
