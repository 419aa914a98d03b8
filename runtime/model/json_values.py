"""Dataclasses as JSON, both ways. Pure."""

import base64
import contextlib
import enum
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

__all__ = ["FieldError", "UnknownMemberError", "from_json", "to_json"]

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
_PLAIN = frozenset({str, int, float, bool, type(None)})


class FieldError(TypeError, LookupError):
    """Fields are missing, unknown or of another type. The text names them, not their values."""


class UnknownMemberError(FieldError):
    """An enumeration has no such member.

    Attributes:
        kind: the enumeration.
        value: the text without a member.
    """

    def __init__(self, at: str, kind: type[enum.Enum], value: object) -> None:
        super().__init__(at)
        self.kind = kind
        self.value = value


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:  # noqa: ANN401 - a dataclass
    return tuple(each.name for each in fields(cls))


def to_json(value: object, *, keep_bytes: bool = False) -> Any:  # noqa: ANN401 - JSON
    """A dataclass as a mapping, a tuple as a list, an enumeration as its value, bytes as base64, a
    path as text.

    Args:
        keep_bytes: for Avro, which has bytes.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value  # nearly all are
    if is_dataclass(kind):
        return {name: to_json(getattr(value, name), keep_bytes=keep_bytes) for name in _names(kind)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return value if keep_bytes else base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [to_json(item, keep_bytes=keep_bytes) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(each, keep_bytes=keep_bytes) for key, each in value.items()}
    return value


def from_json(cls: type[_T], found: object) -> _T:
    """The value of type ``cls`` from the result of `to_json`.

    Raises:
        FieldError: it is not such a value.
        Exception: the error that ``cls`` itself raises for it.
    """
    return cast(_T, _reader(cast(Any, cls), cls.__name__)(found))


@functools.cache
def _reader(hint: Any, at: str) -> _Reader:  # noqa: ANN401 - whatever the type says
    """Reads values of a type; ``at`` is the field, for errors."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda found: found
    if is_dataclass(hint):
        return _dataclass_reader(hint, at)
    if origin in (Union, types.UnionType):
        readers = [_reader(each, at) for each in arguments if each is not type(None)]
        return lambda found: None if found is None else _first_that_reads(readers, found)
    if origin is tuple:
        return _tuple_reader(arguments, at)
    if origin is frozenset:
        one = _reader(arguments[0], at)
        return lambda found: frozenset(map(one, _checked(found, list, at)))
    if origin is not None:  # a mapping from text
        item = _reader(arguments[1], at)
        return lambda found: {key: item(value) for key, value in _checked(found, dict, at).items()}
    if hint in (str, int, float, bool):
        return lambda found: _number_or_text(hint, found, at)
    return lambda found: _other(hint, found, at)


def _first_that_reads(readers: Sequence[_Reader], found: Any) -> Any:  # noqa: ANN401 - JSON
    """The value by the first of several types whose fields it has."""
    for reader in readers[:-1]:
        with contextlib.suppress(FieldError):
            return reader(found)
    return readers[-1](found)


def _dataclass_reader(cls: Any, at: str) -> _Reader:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(cls)
    readers = {name: _reader(hint, f"{cls.__name__}.{name}") for name, hint in hints.items()}
    needed = {f.name for f in fields(cls) if f.default is f.default_factory is MISSING}

    def read(found: Any) -> Any:  # noqa: ANN401 - the dataclass
        members = _checked(found, dict, at)
        wrong = (members.keys() - readers.keys()) | (needed - members.keys())
        if wrong:
            raise FieldError(",".join(f"{cls.__name__}.{name}" for name in sorted(wrong)))
        return cls(**{name: readers[name](item) for name, item in members.items()})

    return read


def _tuple_reader(hints: tuple[Any, ...], at: str) -> _Reader:
    if hints[-1] is Ellipsis:
        item = _reader(hints[0], at)
        return lambda found: tuple(map(item, _checked(found, list | tuple, at)))
    readers = [_reader(hint, at) for hint in hints]

    def read(found: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        if len(_checked(found, list | tuple, at)) != len(readers):
            raise FieldError(at)
        return tuple(reader(item) for reader, item in zip(readers, found, strict=True))

    return read


def _number_or_text(kind: type, found: Any, at: str) -> Any:  # noqa: ANN401 - JSON
    if type(found) is not kind and (kind is not float or type(found) is not int):
        raise FieldError(at)
    return found


def _other(kind: Any, found: Any, at: str) -> Any:  # noqa: ANN401 - whatever the type says
    try:
        if issubclass(kind, enum.Enum):
            return kind(found)
        if kind is Path:
            return Path(found)
        return found if isinstance(found, bytes) else base64.b64decode(found, validate=True)
    except (TypeError, ValueError):
        if issubclass(kind, enum.Enum) and isinstance(found, str):
            raise UnknownMemberError(at, kind, found) from None
        raise FieldError(at) from None


def _checked(found: Any, kind: Any, at: str) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(found, kind):
        raise FieldError(at)
    return found
