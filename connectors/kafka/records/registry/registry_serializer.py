"""The common part of serializers with a schema of a registry."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.registry.schema_writing import (
    IdLocation,
    SubjectNameStrategy,
    schema_to_write,
    with_schema_id,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index
from sluice.runtime.model.spelling import choice_of

__all__ = ["RegistrySerializer"]


@dataclass(frozen=True, kw_only=True)
class RegistrySerializer(abc.ABC):
    """A function for ``map_batches`` that turns a column into records with the id of their schema.

    The driver registers or fetches the schema once, when it creates the serializer; tasks need no
    registry. Null stays null: a tombstone. For a row that does not fit the schema, the ``on_error``
    of ``map_batches`` decides. A column of another type fails the job.

    Attributes:
        registry: has the schema.
        topic: of the records; it names the subject.
        subject: of the schema, instead of ``topic``.
        column: ``value`` or ``key``.
        fields: columns that become the fields of the record and are removed from the batch; none:
            the column itself has the record.
        subject_name_strategy: names the subject.
        auto_register_schemas: register the schema; False: the subject must have it.
        use_latest_version: write with the latest schema of the subject; needs
            ``auto_register_schemas=False``.
        normalize_schemas: the registry compares schemas in one normal form.
        id_location: before each value, or in a header.
    Raises:
        ConfigError: options contradict each other; the schema is invalid, not registered, or breaks
            the compatibility rule of its subject.
        UnreachableError, AuthenticationError: the registry does not answer, or refuses.
    """

    schema_type: ClassVar[str]

    registry: SchemaRegistry
    topic: str | None = None
    subject: str | None = None
    column: str = "value"
    fields: Sequence[str] = ()
    subject_name_strategy: SubjectNameStrategy | str = SubjectNameStrategy.TOPIC
    auto_register_schemas: bool = True
    use_latest_version: bool = False
    normalize_schemas: bool = False
    id_location: IdLocation | str = IdLocation.PREFIX
    _written: RegisteredSchema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        strategy = choice_of(
            SubjectNameStrategy, self.subject_name_strategy, setting="subject_name_strategy"
        )
        object.__setattr__(self, "subject_name_strategy", strategy)
        location = choice_of(IdLocation, self.id_location, setting="id_location")
        object.__setattr__(self, "id_location", location)
        written = schema_to_write(
            self.registry,
            given := self._given(),
            self._subject(given),
            auto_register_schemas=self.auto_register_schemas,
            use_latest_version=self.use_latest_version,
            normalize_schemas=self.normalize_schemas,
        )
        if written.schema_type != self.schema_type:
            raise ConfigError(
                "a schema of the registry is of another type than its serializer",
                {"id": written.name, "type": written.schema_type, "serializer": self.schema_type},
                "Use the serializer of its type.",
            )
        object.__setattr__(self, "_written", written)

    @abc.abstractmethod
    def _given(self) -> RegisteredSchema | None:
        """The user's schema; None: there is none."""

    @abc.abstractmethod
    def _name(self, given: RegisteredSchema) -> str | None:
        """Full name of a schema's records; None: they have none."""

    @abc.abstractmethod
    def _payloads(self, values: pa.Array) -> pa.Array:
        """The records without ids."""

    def _message(self) -> bytes:
        """The bytes after the id."""
        return b""

    def _subject(self, given: RegisteredSchema | None) -> str:
        if (self.topic is None) == (self.subject is None):
            raise ConfigError(
                "a serializer needs a topic or a subject",
                {"topic": self.topic, "subject": self.subject},
                "Give one of them.",
            )
        if self.subject is not None:
            return self.subject
        strategy = SubjectNameStrategy(self.subject_name_strategy)
        is_named = strategy is not SubjectNameStrategy.TOPIC
        return strategy.subject(
            topic=self.topic or "",
            column=self.column,
            record=self._name(given) if given is not None and is_named else None,
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with records instead of the values."""
        needed = self.fields or (self.column,)
        missing = [name for name in needed if column_index(batch.schema, name) is None]
        if missing:
            raise ConfigError(
                "a serializer has no column to work on",
                {"missing": ",".join(missing), "columns": ",".join(batch.schema.names)},
                "Return this column from the function before it.",
            )
        if self.fields:
            columns = [batch.column(name) for name in self.fields]
            values = pa.StructArray.from_arrays(columns, list(self.fields))
            batch = batch.drop_columns([name for name in self.fields if name != self.column])
        else:
            values = batch.column(self.column)
        payloads = self._payloads(values)
        return with_schema_id(
            batch,
            self.column,
            payloads,
            self._written,
            IdLocation(self.id_location),
            message=self._message(),
        )
