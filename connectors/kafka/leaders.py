"""Which broker leads a partition, asked by the wire client. Driver; the client's I/O thread."""

from collections.abc import Mapping, Sequence

from connectors.kafka.positions import PartitionKey
from connectors.kafka.transactions import MetadataRequest, Net

__all__ = ["leaders_of"]


async def leaders_of(net: Net, topics: Sequence[str]) -> Mapping[PartitionKey, int]:
    """The leader's number by partition, unless it has none; raises kafka-python's errors."""
    rows = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    response = await net.send(MetadataRequest(topics=rows, allow_auto_topic_creation=False))
    return {
        (topic.name, partition.partition_index): partition.leader_id
        for topic in response.topics
        for partition in topic.partitions
        if partition.leader_id >= 0
    }
