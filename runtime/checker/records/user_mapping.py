"""The function of a user's that says what each input record must become.

Fingerprints tell types apart (`Identity`), and a user should not have to: what he gives is brought
into the one form in which records are read, or refused with the reason.
"""

import importlib
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from sluice.runtime.checker.records.history import Place
from sluice.runtime.checker.records.record import Record
from sluice.runtime.errors import ConfigError

__all__ = ["Stopped", "load_mapping"]


class Stopped(SystemExit):
    """What a signal's handler raises to end the program: no fault of a function it comes in."""


def load_mapping(name: str) -> Callable[[Record], Iterable[Record]]:
    """The function that ``module:function`` names; it may return one record, several or None.

    Raises:
        ConfigError: there is no such function; when it is called: it raises, or gives what is no
            record.
    """
    function = _function(name)

    def mapping(record: Record) -> Iterable[Record]:
        wanted = []
        for one in _results(name, function, record):
            try:
                wanted.append(_as_read(one))
            except Stopped:
                raise
            except (Exception, SystemExit) as err:  # headers may be a generator of the user's
                raise ConfigError(
                    "the mapping gives what is no output record",
                    _where(name, record, err),
                    "Return a Record, an iterable of them, or None; the topic is a str, key and "
                    "value are bytes or None, headers pairs of str and bytes or None.",
                ) from err
        return wanted

    return mapping


def _results(name: str, function: Callable[[Record], Any], record: Record) -> Sequence[object]:
    """What the function gives for a record; a generator's code runs here, too."""
    try:
        result = function(record)
        if result is None:
            return ()
        is_several = isinstance(result, Iterable) and not isinstance(result, Record)
        return tuple(result) if is_several else (result,)
    except Stopped:
        raise
    except (Exception, SystemExit) as err:  # sys.exit(0) would pass for exactly once
        raise ConfigError(
            "the mapping raised",
            _where(name, record, f"{type(err).__name__}: {err}"),
            "Correct the function; for a record that must become nothing it returns None.",
        ) from err


def _where(name: str, record: Record, reason: object) -> dict[str, object]:
    place = Place(record.topic, record.partition, record.offset)
    return {"map": name, "input": place, "reason": reason}


def _function(name: str) -> Callable[[Record], Any]:
    module_name, colon, function_name = name.partition(":")
    try:
        if not colon:
            raise ValueError("there is no ':' in it")
        if "" not in sys.path:
            sys.path.insert(0, "")  # a program of the user's lies where he is
        function: Any = getattr(importlib.import_module(module_name), function_name)
        if not callable(function):
            raise TypeError(f"{function_name} is of type {type(function).__name__}")
    except Stopped:
        raise
    except (Exception, SystemExit) as err:  # his own code runs when a user's module is imported
        raise ConfigError(
            "the mapping cannot be loaded",
            {"map": name, "reason": f"{type(err).__name__}: {err}"},
            "Write MODULE:FUNCTION, of a module that can be imported from here.",
        ) from err
    return cast("Callable[[Record], Any]", function)


def _as_read(one: object) -> Record:
    """The record with the types that readers of topics and files give it."""
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
    return str.__str__(content)  # not what a member of an enum makes of it: Topic.ORDERS
