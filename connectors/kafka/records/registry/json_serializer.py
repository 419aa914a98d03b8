"""Serializer of JSON records with a schema of a registry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from sluice.connectors.kafka.records.registry.json_schema import JsonSchema
from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.registry_serializer import RegistrySerializer
from sluice.connectors.kafka.records.serde.record_json import json_texts

__all__ = ["JsonRegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class JsonRegistrySerializer(RegistrySerializer):
    """Writes JSON records of one JSON Schema; see `RegistrySerializer`. The JSON of a value is that
    of `JsonSerializer`.

    Attributes:
        validate: check each record against the schema; a record that breaks it is bad.
    """

    schema_type: ClassVar[str] = "JSON"

    validate: bool = True

    def payloads(self, values: pa.Array, schema: RegisteredSchema) -> Sequence[bytes | None]:
        made = [None if text is None else text.encode() for text in json_texts(values)]
        if self.validate:
            rules = JsonSchema.of(schema)
            for record in made:
                if record is not None:
                    rules.require_valid(record)
        return made
