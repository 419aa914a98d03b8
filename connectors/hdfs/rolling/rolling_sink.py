"""When held files are merged, and when their rows are published: rule `files-with-decision`. Pure.

All files of an epoch are held or published by one decision. What is held is a function of what
the last decided record held, what this epoch staged, the policy and the time.
"""

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.hdfs.staging.held_files import HeldFile
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
"""So many files of one level become one of the next: each row is written again once per level, and
a directory holds fewer than so many files of each level."""

FILES_AT_ONCE = 1000
"""So many files one epoch merges or publishes, for it has to end in time; the next one goes on."""

_SIZE = re.compile(r"(?P<count>\d+)(?P<unit>[kmgt]?)b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """Hold staged files over epochs, and publish few large ones instead of many small ones.

    Each partition directory of each region rolls by itself, with an epoch's decision. Files trail
    Kafka by up to ``age`` and the checkpoint interval.

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
                "a limit for rolling files is not above zero, or has no end",
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
                "this is not a size of files",
                {"size": self.size},
                "Give a number of bytes, or one with k, m, g or t behind it.",
            )
        return int(match["count"]) << _UNITS[match["unit"].lower()]

    def __str__(self) -> str:
        idle = "" if self.idle is None else f", idle {self.idle:g} s"
        return f"{self.size_bytes} bytes, age {self.age:g} s{idle}"


class Then(enum.Enum):
    """What becomes of a merged file."""

    HOLD = "hold"
    PUBLISH = "publish"
    PUBLISH_IF_WHOLE = "publish if whole"  # merged files are smaller than their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Files of one directory that become one file.

    Attributes:
        files: at least two.
        then: what becomes of it.
    """

    files: tuple[HeldFile, ...]
    then: Then

    @property
    def directory(self) -> str:
        """Of the partition."""
        return self.files[0].directory

    @property
    def rows(self) -> int | None:
        """That the merged file must have; None where the format does not tell."""
        return _sum(file.rows for file in self.files)

    def merged(self, *, staging: str, staged: str, length_bytes: int, rows: int | None) -> HeldFile:
        """A file that the merge has written."""
        return HeldFile(
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
    """What to do in one epoch. Every file is in exactly one place.

    Attributes:
        merges: to be carried out first.
        publish: as they are.
        hold: as they are.
    """

    merges: tuple[Merge, ...]
    publish: tuple[HeldFile, ...]
    hold: tuple[HeldFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the epoch's decision publishes, and what its record holds."""

    publish: tuple[HeldFile, ...]
    hold: tuple[HeldFile, ...]


def plan(files: Iterable[HeldFile], roll: Roll, *, now_ms: int, is_last: bool) -> Plan:
    """What to do with what was held and what this epoch staged.

    Args:
        files: of both, of one target and layout.
        roll: the policy.
        now_ms: wall clock; files that were stamped later count as stamped now.
        is_last: the run ends with this epoch: nothing is held any longer.
    Returns:
        A plan for the directories that are due first, of `FILES_AT_ONCE` files or a few more; for
        all of them if ``is_last``.
    """
    parts: list[Plan] = []
    room = FILES_AT_ONCE
    known = [_not_ahead(file, now_ms) for file in files]
    for found in sorted(_by_directory(known).values(), key=lambda each: _due_ms(each, roll)):
        part = _plan_directory(found, roll, now_ms=now_ms, is_last=is_last)
        if room <= 0 and not is_last:
            part = Plan(merges=(), publish=(), hold=tuple(found))
        room -= len(part.merges) + len(part.publish)
        parts.append(part)
    return Plan(
        merges=tuple(merge for part in parts for merge in part.merges),
        publish=tuple(file for part in parts for file in part.publish),
        hold=tuple(file for part in parts for file in part.hold),
    )


def settle(planned: Plan, merged: Sequence[Sequence[HeldFile]], roll: Roll) -> Outcome:
    """The plan's end, once its merges are carried out.

    Args:
        planned: by `plan`.
        merged: for each merge the files that it wrote; one, unless the writer splits them.
        roll: the policy.
    """
    publish, hold = list(planned.publish), list(planned.hold)
    for merge, files in zip(planned.merges, merged, strict=True):
        for file in files:
            # Where the writer splits files, the next merge would make the same parts of them.
            is_whole = file.length_bytes >= roll.size_bytes or len(files) > 1
            is_out = merge.then is Then.PUBLISH or (merge.then is not Then.HOLD and is_whole)
            (publish if is_out else hold).append(file)
    return Outcome(publish=tuple(publish), hold=tuple(hold))


def again_in_s(held: Iterable[HeldFile], roll: Roll, *, now_ms: int) -> float | None:
    """Seconds until something held has to be published, also if nothing comes; None: nothing is."""
    due_ms = [_due_ms(files, roll) for files in _by_directory(held).values()]
    return max(min(due_ms) - now_ms, 0) / 1000 if due_ms else None


def _plan_directory(files: Sequence[HeldFile], roll: Roll, *, now_ms: int, is_last: bool) -> Plan:
    size_bytes = roll.size_bytes
    whole = tuple(file for file in files if file.length_bytes >= size_bytes)
    rest = sorted(
        (file for file in files if file.length_bytes < size_bytes),
        key=lambda file: (file.first_ms, file.staging, file.staged),
    )
    if rest and (is_last or now_ms >= _due_ms(rest, roll)):
        return _rolled(whole, rest, size_bytes)
    bins, left = _full_bins(rest, size_bytes)
    merges = [Merge(files=tuple(found), then=Then.PUBLISH_IF_WHOLE) for found in bins]
    many = _many_of_a_level(left)
    if many:
        merges.append(Merge(files=tuple(many), then=Then.HOLD))
    apart = frozenset(many)
    return Plan(
        merges=tuple(merges),
        publish=whole,
        hold=tuple(file for file in left if file not in apart),
    )


def _rolled(whole: tuple[HeldFile, ...], rest: Sequence[HeldFile], size_bytes: int) -> Plan:
    """All is published; a merged file has fewer bytes than its parts, so a few go into one."""
    bins, left = _full_bins(rest, size_bytes)
    if len(bins) < 2:
        bins, left = [list(rest)], []
    bins[-1].extend(left)
    return Plan(
        merges=tuple(
            Merge(files=tuple(found), then=Then.PUBLISH) for found in bins if len(found) > 1
        ),
        publish=(*whole, *(found[0] for found in bins if len(found) == 1)),
        hold=(),
    )


def _full_bins(
    files: Iterable[HeldFile], size_bytes: int
) -> tuple[list[list[HeldFile]], list[HeldFile]]:
    """Files dealt in order into groups of at least a size, and those that do not fill one."""
    bins: list[list[HeldFile]] = []
    open_bin: list[HeldFile] = []
    filled_bytes = 0
    for file in files:
        open_bin.append(file)
        filled_bytes += file.length_bytes
        if filled_bytes >= size_bytes:
            bins.append(open_bin)
            open_bin, filled_bytes = [], 0
    return bins, open_bin


def _many_of_a_level(files: Sequence[HeldFile]) -> list[HeldFile]:
    """What a merge makes one file of, so that levels have fewer than `FAN_IN` files afterwards."""
    chosen: list[HeldFile] = []
    for level in range(max((file.level for file in files), default=-1) + 1):
        found = [file for file in files if file.level == level]
        if len(found) + bool(chosen) < FAN_IN:
            if chosen:
                break
            continue
        chosen = [file for file in files if file.level <= level]
    return chosen


def _not_ahead(file: HeldFile, now_ms: int) -> HeldFile:
    """As staged now at the latest: the clock that stamped it may have been set back since, or been
    another host's, and its rows would wait until this one comes to that time."""
    if file.last_ms <= now_ms:
        return file
    return replace(file, first_ms=min(file.first_ms, now_ms), last_ms=now_ms)


def _due_ms(files: Iterable[HeldFile], roll: Roll) -> int:
    """When the files of one directory have to be published, with or without new rows."""
    found = list(files)
    by_age = min(file.first_ms for file in found) + int(roll.age * 1000)
    if roll.idle is None:
        return by_age
    return min(by_age, max(file.last_ms for file in found) + int(roll.idle * 1000))


def _by_directory(files: Iterable[HeldFile]) -> Mapping[str, list[HeldFile]]:
    found: dict[str, list[HeldFile]] = {}
    for file in files:
        found.setdefault(file.directory, []).append(file)
    return found


def _sum(counts: Iterable[int | None]) -> int | None:
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
