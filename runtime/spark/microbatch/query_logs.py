"""Spark's own logs of one region's query: read an offset, rewind to a decision.

The truth about a region is in ``_metadata``, not in Spark's logs (`restore-by-attempt`). Before a
stateful region's query restarts, Sluice removes all log entries after the last decided batch. A
stateless region gets a new directory.
"""

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from sluice.runtime.errors import DamagedCheckpointError, StreamError
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "LoggedBatch",
    "PlannedFiles",
    "batches_beyond",
    "newest_attempt_id",
    "read_offset",
    "require_ends",
    "require_logged",
    "rewind",
]

log = logging.getLogger(__name__)

_BY_NAME = 2  # since this version of an offset log, a line begins with its source's name
_IN_ITS_LOG = "logOffset"
_MERGED = ".compact"
_BATCH = re.compile(r"\d+")


def read_offset(fs: FileSystem, location: str, batch_id: int, source_name: str) -> dict[str, Any]:
    """The end offset that Spark logged for a batch before it ran it (offset log v2).

    Raises:
        DamagedCheckpointError: the entry is missing, of another version, or without our source.
    """
    path = f"{location}/offsets/{batch_id}"
    content = fs.read(path)
    lines = _lines(content)
    prefix = f"{source_name}:"
    offsets = lines[2:] if lines[:1] == ["v2"] else []
    for line in (each for each in offsets if each.startswith(prefix)):
        with contextlib.suppress(ValueError):
            offset = parsed_json(line.removeprefix(prefix))
            if isinstance(offset, dict):
                return offset
    raise DamagedCheckpointError(
        "Spark's offset log does not hold the offset of this batch",
        {"path": path, "source": source_name, "version": lines[:1]},
        "Restore the file, or start the job from an earlier checkpoint, with restore_from= and an "
        "id from 'sluice checkpoint list'.",
    )


class PlannedFiles:
    """The files that Spark's file sources have planned, from their logs, for one run of a query.

    The file system is rooted at the query's checkpoint location. The files of the newest log entry
    are cached, because a source without new files has that entry in every batch. Such an entry may
    name all files that the source has ever read. A run of a query plans lost log entries again
    before its first batch, so the cache must not outlive the run.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._newest: dict[str, tuple[int, tuple[str, ...]]] = {}

    def of(self, source: str, number: int) -> tuple[str, ...]:
        """The lines of these files, sorted."""
        known, files = self._newest.get(source, (None, ()))
        if known != number:
            files = tuple(sorted(_planned_files(self._fs, f"sources/{source}", number)))
            if files:  # an empty result may come from a mount that is unreachable for a moment
                self._newest[source] = number, files
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """A batch of a drop-in query in Spark's offset log.

    Attributes:
        ranges: of Sluice's sources. Two of them may read one topic, each at its own pace, so the
            source id also contains the position of the source among them.
        version: of the log entry; 0 if unknown. The user's session sets the version of a drop-in
            query's log; Spark's own default is 1.
        others_sha256: digest of the lines of other formats' sources; "" without any. For a file
            source it includes the planned files, because its line has only the number of an entry
            in a log of its own. It excludes the metadata line, which has the time of the plan.
    """

    ranges: tuple[SplitRange, ...]
    version: int
    others_sha256: str

    @classmethod
    def read(cls, fs: FileSystem, batch_id: int, *, planned: PlannedFiles | None) -> Self:
        """The file system is rooted at the query's checkpoint location.

        Args:
            planned: the planned files; None: ignore other formats' sources.
        """
        lines = _lines(fs.read(f"offsets/{batch_id}"))
        number = "".join(lines[:1]).strip().removeprefix("v")
        version = int(number) if number.isdecimal() else 0
        found = [(at, line, _own(line)) for at, line in enumerate(lines[2:])]
        ours = [splits for _, _, splits in found if splits is not None]
        foreign = [(at, line) for at, line, splits in found if splits is None]
        others = [_other(planned, at, line, version) for at, line in foreign] if planned else []
        if version >= _BY_NAME:
            others.sort()  # Spark writes these lines from an unordered map
        return cls(
            ranges=tuple(_of_source(split, at) for at, of in enumerate(ours) for split in of),
            version=version,
            others_sha256=hashlib.sha256("\n".join(others).encode()).hexdigest() if others else "",
        )

    def ranges_since(self, before: "LoggedBatch") -> tuple[SplitRange, ...]:
        """The ranges that this batch has read. A range that is also in the batch before was read
        there alone: only a watermark moved, or only another source had records
        (`batch-identity`)."""
        known = {_identity(split) for split in before.ranges}
        return tuple(
            replace(split, start_offset=split.end_offset) if _identity(split) in known else split
            for split in self.ranges
        )


def _other(planned: PlannedFiles, at: int, line: str, version: int) -> str:
    """The line of another format's source, and the files in its own log for that offset."""
    source = line.partition(":")[0] if version >= _BY_NAME else str(at)
    try:
        offset = parsed_json(line[line.find("{") :])
    except ValueError:
        return line
    number = offset.get(_IN_ITS_LOG) if isinstance(offset, dict) else None
    if not isinstance(number, int):
        return line
    return "\n".join([line, *planned.of(source, number)])


def _planned_files(fs: FileSystem, directory: str, number: int) -> list[str]:
    """The files in the log of Spark's file source under this number: in an entry of its own, or in
    an entry that Spark has merged from several."""
    own = _lines(fs.read(f"{directory}/{number}"))
    if own:
        return own[1:]
    merged = sorted(
        int(name.removesuffix(_MERGED))
        for name in (entry.name for entry in fs.entries(directory))
        if name.endswith(_MERGED) and name.removesuffix(_MERGED).isdecimal()
    )
    holder = next((each for each in merged if each >= number), None)
    if holder is None:
        return []
    lines = _lines(fs.read(f"{directory}/{holder}{_MERGED}"))[1:]
    return [line for line in lines if _number_of(line) == number]


def _number_of(line: str) -> object:
    try:
        found = parsed_json(line)
    except ValueError:
        return None
    return found.get("batchId") if isinstance(found, dict) else None


def _identity(split: SplitRange) -> tuple[str, str, int, int, int]:
    return (
        split.source_id,
        split.topic_id,
        split.partition,
        split.start_offset,
        split.end_offset,
    )


def _own(line: str) -> tuple[SplitRange, ...] | None:
    """The ranges of a source's line; None: the line belongs to another format."""
    try:
        return offsets.decode(parsed_json(line[line.find("{") :])).splits
    except (ValueError, StreamError):
        return None


def newest_attempt_id(fs: FileSystem, location: str) -> int:
    """The attempt of the region that logged the newest batch here; -1: none, or another source."""
    names = (entry.name for entry in fs.entries(f"{location}/offsets"))
    newest = max((int(name) for name in names if name.isdecimal()), default=-1)
    found = -1
    for line in _lines(fs.read(f"{location}/offsets/{newest}"))[2:]:
        with contextlib.suppress(ValueError, StreamError):
            found = max(found, offsets.decode(parsed_json(line[line.find("{") :])).attempt_id)
    return found


def _lines(content: bytes | None) -> list[str]:
    return [] if content is None else content.decode("utf-8", "replace").splitlines()


def _of_source(split: SplitRange, at: int) -> SplitRange:
    return replace(split, source_id=f"{split.source_id}-{at + 1}") if at else split


def require_logged(fs: FileSystem, record: RegionRecord) -> None:
    """Refuse to run a drop-in query if its offset log does not match its checkpoint.

    The batch id identifies a batch, and Spark does not sync its log. If Spark has planned a lost or
    deleted entry again, Sluice would take the records of the new batch for the decided ones.

    Raises:
        DamagedCheckpointError: the last decided batch is not logged, or it is logged with other
            ranges of any source.
    """
    _warn_of_foreign_batches(fs, decided=-1 if record.batch_id is None else record.batch_id)
    if record.batch_id is None:
        return
    if not fs.exists(f"offsets/{record.batch_id}"):
        raise _not_the_same(record.batch_id, {"path": f"offsets/{record.batch_id}"})
    logged = LoggedBatch.read(fs, record.batch_id, planned=PlannedFiles(fs))
    before = LoggedBatch.read(fs, record.batch_id - 1, planned=None)
    require_ends(logged.ranges, record)
    _require_on_record(logged.ranges_since(before), record)
    if record.other_offsets_sha256 not in ("", logged.others_sha256):
        path = f"offsets/{record.batch_id}"
        raise _not_the_same(
            record.batch_id, {"path": path, "sources": "other formats", "their_logs": "sources/"}
        )
    if logged.others_sha256 and not record.other_offsets_sha256:
        log.warning(
            "the last decided batch has no digest of the sources of other formats, so Sluice "
            "cannot detect a lost entry of Spark's log that skips their records: batch_id=%d "
            "location=%s",
            record.batch_id,
            fs.uri,
        )


def _warn_of_foreign_batches(fs: FileSystem, *, decided: int) -> None:
    """Warn unless the log has at most one batch after the last decided one; the sweep aborts its
    output."""
    last = max(map(int, fs.names("offsets", _BATCH)), default=-1)
    committed = max(map(int, fs.names("commits", _BATCH)), default=-1)
    if committed > decided >= 0:
        log.warning(
            "Spark has completed batches that no checkpoint records, perhaps with another sink; "
            "they are not written again: batch_ids=%d-%d location=%s",
            decided + 1,
            committed,
            fs.uri,
        )
    if last > max(decided + 1, committed):
        log.warning(
            "Spark's log has an unfinished batch that no checkpoint records. Sluice writes it "
            "now: if another sink has written it already, its records are doubled: batch_id=%d "
            "location=%s",
            last,
            fs.uri,
        )


def require_ends(logged: Iterable[SplitRange], record: RegionRecord) -> None:
    """Check that the logged ranges of the last decided batch end at the recorded offsets; pure.

    Raises:
        DamagedCheckpointError: they do not.
    """
    ends = {_partition_of(split): split.end_offset for split in record.splits}
    for split in logged:
        end = ends.get(_partition_of(split), split.end_offset)
        if end != split.end_offset:
            where = {"split": split.name, "logged_end": split.end_offset, "decided_end": end}
            raise _not_the_same(record.batch_id, where)


def _require_on_record(ranges: Iterable[SplitRange], record: RegionRecord) -> None:
    """Refuse records of a split that the last decided batch does not have; pure.

    A partition may be discovered between two plans of the batch. A record has all splits of its
    batch, also empty ones. Splits of a source that the record does not have are not checked.
    """
    sources = {split.source_id for split in record.splits}
    known = {_partition_of(split) for split in record.splits}
    for split in ranges:
        if split.source_id in sources and not split.is_empty and _partition_of(split) not in known:
            where = {"split": split.name, "logged_end": split.end_offset, "decided_end": "none"}
            raise _not_the_same(record.batch_id, where)


def _partition_of(split: SplitRange) -> tuple[str, str, int]:
    return split.source_id, split.topic, split.partition


def _not_the_same(batch_id: int | None, where: dict[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "Spark's offset log contradicts the last decided checkpoint",
        {"batch_id": batch_id, **where},
        "Restore Spark's log, or start with a new checkpoint location at the offsets that `sluice "
        "checkpoint inspect` shows; resuming here would skip records.",
    )


def batches_beyond(names: list[str], last_batch_id: int) -> list[str]:
    """Entries of a Spark log directory for batches after ``last_batch_id``; pure.

    Includes the checksum files (``.7.crc``) that Hadoop's local file system keeps beside them.
    """
    beyond = []
    for name in names:
        number = name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and int(number) > last_batch_id:
            beyond.append(name)
    return sorted(beyond)


def rewind(fs: FileSystem, location: str, *, last_batch_id: int) -> None:
    """Remove every logged batch after the last decided one.

    It removes commits before offsets. If the process dies in between, Spark replays a batch that
    has an offset but no commit, and Sluice recognises it by its batch id. Spark would skip a batch
    with a commit but no offset.
    """
    for log in ("commits", "offsets"):
        directory = f"{location}/{log}"
        beyond = batches_beyond([entry.name for entry in fs.entries(directory)], last_batch_id)
        for name in reversed(beyond):
            fs.delete(f"{directory}/{name}")
