"""Requests where an earlier leader's records end, from the present leaders (KIP-320). Driver.

librdkafka sends this request for a consumer that reads, and has no call for it.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import (
    REFUSED_CREDENTIALS,
    Message,
    MetadataRequest,
    Net,
    OffsetForLeaderEpochRequest,
    WireClient,
    kafka_errors,
)
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.errors import AuthenticationError, UnreachableError

__all__ = ["EpochRequest", "LoginRefusedError", "fetch_epoch_ends", "leaders_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRequest:
    """Asks a later leader where the records of ``leader_epoch`` and of earlier ones end."""

    leader_epoch: int
    current_leader_epoch: int


async def leaders_of(net: Net, topics: Sequence[str]) -> Mapping[PartitionKey, int]:
    """Return the leader of each partition that has one; raises kafka-python's errors."""
    rows = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    response = await net.send(MetadataRequest(topics=rows, allow_auto_topic_creation=False))
    return {
        (topic.name, partition.partition_index): partition.leader_id
        for topic in response.topics
        for partition in topic.partitions
        if partition.leader_id >= 0
    }


_CONSUMER = -1  # as the replica id of a request
_UNDEFINED = -1

_NO_ANSWER = (kafka_errors.KafkaConnectionError, kafka_errors.RequestTimedOutError)


class LoginRefusedError(UnreachableError):
    """The log-in was refused, perhaps for a moment: a broker that has just started may not know its
    users yet.

    Attributes:
        reason: the refusal.
    """

    def __init__(self, reason: AuthenticationError) -> None:
        super().__init__(*reason.args)
        self.reason = reason


def fetch_epoch_ends(
    connection: KafkaConnection,
    requests: Mapping[PartitionKey, EpochRequest],
    *,
    timeout_s: float,
) -> Mapping[PartitionKey, int]:
    """See `SourceCluster.epoch_ends`; each call logs in again.

    Raises:
        LoginRefusedError: the caller decides whether the refusal lasts.
    """
    deadline = time.monotonic() + timeout_s
    where: dict[str, object] = {"servers": connection.bootstrap_servers}
    try:
        client = WireClient.connect(connection.wire(), deadline)
        try:
            return client.run(
                lambda: _fetch_with_retries(Net(client, deadline), requests), deadline
            )
        finally:
            client.close()
    except kafka_errors.SaslAuthenticationFailedError as err:
        raise LoginRefusedError(_refused(err, where)) from err
    except AuthenticationError as err:  # from the issuer of tokens
        raise LoginRefusedError(err) from err
    except REFUSED_CREDENTIALS as err:
        raise _refused(err, where) from err
    except (kafka_errors.KafkaError, OSError, RuntimeError) as err:
        where["reason"] = connection.scrub(f"{type(err).__name__}: {err}")
        raise UnreachableError(
            "a new leader did not report where the earlier leader's records end",
            where,
            "Check that all partitions have leaders; Sluice retries.",
        ) from err


def _refused(err: BaseException, where: Mapping[str, object]) -> AuthenticationError:
    return AuthenticationError(
        f"Kafka refused the request for a leader epoch's end: {type(err).__name__}",
        where,
        "Check kafka.security.protocol, kafka.sasl.* and the ACLs (DESCRIBE on the topics).",
    )


async def _fetch_with_retries(
    net: Net, requests: Mapping[PartitionKey, EpochRequest]
) -> Mapping[PartitionKey, int]:
    failure: kafka_errors.KafkaError | None = None
    requests = dict(requests)
    while True:
        try:
            found, outdated = await _fetch(net, requests)
            if not outdated:
                return found
            # There is a newer leader: its answer counts.
            for key in outdated:
                at_least = requests[key].current_leader_epoch + 1
                requests[key] = replace(requests[key], current_leader_epoch=at_least)
            failure = kafka_errors.FencedLeaderEpochError(*outdated)
        except REFUSED_CREDENTIALS:
            raise
        except kafka_errors.KafkaError as err:
            # The new leader may not know that it leads, or other brokers may not know it yet.
            # The last try has little time, so an earlier error explains more than its timeout.
            failure = err if failure is None or not isinstance(err, _NO_ANSWER) else failure
        if not await net.pause():
            raise failure from None


async def _fetch(
    net: Net, requests: Mapping[PartitionKey, EpochRequest]
) -> tuple[dict[PartitionKey, int], Sequence[PartitionKey]]:
    """Return the ends, and the partitions whose leader is newer than the requested one."""
    leaders = await leaders_of(net, sorted({topic for topic, _ in requests}))
    by_leader: dict[int, list[PartitionKey]] = defaultdict(list)
    for topic, partition in requests:
        if (topic, partition) not in leaders:
            raise kafka_errors.LeaderNotAvailableError(f"{topic}-{partition}")
        by_leader[leaders[topic, partition]].append((topic, partition))
    sent = [net.send(_request(keys, requests), leader) for leader, keys in by_leader.items()]
    found: dict[PartitionKey, int] = {}
    outdated: list[PartitionKey] = []
    for answer in sent:
        ends, newer = _ends(await answer)
        found |= ends
        outdated += newer
    return found, outdated


def _request(
    keys: Sequence[PartitionKey], requests: Mapping[PartitionKey, EpochRequest]
) -> Message:
    topic_rows = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    rows: dict[str, list[Message]] = defaultdict(list)
    for topic, partition in keys:
        request = requests[topic, partition]
        rows[topic].append(
            topic_rows.OffsetForLeaderPartition(
                partition=partition,
                current_leader_epoch=request.current_leader_epoch,
                leader_epoch=request.leader_epoch,
            )
        )
    topics = [topic_rows(topic=topic, partitions=partitions) for topic, partitions in rows.items()]
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)


def _ends(response: Message) -> tuple[dict[PartitionKey, int], Sequence[PartitionKey]]:
    found: dict[PartitionKey, int] = {}
    outdated: list[PartitionKey] = []
    for topic in response.topics:
        for answer in topic.partitions:
            if answer.error_code == kafka_errors.FencedLeaderEpochError.errno:
                outdated.append((topic.topic, answer.partition))
            elif answer.error_code != 0:
                raise kafka_errors.for_code(answer.error_code)(f"{topic.topic}-{answer.partition}")
            elif answer.end_offset != _UNDEFINED:
                found[topic.topic, answer.partition] = int(answer.end_offset)
    return found, outdated
