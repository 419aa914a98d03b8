"""Values as Avro records whose schema is in a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.registry_serializer import RegistrySerializer
from sluice.connectors.kafka.records.serde.avro_encoding import encoded
from sluice.connectors.kafka.records.serde.avro_records import given_schema
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, name_of, text_of

__all__ = ["AvroRegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class AvroRegistrySerializer(RegistrySerializer):
    """Writes Avro records; see `RegistrySerializer` for the other attributes.

    Attributes:
        schema: JSON text, its value, or a `RegisteredSchema` with references. None: the latest of
            the subject, with ``use_latest_version``.
    """

    schema_type: ClassVar[str] = "AVRO"

    schema: str | Mapping[str, Any] | RegisteredSchema | None = None
    _avro: AvroSchema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [text for _, text in self._written.named]
        object.__setattr__(self, "_avro", given_schema(self._written.text, named))

    def _given(self) -> RegisteredSchema | None:
        given = self.schema
        if given is None or isinstance(given, RegisteredSchema):
            return given
        given_schema(given)
        return RegisteredSchema(text=text_of(given))

    def _name(self, given: RegisteredSchema) -> str | None:
        return name_of(given.text)

    def _payloads(self, values: pa.Array) -> pa.Array:
        return encoded(self._avro, values, bare_bytes=True)
