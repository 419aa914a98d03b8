"""The schema that a serializer writes with, and the place of its id in records."""

import enum
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.serde.schema_ids import SchemaId, id_bytes
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index

__all__ = ["IdLocation", "SubjectNameStrategy", "schema_to_write", "with_schema_id"]

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class SubjectNameStrategy(enum.Enum):
    """How a serializer names the subject of its schema, as Confluent's serializers do."""

    TOPIC = "topic"  # ``{topic}-value`` or ``{topic}-key``
    RECORD = "record"  # ``{record name}``
    TOPIC_RECORD = "topic_record"  # ``{topic}-{record name}``

    def subject(self, *, topic: str, column: str, record: str | None) -> str:
        """The subject for records of a topic.

        Args:
            column: ``value`` or ``key``.
            record: full name of the schema; None: it has none.
        Raises:
            ConfigError: the strategy needs a name.
        """
        if self is SubjectNameStrategy.TOPIC:
            return f"{topic}-{column}"
        if record is None:
            raise ConfigError(
                "a subject takes its name from a schema that has none",
                {"subject_name_strategy": self.name, "topic": topic},
                "Use SubjectNameStrategy.TOPIC, or give the schema of a record.",
            )
        return record if self is SubjectNameStrategy.RECORD else f"{topic}-{record}"


class IdLocation(enum.Enum):
    """The place of the schema id in a record."""

    PREFIX = "prefix"  # before the value
    HEADER = "header"  # `__value_schema_id` or `__key_schema_id`


def schema_to_write(
    registry: SchemaRegistry,
    schema: RegisteredSchema | None,
    subject: str,
    *,
    auto_register_schemas: bool,
    use_latest_version: bool,
    normalize_schemas: bool,
) -> RegisteredSchema:
    """The schema with its ids; asks the registry. Driver, when a serializer is made: a refused
    schema ends the job before its first record.

    Raises:
        ConfigError: the options contradict each other, or the registry refuses the schema.
        UnreachableError, AuthenticationError: the registry does not answer, or refuses.
    """
    if use_latest_version and auto_register_schemas:
        _refuse("use_latest_version and auto_register_schemas exclude each other", subject)
    if use_latest_version:
        found = registry.latest(subject)
    elif schema is None:
        _refuse("a serializer has no schema", subject)
    else:
        found = registry.client().registered(
            subject, schema, register=auto_register_schemas, normalize=normalize_schemas
        )
    found.require_no_rules("WRITE")
    return found


def _refuse(what: str, subject: str) -> NoReturn:
    raise ConfigError(
        what,
        {"subject": subject},
        "Give a schema, or set use_latest_version=True and auto_register_schemas=False.",
    )


def with_schema_id(
    batch: pa.RecordBatch,
    column: str,
    payloads: pa.Array,
    schema: RegisteredSchema,
    at: IdLocation,
    *,
    message: bytes = b"",
) -> pa.RecordBatch:
    """The batch with payloads as the bytes of a column, and with the id of their schema.

    A header has the GUID if the registry told it, as Confluent's serializers write it, else the
    number. A payload that is null has no id. A header with the id of another schema is
    removed: a copied record has that of its input, and readers take a header first.

    Args:
        message: the bytes after the id: the place of a Protobuf message in its schema.
    """
    place = column_index(batch.schema, column)
    name = f"__{column}_schema_id"
    added: list[dict[str, object]] = []
    if at is IdLocation.PREFIX:
        prefix = pa.scalar(id_bytes(_number(schema)) + message, pa.binary())
        payloads = pc.binary_join_element_wise(prefix, payloads, b"")
    else:
        value = id_bytes(schema.guid or _number(schema)) + message
        added = [{"key": name, "value": value}]
    batch = _with_column(batch, place, column, payloads)
    place = column_index(batch.schema, "headers")
    if place is None and not added:
        return batch
    before = [None] * batch.num_rows if place is None else batch.column(place).to_pylist()
    headers = [
        _headers(found, name, added if is_there else [])
        for found, is_there in zip(before, payloads.is_valid().to_pylist(), strict=True)
    ]
    return _with_column(batch, place, "headers", pa.array(headers, _HEADERS))


def _headers(
    found: list[dict[str, object]] | None, name: str, added: list[dict[str, object]]
) -> list[dict[str, object]] | None:
    kept = [header for header in found or () if header["key"] != name]
    return None if found is None and not added else kept + added


def _with_column(
    batch: pa.RecordBatch, place: int | None, name: str, values: pa.Array
) -> pa.RecordBatch:
    if place is None:
        return batch.append_column(name, values)
    return batch.set_column(place, name, values)


def _number(schema: RegisteredSchema) -> SchemaId:
    if schema.schema_id is None:
        raise ConfigError(
            "the registry returned no id for a schema",
            {"guid": schema.guid},
            "Update the registry, or set id_location=IdLocation.HEADER.",
        )
    return schema.schema_id
