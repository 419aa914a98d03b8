"""The two sides of a comparison: a topic, or files."""

import contextlib
import tempfile
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
from sluice.runtime.checker.files import is_read, read_files
from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system import FileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import (
    absolute_uri,
    is_object_store,
    needs_jvm,
    open_file_system,
)

__all__ = [
    "Files",
    "Located",
    "Place",
    "Topic",
    "are_files",
    "hidden_in",
    "opened_files",
    "opened_place",
]

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


@dataclass(frozen=True, slots=True)
class _CopiedFiles(Files):
    """Files of HDFS or an object store: ``name`` is their URI, and ``path`` holds a copy."""

    path: Path

    def records(self, *, need_headers: bool, left_out: set[str]) -> Iterator[Located]:
        rows = read_files(self.path, topic=self.name, need_headers=need_headers, left_out=left_out)
        for record, at in rows:
            inside = at.topic.removeprefix(str(self.path))
            yield record, at._replace(topic=f"{self.name}{inside}")


@contextlib.contextmanager
def opened_files(uri: str) -> Iterator[Files]:
    """The files at a path or URI; a copy of remote ones is deleted at the end of the context.

    Raises:
        ConfigError: there are none, of a remote URI.
    """
    if not (needs_jvm(uri) or is_object_store(uri)):
        yield Files(uri)
        return
    uri = absolute_uri(uri)
    parent, _, name = uri.rpartition("/")
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-files-"))
        jvm = None
        if needs_jvm(uri):
            from sluice.runtime.storage.hadoop_jvm import hadoop_jvm  # needs the extra [spark]

            jvm = stack.enter_context(hadoop_jvm())
        fs = open_file_system(parent, jvm)
        stack.callback(close_quietly, fs)
        if not fs.exists(name):
            raise ConfigError(
                "there is no such file or directory", {"uri": uri}, "Pass a URI that exists."
            )
        _copy(fs, name, Path(scratch, name))
        yield _CopiedFiles(uri, Path(scratch, name))


def _copy(fs: FileSystem, path: str, to: Path) -> None:
    """A file or a tree, without the names that readers skip; one file at a time is in memory."""
    content = fs.read(path) if fs.length_bytes(path) is not None else None
    if content is not None:
        to.write_bytes(content)
        return
    to.mkdir()
    for name in (entry.name for entry in fs.entries(path)):
        if is_read(name):
            _copy(fs, f"{path}/{name}", to / name)


@contextlib.contextmanager
def opened_place(name: str, connection: KafkaConnection | None) -> Iterator[Topic | Files]:
    """The place with this name.

    Raises:
        ConfigError: a topic without a connection; see also `opened_files`.
    """
    if are_files(name):
        with opened_files(name) as files:
            yield files
        return
    if connection is None:
        raise ConfigError(
            "a topic was named, but no Kafka servers",
            {"topic": name},
            "Give --bootstrap-servers; a file or directory has a / in its name (./data).",
        )
    yield Topic(name, connection)
