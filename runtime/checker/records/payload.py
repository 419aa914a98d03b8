"""Records with a unique text in each, so that every one differs from every other.

Each carries ``run/partition/sequence`` in its value, or in a header if the value is null or empty.
So a verdict can name a missing record, and a foreign one shows its origin.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.runtime.checker.records.record import Headers, Record

__all__ = ["ORIGIN_HEADER", "Origin", "Payload", "origin_of"]

ORIGIN_HEADER = "origin"
_PADDING = b"."
_FIELD_END = b"|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a generated record.

    Attributes:
        run: name of the load; no ``/`` and no ``|``.
        partition: input partition it was made for.
        sequence: from 0, without gaps, per partition.
    """

    run: str
    partition: int
    sequence: int

    def encode(self) -> bytes:
        """The text in the record."""
        return f"{self.run}/{self.partition}/{self.sequence}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A deterministic load: the same settings give the same records, in any process.

    Attributes:
        topic: input topic.
        run: see `Origin`.
        partitions: number of partitions; records go round over them.
        value_bytes: size of ordinary values, padded; origin and mark are never truncated.
        keys: distinct keys; 0 leaves all keys null.
        null_value_every, empty_value_every: every so many records of a partition; 0 = never.
        headers_every: every so many records have headers, one repeated and one null; 0 = never.
    """

    topic: str
    run: str
    partitions: int
    value_bytes: int = 100
    keys: int = 64
    null_value_every: int = 11
    empty_value_every: int = 17
    headers_every: int = 5

    def records(self, count: int, *, first: int = 0) -> Iterator[Record]:
        """Records number ``first`` to ``first + count`` of the load, round over the partitions.

        Offsets are those of a topic without other records.
        """
        for number in range(first, first + count):
            sequence, partition = divmod(number, self.partitions)
            yield self.record(partition, sequence)

    def record(self, partition: int, sequence: int) -> Record:
        """One record of the load."""
        origin = Origin(run=self.run, partition=partition, sequence=sequence).encode()
        value, headers = self._content(origin, sequence)
        return Record(
            self.topic, partition, sequence, self._key(partition, sequence), value, headers
        )

    def _content(self, origin: bytes, sequence: int) -> tuple[bytes | None, Headers]:
        marked: Headers = ((ORIGIN_HEADER, origin),)
        if _due(sequence, self.null_value_every):
            return None, marked
        if _due(sequence, self.empty_value_every):
            return b"", marked
        value = (origin + _FIELD_END).ljust(self.value_bytes, _PADDING)
        if _due(sequence, self.headers_every):
            return value, (*marked, ("trace", b"a"), ("trace", b"b"), ("none", None))
        return value, ()

    def _key(self, partition: int, sequence: int) -> bytes | None:
        if not self.keys:
            return None
        return f"key-{(sequence * self.partitions + partition) % self.keys}".encode()


def origin_of(record: Record) -> Origin | None:
    """The origin that a record names, None if it names none."""
    for name, header in record.headers:
        if name == ORIGIN_HEADER and header is not None:
            return _parse(header)
    return _parse((record.value or b"").partition(_FIELD_END)[0])


def _parse(text: bytes) -> Origin | None:
    try:
        run, partition, sequence = text.decode().split("/")
        return Origin(run=run, partition=int(partition), sequence=int(sequence))
    except ValueError:
        return None


def _due(sequence: int, every: int) -> bool:
    return bool(every) and sequence % every == every - 1
