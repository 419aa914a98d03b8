"""``python -m benchmarks.kafka.writer``: one worker process against a hand-written loop.

Both read the same topic, append ``!`` to each value, and write it in one transaction per epoch of
250,000 records. Both are one process without Spark, so only the code differs.
"""

import argparse
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from benchmarks.measuring import machine, topics
from benchmarks.measuring.figures import Figure, table
from benchmarks.measuring.rig import PARTITIONS, Rig, open_rig
from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import Consumer, Message, Producer, TopicPartition
from sluice.connectors.kafka.sink.producers.producer_pool import process_pools
from sluice.runtime.contracts import CommitOutcome, RecordStream, RegisteredAttempt, TaskScope
from sluice.runtime.model.splits import BatchKey, SplitRange

_EPOCH_RECORDS = 250_000
_VALUE_BYTES = 100
_LEAST_RATE = 300_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run.

    Attributes:
        rate: records/s.
        cpu_us: microseconds of this process's CPU per record.
    """

    rate: float
    cpu_us: float


def main() -> None:
    """Measure both, in turn, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka.writer", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    measured_on = machine.describe()
    figures = []
    with open_rig() as rig:
        source = topics.create(rig.connection, "in", partitions=PARTITIONS)
        topics.fill(
            rig.connection,
            source,
            args.records,
            value_bytes=_VALUE_BYTES,
            partitions=PARTITIONS,
        )
        ways: dict[str, Callable[[Rig, str], Sample]] = {
            "reader, function and transactional writer": copy_in_epochs,
            "hand-written loop with confluent-kafka": _hand_written,
        }
        samples: dict[str, list[Sample]] = defaultdict(list)
        for _ in range(args.repeat):
            for name, measure in ways.items():
                samples[name].append(measure(rig, source))
    for name, found in samples.items():
        goal = _LEAST_RATE if name.startswith("reader") else None
        figures += [
            Figure(
                what=name,
                runs=[s.rate for s in found],
                unit="records/s",
                goal="" if goal is None else f">= {goal:,.0f}",
                least=goal,
            ),
            Figure(what=name, runs=[s.cpu_us for s in found], unit="us CPU/record"),
        ]
    for shown in table(figures, measured_on):
        Console(highlight=False).print(shown)


class _Registry:
    """Accepts every attempt; the real one calls the driver."""

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry`."""
        del attempt
        return time.monotonic()


def _exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def copy_in_epochs(
    rig: Rig, source: str, *, hot_path: HotPath = HotPath.AUTO, follows: bool = False
) -> Sample:
    """Read, change and write a topic, one transaction per epoch.

    Args:
        follows: read one stream, as a continuous task does, instead of the ranges of each epoch.
    """
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    made = KafkaSource(bootstrap_servers=rig.bootstrap, topics=[source], hot_path=hot_path.value)
    reader = made.reader()
    sink = KafkaSink(
        bootstrap_servers=rig.bootstrap,
        topic=output,
        transactional_id_prefix="bench-writer",
        hot_path=hot_path.value,
    )
    factory, coordinator = sink.writer_factory(), sink.coordinator()
    ends = topics.ends(rig.connection, source)
    job_uid = str(uuid.uuid4())
    records = 0
    follower = None
    if follows:
        starts = [_split(source, partition, 0, 0) for partition in ends]
        follower = made.streaming_reader().follow(
            starts, {s.key: ends[s.partition] for s in starts}
        )

    def epoch(number: int, share: int) -> int:
        splits = [
            _split(source, partition, min(end, (number - 1) * share), min(end, number * share))
            for partition, end in ends.items()
        ]
        wanted = sum(s.end_offset - s.start_offset for s in splits)
        scope = _scope(job_uid, number)
        writer = factory.open(scope, _Registry())
        written = 0
        batches = (
            reader.read(splits)
            if follower is None
            else _followed(follower, wanted, sum(ends.values()))
        )
        for batch in batches:
            writer.write(_exclaim(batch))
            written += batch.num_rows
        entries = writer.pre_commit()
        for report in coordinator.committer.commit(entries, timeout_s=30, after_crash=False):
            if report.outcome is not CommitOutcome.COMMITTED:
                raise RuntimeError(f"not committed: {report}")
        return written

    share = _EPOCH_RECORDS // PARTITIONS
    epoch(1, share)  # warm: connections, first producer
    began, cpu = time.perf_counter(), time.process_time()
    number = 2
    while (written := epoch(number, share)) > 0:
        records += written
        number += 1
    sample = _sample(records, began, cpu)
    if follower is not None:
        follower.close()
    process_pools().close()
    coordinator.close()
    return sample


def _scope(job_uid: str, number: int) -> TaskScope:
    return TaskScope(
        job_uid=job_uid,
        operator_id="sink",
        batch=BatchKey(region="r", attempt_id=0, batch_id=number),
        checkpoint_id=number,
        committed_through=number - 1,
    )


def _split(topic: str, partition: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=topic,
        topic_id="",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def _followed(follower: RecordStream, records: int, end: int) -> Iterator[pa.RecordBatch]:
    """Read at least so many records, or up to the end offsets."""
    while records > 0 and sum(follower.positions().values()) < end:
        batch = follower.poll()
        if batch is not None:
            records -= batch.num_rows
            yield batch


def _hand_written(rig: Rig, source: str) -> Sample:
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    common = {"bootstrap.servers": rig.bootstrap}
    consumer = Consumer(
        {
            **common,
            "group.id": f"bench-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
        }
    )
    producer = Producer(
        {
            **common,
            "transactional.id": f"bench-{uuid.uuid4()}",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
        }
    )
    producer.init_transactions(30)
    total = sum(topics.ends(rig.connection, source).values())
    consumer.assign([TopicPartition(source, partition, 0) for partition in range(PARTITIONS)])
    records, began, cpu = 0, 0.0, 0.0
    while records < total:
        producer.begin_transaction()
        in_epoch = 0
        while in_epoch < _EPOCH_RECORDS and records + in_epoch < total:
            in_epoch += _copy(producer, output, consumer.consume(10_000, 0.05))
        producer.commit_transaction(30)
        records += in_epoch
        if not began:  # the first epoch warms up, as above
            began, cpu, total, records = (
                time.perf_counter(),
                time.process_time(),
                total - in_epoch,
                0,
            )
    sample = _sample(records, began, cpu)
    consumer.close()
    return sample


def _copy(producer: Producer, output: str, messages: list[Message]) -> int:
    batches: dict[int, list[dict[str, object]]] = defaultdict(list)
    for message in messages:
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert isinstance(value, bytes)
        batches[partition].append({"key": message.key(), "value": value + b"!"})
    for partition, batch in batches.items():
        sent = 0
        while sent < len(batch):
            sent += producer.produce_batch(output, batch[sent:], partition=partition)
            producer.poll(0)
    return len(messages)


def _sample(records: int, began: float, cpu: float) -> Sample:
    return Sample(
        rate=records / (time.perf_counter() - began),
        cpu_us=(time.process_time() - cpu) / records * 1e6,
    )


if __name__ == "__main__":
    main()
