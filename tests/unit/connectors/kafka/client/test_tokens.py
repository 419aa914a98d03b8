"""OAUTHBEARER tokens while their issuer is away, and what it is asked with."""

import contextlib
import http.server
import json
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import ClientCredentials, OAuthToken
from sluice.connectors.kafka.client.tokens import KeptToken, kept_token
from sluice.connectors.kafka.sink.producers.cluster_limits import fetch_limits
from sluice.runtime.errors import AuthenticationError, ConfigError, StreamError, UnreachableError
from tests.kit.fakes import ManualClock
from tests.kit.waiting import join

SERVER_PEM = Path(__file__).parents[4] / "data" / "tls-server.pem"
"""A self-signed certificate of 127.0.0.1 and its encrypted key, for these tests only."""

CERTIFICATE = SERVER_PEM.read_text()[SERVER_PEM.read_text().index("-----BEGIN CERT") :]
CANARY = "canary-71-secret"
AWAY = UnreachableError("the issuer is away", {}, "Wait.")
REFUSAL = AuthenticationError("refused", {}, "Check the secret.")
SASL = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER",
}


class Issuer:
    """Gives tokens of a minute, or what the test has laid down; counts the questions."""

    def __init__(self, *answers: Exception | None) -> None:
        self.clock = ManualClock()
        self.asked = 0
        self.answers = list(answers)

    def __call__(self) -> OAuthToken:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return OAuthToken(value=f"t{self.asked}", expires_at_s=self.clock() + 60)

    def kept(self) -> KeptToken:
        return KeptToken(self, clock=self.clock, wall_clock=self.clock, sleep=self.clock.advance)


def test_a_fetch_that_fails_once_is_repeated() -> None:
    """A new producer comes with each epoch, and each needs a token."""
    issuer = Issuer(AWAY, TimeoutError(CANARY))
    assert issuer.kept().get(retry_for_s=5.0).value == "t3"
    assert issuer.clock() > 1_000, "after a pause"


def test_the_last_token_is_used_until_it_expires() -> None:
    issuer = Issuer(None, AWAY, AWAY)
    kept = issuer.kept()
    assert kept.get().value == "t1"
    issuer.clock.advance(50)
    assert kept.get(retry_for_s=5.0).value == "t1"
    issuer.clock.advance(8)
    with pytest.raises(UnreachableError):
        kept.get()
    assert kept.get().value == "t4"


def test_an_issuer_that_stays_away_is_no_refusal() -> None:
    issuer = Issuer(*[AWAY] * 100)
    with pytest.raises(UnreachableError, match="the issuer is away"):
        issuer.kept().get(retry_for_s=5.0)
    assert issuer.clock() - 1_000 <= 5
    with pytest.raises(UnreachableError, match="RuntimeError") as caught:
        Issuer(*[RuntimeError(CANARY)] * 9).kept().get(retry_for_s=5.0)
    assert CANARY not in str(caught.value)


def test_a_refusal_is_reported_at_once() -> None:
    issuer = Issuer(None, REFUSAL)
    kept = issuer.kept()
    kept.get()
    with pytest.raises(AuthenticationError):
        kept.get(retry_for_s=5.0)
    assert issuer.asked == 2


def test_the_clients_of_a_process_share_the_last_token() -> None:
    first = ClientCredentials(token_url="http://127.0.0.1:1/", client_id="me", client_secret="s")
    again = pickle.loads(pickle.dumps(first))
    kept = kept_token(first)
    assert kept_token(again) is kept
    assert kept_token(Issuer()) is not kept_token(Issuer())
    other = Issuer()
    once = kept_token(other)
    for _ in range(100):
        kept_token(Issuer())
        assert kept_token(again) is kept, "that one is in use"
    assert kept_token(other) is not once, "only so many are remembered"


def test_a_cluster_that_nobody_can_ask_for_want_of_a_token_tells_no_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And is asked again; refused for good, it is reported as any refused log-in."""
    connection = KafkaConnection.of(SASL, oauth_token=Issuer())
    for failure, refusal in ((AWAY, None), (REFUSAL, REFUSAL)):

        def make(config: Any, failure: StreamError = failure) -> Any:
            raise failure

        monkeypatch.setattr(
            "sluice.connectors.kafka.sink.producers.cluster_limits.make_admin", make
        )
        found = fetch_limits(connection, [], timeout_s=0.1)
        assert (found.unanswered, found.refusal) == ({"cluster"}, refusal)


# --- the token endpoint ---------------------------------------------------------------------------


class _Endpoint(http.server.BaseHTTPRequestHandler):
    answer: tuple[int, bytes] = (200, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.answer[0])
        self.end_headers()
        self.wfile.write(self.answer[1])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def endpoint(status: int, content: bytes, *, tls: bool = False) -> Iterator[str]:
    handler = type("Handler", (_Endpoint,), {"answer": (status, content)})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(SERVER_PEM, password="changeit")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            join(thread)


@contextmanager
def connections(meet: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of one that meets each connection so."""

    def accept(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it listens no more
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):  # the other end may end it
                    meet(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, args=[listening], daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listening.getsockname()[1]}/token"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            join(thread)


GOOD = json.dumps({"access_token": "t", "expires_in": 60}).encode()


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (500, b"oops", UnreachableError),
        (503, b"", UnreachableError),
        (429, b"{}", UnreachableError),
        (400, b'{"error": "temporarily_unavailable"}', UnreachableError),
        (400, b'{"error": "invalid_client"}', AuthenticationError),
        (401, b"", AuthenticationError),
        (403, b"<html>", AuthenticationError),
        (404, b"", AuthenticationError),
        (200, b"<html>", AuthenticationError),
        (200, b"[]", AuthenticationError),
    ],
)
def test_what_an_answer_means(status: int, content: bytes, told: type[StreamError]) -> None:
    with endpoint(status, content) as url, pytest.raises(told) as caught:
        ClientCredentials(token_url=url, client_id="me", client_secret=CANARY)()
    assert CANARY not in str(caught.value)


def test_an_endpoint_that_is_not_there_is_worth_another_try() -> None:
    with pytest.raises(UnreachableError, match="NewConnectionError"):
        ClientCredentials(token_url="http://127.0.0.1:1/", client_id="me", client_secret="s")()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"])
def test_an_endpoint_that_ends_the_handshake_is_worth_another_try(answer: bytes) -> None:
    """As a balancer does whose servers are all away. It is asked once: who waits pauses."""
    asked = 0

    def hang_up(connection: socket.socket) -> None:
        nonlocal asked
        asked += bool(connection.recv(10_000))
        connection.sendall(answer)

    with connections(hang_up) as url, pytest.raises(UnreachableError, match="SSL"):
        ClientCredentials(token_url=url, client_id="me", client_secret="s")()
    assert asked == 1


def _tls_options(url: str, *more: Sequence[str]) -> KafkaConnection:
    given = {
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
        "kafka.sasl.oauthbearer.client.id": "me",
        "kafka.sasl.oauthbearer.client.secret": CANARY,
    }
    return KafkaConnection.of({**SASL, **given, **dict(more)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("location", str(SERVER_PEM)), ("pem", CERTIFICATE)], ids=["file", "text"]
)
def test_the_endpoints_certificate_is_checked_against_the_users_own(name: str, value: str) -> None:
    """As librdkafka does where it fetches tokens itself: by a file, or by the text."""
    with endpoint(200, GOOD, tls=True) as url:
        connection = _tls_options(url, (f"kafka.https.ca.{name}", value))
        assert connection.wire()["sasl_oauth_token"]().value == "t"
        for refused in (_tls_options(url), _tls_options(url, ("kafka.https.ca.location", "probe"))):
            with pytest.raises(AuthenticationError, match="SSLCertVerificationError"):
                refused.wire()["sasl_oauth_token"]()


def test_certificates_that_cannot_be_read_are_named() -> None:
    for name, value in (("location", "/nowhere.pem"), ("pem", "no certificate")):
        connection = _tls_options("https://127.0.0.1:1/", (f"kafka.https.ca.{name}", value))
        with pytest.raises(ConfigError, match=r"https\.ca"):
            connection.wire()["sasl_oauth_token"]()


# --- extensions -----------------------------------------------------------------------------------


def test_extensions_go_with_every_token() -> None:
    """librdkafka adds its option only to tokens that it makes itself; Java's are in JAAS."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    connection = KafkaConnection.of(
        {
            **SASL,
            "kafka.sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-2",
            "kafka.sasl.jaas.config": f'{module} required unsecuredLoginStringClaim_sub="me" '
            'unsecuredLoginExtension_traceId="7";',
        }
    )
    wanted = {"logicalCluster": "lkc-1", "identityPoolId": "pool-2", "traceId": "7"}
    assert connection.librdkafka(Role.PRODUCER)["oauth_cb"]("")[3] == wanted
    assert connection.wire()["sasl_oauth_token"]().extensions == wanted
    assert pickle.loads(pickle.dumps(connection)) == connection


def test_extensions_that_cannot_be_read_are_refused_without_their_text() -> None:
    with pytest.raises(ConfigError, match="name=value") as caught:
        KafkaConnection.of(
            {**SASL, "kafka.sasl.oauthbearer.extensions": CANARY}, oauth_token=Issuer()
        )
    assert CANARY not in str(caught.value)


def test_the_secret_of_an_extended_token_is_scrubbed() -> None:
    connection = _tls_options("http://127.0.0.1:1/", ("kafka.sasl.oauthbearer.extensions", "a=b"))
    assert CANARY not in connection.scrub(f"x {CANARY}")
