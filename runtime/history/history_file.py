"""The file ``_history`` in a checkpoint directory, for people: past runs and checkpoints.

It is a sequence of gzip members, so ``zcat`` shows it. Each line is a JSON list: the part that an
entry belongs to, and the entry. The first line is ``["format", 1]``. A new entry is compressed
once, and a write joins the members. Each part has a limit of its own, so that many checkpoints
leave the entries of attempts, savepoints and runs alone. The oldest members of a part go first.
"""

import gzip
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sluice.runtime.errors import UnsupportedFormatError
from sluice.runtime.history.history_entries import expanded, merged
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "HISTORY_FILE",
    "PARTS",
    "History",
    "HistoryMembers",
    "decoded",
    "read_history",
    "shown",
]

HISTORY_FILE = "_history"
PARTS = ("checkpoints", "attempts", "savepoints", "runs", "samples")
"""The parts of a history, each oldest first."""

History = Mapping[str, Sequence[Any]]
"""Entries by part."""

_FORMAT = "format"
_FORMAT_VERSION = 1
_MOST_BYTES = {"checkpoints": 1_048_576, "samples": 262_144}
_MOST_OTHER_BYTES = 131_072
_LINES_IN_A_MEMBER = 500
_MOST_TEXT = 64 * 1024 * 1024  # far above what the limits allow
_GZIP = 31  # zlib's window bits for a gzip member
_LEVEL = 3  # the default of 9 takes several times as long for a few percent


class HistoryMembers:
    """The content of the file, compressed. Used by one thread."""

    def __init__(self) -> None:
        self._header = _member([[_FORMAT, _FORMAT_VERSION]])
        self._parts: dict[str, deque[bytes]] = {part: deque() for part in PARTS}
        self._sizes = dict.fromkeys(PARTS, 0)

    @property
    def size_bytes(self) -> int:
        """Of the content."""
        return len(self._header) + sum(self._sizes.values())

    def add(self, part: str, entries: Sequence[Any]) -> None:
        """Compress new entries of a part, and delete its oldest members if it is too large."""
        members, most = self._parts[part], _MOST_BYTES.get(part, _MOST_OTHER_BYTES)
        for start in range(0, len(entries), _LINES_IN_A_MEMBER):
            made = _member([part, each] for each in entries[start : start + _LINES_IN_A_MEMBER])
            members.append(made)
            self._sizes[part] += len(made)
        while self._sizes[part] > most:
            self._sizes[part] -= len(members.popleft())

    def content(self) -> bytes:
        """The whole file."""
        return b"".join((self._header, *(each for part in PARTS for each in self._parts[part])))


def _member(lines: Iterable[Sequence[Any]]) -> bytes:
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    return gzip.compress(text.encode(), _LEVEL, mtime=0)


def decoded(data: bytes) -> dict[str, list[Any]]:
    """The entries that can be read, as they were added. It leaves out damaged ones.

    Raises:
        UnsupportedFormatError: a later version wrote the file.
    """
    found: dict[str, list[Any]] = {part: [] for part in PARTS}
    for line in _lines(data):
        try:
            content: Any = parsed_json(line)
            part, entry = content
        except (ValueError, TypeError):
            continue
        if part == _FORMAT and isinstance(entry, int) and entry > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the history has format version {entry}",
                {"file": HISTORY_FILE, "readable": _FORMAT_VERSION},
                "Use the Sluice that runs the job, or a later one.",
            )
        if isinstance(part, str) and part in found and isinstance(entry, dict | list):
            found[part].append(entry)
    return found


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines of all members up to the first damaged one."""
    left = _MOST_TEXT
    while data and left > 0:
        member = zlib.decompressobj(_GZIP)
        try:
            text = member.decompress(data, left)
        except zlib.error:
            return
        left -= len(text)
        yield from text.splitlines()
        data = member.unused_data


def read_history(fs: FileSystem) -> History:
    """The history in a checkpoint directory, each part oldest first; empty if there is none.

    Args:
        fs: rooted at the checkpoint directory.
    Raises:
        UnsupportedFormatError: a later version wrote the file.
        StreamError: the store does not answer.
    """
    data = fs.read(HISTORY_FILE)
    return shown(decoded(data or b""))


def shown(entries: History) -> History:
    """Entries as they are shown: each savepoint and run once, as it was noted last. A part is made
    when it is read, because checkpoints are many."""
    return _Shown(entries)


class _Shown(Mapping[str, Sequence[Any]]):
    def __init__(self, entries: History) -> None:
        self._entries = entries

    def __getitem__(self, part: str) -> Sequence[Any]:
        return _MAKE[part](self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(PARTS)

    def __len__(self) -> int:
        return len(PARTS)


def _checkpoints(entries: History) -> Sequence[Any]:
    sizes = {each.get("checkpoint_id"): each.get("bytes") for each in _savepoints(entries)}
    return expanded(entries["checkpoints"], sizes)


def _savepoints(entries: History) -> list[dict[str, Any]]:
    return merged(entries["savepoints"], key="request_id")


def _runs(entries: History) -> Sequence[Any]:
    runs = merged(entries["runs"], key="attempt_id")
    for run in runs[:-1]:
        if "ended_ms" not in run:
            run["state"] = "lost"  # it was killed: a later one has begun
    return runs


_MAKE: Mapping[str, Callable[[History], Sequence[Any]]] = {
    "checkpoints": _checkpoints,
    "attempts": lambda entries: [each for each in entries["attempts"] if isinstance(each, dict)],
    "savepoints": _savepoints,
    "runs": _runs,
    "samples": lambda entries: [each for each in entries["samples"] if isinstance(each, list)],
}
