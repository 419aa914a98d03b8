"""Spark's own logs of one region's query: read an offset, rewind behind a decision.

Spark's logs are not the truth about a region, ``_metadata`` is (`restore-by-attempt`). Before a
stateful region's query restarts, whatever they say beyond the last decided batch is removed; a
stateless region simply gets a new directory.
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
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.model import RegionRecord, SplitRange
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

_BY_NAME = 2  # the version of an offset log since which a line begins with its source's name
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
        "Put the file back; or let the job go back to a checkpoint before it, with restore_from= "
        "and an id that 'sluice checkpoint list' shows.",
    )


class PlannedFiles:
    """What the logs of Spark's sources of files have planned, in a file system that is rooted at
    a query's checkpoint location. What one has under its newest number is kept: a source that has
    no news has that in batch after batch, maybe in an entry of all files that it ever read.

    For one life of a query: what a log had lost before it began was planned anew.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._newest: dict[str, tuple[int, tuple[str, ...]]] = {}

    def of(self, source: str, number: int) -> tuple[str, ...]:
        """The lines of these files, sorted."""
        known, files = self._newest.get(source, (None, ()))
        if known != number:
            files = tuple(sorted(_planned_files(self._fs, f"sources/{source}", number)))
            if files:  # of a batch that has news; none may be a mount's that is away for a moment
                self._newest[source] = number, files
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """What Spark's offset log says of a batch of a drop-in query.

    Attributes:
        ranges: of our own sources. Two of them may read one topic, each at its own pace, so a
            split's source is also told by its place among ours.
        version: that it is written in; 0 where the log does not tell. A drop-in query's log is made
            as the user's session has it; Spark's own default is 1.
        others_sha256: of what it says of other formats' sources, or "" without any, and of the
            files that a source of files has planned for it: its offset is a mere number in a log
            of its own. Not of the line before, which has the time of the plan.
    """

    ranges: tuple[SplitRange, ...]
    version: int
    others_sha256: str

    @classmethod
    def read(cls, fs: FileSystem, batch_id: int, *, planned: PlannedFiles | None) -> Self:
        """The file system is rooted at the query's checkpoint location.

        Args:
            planned: there; None: nothing is asked about other formats' sources.
        """
        lines = _lines(fs.read(f"offsets/{batch_id}"))
        number = "".join(lines[:1]).strip().removeprefix("v")
        version = int(number) if number.isdecimal() else 0
        found = [(at, line, _own(line)) for at, line in enumerate(lines[2:])]
        ours = [splits for _, _, splits in found if splits is not None]
        foreign = [(at, line) for at, line, splits in found if splits is None]
        others = [_other(planned, at, line, version) for at, line in foreign] if planned else []
        if version >= _BY_NAME:
            others.sort()  # these lines are of a map
        return cls(
            ranges=tuple(_of_source(split, at) for at, of in enumerate(ours) for split in of),
            version=version,
            others_sha256=hashlib.sha256("\n".join(others).encode()).hexdigest() if others else "",
        )

    def read_behind(self, before: "LoggedBatch") -> tuple[SplitRange, ...]:
        """The ranges that were read in it. One that the batch before has too was read there and not
        again: a watermark moved on, or only another source had records (`batch-identity`)."""
        known = {_identity(split) for split in before.ranges}
        return tuple(
            replace(split, start_offset=split.end_offset) if _identity(split) in known else split
            for split in self.ranges
        )


def _other(planned: PlannedFiles, at: int, line: str, version: int) -> str:
    """The line of another format's source, and what its own log has planned for that offset."""
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
    """What the log of Spark's source of files has under this number: in an entry of its own, or in
    one that has been merged with those before it, maybe since."""
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
    """The ranges of a source's line; None: it is another format's offset."""
    try:
        return offsets.decode(parsed_json(line[line.find("{") :])).splits
    except (ValueError, StreamError):
        return None


def newest_attempt_id(fs: FileSystem, location: str) -> int:
    """Of the life of a region that logged the newest batch here; -1: none has, or not with ours."""
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
    """Refuse to run a drop-in query whose offset log is not the one that its checkpoint is about.

    A batch is known by its id, and Spark does not sync its log: where a lost or deleted entry was
    planned anew, the records of the new batch would be taken for those that are decided.

    Raises:
        DamagedCheckpointError: the last decided batch is not logged, or with other ranges, of our
            sources or of others.
    """
    _tell_of_foreign_batches(fs, decided=-1 if record.batch_id is None else record.batch_id)
    if record.batch_id is None:
        return
    if not fs.exists(f"offsets/{record.batch_id}"):
        raise _not_the_same(record.batch_id, {"path": f"offsets/{record.batch_id}"})
    logged = LoggedBatch.read(fs, record.batch_id, planned=PlannedFiles(fs))
    before = LoggedBatch.read(fs, record.batch_id - 1, planned=None)
    require_ends(logged.ranges, record)
    _require_on_record(logged.read_behind(before), record)
    if record.other_offsets_sha256 not in ("", logged.others_sha256):
        path = f"offsets/{record.batch_id}"
        raise _not_the_same(
            record.batch_id, {"path": path, "sources": "other formats", "their_logs": "sources/"}
        )
    if logged.others_sha256 and not record.other_offsets_sha256:
        log.warning(
            "the last decided batch is of an older Sluice, which did not record what Spark's log "
            "said of other formats' sources: whether that log has lost an entry and planned it "
            "anew, which would skip their records, cannot be told this time: batch_id=%d "
            "location=%s",
            record.batch_id,
            fs.uri,
        )


def _tell_of_foreign_batches(fs: FileSystem, *, decided: int) -> None:
    """Behind the last decided batch only the next one may be in the log; what it wrote is swept."""
    last = max(map(int, fs.names("offsets", _BATCH)), default=-1)
    committed = max(map(int, fs.names("commits", _BATCH)), default=-1)
    if committed > decided >= 0:
        log.warning(
            "Spark has completed batches of which nothing is on record here, as where another sink "
            "has written meanwhile, or the records are an older copy. They are not written again: "
            "batch_ids=%d-%d location=%s",
            decided + 1,
            committed,
            fs.uri,
        )
    if last > max(decided + 1, committed):
        log.warning(
            "Spark's log has a batch under way of which nothing is on record here, as where "
            "another sink has written until now, or the records are deleted. It is written now: "
            "what is there of it already will be there twice: batch_id=%d location=%s",
            last,
            fs.uri,
        )


def require_ends(logged: Iterable[SplitRange], record: RegionRecord) -> None:
    """Refuse ranges of the last decided batch that do not end where the record says; pure.

    Raises:
        DamagedCheckpointError: they do not.
    """
    ends = {_place(split): split.end_offset for split in record.splits}
    for split in logged:
        end = ends.get(_place(split), split.end_offset)
        if end != split.end_offset:
            where = {"split": split.name, "logged_end": split.end_offset, "decided_end": end}
            raise _not_the_same(record.batch_id, where)


def _require_on_record(ranges: Iterable[SplitRange], record: RegionRecord) -> None:
    """Refuse records of a split that the last decided batch does not have; pure.

    A partition was found between two plans of the batch. A record holds all splits of its batch,
    also those that are empty; but older ones have two sources under the id of the first, so of a
    source that they do not know they say nothing.
    """
    sources = {split.source_id for split in record.splits}
    known = {_place(split) for split in record.splits}
    for split in ranges:
        if split.source_id in sources and not split.is_empty and _place(split) not in known:
            where = {"split": split.name, "logged_end": split.end_offset, "decided_end": "none"}
            raise _not_the_same(record.batch_id, where)


def _place(split: SplitRange) -> tuple[str, str, int]:
    return split.source_id, split.topic, split.partition


def _not_the_same(batch_id: int | None, where: dict[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "Spark's offset log and the last decided checkpoint do not agree on a batch",
        {"batch_id": batch_id, **where},
        "Going on would skip records. Put Spark's log back, or start anew, with a new checkpoint "
        "location, at the offsets that `sluice checkpoint inspect` shows.",
    )


def batches_beyond(names: list[str], last_batch_id: int) -> list[str]:
    """Entries of a Spark log directory that belong to batches after ``last_batch_id``; pure.

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

    The commit log goes first: killed in between, an offset without a commit is replayed, which is
    known by its batch id; a commit without an offset would be a batch that Spark skips.
    """
    for log in ("commits", "offsets"):
        directory = f"{location}/{log}"
        beyond = batches_beyond([entry.name for entry in fs.entries(directory)], last_batch_id)
        for name in reversed(beyond):
            fs.delete(f"{directory}/{name}")
