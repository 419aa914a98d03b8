"""Finds records that an output would delete as soon as they are copied into it. Driver.

A copy keeps its record's timestamp, and Kafka deletes segments by the timestamps in them.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    ConfigResource,
    KafkaException,
    ResourceType,
    make_admin,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator.discovery import SourceCluster
from sluice.connectors.kafka.source.splits import LostRange, key_of
from sluice.runtime.errors import StreamError
from sluice.runtime.model.splits import SplitRange

__all__ = ["fetch_retention_ms", "find_outlived", "retention_ms_of"]

log = logging.getLogger(__name__)


def retention_ms_of(settings: Mapping[str, str | None]) -> int | None:
    """How long a topic keeps records after their own timestamp; None: it does not delete by that.

    ``settings``: of the topic, by name.
    """
    keeps = "delete" not in (settings.get("cleanup.policy") or "delete")
    is_by_arrival = settings.get("message.timestamp.type") == "LogAppendTime"
    retention_ms = int(settings.get("retention.ms") or -1)
    return None if keeps or is_by_arrival or retention_ms < 0 else retention_ms


def fetch_retention_ms(connection: KafkaConnection, topic: str, *, timeout_s: float) -> int | None:
    """`retention_ms_of` a topic; None also if that cannot be read. Never raises."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        admin = make_admin(connection.librdkafka(Role.ADMIN))
        (answer,) = admin.describe_configs([resource], request_timeout=timeout_s).values()
        settings: Mapping[str, Any] = answer.result(timeout_s)
    except (KafkaException, FutureTimeoutError, StreamError) as err:
        log.info("retention cannot be read: topic=%s error=%s", topic, connection.scrub(str(err)))
        return None
    return retention_ms_of({name: entry.value for name, entry in settings.items()})


def find_outlived(
    cluster: SourceCluster, positions: Sequence[SplitRange], *, before_ms: int, timeout_s: float
) -> list[LostRange]:
    """Return the unread records at the beginning of each partition that are older than a time.

    Raises:
        StreamError: no answer in time.
    """
    view = cluster.fetch_view([key_of(split) for split in positions], timeout_s=timeout_s)
    recent = cluster.offsets(dict.fromkeys(view.latest, before_ms), timeout_s=timeout_s)
    found = []
    for split in positions:
        key = key_of(split)
        if key in view.latest and key in recent:
            first = max(split.end_offset, view.earliest[key].offset if key in view.earliest else 0)
            fact = recent[key]
            end = view.latest[key].offset if fact is None else fact.offset
            if first < end:
                topic, partition = key
                found.append(
                    LostRange(topic=topic, partition=partition, start_offset=first, end_offset=end)
                )
    return found
