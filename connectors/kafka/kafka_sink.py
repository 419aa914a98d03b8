"""`KafkaSink`: what ``.sink(…)`` takes, and what the drop-in's options become."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

from sluice.connectors.kafka.client.client_options import (
    PREFIX,
    Role,
    is_of_consumers,
    is_sendable,
    refuse_weak_acks,
    seconds_of,
    translate_names,
)
from sluice.connectors.kafka.client.client_tuning import (
    HotPath,
    claimed_by_writer,
    hot_path_of,
    sets_compression,
    write_settings,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import TokenFunction
from sluice.connectors.kafka.records.rows import COLUMNS_USED, check_spark_columns
from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.connectors.kafka.sink.writer.kafka_writer import Guarantee, KafkaWriterFactory
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.source_options import SOURCE_OPTIONS
from sluice.runtime.contracts import DeadLetterSink, SinkCoordinator, TunedSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.spelling import choice_of, nearest
from sluice.runtime.model.task_memory import TaskMemory, checked_mib, settings_within

__all__ = ["KafkaSink"]

_MOST_DIGITS = 9  # of a number of MiB
_LONGEST_TIMEOUT_S = (2**31 - 1) // 1000  # Kafka counts milliseconds in 32 bits
_LONGEST_PREFIX_BYTES = 30_000  # logs of brokers keep names of 32,767; ids add to it
_LOOK_S = 60.0
_cluster_ids: dict[str, str] = {}
"""By the addresses of the brokers; see `KafkaSink.target`."""
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaSink(TunedSink, DeadLetterSink):
    """Writes records to Kafka topics; columns as in Spark's own sink, and ``timestamp``.

    Made by the user on the driver; picklable; holds no connection.

    Args:
        bootstrap_servers: ``host:port``, comma-separated.
        topic: topic of every record; None: from the column ``topic``.
        transactional_id_prefix: prefix of transactional ids; required for exactly-once. Two jobs
            cannot use one at the same time.
        guarantee: ``exactly-once``, ``at-least-once`` or ``none``.
        transaction_timeout_s: None: the brokers' maximum. If the job never returns,
            ``read_committed`` readers wait this long at most.
        dead_letters_only: it writes the pipeline's dead letters and no other records: beside a file
            sink, or for another cluster; without ``topic``.
        name: of the operator; None: made from the topic.
        uid: stable id of the operator; set it before you rename.
        options: further Kafka options, Java's names or librdkafka's, with or without ``kafka.``.
        oauth_token: picklable function that returns tokens for OAUTHBEARER.
        hot_path: ``auto``, ``native`` or ``plain``; see docs/guide/kafka-source.md.

    Raises:
        ConfigError: a setting is missing, out of range or unsafe.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str = "",
        topic: str | None = None,
        transactional_id_prefix: str = "",
        guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE,
        transaction_timeout_s: float | None = None,
        dead_letters_only: bool = False,
        name: str | None = None,
        uid: str | None = None,
        options: Mapping[str, object] | None = None,
        oauth_token: TokenFunction | None = None,
        hot_path: HotPath | str = HotPath.AUTO,
    ) -> None:
        self._guarantee = choice_of(Guarantee, guarantee, setting="guarantee")
        self._connection = KafkaConnection(
            bootstrap_servers=bootstrap_servers,
            options={key: str(value) for key, value in (options or {}).items()},
            oauth_token=oauth_token,
        )
        self._connection.refuse_owned(exactly_once=self.is_exactly_once)
        if self._guarantee is not Guarantee.NONE:
            refuse_weak_acks(self._connection.options, guarantee=self._guarantee.value)
        self._topic = _checked_topic(topic)
        self._prefix = transactional_id_prefix
        self._timeout_s = transaction_timeout_s
        self._hot_path = hot_path_of(hot_path)
        self._dead_letters_only = dead_letters_only
        default = "dead-letters" if dead_letters_only else topic or "by-record"
        self._name = name or f"kafka-sink-{default}"
        self._uid = uid
        self._dead_letter_topics: tuple[str, ...] = ()
        self._memory = TaskMemory()
        self._codec: str | None = None
        if dead_letters_only and topic is not None:
            raise ConfigError(
                "a sink of dead letters has a topic",
                {"sink": self._name, "topic": topic},
                "Leave topic out: on_error=DeadLetters(topic=…) names it.",
            )
        self._check_transactions()

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: "SparkSchema | None" = None) -> Self:
        """From the options and the schema of ``writeStream.format("sluice-kafka")``.

        Takes ``topic``, ``transactionalIdPrefix``, ``guarantee``, ``transactionTimeout`` (seconds,
        or with a unit: ``15m``), ``taskMemoryMiB``, ``hotPath`` and ``kafka.*``. Ignores Spark's
        own options and those of the source, because a program may share its options.

        Raises:
            ConfigError: as `KafkaSink`; or the schema does not have the sink's columns.
        """
        given = {name.strip().lower(): value for name, value in options.items()}
        ours = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
        _refuse_unknown(ours)
        timeout = ours.get("transactiontimeout")
        sink = cls(
            topic=ours["topic"].strip() if "topic" in ours else None,
            transactional_id_prefix=ours.get("transactionalidprefix", ""),
            guarantee=ours.get("guarantee", Guarantee.EXACTLY_ONCE.value),
            transaction_timeout_s=None if timeout is None else _seconds(timeout),
            hot_path=ours.get("hotpath", HotPath.AUTO.value),
            options={
                name: value
                for name, value in given.items()
                if name.startswith(PREFIX) and not is_of_consumers(name.removeprefix(PREFIX))
            },
        )
        if schema is not None:
            columns = {f.name: f.dataType.simpleString() for f in schema.fields}
            check_spark_columns(columns, sink._topic)
        claimed = sink.claimed_bytes
        return settings_within(
            _task_memory_mib(ours),
            lambda mib: sink.within(TaskMemory.of_mib(mib, claimed_bytes=claimed, reads=False)),
        )

    @property
    def name(self) -> str:
        """See `sluice.runtime.contracts.Sink`."""
        return self._name

    @property
    def uid(self) -> str | None:
        """See `sluice.runtime.contracts.Sink`."""
        return self._uid

    @property
    def topic(self) -> str | None:
        """Topic of every record; None: each record has its own."""
        return self._topic

    def target(self) -> tuple[str, ...]:
        """See `sluice.runtime.contracts.DropInSink`. Asks the brokers for the cluster's id once in
        a process: their addresses may change, and two clusters may have a topic of one name.

        Raises: UnreachableError, AuthenticationError.
        """
        servers = ",".join(sorted(self._connection.servers))
        if servers not in _cluster_ids:
            cluster = KafkaCluster(self._connection)
            try:
                _cluster_ids[servers] = cluster.cluster_id(timeout_s=_LOOK_S)
            finally:
                cluster.close()
        return (self._topic or "", self._prefix, _cluster_ids[servers])

    def may_have_written(self, committable: StateEntry) -> bool:
        """See `sluice.runtime.contracts.DropInSink`: the target says it."""
        del committable
        return True

    def may_share_output(self, settings: Mapping[str, str]) -> bool:
        """See `sluice.runtime.contracts.DropInSink`: a column may name any topic."""
        if "kafka.bootstrap.servers" not in settings:
            return False
        other = settings.get("topic")
        return self._topic is None or other is None or other == self._topic

    @property
    def connection(self) -> KafkaConnection:
        """How to reach its cluster."""
        return self._connection

    @property
    def is_exactly_once(self) -> bool:
        """See `sluice.runtime.contracts.Sink`."""
        return self._guarantee is Guarantee.EXACTLY_ONCE

    @property
    def dead_letters_only(self) -> bool:
        return self._dead_letters_only

    def coordinator(self) -> SinkCoordinator:
        """See `sluice.runtime.contracts.Sink`."""
        # Imported here, for it brings in the wire client: 140 ms that no executor needs to spend.
        from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import (
            KafkaSinkCoordinator,
            PlainSinkCoordinator,
        )

        own = () if self._topic is None else (self._topic,)
        topics = (*own, *self._dead_letter_topics)
        if not self.is_exactly_once:
            return PlainSinkCoordinator(
                self._connection, topics=topics, guarantee=self._guarantee.value
            )
        return KafkaSinkCoordinator(
            self._connection,
            transactional_id_prefix=self._prefix,
            transaction_timeout_s=self._timeout_s,
            topics=topics,
        )

    @property
    def columns_used(self) -> frozenset[str]:
        """See `SelectiveSink`: columns of records, and columns that errors name a record by."""
        return COLUMNS_USED

    def writer_factory(self) -> KafkaWriterFactory:
        """See `sluice.runtime.contracts.Sink`."""
        return KafkaWriterFactory(
            connection=self._connection,
            topic=self._topic,
            guarantee=self._guarantee,
            transactional_id_prefix=self._prefix,
            transaction_timeout_s=self._timeout_s,
            dead_letter_topics=self._dead_letter_topics,
            dead_letters_only=self._dead_letters_only,
            settings=replace(
                write_settings(self._memory, self._producer_options), codec=self._codec
            ),
            hot_path=self._hot_path,
        )

    @property
    def _producer_options(self) -> Mapping[str, str]:
        return translate_names(self._connection.options, Role.PRODUCER)

    @property
    def claimed_bytes(self) -> int:
        return claimed_by_writer(self._producer_options)

    @property
    def keeps_compression(self) -> bool:
        return not sets_compression(self._producer_options)

    def within(self, memory: TaskMemory) -> Self:
        write_settings(memory, self._producer_options)  # refuses what does not fit
        made = copy.copy(self)
        made._memory = memory  # noqa: SLF001 - a sink like this one
        return made

    def compressed_as(self, codec: str) -> Self:
        made = copy.copy(self)
        made._codec = codec  # noqa: SLF001 - a sink like this one
        return made

    def with_dead_letters(self, topics: Sequence[str]) -> Self:
        for topic in topics:
            if _checked_topic(topic) == self._topic:
                raise ConfigError(
                    "the dead letter topic is the topic of the output",
                    {"sink": self._name, "topic": topic},
                    "Give dead letters a topic of their own: readers could not separate them.",
                )
        made = copy.copy(self)
        made._dead_letter_topics = tuple(topics)  # noqa: SLF001 - a sink like this one
        return made

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """See `sluice.runtime.contracts.Sink`."""
        return [
            (r.topic, r.partition, r.start_offset, r.end_offset)
            for r in decode_handle(committable).sources
        ]

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """See `sluice.runtime.contracts.Sink`."""
        return {each.topic: each.records for each in decode_handle(committable).outputs}

    def settings(self) -> Mapping[str, str]:
        """See `sluice.runtime.contracts.Sink`."""
        settings = {"guarantee": self._guarantee.value, **self._connection.redacted()}
        settings["task_memory_mib"] = str(self._memory.total_bytes >> 20)
        if self._codec is not None:
            settings["compression"] = self._codec
        if self._topic is not None:
            settings["topic"] = self._topic
        if self._dead_letter_topics:
            settings["dead_letter_topics"] = ",".join(self._dead_letter_topics)
        if self.is_exactly_once:
            timeout_s = self._timeout_s
            settings["transactional_id_prefix"] = self._prefix
            settings["transaction_timeout_s"] = (
                "broker's maximum" if timeout_s is None else f"{timeout_s:g}"
            )
        return settings

    def __repr__(self) -> str:
        return f"KafkaSink(name={self._name!r}, {self._connection!r})"

    def _check_transactions(self) -> None:
        if not self.is_exactly_once:
            return
        if not self._prefix.strip():
            raise ConfigError(
                "exactly-once needs a prefix for its transactional ids",
                {"sink": self._name, "option": "transactional_id_prefix / transactionalIdPrefix"},
                "Choose one for this job and keep it, or use guarantee at-least-once.",
            )
        if not is_sendable(self._prefix):
            raise ConfigError(
                "transactional_id_prefix holds a character that Kafka cannot send",
                {"sink": self._name, "transactional_id_prefix": ascii(self._prefix)},
                "Remove null characters and lone surrogates: all tasks would get one id.",
            )
        if len(self._prefix.encode()) > _LONGEST_PREFIX_BYTES:
            raise ConfigError(
                "transactional_id_prefix is too long for brokers",
                {"sink": self._name, "bytes": len(self._prefix.encode())},
                f"Choose a prefix of at most {_LONGEST_PREFIX_BYTES} bytes.",
            )
        if self._timeout_s is not None and not 1 <= self._timeout_s <= _LONGEST_TIMEOUT_S:
            raise ConfigError(
                "the transaction timeout is too short, too long, or not a number",
                {"sink": self._name, "transaction_timeout_s": self._timeout_s},
                f"Give 1 to {_LONGEST_TIMEOUT_S} seconds, or none for the broker's maximum.",
            )


class SparkField(Protocol):
    """A column of Spark's ``StructType``, as far as it is read here."""

    name: str
    dataType: Any


class SparkSchema(Protocol):
    """Spark's ``StructType``; this module does not import Spark."""

    @property
    def fields(self) -> Iterable[SparkField]: ...


_OPTIONS = frozenset(
    {
        "guarantee",
        "hotpath",
        "taskmemorymib",
        "topic",
        "transactionalidprefix",
        "transactiontimeout",
    }
)
_SPELLING = {
    "taskmemorymib": "taskMemoryMiB",
    "transactionalidprefix": "transactionalIdPrefix",
    "hotpath": "hotPath",
    "transactiontimeout": "transactionTimeout",
}
# May reach every sink of Spark, whatever its format; a topic has no use for them.
_SPARKS_OWN = frozenset({"checkpointlocation", "outputmode", "partitionby", "path", "queryname"})
_OF_SOURCES = frozenset(name.lower() for name in SOURCE_OPTIONS)


def _refuse_unknown(given: Iterable[str]) -> None:
    unknown = sorted(set(given) - _OPTIONS - _SPARKS_OWN - _OF_SOURCES)
    if not unknown:
        return
    guess = nearest(unknown[0], _OPTIONS)
    raise ConfigError(
        "unknown option of the Kafka sink",
        {"option": unknown[0]},
        f"Did you mean {_SPELLING.get(guess, guess)}?" if guess else "Remove it.",
    )


def _task_memory_mib(ours: Mapping[str, str]) -> int | None:
    if "taskmemorymib" not in ours:
        return None
    text = str(ours["taskmemorymib"]).strip()
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise ConfigError(
            "an option has a value that is not valid",
            {"option": "taskMemoryMiB", "value": text},
            "Give a whole number of MiB.",
        )
    return checked_mib(int(text), name="taskMemoryMiB")


def _checked_topic(topic: str | None) -> str | None:
    if topic is not None and (not _TOPIC_NAME.fullmatch(topic) or topic in (".", "..")):
        raise ConfigError(
            "the name of a topic is not valid",
            {"topic": topic},
            "Use 1 to 249 letters, digits, dots, underscores and hyphens.",
        )
    return topic


def _seconds(text: str) -> float:
    found = seconds_of(text, bare="s")
    if found is None:
        raise ConfigError(
            "a duration cannot be read",
            {"option": "transactionTimeout", "value": text},
            "Write seconds, or a number and a unit: 900, 900s, 15m.",
        )
    return found
