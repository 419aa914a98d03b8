"""Records whose schemas are in a schema registry; needs the extra ``registry``."""

from sluice.runtime.extras import extras_named

with extras_named():
    from sluice.connectors.kafka.records.registry.avro_deserializer import AvroRegistryDeserializer
    from sluice.connectors.kafka.records.registry.avro_serializer import AvroRegistrySerializer
    from sluice.connectors.kafka.records.registry.json_deserializer import JsonRegistryDeserializer
    from sluice.connectors.kafka.records.registry.protobuf_deserializer import (
        ProtobufRegistryDeserializer,
    )
    from sluice.connectors.kafka.records.registry.registered_schema import (
        RegisteredSchema,
        SchemaReference,
        UnknownSchemaError,
    )
    from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
    from sluice.connectors.kafka.records.registry.schema_writing import (
        IdLocation,
        SubjectNameStrategy,
    )

__all__ = [
    "AvroRegistryDeserializer",
    "AvroRegistrySerializer",
    "IdLocation",
    "JsonRegistryDeserializer",
    "ProtobufRegistryDeserializer",
    "RegisteredSchema",
    "SchemaReference",
    "SchemaRegistry",
    "SubjectNameStrategy",
    "UnknownSchemaError",
]
