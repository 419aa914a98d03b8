"""The two sides of a comparison: a topic, or files."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import (
    EndWatch,
    read_records,
    records_at,
    topic_ends,
)
from sluice.runtime.checker import Location, Record
from sluice.runtime.checker.files import read_files
from sluice.runtime.errors import ConfigError

__all__ = ["Files", "Located", "Place", "Topic", "are_files", "hidden_in", "place_of"]

Located = tuple[Record, Location]


class Place(Protocol):
    """Holds the records of one side."""

    @property
    def name(self) -> str:
        """The topic of its records: of a topic its name."""
        ...

    def records(self, *, need_headers: bool, left_out: set[str]) -> Iterator[Located]:
        """All records, those of a partition or a file in order; see `read_files`."""
        ...

    def records_at(self, locations: Sequence[Location]) -> Mapping[Location, Record]:
        """A few records, to show them; those that are gone are left out."""
        ...


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, as a read_committed reader sees it."""

    name: str
    connection: KafkaConnection

    def records(self, *, need_headers: bool, left_out: set[str]) -> Iterator[Located]:
        """See `Place`."""
        del left_out  # a record has no other columns
        for record in read_records(self.connection, self.name, need_headers=need_headers):
            yield record, Location(record.topic, record.partition, record.offset)

    def hidden_records(self, *, need_headers: bool) -> Iterator[Located]:
        """Records of aborted and of open transactions, and those after an open one."""
        for number in sorted(topic_ends(self.connection, self.name).high):
            every, visible = (
                read_records(
                    self.connection,
                    self.name,
                    read_committed=read_committed,
                    need_headers=need_headers,
                    partition=number,
                )
                for read_committed in (False, True)
            )
            with contextlib.closing(every), contextlib.closing(visible):
                for record in hidden_in(every, visible):
                    yield record, Location(record.topic, record.partition, record.offset)

    def records_at(self, locations: Sequence[Location]) -> Mapping[Location, Record]:
        """See `Place`."""
        return records_at(self.connection, locations)

    def holds_others(self, records: int) -> bool:
        """Whether it has offsets without a record that readers see: of transactions, or removed by
        compaction."""
        watch = EndWatch(self.connection, self.name)
        return records < sum(watch.high().values()) - sum(watch.starts().values())

    def first_offsets(self) -> dict[str, int]:
        """First offset of each partition from which retention has deleted records."""
        starts = EndWatch(self.connection, self.name).starts()
        return {f"{self.name}-{number}": at for number, at in sorted(starts.items()) if at}

    def held_back(self) -> dict[str, int]:
        """End for readers of each partition that has an open transaction."""
        ends = topic_ends(self.connection, self.name)
        return {
            f"{self.name}-{number}": at
            for number, at in sorted(ends.stable.items())
            if at < ends.high.get(number, 0)
        }


def hidden_in(every: Iterator[Record], visible: Iterator[Record]) -> Iterator[Record]:
    """The records of a partition that only one of its two readers returns."""
    first = list(islice(every, 1))  # fixes its end before the other reader's
    shown = next(visible, None)
    for record in chain(first, every):
        while shown is not None and shown.offset < record.offset:
            shown = next(visible, None)
        if shown is None or shown.offset > record.offset:
            yield record


@dataclass(frozen=True, slots=True)
class Files:
    """A file, or all files below a directory, of this machine."""

    name: str

    def records(self, *, need_headers: bool, left_out: set[str]) -> Iterator[Located]:
        """See `Place`."""
        path = Path(self.name.removeprefix("file://"))
        return read_files(path, topic=self.name, need_headers=need_headers, left_out=left_out)

    def records_at(self, locations: Sequence[Location]) -> Mapping[Location, Record]:
        """See `Place`."""
        found: dict[Location, Record] = {}
        for record, at in self.records(need_headers=False, left_out=set()):
            if len(found) == len(locations):
                break
            if at in locations:
                found[at] = record
        return found


def are_files(name: str) -> bool:
    """Whether a name is a path; names of topics have no slash."""
    return "/" in name


def place_of(name: str, connection: KafkaConnection | None) -> Topic | Files:
    """The place with this name.

    Raises:
        ConfigError: a topic without a connection.
    """
    if are_files(name):
        return Files(name)
    if connection is None:
        raise ConfigError(
            "a topic was named, but no Kafka servers",
            {"topic": name},
            "Give --bootstrap-servers; a file or directory has a / in its name (./data).",
        )
    return Topic(name, connection)
