"""What a client tells of `InitProducerId` requests that it has sent again by itself (rule 4).

By librdkafka's own mock cluster, which closes a connection instead of answering: what was sent on
it would be taken by a real broker that was only slow.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.kafka._client import librdkafka_path, make_producer
from connectors.kafka.refusals import UnansweredError
from connectors.kafka.transactional_producer import Client, TransactionalProducer
from runtime.errors import AuthenticationError
from tests.waiting import PATIENCE_S

_INIT_PRODUCER_ID = 22
_CONNECTION_LOST = -195
_LOADING = 14  # COORDINATOR_LOAD_IN_PROGRESS: answered, to be asked again
_REFUSED = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class _MockCluster:
    """A broker within librdkafka."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, self._library = ctypes.c_void_p, library
        library.rd_kafka_conf_new.restype = pointer
        library.rd_kafka_new.restype = pointer
        library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, pointer, ctypes.c_size_t]
        library.rd_kafka_destroy.argtypes = [pointer]
        library.rd_kafka_mock_cluster_new.restype = pointer
        library.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
        library.rd_kafka_mock_cluster_destroy.argtypes = [pointer]
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
        self._host = library.rd_kafka_new(0, library.rd_kafka_conf_new(), None, 0)
        self._cluster = library.rd_kafka_mock_cluster_new(self._host, 1)

    @property
    def bootstrap(self) -> str:
        return str(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def answer(self, *codes: int) -> None:
        """To the next requests, one code each."""
        self._library.rd_kafka_mock_push_request_errors(
            ctypes.c_void_p(self._cluster),
            ctypes.c_int16(_INIT_PRODUCER_ID),
            ctypes.c_size_t(len(codes)),
            *(ctypes.c_int(code) for code in codes),
        )

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._host)


@pytest.fixture
def cluster() -> Iterator[_MockCluster]:
    path = librdkafka_path()
    assert path is not None, "the wheel of confluent-kafka ships its library"
    mock = _MockCluster(ctypes.CDLL(str(path)))
    yield mock
    mock.close()


def prepared(cluster: _MockCluster) -> TransactionalProducer:
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


def test_rule_4_a_request_that_was_lost_and_sent_again_is_told(cluster: _MockCluster) -> None:
    """`init_transactions` succeeds, and calls no error back."""
    cluster.answer(_CONNECTION_LOST)
    with pytest.raises(UnansweredError, match="may still arrive"):
        prepared(cluster)


def test_rule_4_a_refusal_behind_a_lost_request_does_not_end_that_one(
    cluster: _MockCluster,
) -> None:
    """What people must mend is the refusal; what becomes of the id goes by the lost request."""
    cluster.answer(_CONNECTION_LOST, _REFUSED)
    with pytest.raises(UnansweredError) as raised:
        prepared(cluster)
    assert isinstance(raised.value.reason, AuthenticationError)


@pytest.mark.parametrize("codes", [(), (_LOADING,), (_LOADING, _LOADING)])
def test_requests_that_were_answered_are_over(cluster: _MockCluster, codes: tuple[int]) -> None:
    """A coordinator that loads is asked again, and the id is as good as any."""
    if codes:
        cluster.answer(*codes)
    assert prepared(cluster).identity.producer_id >= 0


def test_a_refusal_alone_leaves_nothing_behind(cluster: _MockCluster) -> None:
    """The id may be used again as soon as the permission is given."""
    cluster.answer(_REFUSED)
    with pytest.raises(AuthenticationError):
        prepared(cluster)
