"""Lists transactions of all brokers, and whether the list is complete: rule
`wait-for-all-brokers`."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sluice.connectors.kafka.client.wire_client import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    Message,
    MetadataRequest,
    Net,
    kafka_errors,
)
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    ListedTransaction,
    Listing,
    TransactionDescription,
)
from sluice.connectors.kafka.sink.committer.wire_answers import (
    STATE_TOPIC,
    add_description,
    id_for_each_partition,
    raise_if_forbidden,
    state_of,
)

__all__ = ["list_transactions", "metadata_of"]

log = logging.getLogger(__name__)


async def list_transactions(net: Net, prefix: str, states: Sequence[str]) -> Listing:
    """Every transaction whose id starts with ``prefix``, and the brokers without an answer.

    Args:
        states: Kafka's names; none: any state.
    Raises:
        KafkaError: the log's leaders are unknown, or a permission is missing.
    """
    leaders, brokers = await _log_leaders(net)
    offline = [f"{STATE_TOPIC}-{index}" for index, node in leaders.items() if node not in brokers]
    ids_at: dict[int, list[str]] = defaultdict(list)
    for index, transactional_id in enumerate(id_for_each_partition(prefix, len(leaders))):
        if leaders[index] in brokers:
            ids_at[leaders[index]].append(transactional_id)
    # A broker leaves out a partition that it has not loaded yet, without notice. Each partition is
    # checked before and after the listing, so that a move in between is noticed.
    before = await _not_loaded(net, ids_at)
    rows, unanswered = await _list_at(net, brokers, prefix, states)
    after = await _not_loaded(net, ids_at)
    missing = dict.fromkeys(offline + before + unanswered + after)
    return Listing(transactions=tuple(rows), missing=tuple(missing))


async def _list_at(
    net: Net, brokers: Sequence[int], prefix: str, states: Sequence[str]
) -> tuple[list[ListedTransaction], list[str]]:
    """The brokers' lists, and the brokers that gave none."""
    waiting = {
        node_id: net.send(
            ListTransactionsRequest(
                state_filters=list(states), producer_id_filters=[], min_version=0
            ),
            node_id,
        )
        for node_id in brokers
    }
    missing: list[str] = []
    rows: list[ListedTransaction] = []
    for node_id, answer in waiting.items():
        try:
            response = await answer
        except kafka_errors.KafkaError as err:
            log.debug("listing transactions: broker=%s error=%s", node_id, err)
            missing.append(f"broker {node_id}")
            continue
        raise_if_forbidden(response.error_code, "list transactions")
        if response.error_code != 0:
            missing.append(f"broker {node_id}")
            continue
        rows += [
            ListedTransaction(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                state=state_of(row.transaction_state),
            )
            for row in response.transaction_states
            if row.transactional_id.startswith(prefix)
        ]
    return rows, missing


async def _log_leaders(net: Net) -> tuple[dict[int, int], list[int]]:
    """The leader of each partition of the transaction log, and all brokers."""
    response = await metadata_of(net, [STATE_TOPIC])
    for topic in response.topics:
        error = kafka_errors.for_code(topic.error_code)
        # Without its partitions an incomplete listing would look complete.
        if error not in (kafka_errors.NoError, kafka_errors.UnknownTopicOrPartitionError):
            raise error(f"describe topic {STATE_TOPIC}")
    leaders = {
        partition.partition_index: partition.leader_id
        for topic in response.topics
        for partition in topic.partitions
    }
    return leaders, [broker.node_id for broker in response.brokers]


async def _not_loaded(net: Net, ids_at: Mapping[int, list[str]]) -> list[str]:
    """Brokers that do not answer for an id of each partition of the log they lead
    (`wait-for-all-brokers`).

    A leader answers "was not found" for an id only after it has read that id's partition. Metadata
    names it as leader some time before it starts to read.
    """
    waiting = {
        node_id: net.send(DescribeTransactionsRequest(transactional_ids=ids), node_id)
        for node_id, ids in ids_at.items()
    }
    loaded: dict[str, TransactionDescription | None] = {}
    for node_id, answer in waiting.items():
        try:
            response = await answer
        except kafka_errors.KafkaError as err:
            log.debug("requesting loaded partitions: broker=%s error=%s", node_id, err)
            continue
        for row in response.transaction_states:
            add_description(row, loaded)
    return [f"broker {node_id}" for node_id, ids in ids_at.items() if not loaded.keys() >= set(ids)]


async def metadata_of(net: Net, topics: Sequence[str]) -> Message:
    """Metadata of these topics, without creating them, and of all brokers.

    Raises:
        KafkaError: the answering broker does not know the cluster: otherwise a topic that it does
            not know would look like one that does not exist.
    """
    rows = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    response = await net.send(MetadataRequest(topics=rows, allow_auto_topic_creation=False))
    if response.error_code != 0:  # of the whole answer, since version 13
        raise kafka_errors.for_code(response.error_code)("Metadata")
    if not response.brokers:
        raise kafka_errors.MetadataEmptyBrokerList("a starting broker knows none yet")
    return response
