"""Why a call got no answer of a coordinator, in words: who refused, or what answered instead. Pure.

What may pass is an `UnreachableError`, and is tried again; what never does is another error.
"""

from collections.abc import Mapping

import urllib3
from urllib3 import exceptions

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
    WaitedTooLongError,
)

__all__ = ["CONNECT_TIMEOUT_S", "foreign_answer", "no_connection", "unusable_address"]

CONNECT_TIMEOUT_S = 5.0
"""The longest wait for a connection; for an answer it is the call's own."""

_MOST_TEXT = 80
_SERVER_ERRORS = 500
_WRONG_CREDENTIALS = (401, 403, 407)


def no_connection(
    error: exceptions.HTTPError, *, address: str, path: str, timeout_s: float
) -> UnreachableError:
    """For a request that nobody has answered."""
    where: dict[str, object] = {"address": address, "path": path, "reason": type(error).__name__}
    match error:
        case exceptions.NameResolutionError():
            return UnreachableError(
                "the host of the coordinator's address is not known here",
                where,
                "Does this machine's name service know it? Job(host=...) may be an IP address.",
            )
        case exceptions.NewConnectionError() if isinstance(error.__cause__, ConnectionRefusedError):
            return UnreachableError(
                "nothing listens at the coordinator's address",
                where,
                "Does the driver process still run? A job listens on the loopback of its driver "
                "unless Job(host=...) says otherwise, and each run at another port.",
            )
        case exceptions.NewConnectionError():
            return UnreachableError(
                "the coordinator's host cannot be reached from here",
                {**where, "detail": _short(str(error.__cause__ or error))},
                "Is there a network, and a way to that address? A job listens where "
                "Job(host=...) says.",
            )
        case exceptions.ConnectTimeoutError():
            return WaitedTooLongError(
                "the coordinator's host does not answer",
                {**where, "waited_s": min(timeout_s, CONNECT_TIMEOUT_S)},
                "Is that host up, and does a firewall let this one through to that port? A job "
                "listens where Job(host=...) says.",
            )
        case exceptions.ReadTimeoutError():
            return WaitedTooLongError(
                "the coordinator has taken a request and does not answer it",
                {**where, "waited_s": timeout_s},
                "Its process may hang, or its machine be very busy: see the driver's log.",
            )
        case exceptions.SSLError():
            return UnreachableError(
                "the coordinator's address does not speak TLS as asked",
                {**where, "detail": _short(str(error))},
                "A coordinator speaks http: https is a proxy's, whose certificate must be valid.",
            )
    return UnreachableError(
        "the connection to the coordinator broke before its answer",
        where,
        "Did the driver process end, or is another service, or a proxy, listening on that port?",
    )


def unusable_address(reason: str, *, address: str) -> ConfigError:
    """For an address or a token that no request can be made with; the token is not shown."""
    return ConfigError(
        "no request can be sent with this address and token of a coordinator",
        {"address": address, "reason": reason},
        "The address is http://host:port, and the token one line of ASCII: use the address object "
        "that the job gave out.",
    )


def foreign_answer(response: urllib3.BaseHTTPResponse, *, address: str, path: str) -> StreamError:
    """For an answer that is not a coordinator's: HTML of a proxy, or another service's."""
    where: dict[str, object] = {
        "address": address,
        "path": path,
        "status": response.status,
        **_told_by(response.headers),
    }
    if response.status in _WRONG_CREDENTIALS:
        return AuthenticationError(
            "somebody before the coordinator wants credentials: a proxy, or another service",
            where,
            "Reach the driver directly, or at the address that the proxy serves it under.",
        )
    if response.status >= _SERVER_ERRORS:
        return UnreachableError(
            "a proxy answers in the coordinator's place, or it fails without a word",
            where,
            "Does the driver process still run, and does the proxy know where?",
        )
    return UnsupportedFormatError(
        "the coordinator's address gave an answer that is not a coordinator's",
        where,
        "Is another service listening on that port, a proxy before it, or another version of "
        "Sluice?",
    )


def _told_by(headers: Mapping[str, str]) -> dict[str, object]:
    """Who it is, as far as it says so."""
    asked = {"content_type": "Content-Type", "server": "Server", "location": "Location"}
    return {name: _short(headers[key]) for name, key in asked.items() if key in headers}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 1] + "…"
