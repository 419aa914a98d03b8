"""Whether one Protobuf message reads the records of another without a change of values. Pure.

Fields are the same field by their number. Protobuf's parser itself cuts a 64-bit number to 32 bits,
or reads bits as another type, without an error.
"""

from functools import lru_cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from sluice.connectors.kafka.records.registry.protobuf.protobuf_types import map_entry

__all__ = ["fields_never_absent"]

_F = FieldDescriptor
_LARGER = {
    (_F.TYPE_INT32, _F.TYPE_INT64),
    (_F.TYPE_UINT32, _F.TYPE_UINT64),
    (_F.TYPE_UINT32, _F.TYPE_INT64),
    (_F.TYPE_SINT32, _F.TYPE_SINT64),
    (_F.TYPE_STRING, _F.TYPE_BYTES),
    (_F.TYPE_BYTES, _F.TYPE_STRING),  # the parser checks the text
    (_F.TYPE_ENUM, _F.TYPE_INT32),
    (_F.TYPE_ENUM, _F.TYPE_INT64),
    *((_F.TYPE_BOOL, to) for to in (_F.TYPE_INT32, _F.TYPE_INT64)),
    *((_F.TYPE_BOOL, to) for to in (_F.TYPE_UINT32, _F.TYPE_UINT64)),
}
_GROUPED = (_F.TYPE_GROUP, _F.TYPE_MESSAGE)


@lru_cache(maxsize=1_000)
def fields_never_absent(writer: Descriptor, reader: Descriptor) -> frozenset[str]:
    """The reader's fields that may be absent, and that the writer always has.

    The writer leaves them out if they are 0 or empty.

    Raises:
        ValueError: the reader would change values.
    """
    found: set[str] = set()
    _compare(writer, reader, found, set())
    return frozenset(found)


def _compare(
    writer: Descriptor, reader: Descriptor, found: set[str], seen: set[tuple[str, str]]
) -> None:
    if (writer.full_name, reader.full_name) in seen:
        return
    seen.add((writer.full_name, reader.full_name))
    for written in writer.fields:
        read = reader.fields_by_number.get(written.number)
        if read is None:
            continue
        if not _is_readable(written, read):
            raise ValueError(
                f"the field {written.full_name} has another type in the reader's schema"
            )
        if read.has_presence and not written.has_presence and not written.is_repeated:
            choice = read.containing_oneof
            if choice is None or len(choice.fields) == 1:
                found.add(read.full_name)
        if written.message_type is not None and read.message_type is not None:
            _compare(written.message_type, read.message_type, found, seen)


def _is_readable(written: FieldDescriptor, read: FieldDescriptor) -> bool:
    if written.is_repeated and not read.is_repeated:
        return False
    if (map_entry(written) is None) != (map_entry(read) is None):
        return False
    if written.type in _GROUPED:
        return written.type == read.type
    return written.type == read.type or (written.type, read.type) in _LARGER
