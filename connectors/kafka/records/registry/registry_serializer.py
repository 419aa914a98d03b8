"""The common part of serializers: they register their schema once, and put its id in records."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa

from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.runtime.errors import ConfigError

__all__ = ["RegistrySerializer"]

_HEADERS = "headers"
_HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_PLACES = ("payload", "headers")


@dataclass(frozen=True, kw_only=True)
class RegistrySerializer(abc.ABC):
    """A function for ``map_batches`` that makes a column records of one schema. Picklable.

    Null stays null: a tombstone. The options and their defaults are those of confluent-kafka's
    serializers. A value that does not fit the schema fails by the ``on_error`` of ``map_batches``;
    a registry that does not answer fails the task.

    Attributes:
        registry: for the schema.
        subject: of the schema, such as ``orders-value``.
        schema: its text, or ``registry.latest(subject)``, which is used as it is.
        column: ``value`` or ``key``.
        auto_register_schemas: register the schema if the subject does not have it. Otherwise it
            must be there.
        normalize_schemas: let the registry bring schemas into one form before it compares them.
        ids_in: ``payload``: each value begins with the id; ``headers``: the id is in the header
            ``__value_schema_id`` (``__key_schema_id``).
    """

    schema_type: ClassVar[str]

    registry: SchemaRegistry
    subject: str
    schema: str | RegisteredSchema
    column: str = "value"
    auto_register_schemas: bool = True
    normalize_schemas: bool = False
    ids_in: str = "payload"

    def __post_init__(self) -> None:
        if self.ids_in not in _PLACES or self.column not in ("key", "value"):
            raise ConfigError(
                "a setting of a serializer has a value that does not exist",
                {"ids_in": self.ids_in, "column": self.column},
                "Use ids_in payload or headers, and the column key or value.",
            )

    @abc.abstractmethod
    def payloads(self, values: pa.Array, schema: RegisteredSchema) -> Sequence[bytes | None]:
        """The values without ids; None for null.

        Raises:
            Exception: a value does not fit the schema.
            ConfigError: the column has a type that the schema does not have.
        """

    def place(self, schema: RegisteredSchema) -> bytes:
        """The bytes after the id: the place of a Protobuf message in its schema."""
        return b""

    def registered(self) -> RegisteredSchema:
        """The schema with its id; the registry is asked once in this process.

        Raises:
            ConfigError: the registry refuses the schema, or does not have it.
            UnreachableError, AuthenticationError: it does not answer, or refuses the credentials.
        """
        found = _registered(self)
        found.require_no_rules("WRITE")
        return found

    def given(self) -> RegisteredSchema:
        """The schema as it is registered; may register those that it refers to."""
        given = self.schema
        if isinstance(given, str):
            given = RegisteredSchema(text=given, schema_type=self.schema_type)
        if given.schema_type != self.schema_type:
            raise ConfigError(
                "a serializer has a schema of another type",
                {"subject": self.subject, "type": given.schema_type, "wanted": self.schema_type},
                "Use the serializer of that type, or another subject.",
            )
        return given

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with records instead of the values."""
        at = batch.schema.get_field_index(self.column)
        if at < 0:
            raise ConfigError(
                "a serializer has no column to work on",
                {"column": self.column, "columns": ",".join(batch.schema.names)},
                "Let the function before it give this column.",
            )
        is_in_headers = self.ids_in == "headers"
        records = self.records(batch.column(at), is_bare=is_in_headers)
        made = batch.set_column(at, self.column, records)
        header = self.head(prefers_guid=True) if is_in_headers else None
        return _with_header(made, f"__{self.column}_schema_id", header)

    def records(self, values: pa.Array, *, is_bare: bool = False) -> pa.Array:
        """The records of a column.

        Args:
            is_bare: they do not begin with the schema's id.
        """
        head = b"" if is_bare else self.head()
        payloads = self.payloads(values, self.registered())
        return pa.array([None if each is None else head + each for each in payloads], pa.binary())

    def head(self, *, prefers_guid: bool = False) -> bytes:
        """The schema's id as it is in records: a number, or as in confluent-kafka's headers a GUID,
        if the registry has them."""
        schema = self.registered()
        found = schema.guid if prefers_guid else schema.schema_id
        schema_id = found or schema.schema_id or schema.guid
        if schema_id is None:
            raise AssertionError("a registered schema has an id")
        return id_bytes(schema_id) + self.place(schema)


@lru_cache(maxsize=1_000)
def _registered(serializer: RegistrySerializer) -> RegisteredSchema:
    given = serializer.given()
    if given.schema_id is not None or given.guid is not None:
        return given
    return serializer.registry.client().registered(
        serializer.subject,
        given,
        register=serializer.auto_register_schemas,
        normalize=serializer.normalize_schemas,
    )


def _with_header(batch: pa.RecordBatch, name: str, header: bytes | None) -> pa.RecordBatch:
    """The batch with this header on each record, in place of older ones.

    A header that was copied from the input would name the schema of another value.
    """
    at = batch.schema.get_field_index(_HEADERS)
    if at < 0 and header is None:
        return batch
    added = [] if header is None else [{"key": name, "value": header}]
    if at < 0:
        return batch.append_column(_HEADERS, pa.array([added] * batch.num_rows, _HEADER_TYPE))
    headers = [
        None
        if each is None and not added
        else [one for one in each or () if one["key"] != name] + added
        for each in batch.column(at).to_pylist()
    ]
    found = batch.schema.field(at)
    return batch.set_column(at, found, pa.array(headers, found.type))
