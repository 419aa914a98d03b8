"""The sides of `assert_exactly_once`, as a test names them: topics, files, values."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.places import (
    Located,
    Place,
    Topic,
    are_files,
    opened_files,
)
from sluice.runtime.checker import Location, Record
from sluice.runtime.checker.files import row_value
from sluice.runtime.checker.records.user_mapping import as_read, checked_mapping
from sluice.runtime.errors import ConfigError

__all__ = ["Content", "Values", "as_bytes", "expectation", "opened"]

Content = bytes | str | None
"""A key or a value; text stands for its UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class Values:
    """A list in the test: records, values, pairs of key and value, or rows of files as dicts."""

    name: str
    values: Sequence[object]

    def records(self, *, need_headers: bool, left_out: set[str]) -> Iterator[Located]:
        """See `Place`."""
        del need_headers, left_out  # values have both
        for number, value in enumerate(self.values):
            at = Location(self.name, 0, number)
            try:
                record = as_read(_record(value, Record(*at, None, None)))
            except (TypeError, ValueError) as err:
                raise ConfigError(
                    "an item of a list is not a record",
                    {"item": at, "reason": err},
                    "Write a value, a pair of key and value, a Record, or a dict for a row.",
                ) from err
            yield record._replace(topic=self.name), at

    def records_at(self, locations: Sequence[Location]) -> Mapping[Location, Record]:
        """See `Place`."""
        every = self.records(need_headers=True, left_out=set())
        return {at: record for record, at in every if at in locations}


@contextlib.contextmanager
def opened(side: object, *, name: str, bootstrap: object) -> Iterator[Place]:
    """A side as a place; a copy of remote files is deleted at the end of the context.

    Args:
        side: a topic's name, or an object with ``name`` and ``connection`` or ``bootstrap``; a path
            or URI of files; or a list of values.
        name: of the argument, for errors and for places in a list.
        bootstrap: servers or a connection, for a topic that brings none.
    """
    if isinstance(side, Path) or (isinstance(side, str) and are_files(side)):
        with opened_files(str(side)) as files:
            yield files
    elif isinstance(side, str):
        yield _topic(side, getattr(side, "connection", None) or bootstrap)
    elif hasattr(side, "name"):
        reached = getattr(side, "connection", None) or getattr(side, "bootstrap", None)
        yield _topic(str(side.name), reached or bootstrap)
    elif isinstance(side, Iterable) and not isinstance(side, bytes | Mapping):
        yield Values(name, list(side))
    else:
        raise ConfigError(
            "this is neither a topic, nor files, nor a list",
            {"argument": name, "type": type(side).__name__},
            "Pass a topic's name, an object with name and connection, a path, or a list of values.",
        )


def _topic(name: str, reached: object) -> Topic:
    if isinstance(reached, str):
        reached = KafkaConnection(bootstrap_servers=reached)
    if not isinstance(reached, KafkaConnection):
        raise ConfigError(
            "a topic was named, but no Kafka servers",
            {"topic": name},
            "Pass bootstrap=, or a topic of the fixture sluice_topic; a path has a / in it.",
        )
    return Topic(name, reached)


def expectation(
    expected: Callable[[Record], object] | None,
) -> Callable[[Record], Iterable[Record]]:
    """The function of a test, which may return values instead of records."""
    if expected is None:
        return lambda record: (record,)
    function = expected
    return checked_mapping("expected", lambda record: _results(function(record), record))


def _results(result: object, record: Record) -> object:
    if result is None:
        return None
    if isinstance(result, Record | str | bytes | Mapping) or _is_pair(result):
        return _record(result, record)
    if isinstance(result, Iterable):
        return [_record(one, record) for one in result]
    return _record(result, record)


def _record(content: Any, record: Record) -> Record:  # noqa: ANN401 - of a test
    """The record that a test gave as such, as a value, as a key and a value, or as a row."""
    if isinstance(content, Record):
        return content
    if _is_pair(content):
        key, value = content
        return record._replace(key=as_bytes(key), value=as_bytes(value))
    if isinstance(content, Mapping):
        return record._replace(key=None, value=row_value(content), headers=())
    return record._replace(value=as_bytes(content))


def _is_pair(content: object) -> bool:
    """Key and value; a pair of records is two records."""
    if type(content) is not tuple or len(content) != 2:  # a Row of Spark is none
        return False
    return not any(isinstance(one, Record) for one in content)


def as_bytes(content: object) -> bytes | None:
    """A key or a value.

    Raises:
        TypeError: neither text nor bytes nor None.
    """
    if content is None:
        return None
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if isinstance(content, str):
        return content.encode()
    raise TypeError(f"a key or value of type {type(content).__name__}; write text or bytes")
