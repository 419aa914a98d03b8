"""`RepartitionSink`: writes rows by key to a repartition topic, with the transactions of
`KafkaSink`."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.client.client_options import is_of_consumers
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.repartition.repartition_messages import (
    KEY_COLUMN,
    MessageOrigin,
    messages_of,
    partition_slices,
    partitions_of_keys,
    records_of,
    with_keys,
)
from sluice.connectors.kafka.repartition.repartition_topics import topic_name
from sluice.connectors.kafka.sink.writer.kafka_writer import KafkaWriterFactory
from sluice.runtime.contracts import (
    SIDE_COLUMN,
    AttemptRegistry,
    ContinuousWriter,
    ContinuousWriterFactory,
    DeadLetterWriter,
    JobTopic,
    JobTopicSink,
    KeyEncoder,
    SinkCoordinator,
    SinkWriter,
    TaskScope,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.wide_indexes import with_wide_indexes

__all__ = ["RepartitionSink"]

_MOST_ROWS = 50_000
_MOST_BYTES = 8 << 20
_RESERVED = frozenset({KEY_COLUMN, SIDE_COLUMN})


class RepartitionSink(KafkaSink, JobTopicSink):
    """One side of a repartition topic. Made on the driver; picklable; holds no connection.

    Args:
        connection: of the upstream source.
        keys: encodes the rows' keys.
        side: 0 or 1.
        name, uid, hot_path: as of `KafkaSink`.
    """

    def __init__(
        self,
        *,
        connection: KafkaConnection,
        keys: KeyEncoder,
        side: int,
        name: str,
        uid: str | None,
        hot_path: HotPath,
    ) -> None:
        options = {k: v for k, v in connection.options.items() if not is_of_consumers(k)}
        if not options.keys() & {"compression.type", "compression.codec"}:
            options["compression.type"] = "lz4"
        super().__init__(
            bootstrap_servers=connection.bootstrap_servers,
            transactional_id_prefix=name,  # until `of_job`
            name=name,
            uid=uid,
            options=options,
            oauth_token=connection.oauth_token,
            hot_path=hot_path,
        )
        self._keys = keys
        self._side = side
        self._source_id = ""
        self._run = JobTopic(partitions=0, max_parallelism=0)

    @property
    def source_id(self) -> str:
        return self._source_id

    def of_job(self, job_name: str, job_uid: str, source_id: str) -> Self:
        name = topic_name(job_name, job_uid, source_id)
        return self._with(_source_id=source_id, _topic=name, _prefix=f"{name}-{self._side}")

    def on_topic(self, topic: JobTopic) -> Self:
        return self._with(_run=topic)

    def _with(self, **attributes: object) -> Self:
        made = copy.copy(self)
        vars(made).update(attributes)
        return made

    def coordinator(self) -> SinkCoordinator:
        """See `KafkaSink.coordinator`; the topic may not exist yet."""
        return KafkaSink.coordinator(self._with(_topic=None))

    def writer_factory(self) -> "RepartitionWriterFactory":  # type: ignore[override]  # of messages
        """See `sluice.runtime.contracts.Sink`."""
        return RepartitionWriterFactory(
            inner=super().writer_factory(),
            keys=self._keys,
            side=self._side,
            topic=self._run,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionWriterFactory(ContinuousWriterFactory):
    """Picklable; goes from the driver to executors.

    Attributes:
        inner: makes the writers of the transactions.
        keys: encodes the rows' keys.
        side: of the topic.
        topic: of this run.
    """

    inner: KafkaWriterFactory
    keys: KeyEncoder
    side: int
    topic: JobTopic

    @property
    def longest_interval_s(self) -> float | None:
        return self.inner.longest_interval_s

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        return self._writer(self.inner.open(scope, registry), scope)

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> ContinuousWriter:
        return self._writer(self.inner.open_continuous(scope, registry), scope)

    def _writer(self, inner: ContinuousWriter, scope: TaskScope) -> "RepartitionWriter":
        return RepartitionWriter(inner, scope, keys=self.keys, side=self.side, topic=self.topic)


class RepartitionWriter(ContinuousWriter):
    """Makes messages of rows, for a writer with a transaction. Executor, as that one.

    Rows wait for others of their partition until there are enough, or the epoch ends: nothing of it
    is visible before.
    """

    def __init__(
        self,
        inner: ContinuousWriter,
        scope: TaskScope,
        *,
        keys: KeyEncoder,
        side: int,
        topic: JobTopic,
    ) -> None:
        self._inner = inner
        self._keys = keys
        self._topic = topic
        self._origin = MessageOrigin(batch=scope.batch, side=side)
        self._waiting: list[tuple[pa.RecordBatch, npt.NDArray[np.int32]]] = []
        self._rows = self._bytes = 0

    @property
    def decide_by_s(self) -> float | None:  # type: ignore[override]  # of the inner writer
        """See `sluice.runtime.contracts.SinkWriter`."""
        return self._inner.decide_by_s

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        reserved = _RESERVED.intersection(batch.schema.names)
        if reserved:
            raise ConfigError(
                "a column has a name that repartition topics use",
                {"columns": ",".join(sorted(reserved))},
                "Rename the column in a function before key_by.",
            )
        batch = with_wide_indexes(batch)
        keys, key_schema = self._keys(batch)
        rows = with_keys(batch, keys, key_schema)
        if self._waiting and not rows.schema.equals(
            self._waiting[0][0].schema, check_metadata=True
        ):
            self._send()
        self._waiting.append((rows, partitions_of_keys(keys, self._topic)))
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= _MOST_ROWS or self._bytes >= _MOST_BYTES:
            self._send()

    def write_dead_letters(self, topic: str, records: pa.RecordBatch) -> None:
        """See `sluice.runtime.contracts.DeadLetterWriter`: into the same transaction."""
        assert isinstance(self._inner, DeadLetterWriter)
        self._inner.write_dead_letters(topic, records)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        self._send()
        self._inner.end_epoch(ranges, checkpoint_id=checkpoint_id)

    def pre_commit(self) -> list[StateEntry]:
        """See `sluice.runtime.contracts.SinkWriter`."""
        self._send()  # in a micro-batch; an ended epoch has none left
        return self._inner.pre_commit()

    def _send(self) -> None:
        waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        if not waiting:
            return
        rows = pa.concat_batches([batch for batch, _ in waiting])
        partitions = np.concatenate([numbers for _, numbers in waiting])
        values: list[bytes | None] = []
        targets: list[int] = []
        for partition, mine in partition_slices(rows, partitions):
            made = list(messages_of(mine))
            values += made
            targets += [partition] * len(made)
        self._inner.write(records_of(values, targets, self._origin))

    def commit(self, *, timeout_s: float) -> bool:
        return self._inner.commit(timeout_s=timeout_s)

    def release(self) -> None:
        self._inner.release()

    def abort(self) -> None:
        self._waiting = []
        self._inner.abort()
