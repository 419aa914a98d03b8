"""A copy loop with Kafka's own transactions, on which the harness itself is tested.

It takes the command line of the examples and the failpoints of a pipeline. ``STAND_IN_FAULT``
breaks it on purpose: ``duplicate`` commits offsets outside the transaction (a kill between the two
doubles), ``lose`` commits them first, ``dirty`` writes without transactions, ``stutter``
writes one record of each epoch twice, ``reorder`` writes each epoch backwards, ``corrupt`` writes
some records of each epoch with another value, ``orphan`` has a child that outlives it.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    Consumer,
    IsolationLevel,
    Message,
    OffsetSpec,
    Producer,
    TopicPartition,
)
from sluice.runtime.failpoints import failpoint

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_FAULT = os.environ.get("STAND_IN_FAULT", "")
_CORRUPTED = 10  # one of them has a value


def main() -> None:
    """Copy until killed or, with --until-end, until everything present at the start is copied."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=0.2)
    parser.add_argument("--until-end", action="store_true")
    args = parser.parse_args()
    # A child in a process group of its own, which sees its parent's end, as Spark's daemon.
    code = "signal.pause()" if _FAULT == "orphan" else "sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", f"import signal, sys; {code}"],
        stdin=subprocess.PIPE,
        process_group=0,
    ) as child:
        _Copy(args).run()
        child.terminate()


class _Copy:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        # The consumer group is the checkpoint: one directory, one group.
        group = "stand-in-" + args.checkpoint.replace("/", "-").replace(":", "")
        bootstrap = {"bootstrap.servers": args.bootstrap}
        self._consumer = Consumer(
            {
                **bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        transactional = {} if _FAULT == "dirty" else {"transactional.id": group}
        self._producer = Producer({**bootstrap, **transactional, "linger.ms": 2})
        admin = AdminClient(bootstrap)
        partitions = admin.list_topics(args.input, timeout=300)
        places = [TopicPartition(args.input, p) for p in partitions.topics[args.input].partitions]
        failpoint("before-fencing")
        if _FAULT != "dirty":
            self._producer.init_transactions(300)  # aborts what a killed run left open
        self._publish(sealed=True)
        failpoint("after-fencing")
        committed = self._consumer.committed(places, timeout=300)
        self._next = {p.partition: max(0, p.offset) for p in committed}
        asked = admin.list_offsets(
            dict.fromkeys(places, _LATEST), isolation_level=IsolationLevel.READ_COMMITTED
        )
        self._ends = {place.partition: answer.result(300).offset for place, answer in asked.items()}

    def run(self) -> None:
        self._consumer.assign(
            [TopicPartition(self._args.input, p, offset) for p, offset in self._next.items()]
        )
        while not (self._args.until_end and self._is_done()):
            self._epoch()
        self._consumer.close()

    def _is_done(self) -> bool:
        return all(self._next[partition] >= end for partition, end in self._ends.items())

    def _epoch(self) -> None:
        messages = []
        deadline = time.monotonic() + self._args.interval
        while time.monotonic() < deadline:
            messages += self._consumer.consume(1000, 0.02)
        if not messages:
            return
        if _FAULT != "dirty":
            self._producer.begin_transaction()
        if _FAULT == "reorder":
            messages.reverse()
        for number, message in enumerate(messages):
            if number == 1:
                failpoint("mid-write")
            self._copy(message, mark=b"?" if _FAULT == "corrupt" and number < _CORRUPTED else b"!")
        if _FAULT == "stutter":
            self._copy(messages[-1])
        failpoint("before-flush")
        self._producer.flush(300)
        failpoint("after-flush")
        self._commit()

    def _copy(self, message: Message, *, mark: bytes = b"!") -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._producer.produce(
            self._args.output,
            value=None if value is None else value + mark,
            key=message.key(),
            headers=message.headers(),
            partition=partition,
        )
        self._next[partition] = max(self._next[partition], offset + 1)

    def _commit(self) -> None:
        offsets = [TopicPartition(self._args.input, p, at) for p, at in self._next.items()]
        if _FAULT == "lose":
            self._consumer.commit(offsets=offsets, asynchronous=False)
        elif _FAULT not in ("duplicate", "dirty"):
            group = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, group, 300)
        failpoint("before-commit")
        if _FAULT != "dirty":
            self._producer.commit_transaction(300)
        self._publish(sealed=False)
        failpoint("after-commit")
        if _FAULT in ("duplicate", "dirty"):
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def _publish(self, *, sealed: bool) -> None:
        """Leave the traces that a pipeline leaves in its checkpoint directory."""
        checkpoint = Path(self._args.checkpoint)
        taken = [int(path.name.removeprefix("chk-")) for path in checkpoint.glob("chk-*")]
        place = max(taken, default=-1) + 1
        directory = checkpoint / f"chk-{place:012d}"
        directory.mkdir(parents=True)
        (directory / "_metadata").touch()
        if not sealed:
            (directory / "_committed").touch()


if __name__ == "__main__":
    main()
