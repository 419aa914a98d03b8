"""Staged files that stay pending over epochs, and their form in checkpoints. Pure.

A region's record names them as a state of the sink. Each decision passes them on, neither committed
nor aborted, until a later epoch publishes their rows (`files-with-decision`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.connectors.hdfs.staging.committables import InvalidFileSetError, is_within
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

__all__ = [
    "PENDING_KIND",
    "PENDING_VERSION",
    "PendingFile",
    "PendingFiles",
    "decode_pending_files",
    "encode_pending_files",
    "pending_partitions",
]

PENDING_KIND = "pending-files"
PENDING_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFile:
    """A whole staged file that no decision has published yet.

    Attributes:
        directory: of its partition, relative to the target; "" without partitions.
        staging: directory of the attempt that wrote it, relative to the target's parent.
        staged: relative to ``staging``.
        length_bytes: > 0.
        rows: in the file; None if the format has no row count in its footer.
        first_ms, last_ms: when its oldest and its newest row were staged.
        level: number of merges of its rows so far.
    """

    directory: str
    staging: str
    staged: str
    length_bytes: int
    rows: int | None
    first_ms: int
    last_ms: int
    level: int = 0

    def __post_init__(self) -> None:
        paths = (self.staging, self.staged, *filter(None, (self.directory,)))
        numbers = (self.length_bytes - 1, self.rows or 0, self.level, self.last_ms - self.first_ms)
        if not all(map(is_within, paths)) or min(numbers) < 0:
            raise InvalidFileSetError(
                "a pending file is out of range",
                {"staging": self.staging, "staged": self.staged, "length": self.length_bytes},
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def path(self) -> str:
        """Relative to the parent of the target."""
        return f"{self.staging}/{self.staged}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFiles:
    """All pending files of one region of one sink.

    Attributes:
        target: URI of the directory that readers read.
        layout: hash of format, columns and options: files of one layout may be merged.
        files: in any order, each once.
    """

    target: str
    layout: str
    files: tuple[PendingFile, ...] = field(default=())

    @property
    def stagings(self) -> frozenset[str]:
        """Directories that no sweep may touch."""
        return frozenset(file.staging for file in self.files)


def encode_pending_files(pending: PendingFiles, *, operator_id: str) -> StateEntry:
    """The state that stands in an acknowledgement and in ``_metadata``."""
    stagings = sorted(pending.stagings)
    places = {staging: place for place, staging in enumerate(stagings)}
    content = {
        "target": pending.target,
        "layout": pending.layout,
        "stagings": stagings,
        "files": [
            [
                file.directory,
                places[file.staging],
                file.staged,
                file.length_bytes,
                file.rows,
                file.first_ms,
                file.last_ms,
                file.level,
            ]
            for file in pending.files
        ],
    }
    entry = committable(
        content, kind=PENDING_KIND, version=PENDING_VERSION, operator_id=operator_id
    )
    return replace(entry, state_name=PENDING_KIND)


def decode_pending_files(entry: StateEntry) -> PendingFiles:
    """The pending files inside a state.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
        InvalidFileSetError: a value is out of range.
    """
    return content_of(
        entry,
        _from_content,
        kind=PENDING_KIND,
        version=PENDING_VERSION,
        what="a list of pending files",
    )


def pending_partitions(states: Sequence[StateEntry]) -> frozenset[str]:
    """Directories of the partitions with pending files, from a sink's states."""
    return frozenset(
        file.directory
        for entry in states
        if entry.kind == PENDING_KIND
        for file in decode_pending_files(entry).files
    )


def _from_content(content: Mapping[str, object]) -> PendingFiles:
    (stagings,) = rows([content["stagings"]])
    return PendingFiles(
        target=text(content["target"]),
        layout=text(content["layout"]),
        files=tuple(
            PendingFile(
                directory=text(directory),
                staging=text(stagings[_place(place, stagings)]),
                staged=text(staged),
                length_bytes=number(length),
                rows=None if count is None else number(count),
                first_ms=number(first_ms),
                last_ms=number(last_ms),
                level=number(level),
            )
            for directory, place, staged, length, count, first_ms, last_ms, level in rows(
                content["files"]
            )
        ),
    )


def _place(value: object, stagings: Sequence[object]) -> int:
    place = number(value)
    if not 0 <= place < len(stagings):
        raise ValueError(f"there is no staging directory {place}")
    return place
