"""An HTTP proxy before an S3 server, or Azurite: holds requests, loses answers, repeats, refuses, truncates."""

import enum
import http.client
import random
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from sluice.runtime.embedded.ports import HOST
from tests.kit.waiting import wait_for

_TIMEOUT_S = 120.0
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class FaultKind(enum.Enum):
    """What happens to a request."""

    HELD = "held"  # arrives at the server after `Fault.release`, or after `Fault.held_s`
    DROPPED_BEFORE = "dropped before"  # the connection ends; the server sees no request
    DROPPED_AFTER = "dropped after"  # the server acts; the connection ends without an answer
    REPEATED = "repeated"  # the server acts twice; the client gets the second answer
    REFUSED = "refused"  # the client gets `Fault.status`; the server sees no request
    REFUSED_AFTER = "refused after"  # the server acts; the client gets `Fault.status`
    STRANGE = "strange"  # the client gets a 404 of another server; the store sees no request
    BLANK = "blank"  # the client gets an empty 200 of another server; the store sees no request
    TRUNCATED = "truncated"  # half the answer's body, then the connection ends
    UNCONDITIONAL = "unconditional"  # the server does not see If-None-Match and If-Match


_UNHEARD = (FaultKind.DROPPED_BEFORE, FaultKind.REFUSED, FaultKind.STRANGE, FaultKind.BLANK)
_NEVER_RANDOM = (FaultKind.UNCONDITIONAL, FaultKind.BLANK)
_GENERATION = "x-goog-if-generation-match"
_CONDITIONS = ("if-none-match", "if-match", _GENERATION)
_SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, Signature=0"
_CODES = {
    200: "InternalError",  # S3 may begin the answer to a completion before the completion fails
    400: "ExpiredToken",
    403: "InvalidAccessKeyId",
    404: "NoSuchBucket",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request as the client sent it; ``key`` is the path after the bucket, decoded."""

    method: str
    key: str
    query: str
    conditional: bool


@dataclass(slots=True, kw_only=True)
class Fault:
    """What the proxy does to requests that it chooses.

    Attributes:
        method: of the requests; None: any.
        key: the pattern of a key, found anywhere in it.
        query: a text within the query of the request, such as ``uploadId``.
        times: to so many requests; None: to all.
        status: of `FaultKind.REFUSED` and `FaultKind.REFUSED_AFTER`.
        code: of such an answer; empty: the usual one of the status.
        held_s: bound of `FaultKind.HELD`.
        seen: the requests that it was done to.
    """

    kind: FaultKind
    method: str | None = None
    key: str = ""
    query: str = ""
    times: int | None = 1
    status: int = http.client.SERVICE_UNAVAILABLE
    code: str = ""
    held_s: float = _TIMEOUT_S
    seen: list[S3Request] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let held requests continue to the server."""
        self.released.set()

    def wait(self) -> S3Request:
        """The first request that it was done to."""
        wait_for(lambda: self.seen, what=f"a request to be {self.kind.value}")
        return self.seen[0]

    def takes(self, request: S3Request) -> bool:
        """Whether it is done to this request; counts it then."""
        if (
            (self.times is not None and len(self.seen) >= self.times)
            or self.method not in (None, request.method)
            or self.query not in request.query
            or not re.search(self.key, request.key)
        ):
            return False
        self.seen.append(request)
        return True


Choose = Callable[[S3Request], Fault | None]


_LONGEST_S = 1.0
"""Of a random delay: shorter than the time-outs of clients, else it is a dropped request."""


def random_faults(seed: int, probability: float) -> Choose:
    """Any fault but an unconditional request and a blank answer, for a share of all requests.

    A conditional put may also be refused with 412 or 409: S3 answers no other request so.
    """
    rng = random.Random(seed)
    kinds = [kind for kind in FaultKind if kind not in _NEVER_RANDOM]

    def choose(request: S3Request) -> Fault | None:
        if rng.random() >= probability:
            return None
        may_conflict = request.conditional and request.method == "PUT"
        statuses = [500, 503, 412, 409] if may_conflict else [500, 503]
        return Fault(
            kind=rng.choice(kinds),
            status=rng.choice(statuses),
            held_s=rng.uniform(0.0, _LONGEST_S),
        )

    return choose


class S3Proxy:
    """Forwards requests to one S3 server. Any thread adds faults and reads ``requests``.

    Args:
        plays_google: clients speak the XML interface of Google's store, which has S3's calls with
            headers of its own.
    """

    def __init__(self, endpoint: str, *, plays_google: bool = False) -> None:
        self.plays_google = plays_google
        self.requests: list[S3Request] = []
        self.choose: Choose | None = None
        """Chooses a fault for a request that no added fault takes."""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server((HOST, 0), _Handler)
        self._server.proxy, self._server.target = self, urlsplit(endpoint).netloc
        self.endpoint = f"http://{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def add(self, kind: FaultKind, **about: object) -> Fault:
        """Do ``kind`` to the next requests that the other arguments of `Fault` choose."""
        fault = Fault(kind=kind, **about)  # type: ignore[arg-type]
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forget all faults and requests; what is held continues."""
        with self._lock:
            for fault in self._faults:
                fault.release()
            self._faults.clear()
            self.requests.clear()
            self.choose = None

    def fault_of(self, request: S3Request) -> Fault | None:
        """Note a request, and what is done to it."""
        with self._lock:
            self.requests.append(request)
            found = next((each for each in self._faults if each.takes(request)), None)
            return self.choose(request) if found is None and self.choose is not None else found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.clear()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: S3Proxy
    target: str

    def handle_error(self, request: object, client_address: object) -> None:
        """One end is gone: the other one notices by the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one segment
    timeout = _TIMEOUT_S
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing: a test reads `S3Proxy.requests`."""

    def handle_expect_100(self) -> bool:
        """Answer at once: a client waits a second for it before it sends the body."""
        self.send_response_only(HTTPStatus.CONTINUE)
        self.end_headers()
        self.wfile.flush()
        return True

    def _pass(self) -> None:
        body = self._body()
        target = urlsplit(self.path)
        request = S3Request(
            method=self.command,
            key=unquote(target.path).lstrip("/").partition("/")[2],
            query=target.query,
            conditional=any(name in self.headers for name in _CONDITIONS),
        )
        fault = self.server.proxy.fault_of(request)
        kind = None if fault is None else fault.kind
        if fault is None or kind not in _UNHEARD:
            if kind is FaultKind.HELD and fault is not None:
                fault.released.wait(fault.held_s)
            if kind is FaultKind.REPEATED:
                self._forwarded(body, unconditional=False)
            answer = self._forwarded(body, unconditional=kind is FaultKind.UNCONDITIONAL)
            if kind not in (FaultKind.DROPPED_AFTER, FaultKind.REFUSED_AFTER):
                self._answer(*answer, truncated=kind is FaultKind.TRUNCATED)
                return
        if fault is not None and kind in (FaultKind.REFUSED, FaultKind.REFUSED_AFTER):
            body = _error(fault.code or _CODES.get(fault.status, "Error"))
            self._answer(fault.status, {"Content-Type": "application/xml"}, body)
            return
        if kind is FaultKind.STRANGE:
            self._answer(404, {"Content-Type": "text/plain"}, b"default backend - 404")
            return
        if kind is FaultKind.BLANK:
            self._answer(200, {"Content-Type": "text/plain"}, b"")
            return
        self._end()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(chunks)

    def _forwarded(self, body: bytes, *, unconditional: bool) -> tuple[int, dict[str, str], bytes]:
        """The server's answer: status, headers, body."""
        answer = self._asked(self.command, self.path, body, unconditional=unconditional)
        gone = _of_upload(self.path)
        if answer[0] == http.client.INTERNAL_SERVER_ERROR and gone:
            # moto fails where S3 says NoSuchUpload; to a list of the parts it gives S3's answer.
            listed = self._asked("GET", gone, None, unconditional=False)
            return listed if listed[0] == http.client.NOT_FOUND else answer
        return answer

    def _asked(
        self, method: str, path: str, body: bytes | None, *, unconditional: bool
    ) -> tuple[int, dict[str, str], bytes]:
        dropped = {"transfer-encoding"} if body is not None else _HOP_HEADERS
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in dropped and not (unconditional and name.lower() in _CONDITIONS)
        }
        if self.server.proxy.plays_google:
            headers = _as_s3(headers)
            path = path.replace("%2D", "-", 1)  # moto does not decode the name of a bucket
        connection = http.client.HTTPConnection(self.server.target, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            found = dict(answer.getheaders())
            if self.server.proxy.plays_google:
                found = {name.replace("x-amz-", "x-goog-"): found[name] for name in found}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, truncated: bool = False
    ) -> None:
        lengths = [value for name, value in headers.items() if name.lower() == "content-length"]
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        # The answer to HEAD has the length of the object, and no body.
        of_object = self.command == "HEAD" and lengths
        self.send_header("Content-Length", lengths[0] if of_object else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if truncated else body)
        self.wfile.flush()
        if truncated:
            self._end()

    def _end(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _of_upload(path: str) -> str | None:
    """The address of the upload that a request names; None if it names none. Pure."""
    target = urlsplit(path)
    names = [each for each in target.query.split("&") if each.startswith("uploadId=")]
    return f"{target.path}?{names[0]}" if names else None


def _as_s3(headers: dict[str, str]) -> dict[str, str]:
    """A request to Google's XML interface as one to S3, signed with a key that moto never checks."""
    made = {"Authorization": _SIGNED}
    for name, value in headers.items():
        if name.lower() == _GENERATION:
            assert value == "0", "another condition than that there is no object"
            made["If-None-Match"] = "*"
        elif name.lower() != "authorization":
            made[re.sub("^x-goog-", "x-amz-", name.lower())] = value
    return made


def _error(code: str) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>a fault of the test</Message></Error>"
    ).encode()
