"""Where an earlier leader's records end: asked of those who lead now (KIP-320). Driver.

librdkafka asks so for a consumer that is at work, and has no call for it.

Which broker leads a partition, asked by the wire client. Driver; the client's I/O thread.
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

__all__ = ["EpochQuestion", "LogInRefusedError", "ask", "leaders_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochQuestion:
    """Where the records of ``leader_epoch`` and of earlier ones end, asked of a later leader."""

    leader_epoch: int
    current_leader_epoch: int


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


_CONSUMER = -1  # who asks, where a broker would give its number
_UNDEFINED = -1

_SILENCE = (kafka_errors.KafkaConnectionError, kafka_errors.RequestTimedOutError)


class LogInRefusedError(UnreachableError):
    """It is asked again: a broker that has just started may not know its users yet.

    Attributes:
        reason: the refusal.
    """

    def __init__(self, reason: AuthenticationError) -> None:
        super().__init__(*reason.args)
        self.reason = reason


def ask(
    connection: KafkaConnection,
    questions: Mapping[PartitionKey, EpochQuestion],
    *,
    timeout_s: float,
) -> Mapping[PartitionKey, int]:
    """See `epoch_ends`; each call logs in anew.

    Raises:
        LogInRefusedError: and one that lasts is for the caller to tell.
    """
    deadline = time.monotonic() + timeout_s
    where: dict[str, object] = {"servers": connection.bootstrap_servers}
    try:
        client = WireClient.connect(connection.wire(), deadline)
        try:
            return client.run(lambda: _patiently(Net(client, deadline), questions), deadline)
        finally:
            client.close()
    except kafka_errors.SaslAuthenticationFailedError as err:
        raise LogInRefusedError(_refused(err, where)) from err
    except AuthenticationError as err:  # by whoever gives out tokens
        raise LogInRefusedError(err) from err
    except REFUSED_CREDENTIALS as err:
        raise _refused(err, where) from err
    except (kafka_errors.KafkaError, OSError, RuntimeError) as err:
        where["reason"] = connection.scrub(f"{type(err).__name__}: {err}")
        raise UnreachableError(
            "the new leader of a partition did not tell where the old one's records end",
            where,
            "It is asked again. Check that all partitions have leaders.",
        ) from err


def _refused(err: BaseException, where: Mapping[str, object]) -> AuthenticationError:
    return AuthenticationError(
        f"Kafka refused to tell where a leader's records end: {type(err).__name__}",
        where,
        "Check kafka.security.protocol, kafka.sasl.* and the ACLs (DESCRIBE on the topics).",
    )


async def _patiently(
    net: Net, questions: Mapping[PartitionKey, EpochQuestion]
) -> Mapping[PartitionKey, int]:
    told: kafka_errors.KafkaError | None = None
    questions = dict(questions)
    while True:
        try:
            found, outdated = await _ask(net, questions)
            if not outdated:
                return found
            # There is a newer leader than the one that was looked at: what it knows counts.
            for key in outdated:
                at_least = questions[key].current_leader_epoch + 1
                questions[key] = replace(questions[key], current_leader_epoch=at_least)
            told = kafka_errors.FencedLeaderEpochError(*outdated)
        except REFUSED_CREDENTIALS:
            raise
        except kafka_errors.KafkaError as err:
            # Whoever leads now may not know of it yet, or not be known to the one who was asked.
            # The last try has little time: what was said before that tells more.
            told = err if told is None or not isinstance(err, _SILENCE) else told
        if not await net.pause():
            raise told from None


async def _ask(
    net: Net, questions: Mapping[PartitionKey, EpochQuestion]
) -> tuple[dict[PartitionKey, int], Sequence[PartitionKey]]:
    """The ends; and the partitions that have a newer leader than the one that is asked about."""
    leaders = await leaders_of(net, sorted({topic for topic, _ in questions}))
    by_leader: dict[int, list[PartitionKey]] = defaultdict(list)
    for topic, partition in questions:
        if (topic, partition) not in leaders:
            raise kafka_errors.LeaderNotAvailableError(f"{topic}-{partition}")
        by_leader[leaders[topic, partition]].append((topic, partition))
    asked = [net.send(_request(keys, questions), leader) for leader, keys in by_leader.items()]
    found: dict[PartitionKey, int] = {}
    outdated: list[PartitionKey] = []
    for answer in asked:
        ends, newer = _ends(await answer)
        found |= ends
        outdated += newer
    return found, outdated


def _request(
    keys: Sequence[PartitionKey], questions: Mapping[PartitionKey, EpochQuestion]
) -> Message:
    topic_rows = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    rows: dict[str, list[Message]] = defaultdict(list)
    for topic, partition in keys:
        question = questions[topic, partition]
        rows[topic].append(
            topic_rows.OffsetForLeaderPartition(
                partition=partition,
                current_leader_epoch=question.current_leader_epoch,
                leader_epoch=question.leader_epoch,
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
