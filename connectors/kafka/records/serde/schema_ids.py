"""Schema ids in records, as Confluent's writers put them. Pure."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "FramedRecords",
    "SchemaId",
    "framed_records",
    "id_bytes",
    "split_header_ids",
    "unframed_records",
]

SchemaId = int | uuid.UUID
"""A number, or a GUID."""

_NUMBER_BYTES, _GUID_BYTES = 5, 17
_BYTES = {0: _NUMBER_BYTES, 1: _GUID_BYTES}
"""Bytes of a schema id by its first one."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FramedRecords:
    """The records of a column that are not null.

    Attributes:
        length: of the column.
        data: of the column.
        rows: their places in the column, sorted.
        starts, ends: their payloads in the data, after the id.
        groups: the records of each schema id, as places in these arrays, sorted; None: no ids.
    """

    length: int
    data: pa.Buffer
    rows: Ints
    starts: Ints
    ends: Ints
    groups: Mapping[SchemaId | None, Ints]

    @property
    def ids(self) -> list[SchemaId]:
        """Each id once."""
        return [each for each in self.groups if each is not None]


def unframed_records(column: pa.Array) -> FramedRecords:
    """Records without ids."""
    if pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())  # offsets of 32 bits
    rows = np.flatnonzero(np.asarray(column.is_valid()))
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    bounds = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = column.buffers()[2]
    return FramedRecords(
        length=len(column),
        data=pa.py_buffer(b"") if data is None else data,
        rows=rows,
        starts=bounds[rows],
        ends=bounds[rows + 1],
        groups={None: np.arange(len(rows))},
    )


def framed_records(column: pa.Array, header_ids: pa.Array | None) -> FramedRecords:
    """Find the schema id of each record: in its header, else before its value.

    Args:
        column: of bytes.
        header_ids: the header of each record, null where it has none.
    Raises:
        ValueError: a record has no id, or bytes after the id of its header.
    """
    plain = unframed_records(column)
    starts, ends = plain.starts, plain.ends
    groups: dict[SchemaId | None, list[Ints]] = {}
    framed = np.arange(len(starts))
    if header_ids is not None:
        ids = header_ids.take(pa.array(plain.rows)).dictionary_encode()
        found = ids.indices.to_numpy(zero_copy_only=False)
        for index, header in enumerate(ids.dictionary.to_pylist()):
            groups.setdefault(_of_header(header), []).append(np.flatnonzero(found == index))
        framed = np.flatnonzero(np.asarray(ids.is_null()))
    data = np.frombuffer(plain.data, np.uint8)
    firsts = np.full(len(framed), -1)
    present = framed[starts[framed] < ends[framed]]
    firsts[starts[framed] < ends[framed]] = data[starts[present]]
    for magic, size in _BYTES.items():
        places = framed[firsts == magic]
        if np.any(ends[places] - starts[places] < size):
            firsts[:] = -1
        else:
            for schema_id, chosen in _by_prefix(data, starts[places], size):
                groups.setdefault(schema_id, []).append(places[chosen])
            starts[places] += size
    if not np.isin(firsts, list(_BYTES)).all():
        raise ValueError("a record has no schema id in a header or at its start")
    merged = {each: np.sort(np.concatenate(parts)) for each, parts in groups.items()}
    return replace(plain, starts=starts, groups=merged)


def split_header_ids(
    header_ids: pa.Array | None,
) -> tuple[pa.Array | None, Sequence[bytes | None] | None]:
    """The schema ids of headers, and what follows them: the message of a Protobuf record."""
    if header_ids is None:
        return None, None
    heads: list[bytes | None] = []
    tails: list[bytes | None] = []
    for header in header_ids.to_pylist():
        size = 0 if header is None else _BYTES.get(header[0] if header else -1, 0)
        heads.append(None if header is None else header[:size])
        tails.append(None if header is None else header[size:])
    return pa.array(heads, pa.binary()), tails


def id_bytes(schema_id: SchemaId) -> bytes:
    """A schema id as writers put it before a value, or into a header."""
    if isinstance(schema_id, int):
        return b"\0" + schema_id.to_bytes(_NUMBER_BYTES - 1)
    return b"\1" + schema_id.bytes


def _by_prefix(data: npt.NDArray[Any], starts: Ints, size: int) -> list[tuple[SchemaId, Ints]]:
    """Places of each id among records that begin with one."""
    if not len(starts):
        return []
    width = size - 1
    ids = np.ascontiguousarray(data[starts[:, None] + np.arange(1, size)])
    keys = ids.view(">u4" if size == _NUMBER_BYTES else f"V{width}")[:, 0]
    if size == _NUMBER_BYTES and (keys == keys[0]).all():
        return [(int(keys[0]), np.arange(len(keys)))]
    _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which))[:-1])
    return [(_of_bytes(ids[at].tobytes()), part) for at, part in zip(firsts, parts, strict=True)]


def _of_bytes(found: bytes) -> SchemaId:
    return int.from_bytes(found) if len(found) < _GUID_BYTES - 1 else uuid.UUID(bytes=found)


def _of_header(header: bytes) -> SchemaId:
    if len(header) != _BYTES.get(header[0] if header else -1):
        raise ValueError("the header of a schema id has no id, or bytes after it")
    return _of_bytes(header[1:])
