"""A schema as a registry has it. Pure."""

import uuid
from dataclasses import dataclass

from sluice.runtime.errors import ConfigError

__all__ = ["RegisteredSchema", "SchemaReference", "UnknownSchemaError"]


class UnknownSchemaError(ValueError):
    """A record names a schema that the registry does not have: the record is bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """The name that a schema uses for a version of another subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema and all that it refers to. Picklable.

    Attributes:
        text: of the schema.
        schema_type: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        schema_id, guid: the ids that the registry gave it, as far as it returned them.
        references: what the schema itself refers to.
        named: text of each schema that it refers to, also indirectly, by the name of the reference;
            each one after those that it needs.
        rule_modes: modes of the schema's rules that are not disabled (``READ``, ``WRITE``, …).
    """

    text: str
    schema_type: str = "AVRO"
    schema_id: int | None = None
    guid: uuid.UUID | None = None
    references: tuple[SchemaReference, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    rule_modes: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The ids, for messages."""
        return str(self.guid if self.schema_id is None else self.schema_id)

    def require_no_rules(self, mode: str) -> None:
        """Refuse a schema with rules for ``READ`` or ``WRITE``: values would stay encrypted, or be
        written as they are.

        Raises:
            ConfigError: there are such rules.
        """
        if self.rule_modes & {mode, "WRITEREAD"}:
            raise ConfigError(
                "a schema of the registry has rules, which Sluice does not run",
                {"id": self.name, "modes": ",".join(sorted(self.rule_modes))},
                "Use a schema without rules, or confluent-kafka's serializers in a function.",
            )
