"""Arrow schemas as JSON, exact and readable; and which schemas read the rows of another one."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from sluice.runtime.errors import ConfigError, DamagedCheckpointError

__all__ = [
    "Clock",
    "expiry_clock",
    "require_readable",
    "schema_from_json",
    "schema_to_json",
    "shown_schema",
]

Clock = Literal["event", "processing"]
"""Event time: the watermark of barriers. Processing time: their `now_ms`."""

_PARAMETERS = re.compile(r"([a-z0-9_]+)\[(.*)\]")
_DECIMAL = re.compile(r"(decimal\d+)\((\d+), (-?\d+)\)")
_ALIASES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
}
_LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
}


def schema_to_json(schema: pa.Schema, *, expires_by: Clock | None = None) -> str:
    """The fields of ``schema`` as JSON; metadata is left out.

    Args:
        expires_by: the clock of the table's time to live (`sluice.runtime.state.codec.expiry`).
    Raises:
        ConfigError: state cannot have a column of this type.
    """
    shown: dict[str, Any] = {"fields": [_field_to_json(field) for field in schema]}
    if expires_by is not None:
        shown["expires_by"] = expires_by
    return json.dumps(shown, separators=(",", ":"))


def expiry_clock(text: str) -> Clock | None:
    """The clock by which values of this schema expire; None: they do not. ``text`` may be ""."""
    clock: Clock | None = json.loads(text).get("expires_by") if text else None
    return clock


def schema_from_json(text: str) -> pa.Schema:
    """The schema of `schema_to_json`.

    Raises:
        DamagedCheckpointError: the text is not one.
    """
    try:
        return pa.schema([_field_from_json(field) for field in json.loads(text)["fields"]])
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        raise DamagedCheckpointError(
            "a state's schema in a checkpoint is not readable",
            {"schema": text[:200], "error": error},
            "Restore from another checkpoint (sluice checkpoint list), and report this one.",
        ) from error


def require_readable(written: str, declared: str, *, where: Mapping[str, object]) -> None:
    """Check that rows of the schema ``written`` are readable by the schema ``declared``.

    New nullable columns at the end are the only change that is. A time to live may get another
    length, but not begin or end, nor change its clock: stored values have or lack their times.

    Raises:
        ConfigError: they are not; names both schemas.
    """
    old, new = schema_from_json(written), schema_from_json(declared)
    if expiry_clock(written) != expiry_clock(declared):
        raise ConfigError(
            "a state has another kind of TTL than in the checkpoint",
            {**where, "checkpoint": expiry_clock(written), "program": expiry_clock(declared)},
            "Keep the TTL and its clock, or give the changed state another name.",
        )
    begins_alike = new.names[: len(old)] == old.names and all(
        ours.type == theirs.type and (ours.nullable or not theirs.nullable)
        for ours, theirs in zip(new, old, strict=False)
    )
    if not begins_alike or not all(field.nullable for field in list(new)[len(old) :]):
        raise ConfigError(
            "a state has another schema than in the checkpoint",
            {**where, "checkpoint": shown_schema(written), "program": shown_schema(declared)},
            "Add nullable columns at the end only, or give the changed state another name.",
        )


def shown_schema(text: str) -> str:
    """A schema from `schema_to_json`, for people."""
    return ", ".join(
        f"{field.name}: {field.type}{'' if field.nullable else ' not null'}"
        for field in schema_from_json(text)
    )


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": field.name, "type": _type_to_json(field.type)}
    return shown if field.nullable else {**shown, "nullable": False}


def _field_from_json(shown: Mapping[str, Any]) -> pa.Field:
    return pa.field(shown["name"], _type_from_json(shown["type"]), shown.get("nullable", True))


def _type_to_json(kind: pa.DataType) -> Any:  # noqa: ANN401 - JSON
    types = pa.types
    if types.is_map(kind):
        return {
            "map": [_field_to_json(kind.key_field), _field_to_json(kind.item_field)],
            "sorted": kind.keys_sorted,
        }
    if types.is_fixed_size_list(kind):
        return {"fixed_size_list": _field_to_json(kind.value_field), "size": kind.list_size}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"list" if types.is_list(kind) else "large_list": _field_to_json(kind.value_field)}
    if types.is_struct(kind):
        return {"struct": [_field_to_json(field) for field in kind]}
    if types.is_dictionary(kind):
        return {
            "dictionary": _type_to_json(kind.value_type),
            "index": _type_to_json(kind.index_type),
            "ordered": kind.ordered,
        }
    text = str(kind)
    try:  # Arrow cannot yet select rows of a view
        is_exact = _plain_type(text) == kind and not text.endswith("_view")
    except (ValueError, LookupError):
        is_exact = False
    if not is_exact:
        raise ConfigError(
            "state cannot have a column of this type",
            {"type": text},
            "Cast the column to a number, text, bytes, time, list, struct or map.",
        )
    return text


def _type_from_json(shown: Any) -> pa.DataType:  # noqa: ANN401 - JSON
    if isinstance(shown, str):
        return _plain_type(shown)
    if "map" in shown:
        key, item = map(_field_from_json, shown["map"])
        return pa.map_(key, item, keys_sorted=shown["sorted"])
    if "struct" in shown:
        return pa.struct([_field_from_json(field) for field in shown["struct"]])
    if "dictionary" in shown:
        return pa.dictionary(
            _type_from_json(shown["index"]),
            _type_from_json(shown["dictionary"]),
            ordered=shown["ordered"],
        )
    if "fixed_size_list" in shown:
        return pa.list_(_field_from_json(shown["fixed_size_list"]), shown["size"])
    name = next(name for name in _LISTS if name in shown)
    return _LISTS[name](_field_from_json(shown[name]))


def _plain_type(text: str) -> pa.DataType:
    if match := _DECIMAL.fullmatch(text):
        return getattr(pa, match[1])(int(match[2]), int(match[3]))
    if match := _PARAMETERS.fullmatch(text):
        name, parameter = match[1], match[2]
        if name == "fixed_size_binary":
            return pa.binary(int(parameter))
        if name == "timestamp":
            unit, _, zone = parameter.partition(", tz=")
            return pa.timestamp(unit, zone or None)
    return pa.type_for_alias(_ALIASES.get(text, text))
