"""One Avro record in a container file with a format version and a checksum. Pure.

The file is ordinary Avro: any Avro tool reads it, with the schema inside. Two reserved metadata
keys are ours: ``sluice.format_version`` and ``sluice.sha256``. The digest covers every byte of
the file, with its own 64 characters taken as zeros. So a reader can distinguish damage, also in the
schema or in the version, from a record of a newer Sluice. This digest rule holds for every version,
past and future.
"""

import hashlib
import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError

__all__ = ["DIGEST_KEY", "VERSION_KEY", "Container", "ContainerWriter", "read_container"]

VERSION_KEY = "sluice.format_version"
DIGEST_KEY = "sluice.sha256"

_BLANK = b"0" * 64
_NO_MARKER = bytes(16)
# The key as Avro writes it in the header's map: zigzag length, text, zigzag length of the value.
# The schema is JSON text and cannot contain the last byte, so the first slot found is the key.
_DIGEST_MARK = bytes([2 * len(DIGEST_KEY)]) + DIGEST_KEY.encode() + b"\x80\x01"

_AVRO_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    struct.error,
    fastavro.schema.SchemaParseException,
    fastavro.schema.UnknownType,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The content of a container file: its version and its one record."""

    format_version: int
    fields: Mapping[str, Any]


class ContainerWriter:
    """Makes files of one schema and version; it encodes the header once. Thread-safe: immutable.

    Args:
        schema: as JSON; each file holds it.
        format_version: of the record's fields.
    """

    def __init__(self, schema: Mapping[str, Any], *, format_version: int) -> None:
        self._schema = fastavro.parse_schema(dict(schema))
        head = io.BytesIO()
        known = {VERSION_KEY: str(format_version), DIGEST_KEY: _BLANK.decode()}
        fastavro.writer(head, dict(schema), [], metadata=known, sync_marker=_NO_MARKER)
        self._head = head.getvalue().removesuffix(_NO_MARKER)
        self._digest_at = self._head.index(_DIGEST_MARK) + len(_DIGEST_MARK)

    def write(self, fields: Mapping[str, Any]) -> bytes:
        """The file's bytes; equal input gives equal bytes, so files can be compared."""
        marker = hashlib.sha256(repr(sorted(fields.items())).encode()).digest()[:16]
        record = _avro(self._schema, fields)
        # The one block of the file: number of records, length in bytes, records.
        block = _avro("long", 1) + _avro("long", len(record)) + record
        blank = self._head + marker + block + marker
        at, digest = self._digest_at, hashlib.sha256(blank).hexdigest().encode()
        return blank[:at] + digest + blank[at + len(digest) :]


def _avro(schema: Any, value: object) -> bytes:  # noqa: ANN401 - an Avro type is any JSON
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def read_container(data: bytes, *, latest: int, where: Mapping[str, object]) -> Container:
    """The one record of a file made by `ContainerWriter`.

    Args:
        data: the whole file.
        latest: the latest format version that the caller reads.
        where: for messages.
    Raises:
        DamagedCheckpointError: the file is not whole, was changed, or is something else.
        UnsupportedFormatError: it is whole, and of a later format version.
    """
    _require_whole(data, where)
    try:
        reader = fastavro.reader(io.BytesIO(data))
        version = int(str(reader.metadata[VERSION_KEY]))
        if version > latest:
            raise _later(version, latest, where)
        records = list(reader)
    except _AVRO_ERRORS as error:
        raise _damaged(f"it is not a record of Sluice: {error!r}", where) from error
    if version < 1 or len(records) != 1 or not isinstance(records[0], dict):
        raise _damaged("it does not hold exactly one record", where)
    return Container(format_version=version, fields=records[0])


def _require_whole(data: bytes, where: Mapping[str, object]) -> None:
    at = data.find(_DIGEST_MARK) + len(_DIGEST_MARK)
    if at < len(_DIGEST_MARK) or len(data) < at + len(_BLANK):
        raise _damaged("it ends before its checksum, or Sluice did not write it", where)
    stored = data[at : at + len(_BLANK)]
    found = hashlib.sha256(data[:at] + _BLANK + data[at + len(_BLANK) :]).hexdigest()
    if found.encode() != stored:
        raise _damaged("its checksum does not fit its content", where)


def _damaged(reason: str, where: Mapping[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"a checkpoint record is damaged: {reason}",
        where,
        "Restore from another checkpoint (sluice checkpoint list), and keep this file.",
    )


def _later(version: int, latest: int, where: Mapping[str, object]) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"a checkpoint record has format version {version}",
        {**where, "format_version": version, "reads": latest},
        "Use the version of Sluice that wrote it, or a later one.",
    )
