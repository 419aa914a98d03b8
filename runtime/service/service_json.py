"""Values and errors in messages of the HTTP service, as JSON, both ways. Pure."""

import base64
import enum
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sluice.runtime import errors
from sluice.runtime.errors import StreamError

__all__ = ["error_from_json", "error_to_json", "from_json", "to_json"]

_T = TypeVar("_T")


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON
    """A dataclass as a mapping, a tuple as a list, an enumeration as its value, bytes as base64."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(cls: type[_T], found: object) -> _T:
    """The value of type ``cls`` from the result of `to_json`.

    Raises:
        ValueError, LookupError, TypeError: it is not such a value; or the error that ``cls`` raises
            for it.
    """
    return cast(_T, _value(cls, found))


@functools.cache
def _hints(cls: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a dataclass
    return get_type_hints(cls)


def _value(hint: Any, found: Any) -> Any:  # noqa: ANN401 - whatever the type says
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in arguments if each is not type(None))
        return None if found is None else _value(inner, found)
    if origin is tuple:
        if not isinstance(found, list | tuple):
            raise TypeError(f"{found!r} is no list")
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], item) for item in found)
        return tuple(_value(each, item) for each, item in zip(arguments, found, strict=True))
    if is_dataclass(hint):
        if not isinstance(found, dict):
            raise TypeError(f"{found!r} is not {hint}")
        hints = _hints(cast(Any, hint))
        values = {name: _value(hints[name], item) for name, item in found.items()}
        return cast(Any, hint)(**values)
    if issubclass(hint, enum.Enum):
        return hint(found)
    if hint is bytes:
        return base64.b64decode(found, validate=True)
    if not isinstance(found, hint):
        raise TypeError(f"{found!r} is no {hint.__name__}")
    return found


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
