"""A TCP proxy before one broker that knows where Kafka's requests begin and end.

It reads the header of each request, and does to chosen ones what a network, a stalled connection or
a client's retry may do: holds them back, loses their answer, or brings them to the broker once
more. It changes no byte, unless it hides requests or versions as an older broker does. The broker
must advertise the proxy's address (`tests.kit.kafka.proxied_kafka`).
"""

import contextlib
import heapq
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from sluice.runtime.embedded.ports import HOST
from tests.kit.waiting import wait_for

FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
API_VERSIONS = 18
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
END_TXN = 26
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
TRANSACTION_API = frozenset(
    {ADD_PARTITIONS_TO_TXN, 25, END_TXN, 27, 28, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS}
)
"""With AddOffsetsToTxn, WriteTxnMarkers and TxnOffsetCommit."""

_HEADER = struct.Struct(">ihhih")  # size, api key, api version, correlation id, client id's length
_CONNECT_S = 30.0
_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as a client sent it; ``frame`` is all of it, with its size before it."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    frame: bytes


def parse_request(frame: bytes) -> Request:
    """The header of a request; ``frame`` begins with its size, int32."""
    _, api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    client_id = frame[_HEADER.size : _HEADER.size + max(0, length)].decode()
    return Request(
        api_key=api_key,
        api_version=api_version,
        correlation_id=correlation_id,
        client_id=client_id,
        frame=frame,
    )


def error_codes(request: Request, answer: bytes) -> tuple[int, ...]:
    """Kafka's error codes in the answer (with its size before it) to one of the two requests."""
    at = 4 + 4  # size and correlation id
    if request.api_key == END_TXN:
        at += 1 if request.api_version >= 3 else 0  # the header's tagged fields: none
        return struct.unpack_from(">h", answer, at + 4)
    if request.api_key != ADD_PARTITIONS_TO_TXN or request.api_version > 2:
        raise ValueError(f"no parser for {request}")
    found: list[int] = []
    (topics,) = struct.unpack_from(">i", answer, at + 4)
    at += 8
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", answer, at)
        (partitions,) = struct.unpack_from(">i", answer, at + 2 + length)
        at += 2 + length + 4
        for _ in range(partitions):
            found += struct.unpack_from(">h", answer, at + 4)
            at += 6
    return tuple(found)


class Caught:
    """The next request of a kind: noted, held, or with its answer lost. Any thread."""

    def __init__(
        self, proxy: "KafkaProxy", api_key: int, *, client_id: str, held: bool, answered: bool
    ) -> None:
        self.api_key, self.client_id, self.answered = api_key, client_id, answered
        self._proxy = proxy
        self._released = threading.Event()
        self._request: Request | None = None
        self._arrived_s = 0.0
        self._errors: tuple[int, ...] | None = None
        if not held:
            self._released.set()

    def wait(self) -> Request:
        """The request, once it has arrived at the proxy."""
        return wait_for(lambda: self._request, what=f"request {self.api_key}")  # type: ignore[return-value]

    def await_age(self, age_s: float) -> None:
        """Wait until so long has passed since it arrived."""
        self.wait()
        wait_for(lambda: time.monotonic() - self._arrived_s >= age_s, what="the request's age")

    def release(self) -> None:
        """Let it, and what its connection brought after it, continue to the broker."""
        self._released.set()

    def errors(self) -> tuple[int, ...]:
        """What the broker answers to it, once it has."""
        wait_for(lambda: self._errors is not None, what=f"the answer to {self._request}")
        assert self._errors is not None
        return self._errors

    def repeat(self) -> tuple[int, ...]:
        """Bring it to the broker once more, by a connection of its own; what that answers."""
        return self._proxy.send(self.wait())

    # --- what the proxy calls -------------------------------------------------------------

    def take(self, request: Request) -> None:
        """It has arrived."""
        self._request, self._arrived_s = request, time.monotonic()

    def await_release(self) -> None:
        """Return when it may continue."""
        self._released.wait()

    def answer(self, errors: tuple[int, ...]) -> None:
        """The broker has answered it."""
        self._errors = errors


@dataclass(slots=True)
class Echoes:
    """What became of requests that were brought to the broker again.

    Attributes:
        errors: how often each error code was answered; 0: accepted once more.
        unanswered: the broker could not be reached.
    """

    api_keys: Container[int]
    after_s: float
    errors: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0


class Connection:
    """One client's connection and its continuation to the broker."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client, self.broker = client, broker
        self.expected: dict[int, tuple[Request, Caught]] = {}
        self.versions: dict[int, Request] = {}

    def close(self) -> None:
        for end in (self.client, self.broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class KafkaProxy:
    """Listens on a free port of this machine; as a context manager it ends with its connections.

    A connection whose request is held brings nothing of what follows it either, as a stalled one
    does; it lives on when its client goes away, so what is held arrives in any case.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._upstream: tuple[str, int] | None = None
        self._lock = threading.Condition()
        self._armed: list[Caught] = []
        self._caught: list[Caught] = []
        self._echoes: Echoes | None = None
        self._due: list[tuple[float, int, Request]] = []
        self._connections: list[Connection] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._hidden: frozenset[int] = frozenset()
        self._newest: Mapping[int, int] = {}
        self.seen: Counter[int] = Counter()
        """Requests by api key."""

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{HOST}:{self.port}"

    def forward_to(self, port: int) -> None:
        """Begin; the broker listens on this port, now or later."""
        self._upstream = (HOST, port)
        self._start(self._accept)
        self._start(self._echo)

    def move_to(self, port: int) -> None:
        """Connections to come go to another port."""
        self._upstream = (HOST, port)

    def __enter__(self) -> "KafkaProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection; bounded by what the broker still answers."""
        with self._lock:
            self._closed = True
            for caught in (*self._armed, *self._caught):
                caught.release()
            self._lock.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()
        for thread in self._threads:
            thread.join(_ANSWER_S)
            assert not thread.is_alive(), "a thread of the proxy hangs"

    # --- what tests ask for -----------------------------------------------------------------

    def hold(self, api_key: int, *, client_id: str = "") -> Caught:
        """Hold back the next such request until it is released."""
        return self._arm(Caught(self, api_key, client_id=client_id, held=True, answered=True))

    def note(self, api_key: int, *, client_id: str = "") -> Caught:
        """Let the next such request pass, and remember it."""
        return self._arm(Caught(self, api_key, client_id=client_id, held=False, answered=True))

    def lose_answer(self, api_key: int, *, client_id: str = "") -> Caught:
        """Let the next such request pass, and cut its connection when the answer comes."""
        return self._arm(Caught(self, api_key, client_id=client_id, held=False, answered=False))

    def hide(self, *api_keys: int) -> None:
        """Leave these out of what the broker says that it can, as an older one does."""
        self._hidden = frozenset(api_keys)

    def limit(self, newest: Mapping[int, int]) -> None:
        """Name these versions as the newest of a request in what the broker says that it can."""
        self._newest = newest

    @contextlib.contextmanager
    def echo(self, *api_keys: int, after_s: float) -> Iterator[Echoes]:
        """Bring each such request to the broker again, so long after it passed."""
        echoes = Echoes(api_keys=api_keys, after_s=after_s)
        with self._lock:
            self._echoes = echoes
        try:
            yield echoes
        finally:
            with self._lock:
                self._echoes, self._due = None, []

    def send(self, request: Request) -> tuple[int, ...]:
        """Send it by a connection of its own; the errors in the broker's answer."""
        with self._connect() as broker:
            broker.settimeout(_ANSWER_S)
            broker.sendall(request.frame)
            answer = _frame(broker)
        if answer is None:
            raise ConnectionError(f"the broker closed the connection: {request}")
        return error_codes(request, answer)

    def _arm(self, caught: Caught) -> Caught:
        with self._lock:
            self._armed.append(caught)
        return caught

    # --- threads ----------------------------------------------------------------------------

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _connect(self) -> socket.socket:
        assert self._upstream is not None
        return socket.create_connection(self._upstream, timeout=_CONNECT_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                broker = self._connect()
            except OSError:  # as if nobody listened
                client.close()
                continue
            broker.settimeout(None)
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(client, broker)
            with self._lock:
                self._connections.append(connection)
                is_late = self._closed
            if is_late:
                connection.close()
                return
            self._start(self._bring, connection)
            self._start(self._answer, connection)

    def _bring(self, connection: Connection) -> None:
        """From the client to the broker, request by request."""
        with contextlib.suppress(OSError):
            while (frame := _frame(connection.client)) is not None:
                request = parse_request(frame)
                if (own := self._own_answer(connection, request)) is not None:
                    connection.client.sendall(own)
                    continue
                if request.api_key == API_VERSIONS:
                    connection.versions[request.correlation_id] = request
                caught = self._take(request)
                if caught is not None:
                    connection.expected[request.correlation_id] = (request, caught)
                    caught.take(request)
                    caught.await_release()
                connection.broker.sendall(frame)
                self._remember(request)
        if not connection.expected:  # else the broker's answer is still to come
            connection.close()

    def _own_answer(self, connection: Connection, request: Request) -> bytes | None:
        """The answer of a proxy that does not let the request pass; None: it passes.

        Raises:
            ConnectionError: the connection ends here.
        """
        del connection, request
        return None

    def _answer(self, connection: Connection) -> None:
        """From the broker to the client, answer by answer."""
        with contextlib.suppress(OSError):
            while (frame := _frame(connection.broker)) is not None:
                (correlation_id,) = struct.unpack_from(">i", frame, 4)
                request, caught = connection.expected.pop(correlation_id, (None, None))
                if request is not None and caught is not None:
                    caught.answer(error_codes(request, frame))
                    if not caught.answered:
                        break
                asked = connection.versions.pop(correlation_id, None)
                if asked is not None and (self._hidden or self._newest):
                    frame = _older(frame, asked.api_version, self._hidden, self._newest)
                connection.client.sendall(frame)
        connection.close()

    def _take(self, request: Request) -> Caught | None:
        with self._lock:
            self.seen[request.api_key] += 1
            for caught in self._armed:
                if caught.api_key == request.api_key and caught.client_id in request.client_id:
                    self._armed.remove(caught)
                    self._caught.append(caught)
                    return caught
        return None

    def _remember(self, request: Request) -> None:
        with self._lock:
            if self._echoes is not None and request.api_key in self._echoes.api_keys:
                due = time.monotonic() + self._echoes.after_s
                heapq.heappush(self._due, (due, id(request), request))
                self._lock.notify_all()

    def _echo(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (not self._due or self._due[0][0] > time.monotonic()):
                    left_s = self._due[0][0] - time.monotonic() if self._due else None
                    self._lock.wait(left_s)
                if self._closed:
                    return
                (_, _, request), echoes = heapq.heappop(self._due), self._echoes
            if echoes is None:
                continue
            try:
                echoes.errors.update(self.send(request))
            except OSError:
                echoes.unanswered += 1


def _frame(end: socket.socket) -> bytes | None:
    """The next request or answer, with its size before it; None when the other side has closed."""
    size = _exactly(end, 4)
    if size is None:
        return None
    body = _exactly(end, struct.unpack(">i", size)[0])
    return None if body is None else size + body


def _exactly(end: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = end.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _older(frame: bytes, version: int, hidden: frozenset[int], newest: Mapping[int, int]) -> bytes:
    """An answer to ApiVersions without these requests and versions: rows of key, least and largest
    version."""
    is_compact = version >= 3
    (error,) = struct.unpack_from(">h", frame, 8)
    at, step = (11, 7) if is_compact else (14, 6)
    count = frame[10] - 1 if is_compact else struct.unpack_from(">i", frame, 10)[0]
    if error or (is_compact and frame[10] > 127):
        return frame
    rows = [frame[at + n * step : at + (n + 1) * step] for n in range(count)]
    kept = [
        struct.pack(">hhh", key, least, min(most, newest.get(key, most))) + row[6:]
        for row in rows
        for key, least, most in [struct.unpack_from(">hhh", row)]
        if key not in hidden
    ]
    size = bytes([len(kept) + 1]) if is_compact else struct.pack(">i", len(kept))
    body = frame[4:10] + size + b"".join(kept) + frame[at + count * step :]
    return struct.pack(">i", len(body)) + body
