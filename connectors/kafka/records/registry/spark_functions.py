"""Spark functions on columns of bytes, as ``from_avro`` and ``to_avro`` are, with a registry."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, DataType

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
from sluice.connectors.kafka.records.registry.registry_serializer import RegistrySerializer
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.registry.schema_writing import IdLocation
from sluice.connectors.kafka.records.serde.deserializing import HeaderDeserializer, last_headers
from sluice.runtime.errors import ConfigError, PoisonRecordsError, StreamError
from sluice.runtime.model.arrow_leaves import with_leaf_types

__all__ = ["from_registry", "to_registry"]

_MODES = ("FAILFAST", "PERMISSIVE")


def from_registry(
    column: Column | str,
    registry: SchemaRegistry,
    subject: str | None = None,
    *,
    schema: DataType | str | None = None,
    headers: Column | str | None = None,
    is_key: bool = False,
    mode: str = "FAILFAST",
    **settings: Any,  # noqa: ANN401 - of several classes
) -> Column:
    """The values of records that name their schemas in a registry, as a column of Spark.

    Each record is read by its writer's schema, as by a deserializer of `sluice.registry`. If the
    registry does not answer, the task fails in both modes, and Spark tries it again.

    Args:
        column: of the records' bytes.
        registry: has the writers' schemas.
        subject: its latest schema, Avro or Protobuf, gives the column's type. It is looked up once,
            when this function is called.
        schema: the column's type for JSON records, instead of ``subject``; a type or its DDL.
        headers: Kafka's headers, if schema ids are in them.
        is_key: the records are keys: their id is in the header ``__key_schema_id``.
        mode: for a record that cannot be read: ``FAILFAST`` fails the task, ``PERMISSIVE`` makes it
            null.
        settings: of the deserializer, such as ``message`` or ``unknown_fields``.
    Raises:
        ConfigError: the subject does not exist, or its schema has no type in Spark.
    """
    if mode.upper() not in _MODES:
        raise ConfigError(
            "from_registry has no such mode", {"mode": mode}, "Use FAILFAST or PERMISSIVE."
        )
    reader = _deserializer(registry, subject, schema, settings)
    kind = _spark_type(reader.type)
    wanted = to_arrow_type(kind, timezone="UTC")
    name = f"__{'key' if is_key else 'value'}_schema_id"
    read = _read_permissively if mode.upper() == "PERMISSIVE" else _read_or_fail

    def decode(records: pa.Array) -> pa.Array:
        return read(reader, records, None).cast(wanted)

    def decode_with_headers(records: pa.Array, found: pa.Array) -> pa.Array:
        return read(reader, records, last_headers(found, name)).cast(wanted)

    if headers is None:
        return _applied(decode, kind, column)
    return _applied(decode_with_headers, kind, column, headers)


def to_registry(
    column: Column | str,
    registry: SchemaRegistry,
    subject: str,
    *,
    schema: str | None = None,
    schema_type: str = "AVRO",
    **settings: Any,  # noqa: ANN401 - of several classes
) -> Column:
    """Records of a registry's schema, as a column of bytes; see `from_registry`.

    Each record begins with the id of its schema. A value that does not fit the schema fails the
    task. Null stays null.

    Args:
        column: of the values.
        registry: has the schema, or gets it.
        subject: of the schema.
        schema: its text; it is registered if the subject does not have it. None: the subject's
            latest schema, as of the call of this function.
        schema_type: of ``schema``: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        settings: of the serializer, such as ``message``, ``validate`` or ``auto_register_schemas``.
    Raises:
        ConfigError: the registry refuses the schema, or does not have the subject.
    """
    latest = registry.latest(subject) if schema is None else None
    kind = schema_type.upper() if latest is None else latest.schema_type
    maker = _SERIALIZERS.get(kind)
    if maker is None:
        raise ConfigError(
            "no schemas of this type can be written",
            {"schema_type": kind, "known": ", ".join(_SERIALIZERS)},
            "Use one of the known types.",
        )
    writer = maker(registry=registry, subject=subject, schema=latest or schema, **settings)
    if writer.id_location is not IdLocation.PREFIX:
        raise ConfigError(
            "a column cannot hold ids that are in headers",
            {"id_location": writer.id_location},
            "Leave id_location out, or use the serializer in map_batches.",
        )

    def encode(values: pa.Array) -> pa.Array:
        batch = pa.RecordBatch.from_arrays([values], [writer.column])
        return writer(batch).column(0)

    return _applied(encode, BinaryType(), column)


_SERIALIZERS: Mapping[str, Callable[..., RegistrySerializer]] = {
    "AVRO": AvroRegistrySerializer,
    "JSON": JsonRegistrySerializer,
    "PROTOBUF": ProtobufRegistrySerializer,
}


def _deserializer(
    registry: SchemaRegistry,
    subject: str | None,
    schema: DataType | str | None,
    settings: Mapping[str, Any],
) -> HeaderDeserializer:
    if (subject is None) == (schema is None):
        raise ConfigError(
            "from_registry needs either a subject or a schema",
            {"subject": subject, "schema": schema},
            "Give the subject of Avro or Protobuf records, or the schema of JSON records.",
        )
    if schema is not None:
        wanted = DataType.fromDDL(schema) if isinstance(schema, str) else schema
        columns = to_arrow_type(wanted, timezone="UTC")
        return JsonRegistryDeserializer(registry=registry, schema=columns, **settings)
    latest = registry.latest(subject or "")
    makers: dict[str, Callable[..., HeaderDeserializer]] = {
        "AVRO": AvroRegistryDeserializer,
        "PROTOBUF": ProtobufRegistryDeserializer,
    }
    if latest.schema_type not in makers:
        raise ConfigError(
            "a JSON Schema does not give the type of a column",
            {"subject": subject, "type": latest.schema_type},
            "Give schema, the column's type, in place of subject.",
        )
    return makers[latest.schema_type](registry=registry, reader_schema=latest, **settings)


def _spark_type(kind: pa.DataType) -> DataType:
    """Spark's times of a day have nanoseconds."""
    wide = with_leaf_types(kind, lambda leaf: pa.time64("us") if pa.types.is_time32(leaf) else leaf)
    try:
        return from_arrow_type(wide)
    except Exception as err:
        raise ConfigError(
            "a schema of the registry has a type that Spark does not have",
            {"type": kind, "error": f"{type(err).__name__}: {err}"},
            "Read such records in map_batches, with the deserializer.",
        ) from err


def _applied(function: Callable[..., pa.Array], kind: DataType, *columns: Column | str) -> Column:
    make: Any = arrow_udf  # its overloads are too many for a type checker
    given = [col(each) if isinstance(each, str) else each for each in columns]
    return cast(Column, make(function, kind)(*given))


def _read_or_fail(reader: HeaderDeserializer, records: pa.Array, ids: pa.Array | None) -> pa.Array:
    try:
        return reader.deserialize(records, ids)
    except (StreamError, MemoryError):
        raise  # no record has caused it
    except Exception as err:
        raise PoisonRecordsError(
            "a record cannot be read by its schema of the registry",
            {"error": f"{type(err).__name__}: {err}"},
            "Correct the record, or use mode='PERMISSIVE': it makes such records null.",
        ) from err


def _read_permissively(
    reader: HeaderDeserializer, records: pa.Array, ids: pa.Array | None
) -> pa.Array:
    """Halve the records until only those that cannot be read are left: these are null."""
    try:
        return reader.deserialize(records, ids)
    except (StreamError, MemoryError):
        raise  # no record has caused it
    except Exception:  # noqa: BLE001 - of a record
        if len(records) == 1:
            return pa.nulls(1, reader.type)
    middle = len(records) // 2
    parts = [
        _read_permissively(reader, records[at], None if ids is None else ids[at])
        for at in (slice(None, middle), slice(middle, None))
    ]
    return pa.concat_arrays(parts)
