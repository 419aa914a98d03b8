"""Dates and timestamps as text, by Java's patterns, a whole column at once. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["SPARKS_OWN", "Pattern", "TemporalFormat"]

_SECONDS = {"yyyy": "%Y", "uuuu": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# Three letters cut off an offset's seconds, as Java does: local mean times have some, and are
# then read as other instants. Five keep them.
_OFFSETS = {"XXX": ("Z", False), "xxx": ("+00:00", False)} | {  # letters of Spark's patterns
    "XXXXX": ("Z", True),  # as above
    "xxxxx": ("+00:00", True),
}
_LONGEST_FRACTION = 6
_EXAMPLE = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX"  # a pattern of Spark's
_TOKEN = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>.)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class _Fraction:
    """So many digits of the second's fraction."""

    digits: int


@dataclass(frozen=True, slots=True)
class _Offset:
    """The zone's offset.

    Attributes:
        zero: what stands for none.
        has_seconds: they are shown where there are some.
    """

    zero: str
    has_seconds: bool


_Part = str | _Fraction | _Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern of Java's DateTimeFormatter, as far as it is known here.

    Attributes:
        parts: in their order; a string is what ``strftime`` takes.
    """

    parts: "tuple[_Part, ...]"

    @classmethod
    def of(cls, pattern: str) -> Self:
        """Parse; ``[`` and ``]`` (optional when parsing) mean nothing in writing.

        Raises:
            ValueError: completes "Give …".
        """
        parts = [part for match in _TOKEN.finditer(pattern) if (part := _part(match))]
        if not parts:
            raise ValueError(f"a pattern such as {_EXAMPLE}")
        return cls(parts=_merged(parts))

    def of_local(self) -> "Pattern":
        """The same without the offset: for timestamps that have no zone."""
        return Pattern(parts=tuple(part for part in self.parts if not isinstance(part, _Offset)))


def _part(match: re.Match[str]) -> "_Part":
    letters = match["letters"]
    if match["other"] == "'":
        raise ValueError(f"a pattern with an even number of quotes, such as {_EXAMPLE}")
    if letters is None:
        return _literal(match)
    if letters in _SECONDS:
        return _SECONDS[letters]
    if letters in _OFFSETS:
        return _Offset(*_OFFSETS[letters])
    if set(letters) == {"S"} and len(letters) <= _LONGEST_FRACTION:
        return _Fraction(len(letters))
    raise ValueError(
        "a pattern of yyyy, MM, dd, HH, mm, ss, S to SSSSSS, "
        "XXX, XXXXX, xxx, xxxxx and quoted "  # Spark's letters
        f"text; {letters} is not known here"
    )


def _literal(match: re.Match[str]) -> str:
    quoted = match["quoted"]
    if quoted is None:
        return "" if match["other"] in ("[", "]") else str(match["other"]).replace("%", "%%")
    return (quoted or "'").replace("''", "'").replace("%", "%%")


def _merged(parts: Sequence["_Part"]) -> "tuple[_Part, ...]":
    """Neighbours that one strftime renders together."""
    merged: list[_Part] = []
    for part in parts:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return tuple(merged)


_DAY = Pattern.of("yyyy-MM-dd")
_MILLIS_AND_OFFSET = Pattern.of("yyyy-MM-dd'T'HH:mm:ss.SSSXXXXX")  # Spark's default
_LOCAL_MILLIS = _MILLIS_AND_OFFSET.of_local()


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalFormat:
    """How a text format spells dates and timestamps; Spark's defaults drop microseconds, and keep
    the seconds of an offset.

    Attributes:
        time_zone: in which timestamps are shown, e.g. ``Europe/Rome``.
        date: pattern of dates.
        timestamp: pattern of instants.
        local_timestamp: pattern of timestamps without a zone.
    """

    time_zone: str = "UTC"
    date: Pattern = _DAY
    timestamp: Pattern = _MILLIS_AND_OFFSET
    local_timestamp: Pattern = _LOCAL_MILLIS

    def of_dates(self, column: pa.Array) -> pa.Array:
        """date32 as strings; null stays null."""
        return _rendered(self.date, column.cast(pa.timestamp("us")), None)

    def of_timestamps(self, column: pa.Array) -> pa.Array:
        """timestamp[us], with or without a zone, as strings; null stays null."""
        if column.type.tz is None:
            return _rendered(self.local_timestamp, column, None)
        zoned = column.cast(pa.timestamp("us", tz=self.time_zone))
        local = pc.local_timestamp(zoned)
        return _rendered(self.timestamp, local, pc.subtract(_micros(local), _micros(zoned)))


SPARKS_OWN = TemporalFormat()
"""What Spark's writers do when nothing is said, in UTC."""


def _rendered(pattern: Pattern, local: pa.Array, offsets: pa.Array | None) -> pa.Array:
    """Each part as a column, then joined.

    Args:
        pattern: with zone offsets only where ``offsets`` are given.
        local: the wall clock, timestamp[us].
        offsets: of the zone at each instant, in microseconds.
    """
    floored = pc.floor_temporal(local, unit="second")
    columns = []
    for part in pattern.parts:
        if isinstance(part, _Offset):
            columns.append(_offset(offsets, part))
        elif isinstance(part, _Fraction):
            columns.append(_fraction(local, floored, digits=part.digits))
        else:
            columns.append(pc.strftime(floored.cast(pa.timestamp("s")), part))
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "")


def _fraction(local: pa.Array, floored: pa.Array, *, digits: int) -> pa.Array:
    micros = pc.subtract(_micros(local), _micros(floored))
    padded = pc.utf8_lpad(micros.cast(pa.string()), _LONGEST_FRACTION, "0")
    return pc.utf8_slice_codeunits(padded, 0, digits)


def _offset(offsets: pa.Array, part: _Offset) -> pa.Array:
    encoded = offsets.dictionary_encode()  # a zone has few
    spelt = [_spelt_offset(micros // 1_000_000, part) for micros in encoded.dictionary.to_pylist()]
    return pa.array(spelt, pa.string()).take(encoded.indices)


def _spelt_offset(seconds: int, part: _Offset) -> str:
    hours, rest = divmod(abs(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    if not (hours or minutes or (rest and part.has_seconds)):
        return part.zero
    tail = f":{rest:02d}" if rest and part.has_seconds else ""
    return f"{'-' if seconds < 0 else '+'}{hours:02d}:{minutes:02d}{tail}"


def _micros(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64())
