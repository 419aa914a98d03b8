"""JSON Schemas of a registry as validators."""

import json
import re
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin

from jsonschema import Draft7Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    UnknownSchemaError,
)
from sluice.runtime.errors import ConfigError

__all__ = ["JsonSchema"]

_MOST_SCHEMAS = 1_000


class JsonSchema:
    """Validates records against one registered schema. Any thread.

    A schema without ``$schema`` is of draft 7. A ``$ref`` finds the references of the schema in the
    registry; it asks no other server. ``format`` is a comment, as for confluent-kafka.
    """

    def __init__(self, validator: Validator) -> None:
        self._validator = validator

    @classmethod
    def of(cls, schema: RegisteredSchema) -> "JsonSchema":
        """Parsed once in this process.

        Raises:
            UnknownSchemaError: it is a schema of another type.
            ConfigError: it is no JSON Schema.
        """
        if schema.schema_type != "JSON":
            raise UnknownSchemaError(f"the schema with id {schema.name} is of {schema.schema_type}")
        return _parsed(schema.text, schema.named)

    def require_valid(self, record: bytes) -> None:
        """Refuse a record that is no JSON, or that breaks the schema.

        Raises:
            ValueError: with the place and the rule, and without the record's values.
            ConfigError: the schema refers to one that the registry does not name.
        """
        value = json.loads(record.decode(), parse_constant=_refuse)
        try:
            broken = next(iter(self._validator.iter_errors(value)), None)
        except Unresolvable as err:
            raise _unusable(f"$ref {err.ref}") from err
        except re.error as err:
            raise _unusable(f"pattern {err.pattern!r}: {err}") from err
        if broken is not None:
            raise ValueError(f"{broken.json_path} breaks the rule {broken.validator} of its schema")


@lru_cache(maxsize=_MOST_SCHEMAS)
def _parsed(text: str, named: tuple[tuple[str, str], ...]) -> JsonSchema:
    try:
        schema = json.loads(text)
        base = schema.get("$id", "") if isinstance(schema, dict) else ""
        resources = [
            (place, Resource.from_contents(json.loads(each), default_specification=DRAFT7))
            for name, each in named
            for place in {name, urljoin(base, name)}
        ]
        kind = validator_for(schema, default=Draft7Validator)
        kind.check_schema(schema)
    except (ValueError, TypeError, SchemaError) as err:
        raise _unusable(str(err)[:300]) from err
    registry: Registry[Any] = Registry().with_resources(resources)
    return JsonSchema(kind(schema, registry=registry))


def _refuse(constant: str) -> object:
    raise ValueError(f"JSON has no {constant}")


def _unusable(why: str) -> ConfigError:
    return ConfigError(
        "a JSON Schema of the registry cannot be used",
        {"why": why},
        "Correct the schema, and register the schemas that it refers to as its references.",
    )
