"""The service's calls as a table, and the OpenAPI document that follows from it. Pure."""

import html
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import metadata
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["Call", "docs_page", "openapi_document"]

_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One path and method.

    Attributes:
        method, path: as OpenAPI writes them.
        summary: one line.
        run: answers; its arguments are the parameters of the path, then the body or the query.
        body: dataclass of the body; None: no body.
        query: name and description of each parameter of the query; a positive number each.
        media: of the answer.
    """

    method: str
    path: str
    summary: str
    run: Callable[..., Any]
    body: type | None = None
    query: Mapping[str, str] | None = None
    media: str = "application/json"


def openapi_document(calls: Sequence[Call]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    bodies = {call.body.__name__: _schema(call.body) for call in calls if call.body}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice service",
            "summary": "Jobs of one registry: list, submit, command.",
            "version": metadata.version("sluice-spark"),
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**bodies, "Error": _ERROR},
        },
    }


_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "what", "where", "remedy"],
            "properties": {
                "type": {**_TEXT, "description": "class of the error"},
                "what": {**_TEXT, "description": "what happened"},
                "where": {"type": "object", "description": "names and values"},
                "remedy": {**_TEXT, "description": "what to do"},
            },
        }
    },
}
_REFUSED = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_ERRORS = {
    "400": "the request asks for something that is not allowed",
    "401": "no token, or a wrong one",
    "403": "the service's user may not command this job",
    "404": "no such job, submission, drain or path",
    "409": "another run of the job has taken over",
    "413": "the body is larger than 1 MiB",
    "422": "the body has missing, unknown or wrong fields",
    "503": "the job does not answer; a command may still take effect",
}


def _operation(call: Call) -> dict[str, Any]:
    named = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in named
    ] + [
        {
            "name": name,
            "in": "query",
            "description": description,
            "schema": {"type": "integer", "minimum": 1},
        }
        for name, description in (call.query or {}).items()
    ]
    answer = {"type": "object"} if call.media == "application/json" else _TEXT
    found: dict[str, Any] = {
        "summary": call.summary,
        "operationId": f"{call.method.lower()}{_camel(call.path)}",
        "parameters": parameters,
        "responses": {
            "200": {"description": "done", "content": {call.media: {"schema": answer}}},
            **{code: {"description": why, "content": _REFUSED} for code, why in _ERRORS.items()},
        },
    }
    if call.body is not None:
        schema = {"$ref": f"#/components/schemas/{call.body.__name__}"}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return found


def _camel(path: str) -> str:
    words = path.removeprefix("/v1").replace("{", "").replace("}", "").replace("_", "/").split("/")
    return "".join(word.capitalize() for word in words)


def _schema(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a type
    if kind in _KINDS:
        return {"type": _KINDS[kind]}
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (each for each in arguments if each is not type(None))
        return {"anyOf": [_schema(inner), {"type": "null"}]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if not is_dataclass(kind):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    hints = get_type_hints(kind)
    needed = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    return {
        "type": "object",
        "properties": {
            f.name: {**_schema(hints[f.name]), "description": f.metadata["description"]}
            for f in fields(kind)
        },
        "required": needed,
        "additionalProperties": False,
    }


def docs_page(document: Mapping[str, Any]) -> str:
    """The document as one page of HTML, without a script."""
    schemas = document["components"]["schemas"]
    rows = [
        f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
        f"<p>{html.escape(operation['summary'])}.</p>{_fields_of(operation, schemas)}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Sluice service</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<h1>{document['info']['title']}</h1><p>Each request needs the header "
        "<code>Authorization: Bearer TOKEN</code>. Errors are JSON: <code>error</code> with "
        "<code>what</code>, <code>where</code> and <code>remedy</code>. "
        f"<a href=openapi.json>OpenAPI document</a></p>{''.join(rows)}</html>"
    )


def _fields_of(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    found = [(each["name"], each.get("description", "")) for each in operation["parameters"]]
    if "requestBody" in operation:
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        properties = schemas[reference.rpartition("/")[2]]["properties"]
        found += [(name, each["description"]) for name, each in properties.items()]
    cells = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(text)}" for name, text in found
    )
    return f"<table>{cells}</table>" if found else ""
