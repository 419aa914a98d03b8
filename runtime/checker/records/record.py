"""A record as a reader sees it, and the fingerprint by which two records are the same."""

import hashlib
import marshal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Headers", "Identity", "Record", "whole_number"]

Headers = tuple[tuple[str, bytes | None], ...]

_MAX_DIGITS = 20  # as those of 64 bits have; Python refuses to read thousands


class Record(NamedTuple):
    """One record with its place; a tuple and not a dataclass because millions are made.

    Attributes:
        topic: where it lies (or, of an expected record, where it shall lie).
        partition: >= 0.
        offset: position in the partition; of an expected record that of its input record.
        key: None and ``b""`` are different.
        value: None and ``b""`` are different.
        headers: in order; names may repeat.
        timestamp_ms: None when it is not known or does not matter.
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
    """What makes an output record the one that was expected, besides key and value.

    Attributes:
        partition: the mapping fixes the output partition; False leaves it to a partitioner.
        headers: headers are compared, in order and byte for byte.
        timestamp: timestamps are compared.
        name_of: what a record says it is (an order's number, say), None when it does not say. An
            unexpected record with the name of a lost one is that one, corrupted. Left out: no
            corrupted record is told from a lost and an unexpected one.
    """

    partition: bool = True
    headers: bool = True
    timestamp: bool = False
    name_of: Callable[[Record], bytes | None] | None = None

    def fingerprint(self, record: Record) -> int:
        """64 bits of BLAKE2b over all that counts; two of 10**6 records collide with p = 3e-8."""
        # marshal is the fastest encoding in the standard library that tells null from empty and
        # keeps fields apart. Only version 0 depends on nothing but the values (no shared objects).
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
        """64 bits of BLAKE2b over the record's name, never 0; 0 when it has none."""
        name = None if self.name_of is None else self.name_of(record)
        if name is None:
            return 0
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") or 1


def whole_number(content: bytes | None) -> int | None:
    """The number that a key or a value spells; None: it spells none, or one beyond 64 bits."""
    if content is None or not content.isdigit() or len(content) > _MAX_DIGITS:
        return None
    return int(content)
