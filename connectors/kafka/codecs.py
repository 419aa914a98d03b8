"""How a topic's records are compressed, as their batches say it. Pure.

No consumer tells: it is in the attributes of the record batches, which clients undo before they
give records out. The layout is that of Kafka's documentation, "Record Batch".
"""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["CODECS", "BatchHead", "codec_of_config", "first_batch", "prevailing"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number that a batch has for it; names as librdkafka's ``compression.type``."""

_CODEC_BITS = 0x07
_CONTROL_BIT = 0x20
_HEAD = struct.Struct(
    ">qiibIhi"
)  # base offset, length, leader epoch, magic, CRC, attributes, delta
_OLD_HEAD = struct.Struct(">qiibb")  # offset, length, CRC, magic, attributes
_MAGIC_AT = 16
# Of two that are equally frequent the first: what compresses better costs the less room.
_PREFERRED = ("zstd", "gzip", "lz4", "snappy", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """What the beginning of a record batch tells.

    Attributes:
        codec: one of `CODECS`; None: of a number that is not known.
        is_control: it holds the end of a transaction and no record of a user.
    """

    codec: str | None
    is_control: bool


def first_batch(records: bytes | None) -> BatchHead | None:
    """Of what a broker answered to a fetch; None: there is no batch, or only a part of its head."""
    if records is None or len(records) <= _MAGIC_AT:
        return None
    if records[_MAGIC_AT] < 2:  # a message set of before 0.11, which a broker may still hold
        if len(records) < _OLD_HEAD.size:
            return None
        *_, attributes = _OLD_HEAD.unpack_from(records)
        return BatchHead(codec=_codec(attributes), is_control=False)
    if len(records) < _HEAD.size:
        return None
    *_, attributes, _ = _HEAD.unpack_from(records)
    return BatchHead(codec=_codec(attributes), is_control=bool(attributes & _CONTROL_BIT))


def codec_of_config(value: str | None) -> str | None:
    """What a topic's ``compression.type`` makes of every batch; None: what the producer chose."""
    if value == "uncompressed":
        return "none"
    return value if value in CODECS else None


def prevailing(found: Iterable[str]) -> str | None:
    """One codec for a source whose partitions have several: the most frequent one."""
    counts = Counter(found)
    if not counts:
        return None
    return max(counts, key=lambda codec: (counts[codec], -_PREFERRED.index(codec)))


def _codec(attributes: int) -> str | None:
    number = attributes & _CODEC_BITS
    return CODECS[number] if number < len(CODECS) else None
