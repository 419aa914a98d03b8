"""Spark's schemas as text: the JSON of a struct as a list of columns in SQL. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["columns_of", "schemas_of"]

_SQL = {"integer": "INT", "long": "BIGINT", "short": "SMALLINT", "byte": "TINYINT"}
_PLAIN = re.compile(r"[A-Za-z_]\w*")


def schemas_of(state_schema: str) -> list[dict[str, object]]:
    """The schemas in `StateSnapshot.state_schema`: operator, store, columns of key and value.

    A store of several variables has several pairs.
    """
    found: list[dict[str, object]] = []
    for entry in json.loads(state_schema) if state_schema else ():
        structs = [columns_of(each) for each in entry["schemas"]]
        for key, value in zip(structs[::2], structs[1::2], strict=False):
            known = {"operator": entry["operator"], "store": entry["store"]}
            found.append({**known, "key": key, "value": value})
    return found


def columns_of(struct: Mapping[str, Any]) -> str:
    """The fields of a struct, such as ``k INT, n BIGINT NOT NULL``."""
    return ", ".join(
        f"{_name(each['name'])} {_type(each['type'])}{'' if each['nullable'] else ' NOT NULL'}"
        for each in struct["fields"]
    )


def _type(found: str | Mapping[str, Any]) -> str:
    if isinstance(found, str):
        return _SQL.get(found, found.upper())
    match found["type"]:
        case "struct":
            fields = (f"{_name(each['name'])}: {_type(each['type'])}" for each in found["fields"])
            return f"STRUCT<{', '.join(fields)}>"
        case "array":
            return f"ARRAY<{_type(found['elementType'])}>"
        case "map":
            return f"MAP<{_type(found['keyType'])}, {_type(found['valueType'])}>"
        case other:
            return str(found.get("sqlType", other)).upper()


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"
