"""The place of a Protobuf message in its schema, as Confluent's writers put it after the id. Pure.

First the number of indexes, then each index: zigzag varints. A single 0 is the first message.
"""

from collections.abc import Sequence

__all__ = ["index_bytes", "read_indexes"]

_LONGEST_VARINT = 5
_MOST = 100  # messages in messages


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes at the start, and the position after them.

    Raises:
        ValueError: there are none.
    """
    if data[:1] == b"\0":
        return (0,), 1
    count, at = _varint(data, 0)
    if not 0 < count <= _MOST:
        raise ValueError("a record has no message indexes after its schema id")
    found = []
    for _ in range(count):
        index, at = _varint(data, at)
        found.append(index)
    return tuple(found), at


def index_bytes(indexes: Sequence[int]) -> bytes:
    """The indexes, as writers put them."""
    if list(indexes) == [0]:
        return b"\0"
    made = bytearray()
    for value in (len(indexes), *indexes):
        rest = 2 * value
        while rest > 0x7F:
            made.append(rest & 0x7F | 0x80)
            rest >>= 7
        made.append(rest)
    return bytes(made)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + shift + 1
    raise ValueError("a record has no message indexes after its schema id")
