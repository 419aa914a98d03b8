"""Quix Streams, exactly-once: every value gains a "!". One process per core, in one group.

Settings, and why. A process of Quix Streams works in one thread, so two processes are members of
one consumer group, with two partitions each. Bytes in and out avoid decoding.
``commit_interval`` is the interval of the run, and each commit is a transaction. By default
librdkafka reads committed records only. ``fetch.queue.backoff.ms`` is 5 as in ours and in the tuned
hand-written loop: librdkafka's default of 1000 costs three quarters of the rate. ``linger.ms`` and
``batch.size`` are as for all contenders, and the producer's queue has room for an epoch.
"""

import argparse
import multiprocessing
from pathlib import Path

from quixstreams import Application

_PROCESSES = 2


def exclaim(value: bytes) -> bytes:
    """The function of the benchmark."""
    return value + b"!"


def copy(args: argparse.Namespace, number: int) -> None:
    """One member of the group, until killed."""
    application = Application(
        broker_address=args.bootstrap,
        consumer_group=f"quix-{args.output}",
        auto_offset_reset="earliest",
        commit_interval=args.interval,
        processing_guarantee="exactly-once",
        auto_create_topics=False,
        state_dir=Path(args.directory) / f"state-{number}",
        consumer_extra_config={"fetch.queue.backoff.ms": 5},
        producer_extra_config={
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        },
    )
    source = application.topic(args.input, key_deserializer="bytes", value_deserializer="bytes")
    output = application.topic(args.output, key_serializer="bytes", value_serializer="bytes")
    application.dataframe(source).apply(exclaim).to_topic(output)
    application.run()


def main() -> None:
    """Run until killed, or until a member ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "directory"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, required=True)
    args = parser.parse_args()
    members = [
        multiprocessing.Process(target=copy, args=(args, number)) for number in range(_PROCESSES)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()


if __name__ == "__main__":
    main()
