"""`HdfsSink`: what ``.sink(…)`` takes to write files."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.connectors.hdfs.formats.choice import format_name
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit
from sluice.connectors.hdfs.rolling.roll_plan import Roll
from sluice.connectors.hdfs.staging.staged_names import split_target
from sluice.runtime.contracts import (
    CheckedSink,
    EventTimeSink,
    Frame,
    FrameSink,
    FrameWriter,
    SinkCoordinator,
    StoredSink,
    TaskSink,
    WriterFactory,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.spelling import nearest
from sluice.runtime.storage.file_system import OpenFileSystem
from sluice.runtime.storage.file_system_opening import absolute_uri, is_object_store

if TYPE_CHECKING:
    from sluice.connectors.hdfs.formats.file_format import FileFormat
    from sluice.connectors.hdfs.partition_commit.partition_marks import PartitionMarks
    from sluice.connectors.hdfs.staging.object_target import ObjectTarget
    from sluice.connectors.hdfs.writing.frame_writer import FrameSaver
    from sluice.connectors.hdfs.writing.spark_saver import SparkFrameSaver
    from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory

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


class HdfsSink(EventTimeSink, StoredSink):
    """Writes each epoch's rows as files, which the epoch's decision publishes whole.

    Made by the user on the driver; picklable; holds no connection. On HDFS and local disks Spark's
    own writers write the files, so types, options and partition directories are Spark's. If
    spark-avro is not on the class path, the tasks write Avro in Python, with the same types.

    In an object store, tasks write all formats in Python, and upload them in parts. The decision
    completes the uploads.

    Args:
        path: directory below another one: ``hdfs://…``, ``file://…``, a local path, ``s3://…``,
            ``gs://…`` or ``abfss://…``.
        format: ``parquet``, ``orc``, ``avro``, ``json`` (one object a line) or ``csv``; no ``orc``
            in an object store.
        partition_by: columns that become directories ``column=value``.
        columns: columns to write, in this order; None: all.
        name: of the operator; None: made from the path.
        roll: keeps files pending over epochs until they roll; None: an epoch's files are published
            with its decision.
        uid: stable id of the operator; set it before you rename.
        options: of Spark's writer for the format, such as ``compression``.
        partition_commit: when a partition counts as complete, and how readers are notified.
        storage_options: of the object store; None: those of the job, before the environment's.

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
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._target = absolute_uri(os.fspath(path))
        self._storage_options = dict(storage_options or {})
        _, directory = split_target(self._target)
        self._format = format_name(format)
        self._partition_by = _names(partition_by, "partition_by")
        self._columns = None if columns is None else _names(columns, "columns")
        self._options = {key: _text(value) for key, value in (options or {}).items()}
        _require_no_path_option(self._options)
        _require_values(self._options)
        self._name = name or f"files-{directory}"
        self._uid = uid
        self._roll = roll
        if roll is not None:
            _require_mergeable(self._format, self._options)
        self._partition_commit = partition_commit
        if partition_commit is not None:
            partition_commit.check_columns(self._partition_by)
        self._session_zone = "UTC"  # set when a job starts, as is `_marks`
        self._marks: PartitionMarks | None = None
        if type(self) is HdfsSink:
            self.__class__ = self._kind()
        self._check_store()

    def use_storage_options(self, options: Mapping[str, str]) -> None:
        self._storage_options = self._storage_options or dict(options)

    def _kind(self) -> "type[HdfsSink]":
        """How files get into the store of the path."""
        if not is_object_store(self._target):
            return _FrameFileSink
        is_plain = self._roll is None and self._partition_commit is None
        return _UploadSink if is_plain else _UploadFrameSink

    def _check_store(self) -> None:
        """Refuse settings that files in this store cannot have; ConfigError."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_marks": None}

    @property
    def name(self) -> str:
        return self._name

    @property
    def uid(self) -> str | None:
        return self._uid

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse columns that the rows lack, or names that no file can have; ConfigError."""
        written = columns if self._columns is None else self._columns
        self._require(written, columns, what="write")
        self._require(self._partition_by, written, what="partition by")
        for names in (written, self._partition_by):
            self._require_once(names)
        for wanted in self._partition_by:
            if wanted.startswith((".", "_")):
                raise ConfigError(
                    "readers would not see directories of this column",
                    {"sink": self._name, "column": wanted},
                    "Rename it: Hadoop's readers skip names that begin with '.' or '_'.",
                )
        if len(set(self._partition_by)) == len(written):
            raise ConfigError(
                "all columns are partition columns, so the files would be empty",
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
                "two written columns have one name",
                {"sink": self._name, "columns": ",".join(twice)},
                "Rename one of them.",
            )

    def coordinator(self) -> SinkCoordinator:
        from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator

        return FileSinkCoordinator(self._target, self._opener(), marks=self._session_marks())

    def _opener(self) -> OpenFileSystem:
        """Opens the file system of the target's store."""
        # Imported here, because it imports Spark, and workers unpickle this class.
        from sluice.connectors.hdfs.writing.spark_saver import session_file_system

        return session_file_system

    def _session_marks(self) -> "PartitionMarks | None":
        """Makes the marks of complete partitions, in the session's time zone."""
        if self._partition_commit is not None:
            from sluice.connectors.hdfs.partition_commit.partition_marks import PartitionMarks

            commit = self._partition_commit.in_session(self._session_zone)
            if self._marks is None or self._marks.commit != commit:
                self._marks = PartitionMarks(
                    commit, target=self._target, open_file_system=self._opener()
                )
        return self._marks

    def event_time(self) -> EventTime | None:
        return None if self._partition_commit is None else self._partition_commit.watermarks

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """See `sluice.runtime.contracts.Sink`: no time-out loses a file set."""
        del committable
        return ()

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """See `sluice.runtime.contracts.Sink`; no check compares it."""
        del committable
        return {}

    def settings(self) -> Mapping[str, str]:
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
        shown = self._partition_commit.settings()
        return {f"partition_commit.{key}": value for key, value in shown.items()}

    def __repr__(self) -> str:
        return f"HdfsSink({self._target!r}, format={self._format!r})"


class _FrameFileSink(HdfsSink, FrameSink):
    """Files that Spark's writers stage, and renames publish."""

    def check_frame(self, frame: Frame) -> None:
        self.check_columns(frame.columns)
        self._session_zone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))
        self._saver().check(frame)

    def frame_writer(self) -> FrameWriter:
        from sluice.connectors.hdfs.rolling.rolling_writer import RollingFrameWriter
        from sluice.connectors.hdfs.rolling.spark_merging import layout_of, merger_for
        from sluice.connectors.hdfs.staging.pending_files import pending_partitions
        from sluice.connectors.hdfs.writing.frame_writer import FileFrameWriter

        writer = RollingFrameWriter(
            files=FileFrameWriter(
                target=self._target, saver=self._saver(), open_file_system=self._opener()
            ),
            roll=self._roll,
            merger=merger_for(self._sparks_saver()),
            layout=layout_of(self._sparks_saver()),
        )
        if self._marks is None:
            return writer
        return self._marks.writer(writer, columns=self._partition_by, pending=pending_partitions)

    def _saver(self) -> "FrameSaver":
        """Spark's own writer; for Avro without spark-avro, a writer in the tasks."""
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


class _ObjectSink(HdfsSink, CheckedSink):
    """Files that tasks upload in parts, and the decision completes."""

    def _check_store(self) -> None:
        if self._format == "orc":
            raise ConfigError(
                "files in an object store cannot have this format",
                {"path": self._target, "format": self._format},
                "Use parquet: tasks write these files without Spark's writers.",
            )
        self._form()

    def coordinator(self) -> SinkCoordinator:
        from sluice.connectors.hdfs.committing.upload_sink_coordinator import UploadSinkCoordinator

        return UploadSinkCoordinator(
            self._target,
            self._opener(),
            self._object_target.open_uploads,
            marks=self._session_marks(),
        )

    def check_frame(self, frame: Frame) -> None:
        from sluice.connectors.hdfs.writing.spark_saver import chosen
        from sluice.connectors.hdfs.writing.task_saver import checked_partitions

        self.check_columns(frame.columns)
        self._session_zone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))
        checked_partitions(chosen(frame, self._columns), self._partition_by, form=self._form())

    def _factory(self) -> "UploadWriterFactory":
        from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
        from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory

        return UploadWriterFactory(
            target=self._target,
            parent=self._object_target.parent,
            form=self._form(),
            partitions=PartitionPaths(columns=self._partition_by, session_zone=self._session_zone),
            columns=self._columns,
        )

    def _opener(self) -> OpenFileSystem:
        return self._object_target.opener(super()._opener())

    @property
    def _object_target(self) -> "ObjectTarget":
        from sluice.connectors.hdfs.staging.object_target import ObjectTarget

        return ObjectTarget(uri=self._target, options=self._storage_options)

    def _form(self) -> "FileFormat":
        """The format as tasks write it."""
        from sluice.connectors.hdfs.formats.choice import file_format

        return file_format(self._format, self._options)


class _UploadSink(_ObjectSink, TaskSink):
    """Tasks of any engine upload their rows themselves."""

    def writer_factory(self) -> WriterFactory:
        return self._factory()


class _UploadFrameSink(_ObjectSink, FrameSink):
    """The driver knows each batch's files before the decision: it rolls them, and marks
    partitions."""

    def frame_writer(self) -> FrameWriter:
        from sluice.connectors.hdfs.rolling.rolling_writer import RollingFrameWriter
        from sluice.connectors.hdfs.rolling.uploading import UploadedRolls, merger_of, task_layout
        from sluice.connectors.hdfs.staging.pending_files import pending_partitions
        from sluice.connectors.hdfs.writing.frame_writer import FileFrameWriter
        from sluice.connectors.hdfs.writing.task_saver import TaskFrameSaver
        from sluice.connectors.hdfs.writing.upload_frame_writer import UploadFrameWriter
        from sluice.runtime.storage.objects.object_task_files import ObjectTaskFiles

        factory, form, target = self._factory(), self._form(), self._object_target
        files = ObjectTaskFiles(factory.parent)
        saver = TaskFrameSaver(
            target=self._target,
            form=form,
            partition_by=self._partition_by,
            columns=self._columns,
            files=files,
        )
        writer = RollingFrameWriter(
            files=FileFrameWriter(
                target=self._target, saver=saver, open_file_system=self._opener()
            ),
            roll=self._roll,
            merger=merger_of(self._format, form, files),
            layout=task_layout(form, self._partition_by, self._columns),
            publication=UploadedRolls(factory=factory, files=files, locate=target.locate),
            unpending=UploadFrameWriter(factory=factory, open_file_system=self._opener()),
        )
        if self._marks is None:
            return writer
        return self._marks.writer(writer, columns=self._partition_by, pending=pending_partitions)


def _names(columns: str | Iterable[str], argument: str) -> tuple[str, ...]:
    if isinstance(columns, set | frozenset):
        raise ConfigError(
            "columns of a file sink need an order; a set has none",
            {"argument": argument},
            f"Write {argument}=['day', 'hour'].",
        )
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _require_no_path_option(options: Mapping[str, str]) -> None:
    """Refuse the option ``path``: the sink passes the directory to Spark's writers itself."""
    if "path" in {key.strip().lower() for key in options}:
        raise ConfigError(
            "the format of a file sink has no option path",
            {"option": "path"},
            "Remove it: the first argument of the sink is the directory.",
        )


def _require_values(options: Mapping[str, str]) -> None:
    """Check the options that Spark's writers read only in tasks: an error there would fail each
    batch, and each would be retried."""
    for key, value in options.items():
        pattern, wanted = _TAKEN_BY_TASKS.get(key.strip().lower(), (None, ""))
        if pattern is not None and not pattern.fullmatch(value):
            raise ConfigError(
                "Spark's writer refuses the value of an option of a file sink",
                {"option": key, "value": repr(value)},
                f"Give {wanted}.",
            )


def _require_mergeable(format_name: str, options: Mapping[str, str]) -> None:
    """Refuse options under which lines cannot be concatenated."""
    if format_name not in ("json", "csv"):
        return
    given = {key.strip().lower(): value.strip().lower() for key, value in options.items()}
    codec = given.get("compression", given.get("codec", "none"))
    encoding = given.get("encoding", given.get("charset", "utf-8"))
    if given.get("header") == "true" or codec not in _JOINABLE or encoding != "utf-8":
        raise ConfigError(
            "files with these options cannot be merged, so they cannot roll",
            {"format": format_name, "options": ",".join(sorted(options))},
            "Remove header and encoding, and use no compression or gzip; or use Parquet or ORC.",
        )


def _shown(option: str, value: str) -> str:
    """Keys of encrypted formats are options, too."""
    return "[redacted]" if _SECRET.search(option) else value


def _text(value: object) -> str:
    """As Spark's ``option`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
