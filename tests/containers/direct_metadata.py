"""What one broker says about a topic, asked over a socket of its own.

A client library asks whichever broker it likes, once it has learned of the others; to see that one
broker knows less than the rest, that broker itself must be asked.
"""

import socket
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse

_VERSION = 9
_TIMEOUT_S = 5.0
_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """Who leads a partition, by one broker's account; ``epoch`` is the leader's."""

    leader: int
    epoch: int
    in_sync: tuple[int, ...]


def ask_broker(host: str, port: int, topic: str) -> Mapping[int, Led]:
    """By partition; empty when the broker does not answer or does not know the topic yet."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    request.with_header(correlation_id=1, client_id="containers")
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(request.encode(version=_VERSION, header=True, framed=True))
            with connection.makefile("rb") as answer:
                size = int.from_bytes(answer.read(_SIZE_BYTES))
                payload = answer.read(size)
    except OSError:
        return {}
    if not size or len(payload) < size:
        return {}
    response = MetadataResponse.decode(payload, version=_VERSION, header=True)
    return {
        found.partition_index: Led(
            leader=found.leader_id, epoch=found.leader_epoch, in_sync=tuple(sorted(found.isr_nodes))
        )
        for found in response.topics[0].partitions
    }
