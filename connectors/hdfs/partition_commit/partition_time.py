"""The time of a partition, computed from its values. Pure.

Source: Flink's DefaultPartTimeExtractor: a pattern of ``$column``; without one, the first value.
"""

import datetime
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.connectors.hdfs.writing.partition_paths import DEFAULT_PARTITION
from sluice.runtime.errors import ConfigError

__all__ = ["PartitionTimes", "values_of"]

_COLUMN = re.compile(r"\$(\w+)")
_TIME = re.compile(
    r"(?:(?P<year>\d{4})-(?P<month>\d\d?)-(?P<day>\d\d?)|(?P<basic>\d{8}))"
    r"(?:[ T](?P<hour>\d\d?)(?::(?P<minute>\d\d?)(?::(?P<second>\d\d?)(?:\.\d+)?)?)?)?"
)


def values_of(partition: str) -> dict[str, str | None]:
    """Values by column of a directory such as ``dt=2026-01-01/hour=7``; None for null."""
    found: dict[str, str | None] = {}
    for part in partition.split("/"):
        column, _, value = part.partition("=")
        text = urllib.parse.unquote(value)
        found[urllib.parse.unquote(column)] = None if text == DEFAULT_PARTITION else text
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimes:
    """Computes the time at which a partition begins.

    Attributes:
        pattern: see `PartitionCommit.timestamp_pattern`.
        zone: time zone of the values.
    """

    pattern: str | None
    zone: datetime.tzinfo

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the pattern names."""
        return frozenset(_COLUMN.findall(self.pattern or ""))

    def begins_ms(self, partition: str) -> int | None:
        """The begin in epoch milliseconds; None if a value is null.

        If the wall clock shows the time twice, the later one counts: then it has passed for
        certain.

        Raises:
            ConfigError: the values are no time.
        """
        values = values_of(partition)
        needed = self.columns or set(list(values)[:1])
        if any(values.get(column) is None for column in needed):
            return None
        text = self._text(values)
        match = _TIME.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError(text)
            wall = _wall_clock(match)
            moments = [wall.replace(tzinfo=self.zone, fold=fold).timestamp() for fold in (0, 1)]
        except (ValueError, OverflowError) as err:
            raise ConfigError(
                "the values of a partition form no timestamp",
                {"partition": partition, "pattern": self.pattern or "the first column"},
                "Give a timestamp_pattern such as '$dt $hour:00:00' that fits them, filter such "
                "rows in the function before the sink, or trigger by process-time.",
            ) from err
        return round(max(moments) * 1000)

    def _text(self, values: Mapping[str, str | None]) -> str:
        if self.pattern is None:
            return next(iter(values.values())) or ""
        return _COLUMN.sub(lambda match: values[match[1]] or "", self.pattern)


def _wall_clock(match: re.Match[str]) -> datetime.datetime:
    if match["basic"]:
        digits = match["basic"]
        date = (int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    else:
        date = (int(match["year"]), int(match["month"]), int(match["day"]))
    hour, minute, second = (int(match[unit] or 0) for unit in ("hour", "minute", "second"))
    return datetime.datetime(*date, hour, minute, second)  # noqa: DTZ001 - the caller knows the zone
