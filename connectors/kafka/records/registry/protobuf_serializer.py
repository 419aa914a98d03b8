"""Serializer of Protobuf records with a schema of a registry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from sluice.connectors.kafka.records.registry.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.protobuf_reading import MessageReader
from sluice.connectors.kafka.records.registry.protobuf_schema import (
    ProtobufSchema,
    imports,
    message_indexes,
    schema_of_class,
)
from sluice.connectors.kafka.records.registry.protobuf_writing import MessageWriter
from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    SchemaReference,
)
from sluice.connectors.kafka.records.registry.registry_serializer import RegistrySerializer

__all__ = ["ProtobufRegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class ProtobufRegistrySerializer(RegistrySerializer):
    """Writes Protobuf records of one message; see `RegistrySerializer`.

    The column has structs with the fields of the message, or serialized messages as bytes. A null
    field is absent. A null is an error where the message's field is never absent.

    Attributes:
        schema: also a generated message class: its file and those that it imports are registered,
            each import under its own name.
        message: full name of the message in the schema; None: the first one.
    """

    schema_type: ClassVar[str] = "PROTOBUF"

    schema: str | RegisteredSchema | type[Message]  # type: ignore[assignment]  # one more type
    message: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.schema, type):
            descriptor = self.schema.DESCRIPTOR
            object.__setattr__(self, "message", descriptor.full_name)
            object.__setattr__(self, "schema", schema_of_class(self.schema))

    def given(self) -> RegisteredSchema:
        given = super().given()
        if given.schema_id is not None or given.references or not given.named:
            return given
        client = self.registry.client()
        made: dict[str, SchemaReference] = {}
        for name, text in given.named:
            schema = replace(given, text=text, named=(), references=_references(text, made))
            made[name] = client.reference(
                name, schema, register=self.auto_register_schemas, normalize=self.normalize_schemas
            )
        return replace(given, references=_references(given.text, made))

    def payloads(self, values: pa.Array, schema: RegisteredSchema) -> Sequence[bytes | None]:
        message = self._message(schema)
        if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
            return MessageWriter(message=message).write(values)
        records: list[bytes | None] = values.to_pylist()
        MessageReader(message=message).parse([each for each in records if each is not None])
        return records

    def place(self, schema: RegisteredSchema) -> bytes:
        return index_bytes(message_indexes(self._message(schema)))

    def _message(self, schema: RegisteredSchema) -> Descriptor:
        return ProtobufSchema.of(schema).message(self.message)


def _references(text: str, known: Mapping[str, SchemaReference]) -> tuple[SchemaReference, ...]:
    return tuple(known[name] for name in imports(text) if name in known)
