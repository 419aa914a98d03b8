"""A record as a reader sees it, and the fingerprint that decides whether two records are the
same."""

import hashlib
import marshal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Headers", "Identity", "Record"]

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record with its position; a tuple and not a dataclass because millions are made.

    Attributes:
        topic: of the record; of an expected record the topic of the output.
        partition: >= 0.
        offset: position in the partition; of an expected record that of its input record.
        key: None and ``b""`` are different.
        value: None and ``b""`` are different.
        headers: in order; names may repeat.
        timestamp_ms: None if it is unknown or irrelevant.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The fields, besides key and value, in which an output record must equal the expected one.

    Attributes:
        partition: the mapping fixes the output partition; False leaves it to a partitioner.
        headers: headers are compared, in order and byte for byte.
        timestamp: timestamps are compared.
        name_of: the unique name in a record (such as an order's number), None if it has none. An
            unexpected record with the name of a lost one is that one, corrupted. Left out: a
            corrupted record counts as a lost and an unexpected one.
    """

    partition: bool = True
    headers: bool = True
    timestamp: bool = False
    name_of: Callable[[Record], bytes | None] | None = None

    def fingerprint(self, record: Record) -> int:
        """64 bits of BLAKE2b over all that counts; two of 10**6 records collide with p = 3e-8."""
        # marshal is the fastest encoding in the standard library that separates null from empty,
        # and one field from the next. Only version 0 depends on nothing but the values (no shared
        # objects).
        counted = (
            record.topic,
            record.partition if self.partition else None,
            record.key,
            record.value,
            record.headers if self.headers else None,
            record.timestamp_ms if self.timestamp else None,
        )
        digest = hashlib.blake2b(marshal.dumps(counted, 0), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def name_hash(self, record: Record) -> int:
        """64 bits of BLAKE2b over the record's name, never 0; 0 if it has none."""
        name = None if self.name_of is None else self.name_of(record)
        if name is None:
            return 0
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") or 1
