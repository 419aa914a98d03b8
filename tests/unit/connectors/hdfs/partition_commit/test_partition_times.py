"""The time of a partition from its values, and what a user may say about partition commit."""

import datetime
from typing import Any

import pytest

from sluice import HdfsSink, PartitionCommit, PartitionMark, Webhook
from sluice.connectors.hdfs.formats.time_zones import time_zone
from sluice.connectors.hdfs.partition_commit.partition_time import PartitionTimes, values_of
from sluice.runtime.contracts import EventTimeSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import BoundedOutOfOrderness, EventTime

HOURLY = "$dt $hour:00:00"


def begins(partition: str, pattern: str | None = HOURLY, zone: str = "UTC") -> str | None:
    """In UTC, as text."""
    found = PartitionTimes(pattern=pattern, zone=time_zone(zone)).begins_ms(partition)
    if found is None:
        return None
    return datetime.datetime.fromtimestamp(found / 1000, datetime.UTC).isoformat(" ")[:19]


@pytest.mark.parametrize(
    ("partition", "pattern", "expected"),
    [
        ("dt=2026-03-01/hour=07", HOURLY, "2026-03-01 07:00:00"),
        ("dt=2026-03-01/hour=7", HOURLY, "2026-03-01 07:00:00"),
        ("topic=a/dt=20260301/hour=7", HOURLY, "2026-03-01 07:00:00"),
        ("y=2026/m=3/d=1", "$y-$m-$d", "2026-03-01 00:00:00"),
        ("dt=2026-03-01", None, "2026-03-01 00:00:00"),
        ("at=2026-03-01 07%3A30%3A05.25", None, "2026-03-01 07:30:05"),
        ("at=2026-03-01T07%3A30", None, "2026-03-01 07:30:00"),
    ],
)
def test_the_time_of_a_partition_is_made_of_its_values(
    partition: str, pattern: str | None, expected: str
) -> None:
    """By Flink's patterns; Spark writes an hour without a zero, and escapes colons."""
    assert begins(partition, pattern) == expected


def test_values_are_meant_in_the_zone_that_was_set() -> None:
    """Of an hour that comes twice the later one counts: only then is it over."""
    assert begins("dt=2026-07-01/hour=0", zone="Europe/Rome") == "2026-06-30 22:00:00"
    assert begins("dt=2026-07-01/hour=0", zone="+05:30") == "2026-06-30 18:30:00"
    assert begins("dt=2026-10-25/hour=2", zone="Europe/Rome") == "2026-10-25 01:00:00"


def test_a_null_has_no_time_and_nonsense_is_an_error() -> None:
    """Nobody waits for the one; the other would never be marked, and nobody would be told."""
    null = "dt=__HIVE_DEFAULT_PARTITION__/hour=7"
    assert values_of(null) == {"dt": None, "hour": "7"}
    assert begins(null) is None
    for partition in ("dt=soon/hour=7", "dt=2026-02-30/hour=7", "dt=2026-03-01/hour=25"):
        with pytest.raises(ConfigError, match="form no timestamp"):
            begins(partition)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trigger": "proces-time"},
        {"on_late": "ignore"},
        {"policies": ["succes-file"]},
        {"policies": []},
        {"delay_s": -1},
        {"watermark_delay_s": -1},
        {"idle_timeout_s": 0},
        {"watermark_time_zone": "Rome"},
        {"success_file_name": "DONE"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything runs; a misspelt one is guessed."""
    with pytest.raises(ConfigError):
        PartitionCommit(**wrong)


def test_a_sink_needs_the_partitions_that_its_marks_are_about() -> None:
    """And its pattern names partition columns."""
    with pytest.raises(ConfigError, match="needs a sink with partitions"):
        HdfsSink("/data/orders", partition_commit=PartitionCommit())
    by_time = PartitionCommit(trigger="partition-time", timestamp_pattern=HOURLY)
    with pytest.raises(ConfigError, match="hour"):
        HdfsSink("/data/orders", partition_by=["dt"], partition_commit=by_time)


@pytest.mark.parametrize(
    ("session", "chosen", "expected"),
    [
        ("America/New_York", None, "2026-03-01 12:00:00"),
        ("GMT-05:00", None, "2026-03-01 12:00:00"),
        ("Asia/Tokyo", None, "2026-02-28 22:00:00"),
        ("America/New_York", "UTC", "2026-03-01 07:00:00"),
    ],
)
def test_values_are_of_the_sessions_zone_unless_another_is_chosen(
    session: str, chosen: str | None, expected: str
) -> None:
    """As Spark's functions and partition directories spell them."""
    commit = PartitionCommit(trigger="partition-time", watermark_time_zone=chosen)
    times = commit.in_session(session).times
    found = times.begins_ms("dt=2026-03-01 07%3A00%3A00")
    assert found is not None
    moment = datetime.datetime.fromtimestamp(found / 1000, datetime.UTC)
    assert moment.isoformat(" ")[:19] == expected


def test_a_session_zone_that_java_alone_knows_is_refused_where_it_counts() -> None:
    """By process time no value is read as a time."""
    assert PartitionCommit().in_session("ACT") == PartitionCommit()
    with pytest.raises(ConfigError, match=r"time_zone=ACT.*watermark_time_zone"):
        PartitionCommit(trigger="partition-time").in_session("ACT")


def test_only_partition_time_asks_for_watermarks() -> None:
    """They cost a look at each timestamp."""
    settings = {"watermark_delay_s": 2.0, "idle_timeout_s": 30.0}
    for trigger, expected in (
        ("process-time", None),
        (
            "partition-time",
            EventTime("kafka", strategy=BoundedOutOfOrderness(2.0), idle_after=30.0),
        ),
    ):
        commit = PartitionCommit(trigger=trigger, **settings)  # type: ignore[arg-type]
        sink = HdfsSink("/data/orders", partition_by=["dt"], partition_commit=commit)
        assert isinstance(sink, EventTimeSink)
        assert sink.event_time() == expected
    assert HdfsSink("/data/orders").event_time() is None


def test_what_a_checkpoint_shows_of_the_policies_is_no_secret() -> None:
    """Of a webhook the server alone."""

    def tell(mark: PartitionMark) -> None: ...

    hook = Webhook("https://user:pw@host.example/hook?token=t", headers={"Authorization": "s"})
    commit = PartitionCommit(policies=["success-file", hook, tell])
    sink = HdfsSink("/data/orders", partition_by=["dt"], partition_commit=commit)
    shown = sink.settings()["partition_commit.policies"]
    assert shown == "success-file,webhook https://host.example,function tell"


@pytest.mark.parametrize("wrong", [{"url": "ftp://host/x"}, {"url": "https://h", "timeout_s": 0}])
def test_a_webhook_needs_a_server_and_a_time_out(wrong: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError):
        Webhook(**wrong)
