"""Writes one task's records of one epoch: in a transaction that it never ends, or plainly."""

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.connectors.kafka.client.client_tuning import HotPath, WriteSettings, write_settings
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.records.partitioner import LIBRDKAFKA_PARTITIONER
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.handles import (
    OutputCount,
    SourceRange,
    TransactionHandle,
    encode_handle,
)
from sluice.connectors.kafka.sink.producers.cluster_limits import (
    KnownLimits,
    LimitsAnswer,
    fetch_limits,
)
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.id_owners import take_owner
from sluice.connectors.kafka.sink.producers.plain_producers import process_plain_producers
from sluice.connectors.kafka.sink.producers.preparation import (
    Preparation,
    WaitLimits,
    make_client,
    plain_config,
)
from sluice.connectors.kafka.sink.producers.producer_client import Client, partition_count
from sluice.connectors.kafka.sink.producers.producer_pool import Lease, ProducerPool, process_pools
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.connectors.kafka.sink.writer.producer_wait import ProducerWait, Wait
from sluice.connectors.kafka.sink.writer.sender import RecordSender, flush
from sluice.runtime.contracts import (
    INTERVALS_PER_TRANSACTION_TIMEOUT,
    AttemptRegistry,
    ContinuousWriter,
    ContinuousWriterFactory,
    RegisteredAttempt,
    TaskScope,
)
from sluice.runtime.errors import FencedError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.task_memory import TaskMemory

__all__ = ["Guarantee", "KafkaWriterFactory", "PlainWriter", "TransactionalWriter"]

log = logging.getLogger(__name__)

_LIMITS_TIMEOUT_S = 4.0
_ABORT_TIMEOUT_S = 5.0
_DEFAULT_SETTINGS = write_settings(TaskMemory(), {})
_DEFAULT_WAITS = WaitLimits()
_BROKERS = "the brokers of its output"


class Guarantee(enum.Enum):
    """The guarantee for a reader of the sink's topics."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"


class _Schemas:
    """The columns of each schema so far; a task's batches nearly always share one."""

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._schema: pa.Schema | None = None
        self._columns: RecordColumns | None = None

    def columns(self, schema: pa.Schema) -> RecordColumns:
        if self._columns is None or schema is not self._schema:
            self._columns = RecordColumns.of(schema, self._topic)
            self._schema = schema
        return self._columns


class TransactionalWriter(ContinuousWriter):
    """One transaction, pre-committed and left open until its decision. Executor, one thread at a
    time.

    Its producer stays open after the pre-commit if it may be asked to commit (`keeps_producer`);
    else the driver commits it.

    An epoch without records costs no transaction: the first record starts it.

    Attributes:
        decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
    """

    def __init__(
        self,
        pool: ProducerPool,
        scope: TaskScope,
        registry: AttemptRegistry,
        topic: str | None,
        *,
        partitions_keys: bool = True,
        keeps_producer: bool = False,
        dead_letters_only: bool = False,
        waits: WaitLimits = _DEFAULT_WAITS,
    ) -> None:
        self._pool = pool
        self._dead_letters_only = dead_letters_only
        self._keeps_producer = keeps_producer
        self._partitions_keys = partitions_keys
        self._waits = waits
        self._for_producer = ProducerWait(registry, scope.batch, "a producer")
        self._for_brokers = ProducerWait(registry, scope.batch, _BROKERS)
        self._registry = registry
        self._schemas = _Schemas(topic)
        self._delivery = DeliveryLog(scope)
        self._lease: Lease | None = None
        self._kept: Lease | None = None
        self._sender: RecordSender | None = None
        self._is_flushed = False
        self._registered_s = 0.0
        self.decide_by_s: float | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._dead_letters_only:
            return
        columns = self._schemas.columns(batch.schema)
        if batch.num_rows == 0:
            return
        lease, sender = self._begun()
        with lease.producer.in_use():
            sender.send(batch, columns)

    def write_dead_letters(self, topic: str, records: pa.RecordBatch) -> None:
        """See `sluice.runtime.contracts.DeadLetterWriter`: into the same transaction."""
        columns = RecordColumns.of(records.schema, topic)
        if records.num_rows == 0:
            return
        lease, sender = self._begun()
        with lease.producer.in_use():
            sender.send(records, columns, is_own_topic=False)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        self._delivery.ends(ranges, checkpoint_id=checkpoint_id)
        if self._lease is not None:
            self._flush(self._lease)
            self._pool.end(self._lease)

    def pre_commit(self) -> list[StateEntry]:
        """Flush. The result counts only if three things agree (`pre-commit-confirmed`): no record
        is left, no record was refused, and it is still the registered transaction
        (`handle-from-producer`).
        """
        if self._sender is None or self._lease is None:
            return []
        producer = self._lease.producer
        self._flush(self._lease)
        with producer.in_use():
            producer.confirm()
            self._delivery.check()
        if producer.kept_s is not None:
            self.decide_by_s = self._registered_s + producer.kept_s
        failpoint("after-flush")
        handle = self._handle(producer, self._sender.outputs)
        lease, self._lease, self._sender = self._lease, None, None
        if self._keeps_producer:
            self._pool.hold(lease)
            self._kept = lease
        else:
            self._pool.spend(lease)
        return [encode_handle(handle, operator_id=self._delivery.scope.operator_id)]

    def _flush(self, lease: Lease) -> None:
        if not self._is_flushed:
            failpoint("before-flush")
            with lease.producer.in_use():
                flush(
                    lease.producer.client,
                    self._delivery,
                    timeout_s=self._waits.flush_s,
                    wait=self._for_brokers,
                )
            self._is_flushed = True

    def commit(self, *, timeout_s: float) -> bool:
        if self._kept is None:
            return False
        producer = self._kept.producer
        with producer.in_use():
            is_acknowledged = producer.commit(timeout_s=timeout_s)
        self.release()
        return is_acknowledged

    def release(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._pool.let_go(kept)

    def abort(self) -> None:
        """See `sluice.runtime.contracts.SinkWriter`. Never raises: the sweep ends open
        transactions."""
        lease, self._lease, self._sender = self._lease, None, None
        if lease is not None:
            self._pool.abort(lease, timeout_s=_ABORT_TIMEOUT_S)
        self.release()  # another sink's pre-commit failed: swept, too

    def _begun(self) -> tuple[Lease, RecordSender]:
        if self._lease is None or self._sender is None:
            self._lease, self._sender = self._begin()
        return self._lease, self._sender

    def _begin(self) -> tuple[Lease, RecordSender]:
        scope = self._delivery.scope
        lease = self._for_producer.until_ready(
            lambda step_s: self._pool.take(scope, timeout_s=step_s), timeout_s=self._waits.ready_s
        )
        try:
            self._registered_s = self._registry.register(
                RegisteredAttempt(
                    batch=scope.batch,
                    operator_id=scope.operator_id,
                    resource=lease.producer.identity.resource,
                    checkpoint_id=scope.checkpoint_id,
                )
            )
            failpoint("before-begin")
            self._delivery.ask(lease.producer.abort_reason)
            lease.producer.begin(self._delivery.client_failed)
        except BaseException:
            self._pool.return_unused(lease)
            raise
        self._lease = lease  # to be aborted from here on
        failpoint("after-begin")
        return lease, RecordSender(
            lease.producer.client,
            self._delivery,
            queue_full_timeout_s=self._waits.flush_s,
            partition_count=lease.producer.partition_count if self._partitions_keys else None,
            wait=self._for_brokers,
        )

    def _handle(
        self, producer: TransactionalProducer, outputs: tuple[OutputCount, ...]
    ) -> TransactionHandle:
        identity, scope = producer.identity, self._delivery.scope
        return TransactionHandle(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            checkpoint_id=scope.checkpoint_id,
            record_count=sum(output.records for output in outputs),
            outputs=outputs,
            sources=tuple(
                SourceRange(
                    topic=r.topic,
                    partition=r.partition,
                    start_offset=r.start_offset,
                    end_offset=r.end_offset,
                )
                for r in scope.source_ranges
            ),
        )


class PlainWriter(ContinuousWriter):
    """Writes without a transaction: at least once, or with no guarantee at all. Executor.

    Records are visible at once. At least once: `pre_commit` returns after all are acknowledged, so
    a checkpoint never covers a record that Kafka does not have. None: errors are only logged.
    """

    def __init__(
        self,
        client: Client,
        scope: TaskScope,
        topic: str | None,
        *,
        guarantee: Guarantee,
        partition_count: int | None,
        drop: Callable[[], None],
        dead_letters_only: bool = False,
        waits: WaitLimits = _DEFAULT_WAITS,
        wait: Wait | None = None,
    ) -> None:
        self._dead_letters_only = dead_letters_only
        self._waits = waits
        self._wait = wait
        self._client = client
        self._drop = drop
        self._is_checked = guarantee is not Guarantee.NONE
        self._is_flushed = False
        self.decide_by_s: float | None = None  # there is nothing to decide
        self._schemas = _Schemas(topic)
        self._delivery = DeliveryLog(scope)
        self._sender = RecordSender(
            client,
            self._delivery,
            queue_full_timeout_s=waits.flush_s,
            partition_count=partition_count,
            stops_at_errors=self._is_checked,
            wait=wait,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._dead_letters_only:
            self._sender.send(batch, self._schemas.columns(batch.schema))

    def write_dead_letters(self, topic: str, records: pa.RecordBatch) -> None:
        """See `sluice.runtime.contracts.DeadLetterWriter`: visible at once, like all records."""
        self._sender.send(records, RecordColumns.of(records.schema, topic), is_own_topic=False)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        self._delivery.ends(ranges, checkpoint_id=checkpoint_id)
        self._flush()

    def pre_commit(self) -> list[StateEntry]:
        """Flush; there is nothing left to commit."""
        self._flush()
        return []

    def _flush(self) -> None:
        if self._is_flushed:
            return
        self._is_flushed = True
        failpoint("before-flush")
        try:
            flush(
                self._client,
                self._delivery,
                timeout_s=self._waits.flush_s,
                stops_at_errors=self._is_checked,
                wait=self._wait,
            )
        except StreamError as err:
            if self._is_checked or isinstance(err, FencedError):  # that ends the task's wait
                raise
            batch = self._delivery.scope.batch
            log.warning(
                "records lost, as guarantee=none allows: region=%s batch_id=%d records=%d error=%s",
                batch.region,
                batch.batch_id,
                self._delivery.failed_records,
                err,
            )
        failpoint("after-flush")

    def commit(self, *, timeout_s: float) -> bool:
        """See `sluice.runtime.contracts.ContinuousWriter`: all is visible."""
        del timeout_s
        return True

    def release(self) -> None:
        """See `sluice.runtime.contracts.ContinuousWriter`: nothing is kept."""

    def abort(self) -> None:
        """Sent records stay; unsent ones are dropped, because the epoch is written again."""
        self._drop()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaWriterFactory(ContinuousWriterFactory):
    """Makes the writer of a task and epoch. Picklable; goes from the driver to executors.

    Attributes:
        connection: of the cluster.
        topic: every record's topic, or None: that of the topic column.
        guarantee: see `Guarantee`.
        transactional_id_prefix: exactly-once only.
        transaction_timeout_s: None: the broker's maximum.
        dead_letter_topics: further topics.
        dead_letters_only: its writers ignore all other records.
        settings: of the producers.
        hot_path: whether compiled code is used.
    """

    connection: KafkaConnection
    topic: str | None
    guarantee: Guarantee
    transactional_id_prefix: str = ""
    transaction_timeout_s: float | None = None
    dead_letter_topics: tuple[str, ...] = ()
    dead_letters_only: bool = False
    settings: WriteSettings = _DEFAULT_SETTINGS
    hot_path: HotPath = HotPath.AUTO

    @property
    def longest_interval_s(self) -> float | None:
        if self.guarantee is not Guarantee.EXACTLY_ONCE or self.transaction_timeout_s is None:
            return None  # or the brokers' maximum decides, which the sink's check reports
        return self.transaction_timeout_s / INTERVALS_PER_TRANSACTION_TIMEOUT

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> ContinuousWriter:
        return self._open(scope, registry, keeps_producer=True)

    def open(
        self, scope: TaskScope, registry: AttemptRegistry
    ) -> "TransactionalWriter | PlainWriter":
        """See `WriterFactory`. Returns at once: a producer is prepared while the task reads its
        first records.
        """
        return self._open(scope, registry, keeps_producer=False)

    def _open(
        self, scope: TaskScope, registry: AttemptRegistry, *, keeps_producer: bool
    ) -> "TransactionalWriter | PlainWriter":
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return self._open_plain(scope, registry)
        pool = process_pools().enter(
            self.transactional_id_prefix,
            scope,
            lambda: ProducerPool(
                prefix=self.transactional_id_prefix,
                scope=scope,
                prepare=self._preparation(),
                owner=take_owner(
                    (
                        self.transactional_id_prefix,
                        scope.job_uid,
                        scope.batch.region,
                        scope.operator_id,
                    ),
                    scope.batch.attempt_id,
                ),
            ),
        )
        return TransactionalWriter(
            pool,
            scope,
            registry,
            self.topic,
            partitions_keys=self._partitions_keys,
            keeps_producer=keeps_producer,
            dead_letters_only=self.dead_letters_only,
            waits=self._waits,
        )

    @property
    def _partitions_keys(self) -> bool:
        """Whether keys are partitioned as Java does: unless the user has chosen another way."""
        chosen = self.connection.options.get("partitioner", LIBRDKAFKA_PARTITIONER)
        return chosen == LIBRDKAFKA_PARTITIONER

    @property
    def _waits(self) -> WaitLimits:
        timeout_s = None
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            timeout_s = self.transaction_timeout_s
        return WaitLimits.of(self.connection.options, transaction_timeout_s=timeout_s)

    def _open_plain(self, scope: TaskScope, registry: AttemptRegistry) -> PlainWriter:
        idempotent = self.guarantee is Guarantee.AT_LEAST_ONCE
        limits = KnownLimits(self.limits)

        def make() -> Client:
            config = plain_config(self.connection, limits(), self.settings, idempotent=idempotent)
            return make_client(self.hot_path, config)

        producers = process_plain_producers()
        wait = ProducerWait(registry, scope.batch, "a producer")
        client = wait.until_ready(
            lambda _: producers.client(scope, make), timeout_s=self._waits.ready_s
        )
        count = None
        if self.topic is not None and self._partitions_keys:
            count = partition_count(client, self.topic)
        return PlainWriter(
            client,
            scope,
            self.topic,
            guarantee=self.guarantee,
            partition_count=count,
            dead_letters_only=self.dead_letters_only,
            drop=lambda: producers.drop(scope),
            waits=self._waits,
            wait=ProducerWait(registry, scope.batch, _BROKERS),
        )

    def limits(self) -> LimitsAnswer:
        """The limits of the cluster, as far as its brokers report them within some seconds."""
        own = () if self.topic is None else (self.topic,)
        topics = (*own, *self.dead_letter_topics)
        found = fetch_limits(self.connection, topics, timeout_s=_LIMITS_TIMEOUT_S)
        # A topic column may name any further topic.
        return found if own else replace(found, partitions=None)

    def _preparation(self) -> Preparation:
        return Preparation(
            self.connection,
            self.settings,
            transaction_timeout_s=self.transaction_timeout_s,
            topic=self.topic,
            fetch=self.limits,
            hot_path=self.hot_path,
            retry_for_s=self._waits.ready_s,
        )
