"""What a client tells of `InitProducerId` requests that it has sent again by itself (rule 4).

By librdkafka's own mock cluster, which closes a connection instead of answering: what was sent on
it would be taken by a real broker that was only slow.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from connectors.kafka._client import make_producer
from connectors.kafka.refusals import UnansweredError
from connectors.kafka.transactional_producer import Client, TransactionalProducer
from runtime.errors import AuthenticationError
from tests.mock_cluster import MockCluster
from tests.waiting import PATIENCE_S

_INIT_PRODUCER_ID = 22
_CONNECTION_LOST = -195
_LOADING = 14  # COORDINATOR_LOAD_IN_PROGRESS: answered, to be asked again
_REFUSED = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster.running() as made:
        yield made


def prepared(cluster: MockCluster) -> TransactionalProducer:
    def make(config: Any) -> Client:
        client: Any = make_producer({**config, "bootstrap.servers": cluster.bootstrap})
        made: Client = client
        return made

    producer = TransactionalProducer(make, {"log_level": 0}, "p/j/r.0/owner/0")
    try:
        producer.prepare(topic=None, timeout_s=PATIENCE_S)
    finally:
        producer.release()
    return producer


def test_rule_4_a_request_that_was_lost_and_sent_again_is_told(cluster: MockCluster) -> None:
    """`init_transactions` succeeds, and calls no error back."""
    cluster.answer(_INIT_PRODUCER_ID, _CONNECTION_LOST)
    with pytest.raises(UnansweredError, match="may still arrive"):
        prepared(cluster)


def test_rule_4_a_refusal_behind_a_lost_request_does_not_end_that_one(
    cluster: MockCluster,
) -> None:
    """What people must mend is the refusal; what becomes of the id goes by the lost request."""
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


def test_a_refusal_alone_leaves_nothing_behind(cluster: MockCluster) -> None:
    """The id may be used again as soon as the permission is given."""
    cluster.answer(_INIT_PRODUCER_ID, _REFUSED)
    with pytest.raises(AuthenticationError):
        prepared(cluster)
