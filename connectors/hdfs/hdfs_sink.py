"""`HdfsSink`: what ``.sink(…)`` takes to write files."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.connectors.hdfs.formats.choice import format_name
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit
from sluice.connectors.hdfs.rolling.rolling_sink import Roll
from sluice.connectors.hdfs.staging.staged_names import split_target
from sluice.runtime.contracts import Frame, FrameWriter, SinkCoordinator
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.model import StateEntry
from sluice.runtime.model.spelling import nearest
from sluice.runtime.storage.file_system_opening import absolute_uri

if TYPE_CHECKING:
    from sluice.connectors.hdfs.partition_commit.partition_marks import PartitionMarks
    from sluice.connectors.hdfs.writing.frame_writer import FrameSaver
    from sluice.connectors.hdfs.writing.spark_saver import SparkFrameSaver

__all__ = ["HdfsSink"]

_JOINABLE = ("none", "uncompressed", "gzip")

_SIZE = re.compile(r"\s*\+?(0[xX][0-9a-fA-F]+|0*[1-9][0-9]{0,17})\s*")
_TAKEN_BY_TASKS = {
    "maxrecordsperfile": (re.compile(r"[+-]?[0-9]{1,18}"), "a whole number"),
    "parquet.block.size": (_SIZE, "a whole number of bytes"),
    "parquet.page.size": (_SIZE, "a whole number of bytes"),
    "parquet.dictionary.page.size": (_SIZE, "a whole number of bytes"),
    "orc.stripe.size": (_SIZE, "a whole number of bytes"),
    "sep": (re.compile(r"(?s).+"), "one character, or several"),
    "delimiter": (re.compile(r"(?s).+"), "one character, or several"),
}
_SECRET = re.compile(r"key|secret|password|token|credential", re.IGNORECASE)


class HdfsSink:
    """Writes each epoch's rows as files, published whole by the epoch's decision.

    Made by the user on the driver; picklable; holds no connection. Spark's own writers write, so
    types, options and partition directories are Spark's; Avro is written by the tasks in Python,
    of the same types, where spark-avro is not on the class path.

    Args:
        path: directory below another one: ``hdfs://…``, ``file://…`` or a local path.
        format: ``parquet``, ``orc``, ``avro``, ``json`` (one object a line) or ``csv``.
        partition_by: columns that become directories ``column=value``.
        columns: columns to write, in this order; None: all.
        name: of the operator; None: made from the path.
        roll: keeps files pending over epochs until they roll; None: an epoch's files are published
            with its decision.
        uid: stable id of the operator; set it before you rename.
        options: of Spark's writer for the format, such as ``compression``.
        partition_commit: when a partition counts as complete, and how readers are notified.

    Raises:
        ConfigError: a setting is missing or out of range.
    """

    is_exactly_once = True

    def __init__(
        self,
        path: str | os.PathLike[str] = "",
        *,
        format: str = "parquet",  # noqa: A002 - Spark's name of it
        partition_by: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        roll: Roll | None = None,
        name: str | None = None,
        uid: str | None = None,
        options: Mapping[str, object] | None = None,
        partition_commit: PartitionCommit | None = None,
    ) -> None:
        self._target = absolute_uri(os.fspath(path))
        _, directory = split_target(self._target)
        self._format = format_name(format)
        self._partition_by = _names(partition_by, "partition_by")
        self._columns = None if columns is None else _names(columns, "columns")
        self._options = {key: _text(value) for key, value in (options or {}).items()}
        _require_one_place(self._options)
        _require_values(self._options)
        self._name = name or f"files-{directory}"
        self._uid = uid
        self._roll = roll
        if roll is not None:
            _require_mergeable(self._format, self._options)
        self._partition_commit = partition_commit
        if partition_commit is not None:
            partition_commit.check_columns(self._partition_by)
        self._marks: PartitionMarks | None = None  # once a job starts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_marks": None}

    @property
    def name(self) -> str:
        """See `sluice.runtime.contracts.Sink`."""
        return self._name

    @property
    def uid(self) -> str | None:
        """See `sluice.runtime.contracts.Sink`."""
        return self._uid

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse names that are not there, or that no file can have; ConfigError."""
        written = columns if self._columns is None else self._columns
        self._require(written, columns, what="write")
        self._require(self._partition_by, written, what="partition by")
        for names in (written, self._partition_by):
            self._require_once(names)
        for wanted in self._partition_by:
            if wanted.startswith((".", "_")):
                raise ConfigError(
                    "rows in directories of this column would not be seen by readers",
                    {"sink": self._name, "column": wanted},
                    "Hadoop's readers pass over names that begin with '.' or '_': rename it.",
                )
        if len(set(self._partition_by)) == len(written):
            raise ConfigError(
                "every column is one to partition by, so nothing is left for the files",
                {"sink": self._name, "columns": ",".join(written)},
                "Leave at least one column out.",
            )

    def _require(self, wanted: Sequence[str], columns: Sequence[str], *, what: str) -> None:
        for name in wanted:
            if name not in columns:
                guess = nearest(name, set(columns))
                raise ConfigError(
                    f"there is no such column to {what}",
                    {"sink": self._name, "column": name, "columns": ",".join(columns)},
                    f"Did you mean {guess}?" if guess else "Name a column of the rows.",
                )

    def _require_once(self, names: Sequence[str]) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                "a column is written twice under one name",
                {"sink": self._name, "columns": ",".join(twice)},
                "A file has one column of a name: rename the other one.",
            )

    def coordinator(self) -> SinkCoordinator:
        """See `sluice.runtime.contracts.Sink`."""
        # Imported here, for it brings in Spark, and workers unpickle this class.
        from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
        from sluice.connectors.hdfs.writing.spark_saver import session_file_system

        if self._partition_commit is not None and self._marks is None:
            from sluice.connectors.hdfs.partition_commit.partition_marks import PartitionMarks

            self._marks = PartitionMarks(
                self._partition_commit, target=self._target, open_file_system=session_file_system
            )
        return FileSinkCoordinator(self._target, session_file_system, marks=self._marks)

    def event_time(self) -> EventTime | None:
        """See `sluice.runtime.contracts.EventTimeSink`."""
        return None if self._partition_commit is None else self._partition_commit.watermarks

    def check_frame(self, frame: Frame) -> None:
        """See `sluice.runtime.contracts.FrameSink`."""
        self.check_columns(frame.columns)
        self._saver().check(frame)

    def frame_writer(self) -> FrameWriter:
        """See `sluice.runtime.contracts.FrameSink`."""
        from sluice.connectors.hdfs.rolling.rolling_writer import RollingFrameWriter
        from sluice.connectors.hdfs.rolling.spark_merging import layout_of, merger_for
        from sluice.connectors.hdfs.staging.held_files import held_partitions
        from sluice.connectors.hdfs.writing.frame_writer import FileFrameWriter
        from sluice.connectors.hdfs.writing.spark_saver import session_file_system

        writer = RollingFrameWriter(
            files=FileFrameWriter(
                target=self._target, saver=self._saver(), open_file_system=session_file_system
            ),
            roll=self._roll,
            merger=merger_for(self._sparks_saver()),
            layout=layout_of(self._sparks_saver()),
        )
        if self._marks is None:
            return writer
        return self._marks.writer(writer, columns=self._partition_by, held=held_partitions)

    def _saver(self) -> "FrameSaver":
        """Spark's own writer; for Avro, where Spark does not have it, one of ours in the tasks."""
        from sluice.connectors.hdfs.formats.choice import file_format
        from sluice.connectors.hdfs.writing.spark_saver import session_writes
        from sluice.connectors.hdfs.writing.task_saver import TaskFrameSaver

        if self._format == "avro" and not session_writes(self._format):
            return TaskFrameSaver(
                target=self._target,
                form=file_format(self._format, self._options),
                partition_by=self._partition_by,
                columns=self._columns,
            )
        return self._sparks_saver()

    def _sparks_saver(self) -> "SparkFrameSaver":
        from sluice.connectors.hdfs.writing.spark_saver import SparkFrameSaver

        return SparkFrameSaver(
            format_name=self._format,
            partition_by=self._partition_by,
            columns=self._columns,
            options=self._options,
        )

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """See `sluice.runtime.contracts.Sink`: a file set is never lost by a time-out."""
        del committable
        return ()

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """See `sluice.runtime.contracts.Sink`; nothing is ever compared with it."""
        del committable
        return {}

    def settings(self) -> Mapping[str, str]:
        """See `sluice.runtime.contracts.Sink`."""
        return {
            "path": self._target,
            "format": self._format,
            "partition_by": ",".join(self._partition_by),
            "columns": "all" if self._columns is None else ",".join(self._columns),
            "roll": "each epoch" if self._roll is None else str(self._roll),
            **self._commit_settings(),
            **{f"option.{key}": _shown(key, value) for key, value in self._options.items()},
        }

    def _commit_settings(self) -> Mapping[str, str]:
        if self._partition_commit is None:
            return {}
        said = self._partition_commit.settings()
        return {f"partition_commit.{key}": value for key, value in said.items()}

    def __repr__(self) -> str:
        return f"HdfsSink({self._target!r}, format={self._format!r})"


def _names(columns: str | Iterable[str], argument: str) -> tuple[str, ...]:
    if isinstance(columns, set | frozenset):
        raise ConfigError(
            "the columns of a file sink need an order, and a set has none",
            {"argument": argument},
            f"Write {argument}=['day', 'hour'].",
        )
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _require_one_place(options: Mapping[str, str]) -> None:
    """Spark's writers are told by the sink where to write, and refuse to be told twice."""
    if "path" in {key.strip().lower() for key in options}:
        raise ConfigError(
            "the directory of a file sink is no option of its format",
            {"option": "path"},
            "Leave it out: the first argument says where readers find the files.",
        )


def _require_values(options: Mapping[str, str]) -> None:
    """Those that Spark's writers read in their tasks alone: an error there is one of each batch,
    and each is tried again."""
    for key, value in options.items():
        pattern, wanted = _TAKEN_BY_TASKS.get(key.strip().lower(), (None, ""))
        if pattern is not None and not pattern.fullmatch(value):
            raise ConfigError(
                "an option of a file sink has a value that Spark's writer does not take",
                {"option": key, "value": repr(value)},
                f"Give {wanted}.",
            )


def _require_mergeable(format_name: str, options: Mapping[str, str]) -> None:
    """Lines are merged as they are: what stands in front of them or around them must allow it."""
    if format_name not in ("json", "csv"):
        return
    given = {key.lower(): value.lower() for key, value in options.items()}
    codec = given.get("compression", given.get("codec", "none"))
    encoding = given.get("encoding", given.get("charset", "utf-8"))
    if given.get("header") == "true" or codec not in _JOINABLE or encoding != "utf-8":
        raise ConfigError(
            "files of this format cannot be merged with these options, so they cannot roll",
            {"format": format_name, "options": ",".join(sorted(options))},
            "Leave out header and encoding, use no compression or gzip; or take Parquet or ORC.",
        )


def _shown(option: str, value: str) -> str:
    """Keys of encrypted formats are options, too."""
    return "[redacted]" if _SECRET.search(option) else value


def _text(value: object) -> str:
    """As Spark's ``option`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
