"""What a client reports of requests that it has sent again by itself (`ids-never-reused` and
`outcome-from-broker`).

By librdkafka's own mock cluster, which closes a connection instead of answering: what was sent on
it would be taken by a real broker that was only slow.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import make_producer
from sluice.connectors.kafka.sink.producers.producer_client import Client
from sluice.connectors.kafka.sink.producers.producer_errors import UnansweredError
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.errors import AuthenticationError, TransactionAbortedError
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.waiting import PATIENCE_S

_INIT_PRODUCER_ID = 22
_ADD_PARTITIONS_TO_TXN = 24
_CONNECTION_LOST = -195
_LOADING = 14  # COORDINATOR_LOAD_IN_PROGRESS: answered, to be asked again
_REFUSED = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster.running() as made:
        yield made


def prepared(
    cluster: MockCluster, *, is_kept: bool = False, statistics_ms: int = 20
) -> TransactionalProducer:
    def make(config: Any) -> Client:
        client: Any = make_producer({**config, "bootstrap.servers": cluster.bootstrap})
        made: Client = client
        return made

    producer = TransactionalProducer(
        make, {"log_level": 0}, "p/j/r.0/owner/0", statistics_interval_ms=statistics_ms
    )
    try:
        producer.prepare(topic=None, timeout_s=PATIENCE_S)
    finally:
        if not is_kept:
            producer.release()
    return producer


def test_ids_never_reused_a_request_that_was_lost_and_sent_again_is_reported(
    cluster: MockCluster,
) -> None:
    """`init_transactions` succeeds, and calls no error back."""
    cluster.answer(_INIT_PRODUCER_ID, _CONNECTION_LOST)
    with pytest.raises(UnansweredError, match="may still arrive"):
        prepared(cluster)


def test_ids_never_reused_a_refusal_after_a_lost_request_does_not_end_that_one(
    cluster: MockCluster,
) -> None:
    cluster.answer(_INIT_PRODUCER_ID, _CONNECTION_LOST, _REFUSED)
    with pytest.raises(UnansweredError) as raised:
        prepared(cluster)
    assert isinstance(raised.value.reason, AuthenticationError)


@pytest.mark.parametrize("codes", [(), (_LOADING,), (_LOADING, _LOADING)])
def test_requests_that_were_answered_are_over(cluster: MockCluster, codes: tuple[int]) -> None:
    """A coordinator that loads is asked again, and the id is as good as any."""
    if codes:
        cluster.answer(_INIT_PRODUCER_ID, *codes)
    assert prepared(cluster).identity.producer_id >= 0


def test_a_refusal_alone_leaves_nothing_after(cluster: MockCluster) -> None:
    """The id may be used again as soon as the permission is given."""
    cluster.answer(_INIT_PRODUCER_ID, _REFUSED)
    with pytest.raises(AuthenticationError):
        prepared(cluster)


@pytest.mark.parametrize("statistics_ms", [10, 250], ids="every {} ms".format)
@pytest.mark.parametrize("lost_at", [0, 1], ids=["first", "second"])
def test_outcome_from_broker_a_partition_that_was_added_twice_is_reported(
    cluster: MockCluster, lost_at: int, statistics_ms: int
) -> None:
    """The flush succeeds, and calls no error back. A client whose coordinator is back may not wait
    for its 500 ms, and at the slowest pace of the statistics the epoch may be over before they
    come: then it makes no commit of its own, which would leave the epoch as it is."""
    cluster.make_topic("out", partitions=2)
    producer = prepared(cluster, is_kept=True, statistics_ms=statistics_ms)
    producer.begin(lambda error: pytest.fail(str(error)))
    for partition in range(2):
        if partition == lost_at:
            cluster.answer(_ADD_PARTITIONS_TO_TXN, _CONNECTION_LOST)
        written(producer, partition)
    try:
        producer.confirm()
    except TransactionAbortedError as told:
        assert "may still arrive" in str(told)  # noqa: PT017 - or what follows
    else:
        assert statistics_ms > 20
        assert not producer.commit(timeout_s=PATIENCE_S)
    producer.release()


@pytest.mark.parametrize("codes", [(), (_LOADING,), (_LOADING, _LOADING)])
def test_partitions_that_were_added_with_an_answer_are_over(
    cluster: MockCluster, codes: tuple[int]
) -> None:
    """A coordinator that loads is asked again, and the transaction is as good as any."""
    cluster.make_topic("out", partitions=2)
    producer = prepared(cluster, is_kept=True)
    producer.begin(lambda error: pytest.fail(str(error)))
    if codes:
        cluster.answer(_ADD_PARTITIONS_TO_TXN, *codes)
    for partition in range(2):
        written(producer, partition)
    producer.confirm()
    producer.release()


def written(producer: TransactionalProducer, partition: int) -> None:
    client: Any = producer.client
    client.produce("out", b"a record", partition=partition)
    assert client.flush(PATIENCE_S) == 0
