"""A proxy before a broker at which clients log in by OAUTHBEARER with tokens of any form.

A broker takes tokens that are no JSON web tokens only with a Java class of its own. Here the proxy
answers the two requests of a log-in, and lets the others pass after it.
"""

import struct
from collections.abc import Callable

from tests.kit.kafka.kafka_proxy import API_VERSIONS, Connection, KafkaProxy, Request

__all__ = ["LoginProxy"]

_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_MECHANISM = b"OAUTHBEARER"
_UNSUPPORTED_MECHANISM, _AUTHENTICATION_FAILED = 33, 58
_FIXED = 14  # bytes of a request before the client's id


class LoginProxy(KafkaProxy):
    """See the module.

    Args:
        is_valid: says of a token whether it logs in; called by threads of the proxy.
    """

    def __init__(self, is_valid: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_valid = is_valid
        self._let_in: set[int] = set()
        self.logins = 0
        self.refusals = 0

    def _own_answer(self, connection: Connection, request: Request) -> bytes | None:
        if request.api_key == _SASL_HANDSHAKE:
            named = struct.pack(">h", len(_MECHANISM)) + _MECHANISM
            error = 0 if _body(request).endswith(named) else _UNSUPPORTED_MECHANISM
            return _answer(request, struct.pack(">hi", error, 1) + named)
        if request.api_key == _SASL_AUTHENTICATE:
            return self._login(connection, request)
        if request.api_key == API_VERSIONS or id(connection) in self._let_in:
            return None
        raise ConnectionError(f"a request without a log-in: {request}")

    def _login(self, connection: Connection, request: Request) -> bytes:
        is_valid = self._is_valid(_token(_body(request)))
        if is_valid:
            self._let_in.add(id(connection))  # the proxy keeps its connections
            self.logins += 1
        else:
            self.refusals += 1
        code = struct.pack(">h", 0 if is_valid else _AUTHENTICATION_FAILED)
        lifetime = struct.pack(">q", 0)
        if request.api_version >= 2:  # compact: no message, no bytes, no tagged fields
            return _answer(request, b"\x00" + code + b"\x00" + b"\x01" + lifetime + b"\x00")
        empty = struct.pack(">hi", -1, 0)
        return _answer(request, code + empty + (lifetime if request.api_version else b""))


def _body(request: Request) -> bytes:
    return request.frame[_FIXED + len(request.client_id) :]


def _token(body: bytes) -> str:
    """Of a client's first message (RFC 7628): fields that a byte 1 ends, among them ``auth``."""
    (found,) = [field for field in body.split(b"\x01") if field.startswith(b"auth=Bearer ")]
    return found.removeprefix(b"auth=Bearer ").decode()


def _answer(request: Request, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), request.correlation_id) + body
