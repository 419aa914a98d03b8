"""Quix Streams, exactly-once: every value gains a "!". One process per core, in one group."""

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
