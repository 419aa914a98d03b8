"""The requests that each feature sends, and which of them the brokers lack.

Brokers name the requests that they know in their answer to ApiVersions. Some Kafka-compatible
brokers know only a part: a start refuses them by name, before a client waits for an answer.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import (
    ApiVersionsRequest,
    Message,
    MetadataRequest,
    Net,
    WireClient,
    kafka_errors,
)
from sluice.runtime.errors import StreamError

__all__ = [
    "EXACTLY_ONCE",
    "IDEMPOTENCE",
    "READING",
    "REQUESTS",
    "TOPIC_IDS",
    "TRUNCATION",
    "WRITING",
    "fetch_missing_requests",
    "missing_requests",
    "versions_of",
]

log = logging.getLogger(__name__)

REQUESTS: Mapping[str, tuple[int, int]] = {
    "Produce v3": (0, 3),
    "Fetch v4": (1, 4),
    "ListOffsets v2": (2, 2),
    "ListOffsets v4": (2, 4),
    "Metadata v10": (3, 10),
    "OffsetCommit": (8, 0),
    "OffsetFetch": (9, 0),
    "FindCoordinator v4": (10, 4),
    "InitProducerId": (22, 0),
    "OffsetForLeaderEpoch": (23, 0),
    "AddPartitionsToTxn": (24, 0),
    "EndTxn": (26, 0),
    "DescribeTransactions": (65, 0),
    "ListTransactions": (66, 0),
}
"""Number and least version of a request, by its name in messages."""

READING = ("Fetch v4", "ListOffsets v2")
"""Every source sends these."""

TRUNCATION = ("ListOffsets v4", "OffsetForLeaderEpoch")
"""Detect that a new leader lacks records that were read; the first gives leader epochs."""

TOPIC_IDS = ("Metadata v10",)
"""Distinguishes a topic from a later one of the same name."""

WRITING = ("Produce v3",)
"""Every sink sends these."""

IDEMPOTENCE = ("InitProducerId",)
"""The guarantee at-least-once sends this: it keeps a partition's order over repeated requests."""

EXACTLY_ONCE = (
    *WRITING,
    *IDEMPOTENCE,
    "AddPartitionsToTxn",
    "EndTxn",
    "FindCoordinator v4",
    "DescribeTransactions",
    "ListTransactions",
    "OffsetCommit",
    "OffsetFetch",
)
"""An exactly-once sink sends these; the last two keep the lease on its prefix."""


def fetch_missing_requests(connection: KafkaConnection, *, timeout_s: float) -> tuple[str, ...]:
    """Names of `REQUESTS` that a broker lacks; none if no broker answers: the requests themselves
    report that."""
    deadline = time.monotonic() + timeout_s
    try:
        client = WireClient.connect(connection.wire(), deadline)
        try:
            return client.run(lambda: _of_all_brokers(Net(client, deadline)), deadline)
        finally:
            client.close()
    except (kafka_errors.KafkaError, StreamError, OSError, RuntimeError) as err:
        reason = connection.scrub(f"{type(err).__name__}: {err}")
        log.debug("the requests of the brokers are unknown: reason=%s", reason)
        return ()


async def missing_requests(net: Net, node_ids: Iterable[int]) -> tuple[str, ...]:
    """Names of `REQUESTS` that one of these brokers lacks; a broker that does not answer counts as
    complete."""
    missing: set[str] = set()
    for node_id in node_ids:
        try:
            response = await versions_of(net, node_id)
        except kafka_errors.KafkaError as err:
            log.debug("the requests of a broker are unknown: broker=%s error=%s", node_id, err)
            continue
        newest = {each.api_key: each.max_version for each in response.api_keys}
        missing |= {
            name for name, (key, version) in REQUESTS.items() if newest.get(key, -1) < version
        }
    return tuple(name for name in REQUESTS if name in missing)


async def versions_of(net: Net, node_id: int | None) -> Message:
    """The requests and the finalised features of a broker; None: of any."""
    response = await net.send(
        ApiVersionsRequest(
            client_software_name="sluice", client_software_version="1", min_version=3
        ),
        node_id,
    )
    if response.error_code != 0:
        raise kafka_errors.for_code(response.error_code)("ApiVersions")
    return response


async def _of_all_brokers(net: Net) -> tuple[str, ...]:
    response = await net.send(MetadataRequest(topics=[], allow_auto_topic_creation=False))
    return await missing_requests(net, [broker.node_id for broker in response.brokers])
