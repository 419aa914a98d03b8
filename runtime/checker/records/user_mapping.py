"""The user's function that returns the expected output for each input record.

Fingerprints distinguish types (`Identity`), and a user should not need to. Results are converted to
the form in which records are read, or refused with the reason.
"""

import importlib
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from sluice.runtime.checker.records.history import Location
from sluice.runtime.checker.records.record import Record
from sluice.runtime.errors import ConfigError

__all__ = ["Stopped", "as_read", "checked_mapping", "load_mapping"]


class Stopped(SystemExit):
    """A signal handler raises this to end the program; it is not an error of the function."""


def load_mapping(name: str) -> Callable[[Record], Iterable[Record]]:
    """`checked_mapping` of the function that ``module:function`` names.

    Raises:
        ConfigError: there is no such function.
    """
    return checked_mapping(name, _function(name))


def checked_mapping(
    name: str, function: Callable[[Record], Any]
) -> Callable[[Record], Iterable[Record]]:
    """A user's function, which may return one record, several or None.

    Args:
        name: of the function in errors.
    Raises:
        ConfigError: at a call: it raises, or returns something else than records.
    """

    def mapping(record: Record) -> Iterable[Record]:
        wanted = []
        for one in _results(name, function, record):
            try:
                wanted.append(as_read(one))
            except Stopped:
                raise
            except (Exception, SystemExit) as err:  # headers may be a user's generator
                raise ConfigError(
                    "the result of the mapping is not an output record",
                    _where(name, record, err),
                    "Return a Record, an iterable of them, or None. The topic is a str, key and "
                    "value are bytes or None, headers are pairs of str and bytes or None.",
                ) from err
        return wanted

    return mapping


def _results(name: str, function: Callable[[Record], Any], record: Record) -> Sequence[object]:
    """The results of the function for a record; a generator's code runs here, too."""
    try:
        result = function(record)
        if result is None:
            return ()
        is_several = isinstance(result, Iterable) and not isinstance(result, Record)
        return tuple(result) if is_several else (result,)
    except Stopped:
        raise
    except (Exception, SystemExit) as err:  # sys.exit(0) would look like the verdict exactly once
        raise ConfigError(
            "the mapping function raised an exception",
            _where(name, record, f"{type(err).__name__}: {err}"),
            "Correct the function; it may return None for a record without output.",
        ) from err


def _where(name: str, record: Record, reason: object) -> dict[str, object]:
    location = Location(record.topic, record.partition, record.offset)
    return {"map": name, "input": location, "reason": reason}


def _function(name: str) -> Callable[[Record], Any]:
    module_name, colon, function_name = name.partition(":")
    try:
        if not colon:
            raise ValueError("it has no ':'")
        if "" not in sys.path:
            sys.path.insert(0, "")  # the user's program is in the current directory
        function: Any = getattr(importlib.import_module(module_name), function_name)
        if not callable(function):
            raise TypeError(f"{function_name} is of type {type(function).__name__}")
    except Stopped:
        raise
    except (Exception, SystemExit) as err:  # the import of a user's module runs its code
        raise ConfigError(
            "the mapping cannot be loaded",
            {"map": name, "reason": f"{type(err).__name__}: {err}"},
            "Write MODULE:FUNCTION, of a module that can be imported from here.",
        ) from err
    return cast("Callable[[Record], Any]", function)


def as_read(one: object) -> Record:
    """The record with the types that readers of topics and files use.

    Raises:
        TypeError: it is no record, or a field has another type.
    """
    if not isinstance(one, Record):
        raise TypeError(f"a result of type {type(one).__name__}")
    return Record(
        _text(one.topic, "the topic"),
        operator.index(one.partition),
        one.offset,
        _bytes(one.key, "the key"),
        _bytes(one.value, "the value"),
        tuple(
            (_text(name, "a header's name"), _bytes(value, "a header's value"))
            for name, value in one.headers
        ),
        None if one.timestamp_ms is None else operator.index(one.timestamp_ms),
    )


def _bytes(content: object, what: str) -> bytes | None:
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"{what} is of type {type(content).__name__}")


def _text(content: object, what: str) -> str:
    if not isinstance(content, str):
        raise TypeError(f"{what} is of type {type(content).__name__}")
    return str.__str__(content)  # not the result of an enum member: Topic.ORDERS
