"""The peer: a careful hand-written loop with confluent-kafka's transactions.

One process per core, each with half of the partitions: read, change, append, and once a second
commit offsets and records in one transaction. It gives the same promise for a plain copy, without
Spark, state, regions or any way to change the number of processes.
"""

import argparse
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable

from sluice.connectors.kafka.client.confluent import Consumer, Message, Producer, TopicPartition

_Function = Callable[[bytes | str | None], bytes | str | None]


def keep(value: bytes | str | None) -> bytes | str | None:
    """A plain copy."""
    return value


def exclaim(value: bytes | str | None) -> bytes | str | None:
    """The same as `pipeline.exclaim`."""
    return value + b"!" if isinstance(value, bytes) else value


_FUNCTIONS: dict[str, _Function] = {"keep": keep, "exclaim": exclaim}


def copy(args: argparse.Namespace, partitions: list[int]) -> None:
    """Copy the given partitions until killed."""
    bootstrap, source, output = args.bootstrap, args.input, args.output
    group = f"peer-{output}-{partitions[0]}"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": args.fetch_backoff_ms,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": group,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
        }
    )
    producer.init_transactions(30)
    consumer.assign([TopicPartition(source, partition, 0) for partition in partitions])
    while True:
        _epoch(consumer, producer, source, output, args)


def _epoch(
    consumer: Consumer, producer: Producer, source: str, output: str, args: argparse.Namespace
) -> None:
    positions: dict[int, int] = {}
    deadline = time.monotonic() + args.interval
    while time.monotonic() < deadline:
        messages = consumer.consume(10_000, 0.05)
        if messages and not positions:
            producer.begin_transaction()
        _write(producer, output, messages, positions, _FUNCTIONS[args.function])
    if not positions:
        return
    offsets = [TopicPartition(source, partition, at) for partition, at in positions.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)


def _write(
    producer: Producer,
    output: str,
    messages: list[Message],
    positions: dict[int, int],
    function: _Function,
) -> None:
    batches: dict[int, list[dict[str, object]]] = defaultdict(list)
    for message in messages:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        batches[partition].append({"key": message.key(), "value": function(message.value())})
        positions[partition] = offset + 1
    for partition, batch in batches.items():
        sent = 0
        while sent < len(batch):
            sent += producer.produce_batch(output, batch[sent:], partition=partition)
            producer.poll(0)


def main() -> None:
    """Copy all partitions, an equal share in each process."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between commits")
    parser.add_argument("--function", choices=_FUNCTIONS, default="keep")
    # With librdkafka's default of 1000, a reader whose queue was full pauses for a second.
    parser.add_argument("--fetch-backoff-ms", type=int, default=5)
    args = parser.parse_args()
    processes = []
    for number in range(args.processes):
        mine = list(range(number, args.partitions, args.processes))
        processes.append(multiprocessing.Process(target=copy, args=(args, mine), daemon=True))
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
