"""Values as Avro records whose schema is in a registry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.registry.schema_writing import (
    IdLocation,
    SubjectNameStrategy,
    schema_to_write,
    with_schema_id,
)
from sluice.connectors.kafka.records.serde.avro_encoding import encoded
from sluice.connectors.kafka.records.serde.avro_records import given_schema
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, name_of, text_of
from sluice.runtime.errors import ConfigError

__all__ = ["AvroRegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class AvroRegistrySerializer:
    """A function for ``map_batches`` that makes a column Avro records with the id of their schema.

    The schema is registered or looked up when the serializer is made, once, on the driver. Null
    stays null: a tombstone. A row that the schema does not take fails by the ``on_error`` of
    ``map_batches``; a column of another type fails the job.

    Attributes:
        registry: that has the schema.
        topic: that the records are written to; the subject's name has it.
        schema: JSON text, its value, or a `RegisteredSchema` with references. None: the latest of
            the subject, with ``use_latest_version``.
        column: ``value`` or ``key``.
        fields: columns of the batch that make the fields of the record, and leave the batch; none:
            the column itself has the record.
        subject_name_strategy: names the subject.
        auto_register_schemas: register the schema; False: the subject must have it.
        use_latest_version: write with the latest schema of the subject.
        normalize_schemas: the registry compares schemas in one normal form.
        id_location: before each value, or in a header.
    Raises:
        ConfigError: options contradict each other; the schema is invalid, not registered, or breaks
            the compatibility rule of its subject.
        UnreachableError, AuthenticationError: the registry does not answer, or refuses.
    """

    registry: SchemaRegistry
    topic: str
    schema: str | Mapping[str, Any] | RegisteredSchema | None = None
    column: str = "value"
    fields: Sequence[str] = ()
    subject_name_strategy: SubjectNameStrategy = SubjectNameStrategy.TOPIC
    auto_register_schemas: bool = True
    use_latest_version: bool = False
    normalize_schemas: bool = False
    id_location: IdLocation = IdLocation.PREFIX
    _written: RegisteredSchema = field(init=False, repr=False, compare=False)
    _avro: AvroSchema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.schema
        if given is not None and not isinstance(given, RegisteredSchema):
            given_schema(given)
            given = RegisteredSchema(text=text_of(given))
        subject = self.subject_name_strategy.subject(
            topic=self.topic,
            column=self.column,
            record=None if given is None else name_of(given.text),
        )
        written = schema_to_write(
            self.registry,
            given,
            subject,
            auto_register_schemas=self.auto_register_schemas,
            use_latest_version=self.use_latest_version,
            normalize_schemas=self.normalize_schemas,
        )
        object.__setattr__(self, "_written", written)
        object.__setattr__(self, "_avro", _parsed(written))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with records instead of the values."""
        needed = self.fields or (self.column,)
        missing = [name for name in needed if name not in batch.schema.names]
        if missing:
            raise ConfigError(
                "a serializer has no column to work on",
                {"missing": ",".join(missing), "columns": ",".join(batch.schema.names)},
                "Let the function before it give this column.",
            )
        if self.fields:
            columns = [batch.column(name) for name in self.fields]
            values = pa.StructArray.from_arrays(columns, list(self.fields))
            batch = batch.drop_columns([name for name in self.fields if name != self.column])
        else:
            values = batch.column(self.column)
        payloads = encoded(self._avro, values, bare_bytes=True)
        return with_schema_id(batch, self.column, payloads, self._written, self.id_location)


def _parsed(schema: RegisteredSchema) -> AvroSchema:
    if schema.schema_type != "AVRO":
        raise ConfigError(
            "a schema of the registry is not of Avro",
            {"id": schema.name, "type": schema.schema_type},
            "Use the serializer of its type.",
        )
    return given_schema(schema.text, [text for _, text in schema.named])
