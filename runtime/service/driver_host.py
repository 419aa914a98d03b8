"""Addresses of the driver: for executors, and of the read-only port. Pure."""

import contextlib
import socket

from sluice.runtime.errors import ConfigError

__all__ = ["checked_port", "require_reachable"]


def require_reachable(host: str | None) -> None:
    """Refuse an empty or unspecified address, such as ``0.0.0.0``; None: Spark knows a better one.

    A server can listen on an unspecified address, but a client that connects to it reaches its own
    machine: executors on other hosts would retry for minutes.

    Raises:
        ConfigError: no other host can reach this process at ``host``.
    """
    if host is not None and (not host.strip() or _is_unspecified(host)):
        raise ConfigError(
            "executors cannot reach the driver at this address",
            {"host": host},
            "Leave it out for the address that Spark uses, or give one that executors reach.",
        )


def checked_port(port: int | None, *, host: str) -> int | None:
    """The port of ``metrics_port``, on ``metrics_host``.

    Raises:
        ConfigError: it is no port, or the host is empty, which would mean all interfaces.
    """
    if not host.strip():
        raise ConfigError(
            "metrics_host is empty", {"metrics_host": host}, "Use 127.0.0.1, or 0.0.0.0 for all."
        )
    if port is None or (type(port) is int and 0 <= port < 1 << 16):
        return port
    raise ConfigError(
        "metrics_port is not a port",
        {"metrics_port": port},
        "Use 0 (a free one) to 65535.",
    )


def _is_unspecified(host: str) -> bool:
    """Whether the address is all zeros, in any spelling that a system accepts, such as ``0``."""
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_aton(host))
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_pton(socket.AF_INET6, host))
    return False
