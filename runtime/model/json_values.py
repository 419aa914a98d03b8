"""Dataclasses as JSON, both ways. Pure."""

import base64
import enum
import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

__all__ = ["FieldError", "from_json", "to_json"]

_T = TypeVar("_T")


class FieldError(TypeError, LookupError):
    """Fields are missing, unknown or of another type. The text has their paths, no values."""


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON
    """A dataclass as a mapping, a tuple as a list, an enumeration as its value, bytes as base64."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(cls: type[_T], found: object, *, name: str = "") -> _T:
    """The value of type ``cls`` from the result of `to_json`.

    Args:
        name: of the value, for the error.
    Raises:
        FieldError: it is not such a value.
        Exception: the error that ``cls`` itself raises for it.
    """
    return cast(_T, _value(cls, found, name or cls.__name__))


@functools.cache
def _fields(cls: Any) -> tuple[Mapping[str, Any], frozenset[str]]:  # noqa: ANN401 - a dataclass
    """The types by name, and the names without a default."""
    needed = (f.name for f in fields(cls) if f.default is f.default_factory is MISSING)
    return get_type_hints(cls), frozenset(needed)


def _value(hint: Any, found: Any, at: str) -> Any:  # noqa: ANN401 - whatever the type says
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return found
    if is_dataclass(hint):
        return _dataclass(hint, found, at)
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in arguments if each is not type(None))
        return None if found is None else _value(inner, found, at)
    if origin is tuple:
        return _tuple(arguments, found, at)
    if origin is not None:  # a mapping from text
        members = found if isinstance(found, dict) else _refuse(at)
        return {key: _value(arguments[1], item, at) for key, item in members.items()}
    return _plain(hint, found, at)


def _dataclass(cls: Any, found: Any, at: str) -> Any:  # noqa: ANN401 - whatever the type says
    hints, needed = _fields(cls)
    members = found if isinstance(found, dict) else _refuse(at)
    wrong = (members.keys() - hints.keys()) | (needed - members.keys())
    if wrong:
        _refuse(",".join(f"{at}.{name}" for name in sorted(wrong)))
    return cls(
        **{name: _value(hints[name], item, f"{at}.{name}") for name, item in members.items()}
    )


def _tuple(hints: tuple[Any, ...], found: Any, at: str) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
    items = found if isinstance(found, list | tuple) else _refuse(at)
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(items)
    if len(hints) != len(items):
        _refuse(at)
    return tuple(_value(hint, item, at) for hint, item in zip(hints, items, strict=True))


def _plain(kind: Any, found: Any, at: str) -> Any:  # noqa: ANN401 - whatever the type says
    try:
        if issubclass(kind, enum.Enum):
            return kind(found)
        if kind is bytes:
            return base64.b64decode(found, validate=True)
    except (TypeError, ValueError):
        _refuse(at)
    is_right = isinstance(found, int | float if kind is float else kind)
    return found if is_right and isinstance(found, bool) == (kind is bool) else _refuse(at)


def _refuse(at: str) -> NoReturn:
    raise FieldError(at)
