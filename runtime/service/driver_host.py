"""The address at which executors reach the driver. Pure."""

import contextlib
import socket

from sluice.runtime.errors import ConfigError

__all__ = ["require_reachable"]


def require_reachable(host: str) -> None:
    """Refuse an empty or unspecified address, such as ``0.0.0.0``.

    A server can listen on an unspecified address, but a client that connects to it reaches its own
    machine: executors on other hosts would retry for minutes.

    Raises:
        ConfigError: no other host can reach this process at ``host``.
    """
    if not host.strip() or _is_unspecified(host):
        raise ConfigError(
            "executors cannot reach the driver at this address",
            {"host": host},
            "Give the driver's own address, for example "
            "socket.gethostbyname(socket.gethostname()); leave it out for a local master.",
        )


def _is_unspecified(host: str) -> bool:
    """Whether the address is all zeros, in any spelling that a system accepts, such as ``0``."""
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_aton(host))
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_pton(socket.AF_INET6, host))
    return False
