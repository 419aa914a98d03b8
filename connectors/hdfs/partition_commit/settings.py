"""Settings of partition commit, named as in Flink's file system connector."""

import enum
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

from sluice.connectors.hdfs.formats.time_zones import time_zone
from sluice.connectors.hdfs.partition_commit.partition_time import PartitionTimes
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import KAFKA_TIME, BoundedOutOfOrderness, EventTime
from sluice.runtime.model.spelling import nearest

__all__ = ["OnLate", "PartitionCommit", "PartitionMark", "Policy", "Trigger", "Webhook"]

_SUCCESS_FILE = "success-file"


class Trigger(enum.StrEnum):
    """The event that makes a partition complete."""

    PROCESS_TIME = "process-time"  # the driver's clock, from the partition's first file
    PARTITION_TIME = "partition-time"  # the watermark, against the time in the partition's values


class OnLate(enum.StrEnum):
    """The reaction to records for a partition that is already marked."""

    RE_MARK = "re-mark"  # publish them, then run the policies again
    ERROR = "error"  # stop the job before their epoch is acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMark:
    """The value that a policy gets: this partition is complete, as far as the job can know.

    Attributes:
        job_name, job_uid, operator_id: of the job and its sink.
        target: URI of the directory that the sink writes.
        partition: directory below it, such as ``dt=2026-01-01/hour=07``.
        values: by partition column, as text; None for null and for an empty text.
        sequence: the first checkpoint that the newest file can be part of; grows with each further
            mark.
        is_late: whether it was marked before, or its time had passed before its files came.
        key: the same for each repetition of one mark, and for no other.
    """

    job_name: str
    job_uid: str
    operator_id: str
    target: str
    partition: str
    values: Mapping[str, str | None]
    sequence: int
    is_late: bool
    key: str


@dataclass(frozen=True, slots=True)
class Webhook:
    """Posts each mark as JSON to a server; an answer of 200 to 299 accepts it.

    At least once: ``Idempotency-Key`` is the same for each repetition of one mark.

    Attributes:
        url: an ``http`` or ``https`` address.
        timeout_s: of one request.
        headers: HTTP headers, such as credentials; not shown in settings and logs.
    """

    url: str = field(repr=False)
    timeout_s: float = field(default=10.0, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or self.timeout_s <= 0:
            raise ConfigError(
                "a webhook needs a server address and a positive time-out",
                {"url": self.place, "timeout_s": self.timeout_s},
                "Write Webhook(url='https://host/path').",
            )

    @property
    def place(self) -> str:
        """The address without the parts that may be secret."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}"


Policy: TypeAlias = str | Webhook | Callable[[PartitionMark], object]
"""``success-file``, a webhook, or a user's function, which runs in the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommit:
    """When partitions are complete, and how readers are notified.

    Attributes:
        trigger: ``process-time``: from the first file on; ``partition-time``: the watermark passed
            the time in the partition's values.
        delay_s: added to either time; 3600 for hourly partitions named by their start.
        policies: run in this order; ``success-file``, a `Webhook`, a function that takes a
            `PartitionMark` and may be called again for the same one.
        success_file_name: name of the empty file of ``success-file``.
        timestamp_pattern: how values become a time: ``$dt $hour:00:00``; None: the first partition
            column is the time. The result is ``yyyy-mm-dd`` or ``yyyymmdd``, with or
            without ``hh:mm:ss``.
        watermark_time_zone: time zone of the values; None: the Spark session's.
        watermark_delay_s: by how much the watermark lags the newest timestamp of each split.
        idle_timeout_s: a split without records for this long no longer delays completion; None:
            never.
        on_late: records for a marked partition: ``re-mark`` it, or stop with an ``error``.
    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    trigger: str = Trigger.PROCESS_TIME
    delay_s: float = 0.0
    policies: Sequence[Policy] = (_SUCCESS_FILE,)
    success_file_name: str = "_SUCCESS"
    timestamp_pattern: str | None = None
    watermark_time_zone: str | None = None
    watermark_delay_s: float = 0.0
    idle_timeout_s: float | None = None
    on_late: str = OnLate.RE_MARK

    def __post_init__(self) -> None:
        _require_known("trigger", self.trigger, [*Trigger])
        _require_known("on_late", self.on_late, [*OnLate])
        policies = self.policies
        if isinstance(policies, str | Webhook) or callable(policies):
            object.__setattr__(self, "policies", (policies,))
        for policy in self.policies:
            if isinstance(policy, str):
                _require_known("policies", policy, [_SUCCESS_FILE])
        _ = self.times  # which checks the time zone
        if self.delay_s < 0 or not self.policies:
            raise ConfigError(
                "a setting of partition commit is out of range",
                {"delay_s": self.delay_s, "policies": len(self.policies)},
                "Give a delay of zero or more, and at least one policy.",
            )
        name = self.success_file_name
        if not name.startswith(("_", ".")) or "/" in name:
            raise ConfigError(
                "readers would take the success file for data",
                {"success_file_name": name},
                "Give it a name that begins with '_' or '.', without '/'.",
            )
        _ = self.watermarks  # which checks its own numbers

    @property
    def is_by_partition_time(self) -> bool:
        """Whether watermarks are needed."""
        return self.trigger == Trigger.PARTITION_TIME

    @property
    def stops_at_late(self) -> bool:
        """Whether late records stop the job."""
        return self.on_late == OnLate.ERROR

    @property
    def has_success_file(self) -> bool:
        """Whether a success file shows which partitions are marked."""
        return _SUCCESS_FILE in self.policies

    @property
    def delay_ms(self) -> int:
        """`delay_s` in whole milliseconds."""
        return round(self.delay_s * 1000)

    @property
    def watermarks(self) -> EventTime | None:
        """The watermarks that the region's tasks must report."""
        asked = EventTime(
            KAFKA_TIME,
            strategy=BoundedOutOfOrderness(self.watermark_delay_s),
            idle_after=self.idle_timeout_s,
        )
        return asked if self.is_by_partition_time else None

    def in_session(self, session_zone: str) -> Self:
        """The same with the time zone of a Spark session, unless the user has chosen one.

        Raises:
            ConfigError: partitions need a time, and Java alone knows the session's zone.
        """
        is_chosen = self.watermark_time_zone is not None or not self.is_by_partition_time
        return self if is_chosen else replace(self, watermark_time_zone=session_zone)

    @property
    def times(self) -> PartitionTimes:
        """How to compute a partition's time from its values; see `in_session`."""
        zone = time_zone(self.watermark_time_zone or "UTC")
        return PartitionTimes(pattern=self.timestamp_pattern, zone=zone)

    def check_columns(self, partition_by: Sequence[str]) -> None:
        """Refuse a sink without partitions, or with partitions that cannot have a time.

        Raises:
            ConfigError: names the column.
        """
        if not partition_by:
            raise ConfigError(
                "partition commit needs a sink with partitions",
                {"partition_by": ""},
                "Name columns in partition_by, or leave partition_commit out.",
            )
        unknown = sorted(self.times.columns - set(partition_by))
        if unknown and self.is_by_partition_time:
            raise ConfigError(
                "timestamp_pattern names a column that is not in partition_by",
                {"columns": ",".join(unknown), "partition_by": ",".join(partition_by)},
                "Name columns of partition_by in timestamp_pattern.",
            )

    def settings(self) -> Mapping[str, str]:
        """For ``_metadata``; no secrets."""
        return {
            "trigger": str(self.trigger),
            "delay_s": str(self.delay_s),
            "policies": ",".join(map(_shown, self.policies)),
            "on_late": str(self.on_late),
            "watermark_delay_s": str(self.watermark_delay_s),
            "idle_timeout_s": str(self.idle_timeout_s),
        }


def _shown(policy: Policy) -> str:
    if isinstance(policy, str):
        return policy
    if isinstance(policy, Webhook):
        return f"webhook {policy.place}"
    return f"function {getattr(policy, '__name__', type(policy).__name__)}"


def _require_known(setting: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        guess = nearest(value, set(known))
        raise ConfigError(
            "partition commit has no such setting value",
            {setting: value, "known": ",".join(known)},
            f"Did you mean {guess}?" if guess else "Use one of these.",
        )
