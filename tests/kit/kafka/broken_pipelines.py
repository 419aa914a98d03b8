"""Pipelines from topic to topic, right or with one fault each; confluent-kafka alone.

A pipeline reads the input to its end, makes the values upper case, and writes batches in
transactions. The assertion of the test kit must name its fault, and no other.
"""

import enum
from dataclasses import dataclass, replace

from confluent_kafka import Producer

from tests.kit.kafka.kafka_records import (
    Record,
    abandon_transaction,
    await_stable,
    produce_transaction,
    read,
    unique,
)

__all__ = ["PARTITIONS", "Fault", "Pipeline", "fill"]

PARTITIONS = 2
_BATCH = 4


class Fault(enum.Enum):
    """What a pipeline does wrong, once."""

    LOSES = enum.auto()
    DOUBLES = enum.auto()
    REORDERS = enum.auto()
    TEARS = enum.auto()  # commits half of a batch, aborts the other half
    SHOWS_ABORTED = enum.auto()  # reads read_uncommitted
    LEAVES_OPEN = enum.auto()  # ends without the commit of its last batch
    CORRUPTS = enum.auto()
    INVENTS = enum.auto()


def fill(bootstrap: str, topic: str) -> None:
    """Ten records in each partition, and two of an aborted transaction in between."""
    numbers = iter(range(100))
    for count, commit in ((6, True), (2, False), (4, True)):
        records = [
            Record(key=b"k%d" % number, value=b"v%d" % number, partition=partition)
            for _, number in zip(range(count), numbers, strict=False)
            for partition in range(PARTITIONS)
            for number in (number * PARTITIONS + partition,)
        ]
        produce_transaction(bootstrap, topic, records, commit=commit)
    await_stable(bootstrap, topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One run of a pipeline.

    Attributes:
        fault: None: it is right.
        transactional_id: of all its producers.
    """

    bootstrap: str
    source: str
    output: str
    fault: Fault | None = None
    transactional_id: str

    def batches(self) -> list[list[Record]]:
        """The input: in each batch as many records of each partition."""
        committed = self.fault is not Fault.SHOWS_ABORTED
        records = read(self.bootstrap, self.source, committed=committed)
        lanes = [[one for one in records if one.partition == n] for n in range(PARTITIONS)]
        starts = range(0, len(lanes[0]), _BATCH)
        return [[one for lane in lanes for one in lane[at : at + _BATCH]] for at in starts]

    def run(self) -> Producer | None:
        """Write the output; the producer of a transaction that stays open, if there is one."""
        batches = self.batches()
        for number, batch in enumerate(batches, 1):
            made = [replace(one, value=(one.value or b"").upper()) for one in batch]
            if number == len(batches) and self.fault is Fault.LEAVES_OPEN:
                return abandon_transaction(
                    self.bootstrap, self.output, made, transactional_id=self.transactional_id
                )
            self._write(self._broken(made) if number == 2 else [(made, True)])
        await_stable(self.bootstrap, self.output)
        return None

    def _write(self, transactions: list[tuple[list[Record], bool]]) -> None:
        for records, commit in transactions:
            produce_transaction(
                self.bootstrap,
                self.output,
                records,
                commit=commit,
                transactional_id=self.transactional_id,
            )

    def _broken(self, made: list[Record]) -> list[tuple[list[Record], bool]]:
        """The second batch: its transactions, and which of them are committed."""
        match self.fault:
            case Fault.LOSES:
                return [(made[:1] + made[2:], True)]
            case Fault.DOUBLES:
                return [(made[:2] + made[1:], True)]
            case Fault.REORDERS:
                return [([made[1], made[0], *made[2:]], True)]
            case Fault.TEARS:
                return [(made[:_BATCH], True), (made[_BATCH:], False)]
            case Fault.CORRUPTS:
                return [([replace(made[0], value=b"V"), *made[1:]], True)]
            case Fault.INVENTS:
                stray = Record(key=unique("k").encode(), value=b"?", partition=0)
                return [([stray, *made], True)]
            case _:
                # An aborted first attempt, as after a kill: readers of the output do not see it.
                return [(made, False), (made, True)]
