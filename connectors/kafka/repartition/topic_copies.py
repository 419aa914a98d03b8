"""Copies rows in flight from a topic of another job, in one transaction. Driver, at a restore.

A start that was killed repeats the copy: one transactional id, so its producer ends the open
transaction of the one before. A mark in partition 0 says that the copy is done.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from sluice.connectors.kafka.client.client_tuning import write_settings
from sluice.connectors.kafka.client.confluent import (
    KafkaException,
    Producer,
    make_producer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.repartition.repartition_messages import (
    COLUMNS_READ,
    HEADER,
    KEY_COLUMN,
    MessageOrigin,
    decoded,
    messages_of,
    partition_slices,
    partitions_of_keys,
)
from sluice.connectors.kafka.sink.producers.cluster_limits import fetch_limits
from sluice.connectors.kafka.sink.producers.preparation import transactional_config
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.positions import Edge, PartitionKey
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.splits import TopicFacts, is_recreated
from sluice.runtime.contracts import JobTopic, TopicCopy
from sluice.runtime.errors import DataLostError, SourceChangedError, UnreachableError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.model.task_memory import TaskMemory

__all__ = ["copy_rows"]

log = logging.getLogger(__name__)

_COPIED = BatchKey(region="restored", attempt_id=0, batch_id=0)
_REQUEST_S = 15.0
_OPEN_S = 60.0  # for open transactions of the other job
_FLUSH_S = 120.0
_PAUSE_S = 0.1


def copy_rows(
    connection: KafkaConnection,
    copy: TopicCopy,
    topic: str,
    run: JobTopic,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Copy the rows, unless an earlier start has done so. Rows go to the partitions of their keys.

    Args:
        connection: of both topics.
        topic: that gets the rows; nothing else has written it yet.
        run: its partitions and key groups.
    Raises:
        SourceChangedError: the other topic is gone, or is another one under its name.
        DataLostError: rows of it are gone.
        UnreachableError: transactions in it stay open.
    """
    cluster = KafkaCluster(connection)
    try:
        producer = _fencing_producer(connection, topic)
        if _is_copied(connection, cluster, topic):
            return
        ranges = _ranges(cluster, copy, sleep)
        _copy(producer, connection, ranges, copy, topic, run)
    except KafkaException as err:
        raise translate(err, {"topic": copy.topic, "to": topic}) from err
    finally:
        cluster.close()


def _fencing_producer(connection: KafkaConnection, topic: str) -> Producer:
    """A producer; the transaction of an earlier try is over when this returns."""
    limits = fetch_limits(connection, (topic,), timeout_s=_REQUEST_S).limits
    config = transactional_config(
        connection, limits, write_settings(TaskMemory(), {}), transaction_timeout_s=None
    )
    config |= {"transactional.id": f"{topic}-restore", "compression.type": "lz4"}
    producer = make_producer(config)
    producer.init_transactions(_REQUEST_S)
    return producer


def _is_copied(connection: KafkaConnection, cluster: KafkaCluster, topic: str) -> bool:
    """Whether the first committed message in partition 0 comes from a copy."""
    key = (topic, 0)
    facts = cluster.describe([topic], timeout_s=_REQUEST_S)
    end = cluster.offsets({key: Edge.LATEST}, timeout_s=_REQUEST_S)[key]
    if end is None or not end.offset:
        return False
    whole = _range(key, facts, 0, end.offset)
    for records in _reader(connection).read([whole]):
        for message in decoded(records, topic):
            return message.origin.is_copied
    return False


def _range(key: PartitionKey, facts: Mapping[str, TopicFacts], start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="",
        topic=key[0],
        topic_id=facts[key[0]].topic_id,
        partition=key[1],
        start_offset=start,
        end_offset=end,
    )


def _reader(connection: KafkaConnection) -> KafkaSplitReader:
    return KafkaSplitReader(connection=connection, columns=COLUMNS_READ)


def _ranges(
    cluster: KafkaCluster, copy: TopicCopy, sleep: Callable[[float], None]
) -> list[SplitRange]:
    """The ranges that the other job has not read, up to the present end of each log.

    Readers do not see committed rows after the begin of an open transaction, so that must end.
    """
    keys = [(copy.topic, partition) for partition in copy.offsets]
    facts = cluster.describe([copy.topic], timeout_s=_REQUEST_S)
    found = facts.get(copy.topic)
    if found is None or is_recreated(copy.topic_id, found.topic_id):
        raise SourceChangedError(
            "the repartition topic of the restored job does not exist any more",
            {"topic": copy.topic, "topic_id": copy.topic_id},
            "Restore the topic, or restore the job from a later savepoint. Its rows in flight are "
            "in no other place.",
        )
    first = cluster.offsets(dict.fromkeys(keys, Edge.EARLIEST), timeout_s=_REQUEST_S)
    ends = cluster.log_ends(keys, timeout_s=_REQUEST_S)
    wanted = {
        key: (copy.offsets[key[1]], ends[key].offset)
        for key in keys
        if key in ends and ends[key].offset > copy.offsets[key[1]]
    }
    lost = {
        f"{key[0]}-{key[1]}": f"[{start},{at.offset})"
        for key, (start, _) in wanted.items()
        if (at := first[key]) is not None and at.offset > start
    }
    if lost or len(ends) < len(keys):
        raise DataLostError(
            "rows in flight of the restored job are gone",
            lost or {"topic": copy.topic, "partitions": len(ends), "needed": len(keys)},
            "Restore the job from a later savepoint.",
        )
    until_s = time.monotonic() + _OPEN_S
    while True:
        visible = cluster.offsets(dict.fromkeys(wanted, Edge.LATEST), timeout_s=_REQUEST_S)
        hidden = [
            f"{key[0]}-{key[1]}"
            for key, (_, end) in wanted.items()
            if (at := visible[key]) is None or at.offset < end
        ]
        if not hidden:
            return [_range(key, facts, start, end) for key, (start, end) in wanted.items()]
        if time.monotonic() > until_s:
            raise UnreachableError(
                "open transactions hide rows in flight of the restored job",
                {"partitions": ",".join(hidden), "waited_s": _OPEN_S},
                "Start the other job and stop it in order, or wait until its transactions time "
                "out. Then start again.",
            )
        sleep(_PAUSE_S)


def _copy(
    producer: Producer,
    connection: KafkaConnection,
    ranges: list[SplitRange],
    copy: TopicCopy,
    topic: str,
    run: JobTopic,
) -> None:
    rows = 0
    failpoint("before-topic-copy")
    producer.begin_transaction()
    _produce(producer, topic, 0, None, MessageOrigin(batch=_COPIED, is_copied=True))
    for records in _reader(connection).read(ranges):
        for message in decoded(records, copy.topic):
            batch, found = message.origin.batch, message.rows
            is_past = message.origin.is_copied or copy.lineage.has(
                batch.region, batch.attempt_id, batch.batch_id
            )
            if found is None or not is_past:
                continue
            rows += found.num_rows
            _produce_rows(producer, topic, found, run, replace(message.origin, is_copied=True))
    left = producer.flush(_FLUSH_S)
    if left:
        raise UnreachableError(
            "copied rows were not confirmed in time",
            {"topic": topic, "unconfirmed_messages": left, "timeout_s": _FLUSH_S},
            "Check that the brokers accept records, then start again.",
        )
    failpoint("before-topic-copy-commit")
    producer.commit_transaction(_REQUEST_S)
    log.info("rows in flight are copied: from=%s to=%s rows=%d", copy.topic, topic, rows)
    failpoint("after-topic-copy")


def _produce_rows(
    producer: Producer, topic: str, rows: pa.RecordBatch, run: JobTopic, origin: MessageOrigin
) -> None:
    partitions = partitions_of_keys(rows.column(KEY_COLUMN), run)
    for partition, mine in partition_slices(rows, partitions):
        for value in messages_of(mine):
            _produce(producer, topic, partition, value, origin)


def _produce(
    producer: Producer, topic: str, partition: int, value: bytes | None, origin: MessageOrigin
) -> None:
    while True:
        try:
            producer.produce(
                topic, value=value, partition=partition, headers=[(HEADER, origin.encode())]
            )
        except BufferError:  # the queue is full
            producer.poll(_PAUSE_S)
        else:
            producer.poll(0)
            return
