"""Records whose schemas are in a schema registry; needs the extra ``registry``."""

from sluice.runtime.extras import extras_named

with extras_named():
    from sluice.connectors.kafka.records.registry.avro_deserializer import AvroRegistryDeserializer
    from sluice.connectors.kafka.records.registry.avro_serializer import AvroRegistrySerializer
    from sluice.connectors.kafka.records.registry.json_deserializer import JsonRegistryDeserializer
    from sluice.connectors.kafka.records.registry.json_serializer import JsonRegistrySerializer
    from sluice.connectors.kafka.records.registry.protobuf.protobuf_deserializer import (
        ProtobufRegistryDeserializer,
    )
    from sluice.connectors.kafka.records.registry.protobuf.protobuf_serializer import (
        ProtobufRegistrySerializer,
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
    from sluice.connectors.kafka.records.registry.spark_functions import (
        from_registry,
        to_registry,
    )

__all__ = [
    "AvroRegistryDeserializer",
    "AvroRegistrySerializer",
    "IdLocation",
    "JsonRegistryDeserializer",
    "JsonRegistrySerializer",
    "ProtobufRegistryDeserializer",
    "ProtobufRegistrySerializer",
    "RegisteredSchema",
    "SchemaReference",
    "SchemaRegistry",
    "SubjectNameStrategy",
    "UnknownSchemaError",
    "from_registry",
    "to_registry",
]
