"""The edge to kafka-python: the only module that imports it.

librdkafka can end only its own transactions. `kafka_wire` ends those of other clients with the
requests and the client of this module. kafka-python's protocol classes and connection manager are
not part of its documented interface. So its version is pinned, and ``tests/contract/test_wire.py``
has a test for each request.
"""

import contextlib
import importlib.util
import logging
import os
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

from sluice.connectors.kafka.client.tokens import KeptToken, kept_token
from sluice.runtime.errors import (
    AuthenticationError,
    MissingRequirementError,
    StreamError,
    UnreachableError,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from kafka.future import Future
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.net.selector import NetworkSelector
    from kafka.protocol.admin import DescribeConfigsRequest
    from kafka.protocol.admin.transactions import (
        DescribeTransactionsRequest,
        ListTransactionsRequest,
    )
    from kafka.protocol.consumer.fetch import FetchRequest
    from kafka.protocol.consumer.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        FindCoordinatorRequest,
        MetadataRequest,
    )
    from kafka.protocol.producer.transaction import EndTxnRequest

__all__ = [
    "REFUSED_CREDENTIALS",
    "ApiVersionsRequest",
    "DescribeConfigsRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "Message",
    "MetadataRequest",
    "Net",
    "OffsetForLeaderEpochRequest",
    "WireClient",
    "kafka_errors",
    "with_tickets",
]

Message: TypeAlias = Any
"""A request or response of kafka-python, which has no types."""

_Socket: TypeAlias = socket.socket
_T = TypeVar("_T")
_RETRY_S = 0.05
_REQUEST_S = 5.0  # one request; a call retries until its own time is up
_GRACE_S = 0.5  # an answer on its way when time is up
_LIMITS: Mapping[str, object] = {
    "request_timeout_ms": int(_REQUEST_S * 1000),
    "socket_connection_setup_timeout_ms": int(_REQUEST_S * 1000),
    "proxy_url": "sluice://",
    "reconnect_backoff_max_ms": 1000,
    "receive_message_max_bytes": 100_000_000,
    "max_in_flight_requests_per_connection": 10_000,  # pipelined; callers bound their batches
}


REFUSED_CREDENTIALS = (
    kafka_errors.AuthorizationError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
)
"""Errors that a retry cannot fix."""


class _NoCredentials(logging.Filter):
    """Keeps SASL exchanges out of kafka-python's DEBUG lines, which show requests and raw bytes."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.DEBUG:
            return True
        return "%r" not in str(record.msg) and "Sasl" not in record.getMessage()


for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_NoCredentials())


class _DrainingSocket(socket.socket):
    """Returns received data before it reports that the other side has closed.

    kafka-python reads until a socket would block, and discards everything if it meets the end
    first. The broker's refusal of a password, which precedes its close, would be lost.
    """

    _gave = False

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As `socket.socket.recv`; the end waits until the next call."""
        try:
            data = super().recv(bufsize, flags)
        except BlockingIOError:
            self._gave = False
            raise
        if not data and self._gave:
            self._gave = False
            raise BlockingIOError
        self._gave = bool(data)
        return data


class _DrainingTlsSocket(ssl.SSLSocket):
    """As `_DrainingSocket`, over TLS; closed when a handshake fails, or when its client is closed
    meanwhile, both of which kafka-python forgets."""

    _gave = False

    def __del__(self) -> None:
        """Close after a handshake that ended with the client's I/O thread."""
        self.close()

    def do_handshake(self, block: bool = False) -> None:
        """As `ssl.SSLSocket.do_handshake`."""
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            self.close()
            raise

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As `ssl.SSLSocket.recv`; the end waits until the next call."""
        try:
            data = super().recv(buflen, flags)
        except ssl.SSLWantReadError:
            self._gave = False
            raise
        if not data and self._gave:
            self._gave = False
            raise ssl.SSLWantReadError
        self._gave = bool(data)
        return data


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python leaves a socket open that could not be connected; this one does not.

    Chosen by the scheme of ``proxy_url``, which is kafka-python's way to replace its sockets.
    """

    SCHEMES = ("sluice",)

    def socket(self, family: int, sock_type: int, proto: int) -> _Socket:
        return _DrainingSocket(family, sock_type, proto)

    async def sock_connect(
        self, net: Message, sock: _Socket, sockaddr: Message, timeout_at: float | None
    ) -> _Socket:
        try:
            connected: _Socket = await super().sock_connect(net, sock, sockaddr, timeout_at)
        except BaseException:
            sock.close()
            raise
        return connected


class _Manager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Remembers why a connection failed; kafka-python retries until time is up, and forgets."""

    refused: BaseException | None = None
    failed: BaseException | None = None

    def get_connection(self, *arguments: Message, **options: Message) -> Message:
        known = super().get_connection(*arguments, **options)
        known.init_future.add_errback(self._note)
        return known

    def maybe_raise_auth_failure(self, node_id: Message) -> None:
        if self.refused is not None:
            raise self.refused
        super().maybe_raise_auth_failure(node_id)

    def _note(self, error: BaseException) -> None:
        if type(error).__module__.startswith("gssapi."):
            error = _kerberos_failure(error)
        is_away = isinstance(error, UnreachableError)  # no token, or no KDC
        if isinstance(error, (*REFUSED_CREDENTIALS, StreamError)) and not is_away:
            self.refused = error
        else:
            self.failed = error


def _kerberos_failure(error: BaseException) -> StreamError:
    if "Cannot contact any KDC" in str(error):
        return UnreachableError(
            "the KDC did not answer", {"error": error}, "Check that the KDC runs, and krb5.conf."
        )
    return AuthenticationError(
        "Kerberos refused the login to Kafka",
        {"error": error},
        "Check principal and keytab with klist -k -t, or run kinit.",
    )


def with_tickets(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of kafka-python for a login by Kerberos. Its library gets tickets by the keytab
    that this variable names, as librdkafka's kinit does: into the ticket cache of the process.

    Raises:
        MissingRequirementError: the package gssapi is missing.
    """
    if importlib.util.find_spec("gssapi") is None:
        raise MissingRequirementError(
            "the package gssapi is not installed",
            {"kafka.sasl.mechanism": "GSSAPI"},
            "Install sluice[kerberos] where the driver runs; it needs a C compiler and "
            "libkrb5-dev.",
        )
    if keytab := settings["sasl_kerberos_keytab"]:
        os.environ.setdefault("KRB5_CLIENT_KTNAME", keytab)
    return {name: value for name, value in settings.items() if name != "sasl_kerberos_keytab"}


class WireClient:
    """A connection manager and the I/O thread that drives it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if "ssl_context" in settings:
            settings["ssl_context"].sslsocket_class = _DrainingTlsSocket
        self.net = NetworkSelector(client_id=settings["client_id"])
        self.manager = _Manager(self.net, **settings)
        self.net.start()

    @classmethod
    def connect(cls, settings: Mapping[str, Any], deadline: float) -> "WireClient":
        """Connect a client; raises kafka-python's errors, and closes all sockets then.

        Args:
            settings: `sluice.connectors.kafka.client.connection.KafkaConnection.wire`.
            deadline: on the monotonic clock.
        """
        token = settings.get("sasl_oauth_token")
        if token is not None:
            settings = {**settings, "sasl_oauth_token_provider": _TokenProvider(kept_token(token))}
        if settings.get("sasl_mechanism") == "GSSAPI":
            settings = with_tickets(settings)
        client = cls({"client_id": "sluice-transactions", **_LIMITS, **settings})
        left_ms = max(1, int((deadline - time.monotonic()) * 1000))
        try:
            client.run(lambda: client.manager.bootstrap_async(left_ms), deadline)
        except BaseException as err:
            client.close()
            if isinstance(err, kafka_errors.KafkaTimeoutError):
                raise client.manager.failed or err from None
            raise
        return client

    def run(self, coroutine: Callable[[], Awaitable[_T]], deadline: float) -> _T:
        """The coroutine's answer, or KafkaTimeoutError; it may then still be running."""
        done = threading.Event()
        future = self.manager.call_soon(coroutine)
        future.add_both(lambda _: done.set())
        if not done.wait(max(0.0, deadline - time.monotonic()) + _GRACE_S):
            raise kafka_errors.KafkaTimeoutError("no answer in time")
        if isinstance(future.exception, GeneratorExit):
            # How kafka-python ends pending calls when another thread closes the client.
            raise kafka_errors.Cancelled("the client was closed")
        if future.exception is not None:
            raise future.exception
        answer: _T = future.value
        return answer

    def close(self) -> None:
        """Close connections on the I/O thread, then end it; bounded."""
        with contextlib.suppress(kafka_errors.KafkaError, RuntimeError, OSError):
            self.run(self._close_connections, time.monotonic() + _GRACE_S)
        self.net.stop(timeout_ms=1000)
        with contextlib.suppress(RuntimeError, OSError):
            self.net.close()

    @property
    def refused(self) -> BaseException | None:
        """Why a log-in failed: from then on every request of this client fails so."""
        refused: BaseException | None = self.manager.refused
        return refused

    async def _close_connections(self) -> None:
        self.manager.close()


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's form of a token function; fetches a token for each connection.

    Runs in the I/O thread of all connections.
    """

    def __init__(self, token: KeptToken) -> None:
        super().__init__()
        self._token = token
        self._extensions: dict[str, str] = {}

    def token(self) -> str:
        found = self._token.get()
        self._extensions = dict(found.extensions)
        return found.value

    def extensions(self) -> dict[str, str]:
        """Return the extensions of the last token."""
        return self._extensions


class Net:
    """One call's view of the client: requests with a bound. I/O thread only.

    Attributes:
        unreached: set by the call: brokers that it needed were not reached.
    """

    def __init__(self, client: WireClient, deadline: float) -> None:
        self.client = client
        self.deadline = deadline
        self.unreached = False

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def send(self, request: Message, node_id: int | None = None) -> "_Answer":
        """Sends now; awaiting the answer raises a kafka error when nothing comes in time."""
        until = min(self.deadline, time.monotonic() + _REQUEST_S)
        left_ms = max(1, int((until - time.monotonic()) * 1000))
        manager = self.client.manager
        try:
            future = manager.send(request, node_id=node_id, request_timeout_ms=left_ms)
        except kafka_errors.KafkaError as err:
            if isinstance(err, kafka_errors.UnknownBrokerIdError):
                # It was missing at kafka-python's last refresh; the next one is in minutes.
                manager.cluster.request_update()
            future = Future().failure(err)
        return _Answer(self.client, future, until)

    def begin(self, coroutine: Callable[[], Awaitable[_T]]) -> Awaitable[_T]:
        """Start a coroutine beside this one."""
        started: Awaitable[_T] = self.client.manager.call_soon(coroutine)
        return started

    async def pause(self) -> bool:
        """Wait before another try; False when time is up."""
        if self.left_s <= _RETRY_S:
            return False
        await self.client.net.sleep(_RETRY_S)
        return True


class _Answer:
    """A request under way; nothing is left dangling when it is never awaited."""

    def __init__(self, client: WireClient, future: Message, until: float) -> None:
        self._client, self._future, self._until = client, future, until

    def __await__(self) -> Generator[object, None, Message]:
        left_ms = max(1, int((self._until - time.monotonic()) * 1000))
        waiting: Generator[object, None, Message] = self._client.manager.wait_for(
            self._future, left_ms
        ).__await__()
        return waiting
