"""Decides which pending files to merge and publish: rule `files-with-decision`. Pure.

One decision keeps or publishes all files of an epoch. The pending files follow from those of the
last decided record, the files that this epoch staged, the policy and the time.
"""

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.hdfs.staging.pending_files import PendingFile
from sluice.runtime.errors import ConfigError

__all__ = [
    "FAN_IN",
    "FILES_AT_ONCE",
    "Merge",
    "Outcome",
    "Plan",
    "Roll",
    "again_in_s",
    "plan",
    "settle",
]

FAN_IN = 16
"""Number of files of one level that become one file of the next. Each row is written again once
per level, and a directory holds fewer than this number of files of each level."""

FILES_AT_ONCE = 1000
"""About how many files one epoch merges or publishes, so that it ends in time; the next one
continues."""

_SIZE = re.compile(r"(?P<count>\d+)(?P<unit>[kmgt]?)b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """Keep staged files pending over epochs, and publish few large ones instead of many small ones.

    Each partition directory of each region rolls by itself, with an epoch's decision. Files lag
    Kafka by up to ``age`` plus the checkpoint interval.

    Attributes:
        size: publish at this size: bytes, or a text such as ``128m``.
        age: publish when the oldest pending row has this age in seconds.
        idle: publish when no row arrived for this many seconds; None: never for this reason.
    Raises:
        ConfigError: a value is not a size, not above zero, or without end.
    """

    size: int | str = "128m"
    age: float = 300.0
    idle: float | None = None

    def __post_init__(self) -> None:
        times = [each for each in (self.age, self.idle) if each is not None]
        if self.size_bytes <= 0 or not all(0 < each < math.inf for each in times):
            raise ConfigError(
                "a limit for rolling files is not positive and finite",
                {"size": self.size, "age": self.age, "idle": self.idle},
                "Give a size in bytes or such as '128m', and ages in seconds.",
            )

    @property
    def size_bytes(self) -> int:
        """`size` as a number."""
        if isinstance(self.size, int):
            return self.size
        match = _SIZE.fullmatch(str(self.size).strip())
        if match is None:
            raise ConfigError(
                "the size of rolling files is not a size",
                {"size": self.size},
                "Give a number of bytes, or a number followed by k, m, g or t.",
            )
        return int(match["count"]) << _UNITS[match["unit"].lower()]

    def __str__(self) -> str:
        idle = "" if self.idle is None else f", idle {self.idle:g} s"
        return f"{self.size_bytes} bytes, age {self.age:g} s{idle}"


class Then(enum.Enum):
    """The fate of a merged file."""

    KEEP = "keep"
    PUBLISH = "publish"
    PUBLISH_IF_WHOLE = "publish if whole"  # merged files are smaller than their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Files of one directory that become one file.

    Attributes:
        files: at least two.
        then: the fate of the merged file.
    """

    files: tuple[PendingFile, ...]
    then: Then

    @property
    def directory(self) -> str:
        """Of the partition."""
        return self.files[0].directory

    @property
    def rows(self) -> int | None:
        """The row count that the merged file must have; None if the format has none."""
        return _sum(file.rows for file in self.files)

    def merged(
        self, *, staging: str, staged: str, length_bytes: int, rows: int | None
    ) -> PendingFile:
        """The pending file for a file that the merge wrote."""
        return PendingFile(
            directory=self.directory,
            staging=staging,
            staged=staged,
            length_bytes=length_bytes,
            rows=rows,
            first_ms=min(file.first_ms for file in self.files),
            last_ms=max(file.last_ms for file in self.files),
            level=1 + max(file.level for file in self.files),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The work of one epoch. Every file is in exactly one of the three.

    Attributes:
        merges: run first.
        publish: as they are.
        keep: as they are, pending.
    """

    merges: tuple[Merge, ...]
    publish: tuple[PendingFile, ...]
    keep: tuple[PendingFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The files that the epoch's decision publishes, and those that stay pending in its record."""

    publish: tuple[PendingFile, ...]
    keep: tuple[PendingFile, ...]


def plan(files: Iterable[PendingFile], roll: Roll, *, now_ms: int, publishes_all: bool) -> Plan:
    """Plan the pending files and the files that this epoch staged.

    Args:
        files: both kinds, of one target and layout.
        roll: the policy.
        now_ms: wall clock; files with a later stamp count as stamped now.
        publishes_all: no file stays pending.
    Returns:
        A plan for the directories that are due first, with about `FILES_AT_ONCE` files; for all
        directories if ``publishes_all``.
    """
    parts: list[Plan] = []
    room = FILES_AT_ONCE
    known = [_not_ahead(file, now_ms) for file in files]
    for found in sorted(_by_directory(known).values(), key=lambda each: _due_ms(each, roll)):
        part = _plan_directory(found, roll, now_ms=now_ms, publishes_all=publishes_all)
        if room <= 0 and not publishes_all:
            part = Plan(merges=(), publish=(), keep=tuple(found))
        room -= len(part.merges) + len(part.publish)
        parts.append(part)
    return Plan(
        merges=tuple(merge for part in parts for merge in part.merges),
        publish=tuple(file for part in parts for file in part.publish),
        keep=tuple(file for part in parts for file in part.keep),
    )


def settle(planned: Plan, merged: Sequence[Sequence[PendingFile]], roll: Roll) -> Outcome:
    """The outcome of a plan after its merges.

    Args:
        planned: by `plan`.
        merged: for each merge the files that it wrote; one, unless the writer splits files.
        roll: the policy.
    """
    publish, keep = list(planned.publish), list(planned.keep)
    for merge, files in zip(planned.merges, merged, strict=True):
        for file in files:
            # If the writer splits files, another merge would only make the same parts again.
            is_whole = file.length_bytes >= roll.size_bytes or len(files) > 1
            is_out = merge.then is Then.PUBLISH or (merge.then is not Then.KEEP and is_whole)
            (publish if is_out else keep).append(file)
    return Outcome(publish=tuple(publish), keep=tuple(keep))


def again_in_s(pending: Iterable[PendingFile], roll: Roll, *, now_ms: int) -> float | None:
    """Seconds until a pending file must be published even without new rows; None: no file is
    pending."""
    due_ms = [_due_ms(files, roll) for files in _by_directory(pending).values()]
    return max(min(due_ms) - now_ms, 0) / 1000 if due_ms else None


def _plan_directory(
    files: Sequence[PendingFile], roll: Roll, *, now_ms: int, publishes_all: bool
) -> Plan:
    size_bytes = roll.size_bytes
    whole = tuple(file for file in files if file.length_bytes >= size_bytes)
    rest = sorted(
        (file for file in files if file.length_bytes < size_bytes),
        key=lambda file: (file.first_ms, file.staging, file.staged),
    )
    if rest and (publishes_all or now_ms >= _due_ms(rest, roll)):
        return _rolled(whole, rest, size_bytes)
    bins, left = _full_bins(rest, size_bytes)
    merges = [Merge(files=tuple(found), then=Then.PUBLISH_IF_WHOLE) for found in bins]
    many = _many_of_a_level(left)
    if many:
        merges.append(Merge(files=tuple(many), then=Then.KEEP))
    apart = frozenset(many)
    return Plan(
        merges=tuple(merges),
        publish=whole,
        keep=tuple(file for file in left if file not in apart),
    )


def _rolled(whole: tuple[PendingFile, ...], rest: Sequence[PendingFile], size_bytes: int) -> Plan:
    """Publish all; a merged file has fewer bytes than its parts, so the last files join one."""
    bins, left = _full_bins(rest, size_bytes)
    if len(bins) < 2:
        bins, left = [list(rest)], []
    bins[-1].extend(left)
    return Plan(
        merges=tuple(
            Merge(files=tuple(found), then=Then.PUBLISH) for found in bins if len(found) > 1
        ),
        publish=(*whole, *(found[0] for found in bins if len(found) == 1)),
        keep=(),
    )


def _full_bins(
    files: Iterable[PendingFile], size_bytes: int
) -> tuple[list[list[PendingFile]], list[PendingFile]]:
    """Files grouped in order into groups of at least a size, and the files that do not fill one."""
    bins: list[list[PendingFile]] = []
    open_bin: list[PendingFile] = []
    filled_bytes = 0
    for file in files:
        open_bin.append(file)
        filled_bytes += file.length_bytes
        if filled_bytes >= size_bytes:
            bins.append(open_bin)
            open_bin, filled_bytes = [], 0
    return bins, open_bin


def _many_of_a_level(files: Sequence[PendingFile]) -> list[PendingFile]:
    """The files to merge into one, so that each level has fewer than `FAN_IN` files afterwards."""
    chosen: list[PendingFile] = []
    for level in range(max((file.level for file in files), default=-1) + 1):
        found = [file for file in files if file.level == level]
        if len(found) + bool(chosen) < FAN_IN:
            if chosen:
                break
            continue
        chosen = [file for file in files if file.level <= level]
    return chosen


def _not_ahead(file: PendingFile, now_ms: int) -> PendingFile:
    """The file with times not after now. The clock that stamped it may have been set back, or
    may be another host's; without this, its rows would wait until this clock reaches that time."""
    if file.last_ms <= now_ms:
        return file
    return replace(file, first_ms=min(file.first_ms, now_ms), last_ms=now_ms)


def _due_ms(files: Iterable[PendingFile], roll: Roll) -> int:
    """The time at which the files of one directory must be published, even without new rows."""
    found = list(files)
    by_age = min(file.first_ms for file in found) + int(roll.age * 1000)
    if roll.idle is None:
        return by_age
    return min(by_age, max(file.last_ms for file in found) + int(roll.idle * 1000))


def _by_directory(files: Iterable[PendingFile]) -> Mapping[str, list[PendingFile]]:
    found: dict[str, list[PendingFile]] = {}
    for file in files:
        found.setdefault(file.directory, []).append(file)
    return found


def _sum(counts: Iterable[int | None]) -> int | None:
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
