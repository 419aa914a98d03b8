"""The service's server: connections with limits, its certificate, and its token."""

import os
import secrets
from pathlib import Path
from typing import ClassVar

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.runtime.errors import ConfigError
from sluice.runtime.service.http_thread import HttpThread, LimitedConnections
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_tls import server_context

__all__ = ["ServeServer", "checked_tls", "made_token", "read_token", "state_directory"]

_LEAST_TOKEN = 16


class _LimitedRequests(LimitedConnections):
    """An answer may take long: it waits for jobs."""

    most = 256
    request_s = 60.0
    limits_answer = False


class ServeServer(HttpThread):
    """Serves the application of `serve_app`."""

    _name: ClassVar[str] = "the service of all jobs"
    _warning: ClassVar[str] = (
        "service listens beyond this machine, without TLS: address=%s. Its token can be read on "
        "that network: give --tls-cert and --tls-key (docs/guide/security.md)."
    )
    _protocol: ClassVar[type[HttpToolsProtocol]] = _LimitedRequests

    def __init__(
        self, app: ASGIApp, *, host: str, port: int, tls: tuple[Path, Path] | None
    ) -> None:
        listener = Listener.open(
            host,
            range(port, port + 1),
            name=self._name,
            remedy="Choose another --port or --host; port 0 is a free one.",
            context=None if tls is None else server_context(*tls),
        )
        super().__init__(app, listener)


def checked_tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Both files, if they belong together; None: no TLS.

    Raises:
        ConfigError: one is missing, or they are unusable.
    """
    if certificate is None and key is None:
        return None
    where = {"tls-cert": certificate, "tls-key": key}
    if certificate is None or key is None:
        raise ConfigError("TLS needs a certificate and a key", where, "Give both files.")
    try:
        server_context(certificate, key)
    except OSError as err:
        raise ConfigError(
            "the certificate or its key cannot be used",
            {**where, "reason": str(err)},
            "Give PEM files that belong together; the key without a password.",
        ) from err
    return certificate, key


def state_directory() -> Path:
    """The directory for the state of this user's programs."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "sluice"


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        ConfigError: there is no such file, or no usable token in it.
    """
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as err:
        raise ConfigError(
            "the token file cannot be read",
            {"path": path, "reason": err},
            "Give the file that `sluice serve` names at its start.",
        ) from err
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            "the token file holds no usable token",
            {"path": path, "least_characters": _LEAST_TOKEN},
            "Write one line of ASCII, for example of `openssl rand -hex 32`.",
        )
    return token


def made_token(path: Path) -> str:
    """The token in a file that only this user can read; made if absent.

    Raises:
        ConfigError: other users can read the file, or it is unusable.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")
    try:
        path.hardlink_to(temporary)  # whole, and never over an older one
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise ConfigError(
                "other users can read the token file",
                {"path": path},
                "Delete it: the service makes a new one.",
            ) from None
    finally:
        temporary.unlink()
    return read_token(path)
