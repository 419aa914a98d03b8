"""Errors in messages of the HTTP service, as JSON, both ways. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.runtime import errors
from sluice.runtime.errors import StreamError

__all__ = ["error_from_json", "error_to_json"]


def error_to_json(error: StreamError) -> dict[str, Any]:
    """Class name and arguments; an argument that is not JSON becomes text."""
    what, where, remedy = error.args
    return {
        "type": type(error).__name__,
        "what": str(what),
        "where": {str(key): _plain(value) for key, value in where.items()},
        "remedy": str(remedy),
    }


def error_from_json(found: Mapping[str, Any]) -> StreamError:
    """The same `StreamError` subclass; an unknown one becomes a plain `StreamError`."""
    where = found.get("where")
    where = where if isinstance(where, dict) else {}
    arguments = (str(found.get("what")), where, str(found.get("remedy")))
    return _classes().get(str(found.get("type")), StreamError)(*arguments)


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _classes() -> dict[str, type[StreamError]]:
    return {found.__name__: found for found in _below(errors.StreamError)}


def _below(parent: type[StreamError]) -> Iterator[type[StreamError]]:
    for child in parent.__subclasses__():
        yield child
        yield from _below(child)
