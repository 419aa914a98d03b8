"""Values as JSON records whose schema is in a registry."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from sluice.connectors.kafka.records.registry.json_schema import JsonSchema
from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.registry_serializer import RegistrySerializer
from sluice.connectors.kafka.records.serde.record_json import json_texts

__all__ = ["JsonRegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class JsonRegistrySerializer(RegistrySerializer):
    """Writes JSON records; see `RegistrySerializer` for the other attributes. The JSON of a value
    is that of `JsonSerializer`.

    Attributes:
        schema: text of the JSON Schema, its value, or a `RegisteredSchema` with references. None:
            the latest of the subject, with ``use_latest_version``.
        validate: check each record against the schema; a record that breaks it is bad.
    """

    schema_type: ClassVar[str] = "JSON"

    schema: str | Mapping[str, Any] | RegisteredSchema | None = None
    validate: bool = True

    def _given(self) -> RegisteredSchema | None:
        given = self.schema
        if given is None or isinstance(given, RegisteredSchema):
            return given
        text = given if isinstance(given, str) else json.dumps(given)
        made = RegisteredSchema(text=text, schema_type=self.schema_type)
        JsonSchema.of(made)
        return made

    def _name(self, given: RegisteredSchema) -> str | None:
        title: str | None = json.loads(given.text).get("title")
        return title

    def _payloads(self, values: pa.Array) -> pa.Array:
        texts = json_texts(values)
        if self.validate:
            schema = JsonSchema.of(self._written)
            for text in texts:
                if text is not None:
                    schema.require_valid(text.encode())
        return pa.array(texts, pa.string()).cast(pa.binary())
