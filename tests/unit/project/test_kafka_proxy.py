"""What the proxy of the bed understands of Kafka's wire format, and what it does with a request."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from sluice.runtime.embedded.ports import HOST
from tests.kit.kafka.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    KafkaProxy,
    error_codes,
    parse_request,
)
from tests.kit.waiting import PATIENCE_S, join


def _request(api_key: int, *, version: int = 1, correlation_id: int = 7) -> bytes:
    body = struct.pack(">hhih", api_key, version, correlation_id, 3) + b"abc" + b"the rest"
    return struct.pack(">i", len(body)) + body


def _answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def _ended(error: int, *, correlation_id: int = 7) -> bytes:
    return _answer(correlation_id, struct.pack(">ih", 0, error))


def test_the_header_of_a_request_is_read() -> None:
    """Size, key, version, correlation id, client id; the rest is not looked at."""
    frame = _request(END_TXN, version=4, correlation_id=99)
    request = parse_request(frame)
    assert (request.api_key, request.api_version, request.correlation_id) == (END_TXN, 4, 99)
    assert (request.client_id, request.frame) == ("abc", frame)


@pytest.mark.parametrize(("version", "tags"), [(1, b""), (3, b"\0"), (5, b"\0")])
def test_the_error_of_an_endtxn_is_read(version: int, tags: bytes) -> None:
    request = parse_request(_request(END_TXN, version=version))
    answer = _answer(7, tags + struct.pack(">ihqh", 0, 90, 1, 2))
    assert error_codes(request, answer) == (90,)


def test_the_errors_of_an_addpartitions_are_read() -> None:
    request = parse_request(_request(ADD_PARTITIONS_TO_TXN, version=0))
    body = struct.pack(">ii", 0, 2)
    body += struct.pack(">h1si", 1, b"a", 2) + struct.pack(">ihih", 0, 0, 1, 47)
    body += struct.pack(">h2si", 2, b"bc", 1) + struct.pack(">ih", 0, 90)
    assert error_codes(request, _answer(7, body)) == (0, 47, 90)
    with pytest.raises(ValueError, match="no parser"):
        error_codes(parse_request(_request(18)), _answer(7, b""))


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    """A listener that the test answers for by itself."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


@pytest.fixture
def proxy(broker: socket.socket) -> Iterator[KafkaProxy]:
    with KafkaProxy() as made:
        made.forward_to(broker.getsockname()[1])
        yield made


def _client(proxy: KafkaProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=PATIENCE_S)


def _accepted(broker: socket.socket) -> socket.socket:
    connection, _ = broker.accept()
    connection.settimeout(PATIENCE_S)
    return connection


def test_what_is_not_chosen_passes_unchanged(broker: socket.socket, proxy: KafkaProxy) -> None:
    with _client(proxy) as client:
        client.sendall(_request(18))
        with _accepted(broker) as end:
            assert end.recv(1000) == _request(18)
            end.sendall(_ended(0))
            assert client.recv(1000) == _ended(0)


def test_a_held_request_arrives_though_its_client_has_gone(
    broker: socket.socket, proxy: KafkaProxy
) -> None:
    held = proxy.hold(END_TXN)
    with _client(proxy) as client:
        client.sendall(_request(18, correlation_id=1) + _request(END_TXN) + _request(18))
        with _accepted(broker) as end:
            assert end.recv(1000) == _request(18, correlation_id=1)
            assert held.wait().frame == _request(END_TXN)
            client.close()
            end.settimeout(0.1)
            with pytest.raises(TimeoutError):
                end.recv(1)
            end.settimeout(PATIENCE_S)
            held.release()
            assert end.recv(len(_request(END_TXN))) == _request(END_TXN)
            end.sendall(_ended(90))
            assert held.errors() == (90,)


def test_a_lost_answer_breaks_the_connection(broker: socket.socket, proxy: KafkaProxy) -> None:
    """The broker has done it; the client sees the end of its connection, and no answer."""
    lost = proxy.lose_answer(END_TXN)
    with _client(proxy) as client:
        client.sendall(_request(END_TXN))
        with _accepted(broker) as end:
            assert end.recv(1000) == _request(END_TXN)
            end.sendall(_ended(0))
            assert client.recv(1000) == b""
    assert lost.errors() == (0,)


def test_a_repeated_request_comes_by_a_connection_of_its_own(
    broker: socket.socket, proxy: KafkaProxy
) -> None:
    with proxy.echo(END_TXN, after_s=0.01) as echoes, _client(proxy) as client:
        noted = proxy.note(END_TXN)
        client.sendall(_request(END_TXN))
        with _accepted(broker) as end:
            assert end.recv(1000) == _request(END_TXN)
            end.sendall(_ended(0))
            assert client.recv(1000) == _ended(0)
            _serve_once(broker, error=47)
        answered: list[tuple[int, ...]] = []
        thread = threading.Thread(target=lambda: answered.append(noted.repeat()))
        thread.start()
        _serve_once(broker, error=90)
        join(thread)
    assert answered == [(90,)]
    proxy.close()  # joins the thread that counts
    assert dict(echoes.errors) == {47: 1}


def _serve_once(broker: socket.socket, *, error: int) -> None:
    with _accepted(broker) as end:
        assert end.recv(1000) == _request(END_TXN)
        end.sendall(_ended(error))
