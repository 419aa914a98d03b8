"""Values as Protobuf records whose schema is in a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from sluice.connectors.kafka.records.registry.protobuf.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.protobuf.protobuf_reading import MessageReader
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import (
    ProtobufSchema,
    imports,
    message_indexes,
    schema_of_class,
)
from sluice.connectors.kafka.records.registry.protobuf.protobuf_writing import MessageWriter
from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    SchemaReference,
)
from sluice.connectors.kafka.records.registry.registry_serializer import RegistrySerializer

__all__ = ["ProtobufRegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class ProtobufRegistrySerializer(RegistrySerializer):
    """Writes Protobuf records of one message; see `RegistrySerializer` for the other attributes.

    The values are structs with the fields of the message, or serialized messages as bytes. A null
    field is absent. A null is an error where the message's field is never absent.

    Attributes:
        schema: ``.proto`` text, a `RegisteredSchema` with references, or a generated message class:
            its file and those that it imports are registered, each import under its own name. None:
            the latest of the subject, with ``use_latest_version``.
        message: full name of the message in the schema; None: the first one, or that of the class.
    """

    schema_type: ClassVar[str] = "PROTOBUF"

    schema: str | RegisteredSchema | type[Message] | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.schema, type):  # tasks may not have the class
            object.__setattr__(self, "message", self.schema.DESCRIPTOR.full_name)
            object.__setattr__(self, "schema", schema_of_class(self.schema))
        super().__post_init__()
        self._descriptor()

    def _given(self) -> RegisteredSchema | None:
        given = self.schema
        if isinstance(given, str):
            return RegisteredSchema(text=given, schema_type=self.schema_type)
        if not isinstance(given, RegisteredSchema) or given.references or not given.named:
            return given if isinstance(given, RegisteredSchema) else None
        made: dict[str, SchemaReference] = {}
        for name, text in given.named:
            schema = replace(given, text=text, named=(), references=_references(text, made))
            made[name] = self.registry.client().reference(
                name,
                schema,
                register=self.auto_register_schemas,
                normalize=self.normalize_schemas,
            )
        return replace(given, references=_references(given.text, made))

    def _name(self, given: RegisteredSchema) -> str | None:
        return self.message or ProtobufSchema.of(given).message(None).full_name

    def _payloads(self, values: pa.Array) -> pa.Array:
        message = self._descriptor()
        if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
            return pa.array(MessageWriter(message=message).write(values), pa.binary())
        MessageReader(message=message).parse(values.drop_null().to_pylist())
        return values.cast(pa.binary())

    def _message(self) -> bytes:
        return index_bytes(message_indexes(self._descriptor()))

    def _descriptor(self) -> Descriptor:
        return ProtobufSchema.of(self._written).message(self.message)


def _references(text: str, known: Mapping[str, SchemaReference]) -> tuple[SchemaReference, ...]:
    return tuple(known[name] for name in imports(text) if name in known)
