"""Address, port and TLS of the driver's service, from arguments and settings of Spark. Pure."""

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from sluice.runtime.errors import ConfigError
from sluice.runtime.service.listening.service_tls import ServiceTls

__all__ = ["ServiceSettings", "checked_port"]

_LOOPBACK = "127.0.0.1"
_PORTS = 1 << 16
_CONF = "spark.sluice.service."
_NAMES = ("host", "bindAddress", "port", "tls", "tls.certificate", "tls.key", "tls.ca")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Address, port and TLS of the service that executors and commands call.

    Attributes:
        host: at which they reach the driver.
        bind_address: address to listen on.
        ports: the service takes the first free one; 0: any free one.
        tls: False: plain HTTP; True: a certificate made at the start.
    """

    host: str = _LOOPBACK
    bind_address: str = _LOOPBACK
    ports: range = range(1)
    tls: bool | ServiceTls = False

    @classmethod
    def of(
        cls,
        conf: Mapping[str, str],
        *,
        default_host: str = _LOOPBACK,
        host: str | None = None,
        bind_address: str | None = None,
        port: int | str | None = None,
        tls: bool | ServiceTls | None = None,
    ) -> Self:
        """From arguments, else from settings of Spark; checked.

        Args:
            conf: all settings of the session.
            default_host: Spark's own address of the driver.
            host, bind_address, port, tls: see `sluice.Job`.
        Raises:
            ConfigError: a setting is unknown or out of range, or executors could not reach `host`.
        """
        given = {k.removeprefix(_CONF): v for k, v in conf.items() if k.startswith(_CONF)}
        unknown = sorted(given.keys() - set(_NAMES))
        if unknown:
            raise ConfigError(
                "a setting of the driver's service is unknown",
                {"settings": ",".join(_CONF + name for name in unknown)},
                f"Use {_CONF}NAME with one of: {', '.join(_NAMES)}.",
            )
        found = given.get("host", default_host) if host is None else host
        _require_reachable(found)
        listens = given.get("bindAddress") if bind_address is None else bind_address
        if listens is not None and not listens.strip():
            raise ConfigError(
                "bind_address is empty", {"bind_address": listens}, "Use 0.0.0.0 for all."
            )
        return cls(
            host=found,
            bind_address=listens or found,
            ports=_ports(given.get("port", 0) if port is None else port),
            tls=_tls_in(given) if tls is None else tls,
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
    if port is None or (type(port) is int and 0 <= port < _PORTS):
        return port
    raise ConfigError(
        "metrics_port is not a port",
        {"metrics_port": port},
        "Use 0 (a free one) to 65535.",
    )


def _require_reachable(host: str) -> None:
    """Refuse an empty or unspecified address, such as ``0.0.0.0``.

    A server can listen on an unspecified address, but a client that connects to it reaches its own
    machine: executors on other hosts would retry for minutes.
    """
    if not host.strip() or _is_unspecified(host):
        raise ConfigError(
            "executors cannot reach the driver at this address",
            {"host": host},
            "Leave it out for the address that Spark uses, or give one that executors reach. "
            "To listen on all interfaces, set bind_address.",
        )


def _is_unspecified(host: str) -> bool:
    """Whether the address is all zeros, in any spelling that a system accepts, such as ``0``."""
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_aton(host))
    with contextlib.suppress(OSError, ValueError):
        return not any(socket.inet_pton(socket.AF_INET6, host))
    return False


def _ports(given: int | str) -> range:
    """``7100``, ``"7100"`` or ``"7100-7115"``."""
    first, _, last = str(given).partition("-")
    try:
        if type(given) not in (int, str):
            raise ValueError
        found = range(int(first), int(last or first) + 1)
    except ValueError:
        found = range(0)
    if not found or found[-1] >= _PORTS or found[0] < (1 if len(found) > 1 else 0):
        raise ConfigError(
            "service_port is neither a port nor a range of ports",
            {"service_port": given},
            'Use 0 (a free one) to 65535, or a range such as "7100-7115".',
        )
    return found


def _tls_in(given: Mapping[str, str]) -> bool | ServiceTls:
    names = ("certificate", "key", "ca")
    files = {name: given[f"tls.{name}"] for name in names if f"tls.{name}" in given}
    text = given.get("tls", "true" if files else "false")
    flag = _FLAGS.get(text.strip().lower())
    if flag is None or (files and not (flag and {"certificate", "key"} <= files.keys())):
        raise ConfigError(
            "settings of the service's TLS contradict each other",
            {_CONF + name: value for name, value in given.items() if name.startswith("tls")},
            f"Set {_CONF}tls.certificate and {_CONF}tls.key, or only {_CONF}tls=true.",
        )
    return ServiceTls(**files) if files else flag
