"""Ports on this machine for servers that tests and demos start."""

import random
import socket

from sluice.runtime.errors import MissingRequirementError

__all__ = ["HOST", "LAST_PORT", "free_ports", "is_free", "require_free"]

HOST = "127.0.0.1"
LAST_PORT = 65_535
# Below the kernel's range for outgoing connections: a client of a killed server must not take its
# port before it restarts.
_RANGE = range(12_000, 32_000)
_ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        # As Java's server sockets do: connections in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int, *, server: str) -> None:
    """Raise `MissingRequirementError` if another process listens on ``port``."""
    if not is_free(port):
        raise MissingRequirementError(
            f"port {port} is occupied, so {server} cannot listen on it",
            {"host": HOST, "port": port},
            "Stop the process that uses it, or choose another port.",
        )


def free_ports(count: int) -> tuple[int, ...]:
    """Different ports that are free now; another process may take one before its use."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_RANGE, _ATTEMPTS):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return tuple(found)
    raise MissingRequirementError(
        "no free ports were found",
        {"host": HOST, "range": f"{_RANGE.start}-{_RANGE.stop}"},
        "Stop some servers.",
    )
