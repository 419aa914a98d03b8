"""An open socket of the driver, and how clients reach it."""

import errno
import ipaddress
import socket
import ssl
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.service.listening.service_tls import ServiceTls, served_tls

__all__ = ["Listener"]

_SERVICE = "the coordinator's service"
_REMEDY = (
    "Choose a host of this machine, or add bind_address. Choose a free service_port: a range such "
    'as "7100-7115" serves several jobs of a host, 0 is a free one.'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener(AbstractContextManager["Listener"]):
    """A socket that accepts connections from now on. The process that opened it closes it.

    Attributes:
        host: at which clients reach it.
        context: of TLS; None: plain HTTP.
        ca: what clients trust; see `sluice.runtime.service.listening.service_tls.ServedTls`.
    """

    socket: socket.socket
    host: str
    context: ssl.SSLContext | None = None
    ca: str = field(default="", repr=False)

    @classmethod
    def open(
        cls,
        host: str,
        ports: range,
        *,
        bind_address: str | None = None,
        name: str = _SERVICE,
        remedy: str = _REMEDY,
        context: ssl.SSLContext | None = None,
        ca: str = "",
    ) -> "Listener":
        """Listen on the first free port.

        Raises:
            MissingRequirementError: there is none, or no such address.
        """
        where = bind_address or host
        reason: OSError | None = None
        for port in ports:
            try:
                return cls(socket=_listening(where, port), host=host, context=context, ca=ca)
            except OSError as err:
                reason = err
                if err.errno != errno.EADDRINUSE:
                    break
        assert reason is not None, "a range of ports is never empty"
        shown = ports[0] if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"
        raise MissingRequirementError(
            f"{name} cannot listen on this address",
            {"host": where, "port": shown, "reason": reason.strerror or str(reason)},
            remedy,
        ) from reason

    @classmethod
    def of(cls, settings: ServiceSettings) -> "Listener":
        """As these settings say.

        Raises:
            StreamError: as `open` and `served_tls`.
        """
        tls = settings.tls
        served = (
            served_tls(tls if isinstance(tls, ServiceTls) else None, host=settings.host)
            if tls
            else None
        )
        return cls.open(
            settings.host,
            settings.ports,
            bind_address=settings.bind_address,
            context=None if served is None else served.context,
            ca="" if served is None else served.ca,
        )

    @property
    def address(self) -> str:
        """``http://host:port``, or ``https``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self.context is None else "https"
        return f"{scheme}://{host}:{self.socket.getsockname()[1]}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.socket.getsockname()[0]).is_loopback

    def close(self) -> None:
        """A repeated call is safe."""
        self.socket.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP; otherwise asyncio keeps Nagle's algorithm on: 40 ms for each answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(512)
    except OSError:
        listening.close()
        raise
    return listening
