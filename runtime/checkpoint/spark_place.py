"""Which directory holds Spark's logs and state, if it is not the checkpoint directory.

Two small files bind the directories to each other by an id that is drawn once:

- ``_spark`` in the checkpoint directory names Spark's directory, for later starts and commands;
- ``_owner`` in Spark's directory names the checkpoint directory. A second job finds it, and is
  refused: it would delete or read files of the first one.

Neither decides anything: ``_metadata`` alone says where a region resumes (`restore-by-attempt`).
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StorageError,
    UnsupportedFormatError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.storage.divided_directory import SPARK, DividedDirectory
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem

__all__ = [
    "bind_spark_directory",
    "require_undivided",
    "spark_directory_of",
    "with_spark_files",
]

_PLACE = "_spark"
_OWNER = "_owner"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    """The content of both files.

    Attributes:
        id: drawn when the job first had a directory for Spark.
        uri: of the other directory.
    """

    id: str
    uri: str


def bind_spark_directory(main: FileSystem, spark: FileSystem) -> DividedDirectory:
    """The checkpoint directory, with Spark's files in the other one, for a run of its job.

    Before the run's first record. Each step may be repeated by another start.

    Args:
        main: the checkpoint directory.
        spark: Spark's directory.
    Raises:
        ConfigError: Spark's directory belongs to another job, or the job's state lies elsewhere.
        DamagedCheckpointError: the state that the last checkpoint names is not there.
    """
    _require_no_checkpoints(spark)
    place = _read(main, _PLACE)
    owner = _read(spark, _OWNER)
    if owner is not None and (place is None or owner.id != place.id):
        raise ConfigError(
            "Spark's files of another job lie in this directory",
            {"uri": spark.uri, "checkpoint_dir": main.uri, "owner": owner.uri},
            "Give each job a spark_checkpoint_dir of its own. If that job's checkpoints were "
            "deleted, delete this directory, too.",
        )
    if owner is None:
        _require_state(main, spark, place)
    if place is None:
        failpoint("before-spark-place")
        _create(main, _PLACE, _Binding(id=uuid.uuid4().hex, uri=spark.uri))
        failpoint("after-spark-place")
        place = _standing(main, _PLACE)
    if owner is None:
        _create(spark, _OWNER, _Binding(id=place.id, uri=main.uri))
        failpoint("after-spark-owner")
        if _standing(spark, _OWNER).id != place.id:  # another job was faster
            return bind_spark_directory(main, spark)
    if place.uri != spark.uri:
        main.replace(_PLACE, _encoded(_Binding(id=place.id, uri=spark.uri)))
    return DividedDirectory(main, lambda: spark)


def require_undivided(main: FileSystem) -> None:
    """Spark's files of a job lie in its checkpoint directory, or it has none that matter.

    Raises:
        ConfigError: its state lies in another directory, or another job keeps its files here.
    """
    owner, place = _read(main, _OWNER), _read(main, _PLACE)
    if owner is not None and (place is None or owner.id != place.id):
        raise ConfigError(
            "another job keeps Spark's files in this checkpoint directory",
            {"checkpoint_dir": main.uri, "owner": owner.uri},
            "Give this job another checkpoint_dir.",
        )
    if place is not None and place.uri != main.uri and _has_state(main):
        raise _elsewhere(main, place, given=main.uri)


def spark_directory_of(main: FileSystem) -> str | None:
    """The directory of Spark's files of a job; None: they lie in its checkpoint directory."""
    place = _read(main, _PLACE)
    return None if place is None else place.uri


def with_spark_files(main: FileSystem, open_at: OpenFileSystem) -> FileSystem:
    """A checkpoint directory with Spark's files, wherever they are, for commands and restores."""
    uri = spark_directory_of(main)
    return main if uri is None else DividedDirectory(main, lambda: open_at(uri))


def _require_no_checkpoints(spark: FileSystem) -> None:
    if CheckpointStore(spark).slots():
        raise ConfigError(
            "spark_checkpoint_dir is a checkpoint directory",
            {"uri": spark.uri},
            "Give a directory of its own for Spark's files.",
        )


def _require_state(main: FileSystem, spark: FileSystem, place: _Binding | None) -> None:
    """Spark's directory has no owner yet: the last checkpoint must not need files of it. A copy
    of the files without ``_owner`` will do: their logs are compared with ``_metadata`` later."""
    if not _has_state(main) or spark.exists(SPARK):
        return
    if place is None or place.uri != spark.uri:
        raise _elsewhere(main, place, given=spark.uri)
    raise DamagedCheckpointError(
        "Spark's logs and state of this job are gone",
        {"uri": spark.uri, "checkpoint_dir": main.uri},
        "Bring the directory back as it was, or restore a savepoint or full checkpoint into an "
        "empty checkpoint directory.",
    )


def _elsewhere(main: FileSystem, place: _Binding | None, *, given: str) -> ConfigError:
    found = main.uri if place is None else place.uri
    return ConfigError(
        "Spark's logs and state of this job lie in another directory",
        {"uri": found, "given": given, "checkpoint_dir": main.uri},
        f"Give spark_checkpoint_dir={found!r}, or copy its directory {SPARK!r} to the new place "
        "while the job is stopped.",
    )


def _has_state(main: FileSystem) -> bool:
    """Whether the last decided checkpoint names state of Spark. Unreadable ones are the start's
    concern, which follows."""
    store = CheckpointStore(main)
    for checkpoint_id in reversed(store.slots()):
        try:
            record = store.read(checkpoint_id)
        except (DamagedCheckpointError, UnsupportedFormatError):
            continue
        if record is not None and record.verdict is Verdict.DECIDED:
            return any(region.state is not None for region in record.regions)
    return False


def _create(fs: FileSystem, path: str, binding: _Binding) -> None:
    """Write the file unless there is one: the caller reads what stands."""
    temporary, data = f".{path}-{uuid.uuid4().hex}.tmp", _encoded(binding)
    fs.stage(temporary, data)
    if not fs.place(temporary, path, data) and fs.has_temporaries:
        fs.delete(temporary)


def _standing(fs: FileSystem, path: str) -> _Binding:
    found = _read(fs, path)
    if found is None:
        raise StorageError(
            "a file vanished that was just written",
            {"uri": fs.uri, "path": path},
            "Start the job again, and let no other program delete files there.",
        )
    return found


def _encoded(binding: _Binding) -> bytes:
    return json.dumps({"format_version": _FORMAT_VERSION, **asdict(binding)}).encode()


def _read(fs: FileSystem, path: str) -> _Binding | None:
    data = fs.read(path)
    if data is None:
        return None
    where: Mapping[str, object] = {"uri": fs.uri, "path": path}
    try:
        content: Any = parsed_json(data)
        version = int(content["format_version"])
        is_later = version > _FORMAT_VERSION
        found = None if is_later else _Binding(id=str(content["id"]), uri=str(content["uri"]))
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedCheckpointError(
            "the file about Spark's directory is damaged",
            {**where, "error": repr(error)},
            "Restore the file. Or delete it together with its counterpart (_spark in the "
            "checkpoint directory, _owner in Spark's), and start the job again.",
        ) from error
    if is_later:
        raise UnsupportedFormatError(
            f"the file about Spark's directory has format version {version}",
            {**where, "format_version": version, "readable": _FORMAT_VERSION},
            "Use the Sluice that runs the job, or a later one.",
        )
    return found
