"""A broker that accepts connections and never answers: what a closed client leaves after."""

import gc
import socket
import time
import warnings

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import WireClient, kafka_errors


def test_a_client_that_is_closed_in_a_handshake_leaves_no_socket_open() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        warnings.catch_warnings(record=True, action="always") as told,
    ):
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        connection = KafkaConnection.of(
            {"kafka.bootstrap.servers": server, "kafka.security.protocol": "SSL"}
        )
        with pytest.raises(kafka_errors.KafkaError):
            WireClient.connect(connection.wire(), time.monotonic() + 0.5)
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []
