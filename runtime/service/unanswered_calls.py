"""Errors for calls without an answer of a coordinator: the cause, or the service that answered.
Pure.

A cause that may pass is an `UnreachableError`, and the call is repeated; a permanent cause is
another error.
"""

import ssl
from collections.abc import Mapping

import urllib3
from urllib3 import exceptions

from sluice.runtime.errors import (
    ConfigError,
    UnreachableError,
    WaitedTooLongError,
    WrongServiceError,
)

__all__ = ["CONNECT_TIMEOUT_S", "foreign_answer", "no_connection", "unusable_address"]

CONNECT_TIMEOUT_S = 5.0
"""The longest wait for a connection; the call sets the wait for an answer."""

_MOST_TEXT = 80
_SERVER_ERRORS = 500
_WRONG_CREDENTIALS = (401, 403, 407)


def no_connection(
    error: exceptions.HTTPError, *, address: str, path: str, timeout_s: float
) -> UnreachableError:
    """For a request without an answer."""
    where: dict[str, object] = {"address": address, "path": path, "reason": type(error).__name__}
    match error:
        case exceptions.NameResolutionError():
            return UnreachableError(
                "the host of the coordinator's address is unknown here",
                where,
                "Check the name service of this machine. Job(host=...) may be an IP address.",
            )
        case exceptions.NewConnectionError() if isinstance(error.__cause__, ConnectionRefusedError):
            return UnreachableError(
                "nothing listens at the coordinator's address",
                where,
                "Check that the coordinator runs: in the driver, or as `sluice coordinator`. It "
                "listens on loopback unless Job(host=...) or sluice.install(host=...) is set, and "
                "on a new port in each run unless service_port is set.",
            )
        case exceptions.NewConnectionError():
            return UnreachableError(
                "the coordinator's host is unreachable from here",
                {**where, "detail": _short(str(error.__cause__ or error))},
                "Check the network and the route to that address. A job listens on Job(host=...).",
            )
        case exceptions.ConnectTimeoutError():
            return WaitedTooLongError(
                "the coordinator's host does not answer",
                {**where, "waited_s": min(timeout_s, CONNECT_TIMEOUT_S)},
                "Check that the host runs, and that no firewall blocks that port. A job listens "
                "on Job(host=...).",
            )
        case exceptions.ReadTimeoutError():
            return WaitedTooLongError(
                "the coordinator received a request and does not answer it",
                {**where, "waited_s": timeout_s},
                "Read the driver's log: its process may hang, or its machine is very busy.",
            )
        case exceptions.SSLError() if isinstance(error.args[0], ssl.SSLCertVerificationError):
            return UnreachableError(
                "the coordinator's certificate is not accepted here",
                {**where, "detail": error.args[0].verify_message},
                "Check that no other service listens on that port, and that service_tls has a "
                "valid certificate of the authority that it names.",
            )
        case exceptions.SSLError():
            return UnreachableError(
                "the coordinator's address does not speak TLS",
                {**where, "detail": _short(str(error))},
                "Use the address object of this run: it says whether the service has TLS "
                "(service_tls).",
            )
    return UnreachableError(
        "the connection to the coordinator broke before its answer",
        where,
        "Check that the coordinator's process runs, and that no other service listens on that "
        "port.",
    )


def unusable_address(reason: str, *, address: str) -> ConfigError:
    """For an address or a token that cannot be part of a request; the error does not show the
    token."""
    return ConfigError(
        "a request cannot contain this address or token",
        {"address": address, "reason": reason},
        "Use the address object that the job gave out: an address http://host:port, and a token "
        "of one ASCII line.",
    )


def foreign_answer(
    response: urllib3.BaseHTTPResponse, *, address: str, path: str
) -> UnreachableError:
    """For an answer that does not come from a coordinator: HTML of a proxy, or another service."""
    where: dict[str, object] = {
        "address": address,
        "path": path,
        "status": response.status,
        **_sender_headers(response.headers),
    }
    if response.status in _WRONG_CREDENTIALS:
        return WrongServiceError(
            "a proxy or another service requires credentials",
            where,
            "Connect to the driver directly, or at the address under which the proxy serves it.",
        )
    if response.status >= _SERVER_ERRORS:
        return UnreachableError(
            "a proxy answers instead of the coordinator, or the coordinator failed",
            where,
            "Check that the coordinator's process runs, and that the proxy knows its address.",
        )
    return WrongServiceError(
        "the answer does not come from a coordinator",
        where,
        "Check that no other service or proxy listens on that port, and that both sides run the "
        "same version of Sluice.",
    )


def _sender_headers(headers: Mapping[str, str]) -> dict[str, object]:
    """The headers that identify the sender."""
    shown = {"content_type": "Content-Type", "server": "Server", "location": "Location"}
    return {name: _short(headers[key]) for name, key in shown.items() if key in headers}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 1] + "…"
