"""Time zones by the names that both Spark and Arrow know. Pure."""

import datetime
import re
from zoneinfo import ZoneInfo

from sluice.runtime.errors import ConfigError

__all__ = ["time_zone"]

_OFFSET = re.compile(r"(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>\d\d):(?P<minutes>\d\d)")


def time_zone(name: str) -> datetime.tzinfo:
    """The zone of a region, ``Europe/Rome``, or of an offset, ``+02:00``.

    Raises:
        ConfigError: there is no such zone, or Java alone knows it under this name.
    """
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is None:
            return ZoneInfo(name)
        east = datetime.timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"]))
        return datetime.timezone(-east if offset["sign"] == "-" else east)
    except (KeyError, ValueError, OSError):  # ZoneInfo: unknown, not a name, a directory
        raise ConfigError(
            "there is no such time zone",
            {"time_zone": name},
            "Set spark.sql.session.timeZone (or watermark_time_zone) to a region such as "
            "Europe/Rome, or to an offset such as +02:00.",
        ) from None
