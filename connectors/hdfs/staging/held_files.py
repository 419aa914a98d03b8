"""Staged files that are held over epochs, and the form in which checkpoints keep them. Pure.

A region's record names them as a state of the sink: carried from decision to decision, neither
committed nor aborted, until a later epoch publishes their rows (`files-with-decision`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.connectors.hdfs.staging.committables import InvalidFileSetError, is_within
from sluice.runtime.model.model import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text

__all__ = [
    "HELD_KIND",
    "HELD_VERSION",
    "HeldFile",
    "HeldFiles",
    "decode_held_files",
    "encode_held_files",
    "held_partitions",
]

HELD_KIND = "held-files"
HELD_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A whole staged file whose rows no reader has seen yet.

    Attributes:
        directory: of its partition, relative to the target; "" without partitions.
        staging: directory of the attempt that wrote it, relative to the target's parent.
        staged: relative to ``staging``.
        length_bytes: > 0.
        rows: in the file; None where the format does not tell without reading it.
        first_ms, last_ms: when its oldest and its newest row were staged.
        level: how many merges its rows have been through.
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
                "a held file is out of range",
                {"staging": self.staging, "staged": self.staged, "length": self.length_bytes},
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def path(self) -> str:
        """Relative to the parent of the target."""
        return f"{self.staging}/{self.staged}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFiles:
    """All that one region of one sink holds.

    Attributes:
        target: URI of the directory that they are meant for.
        layout: tells files that may be merged from others: format, columns, options.
        files: in any order; none is there twice.
    """

    target: str
    layout: str
    files: tuple[HeldFile, ...] = field(default=())

    @property
    def stagings(self) -> frozenset[str]:
        """Directories that no sweep may touch."""
        return frozenset(file.staging for file in self.files)


def encode_held_files(held: HeldFiles, *, operator_id: str) -> StateEntry:
    """The state that stands in an acknowledgement and in ``_metadata``."""
    stagings = sorted(held.stagings)
    places = {staging: place for place, staging in enumerate(stagings)}
    content = {
        "target": held.target,
        "layout": held.layout,
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
            for file in held.files
        ],
    }
    entry = committable(content, kind=HELD_KIND, version=HELD_VERSION, operator_id=operator_id)
    return replace(entry, state_name=HELD_KIND)


def decode_held_files(entry: StateEntry) -> HeldFiles:
    """The held files inside a state.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
        InvalidFileSetError: a value is out of range.
    """
    return content_of(
        entry, _from_content, kind=HELD_KIND, version=HELD_VERSION, what="files held over epochs"
    )


def held_partitions(states: Sequence[StateEntry]) -> frozenset[str]:
    """Directories of partitions with held files, told from a sink's states."""
    return frozenset(
        file.directory
        for entry in states
        if entry.kind == HELD_KIND
        for file in decode_held_files(entry).files
    )


def _from_content(content: Mapping[str, object]) -> HeldFiles:
    (stagings,) = rows([content["stagings"]])
    return HeldFiles(
        target=text(content["target"]),
        layout=text(content["layout"]),
        files=tuple(
            HeldFile(
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
