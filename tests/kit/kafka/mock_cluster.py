"""librdkafka's own mock cluster, which lives within the library and does as it is reported."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from sluice.connectors.kafka.client.confluent import librdkafka_path


class MockCluster:
    """Brokers that answer as a test says."""

    def __init__(self, library: ctypes.CDLL, brokers: int) -> None:
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
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._host, brokers))

    @classmethod
    @contextmanager
    def running(cls, brokers: int = 1) -> Iterator[Self]:
        """A cluster of so many brokers, gone after the block."""
        path = librdkafka_path()
        assert path is not None, "the wheel of confluent-kafka ships its library"
        library = ctypes.CDLL(str(path))
        made = cls(library, brokers)
        try:
            yield made
        finally:
            library.rd_kafka_mock_cluster_destroy(made._cluster)
            library.rd_kafka_destroy(made._host)

    @property
    def bootstrap(self) -> str:
        """Its servers."""
        return str(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def make_topic(self, name: str, *, partitions: int = 1) -> None:
        """With so many partitions."""
        made = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        assert made == 0, name

    def lead(self, topic: str, broker: int) -> None:
        """From now on this broker leads the topic's first partition, in an epoch of its own."""
        answer = self._library.rd_kafka_mock_partition_set_leader(
            self._cluster, topic.encode(), ctypes.c_int32(0), ctypes.c_int32(broker)
        )
        assert answer == 0, topic

    def move(self, group: str, broker: int) -> None:
        """From now on this broker coordinates the group."""
        self._library.rd_kafka_mock_coordinator_set(
            self._cluster, b"group", group.encode(), ctypes.c_int32(broker)
        )

    def hang(self, broker: int) -> None:
        """It takes connections and requests, and answers none for ten minutes."""
        self._library.rd_kafka_mock_broker_set_rtt(
            self._cluster, ctypes.c_int32(broker), ctypes.c_int(600_000)
        )

    def answer(self, request: int, *codes: int) -> None:
        """To the next requests of that kind, one code each."""
        self._library.rd_kafka_mock_push_request_errors(
            self._cluster,
            ctypes.c_int16(request),
            ctypes.c_size_t(len(codes)),
            *map(ctypes.c_int, codes),
        )
