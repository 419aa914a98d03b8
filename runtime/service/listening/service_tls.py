"""TLS of the driver's service: the server's certificate, and what clients trust."""

import datetime
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.errors import ConfigError, MissingRequirementError

__all__ = ["ServedTls", "ServiceTls", "client_context", "served_tls", "server_context"]

_CLOCKS_DIFFER = datetime.timedelta(days=1)
_LASTS = datetime.timedelta(days=3650)  # longer than a run; the next one has another certificate
_LEAST = ssl.TLSVersion.TLSv1_3  # both sides are Sluice


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTls:
    """Certificate of the driver's service: PEM files on the driver's machine.

    The service reads certificate and key again after they changed, so that a renewal needs no
    restart. The authorities travel to the clients at the start: a renewed certificate needs the
    same.

    Attributes:
        certificate: the chain, the service's own certificate first; it must name ``host``.
        key: its private key, without a password.
        ca: authorities that clients trust; None: those of each client's system.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    ca: str | os.PathLike[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTls:
    """Both sides of an open service.

    Attributes:
        context: of the server.
        ca: PEM text of what clients trust; empty: the authorities of their system.
    """

    context: ssl.SSLContext
    ca: str


def served_tls(tls: ServiceTls | None, *, host: str) -> ServedTls:
    """Certificate, key and authorities, after a trial of both sides.

    Args:
        tls: None: a certificate and a key made now, which only this process knows.
        host: at which clients reach the service.
    Raises:
        ConfigError: clients would not accept the certificate.
        MissingRequirementError: a certificate must be made, and `cryptography` is not installed.
    """
    if tls is None:
        certificate, key = _made_certificate(host)
        return ServedTls(context=_context_of_text(certificate, key), ca=certificate)
    where = {"certificate": tls.certificate, "key": tls.key, "ca": tls.ca, "host": host}
    try:
        ca = "" if tls.ca is None else Path(tls.ca).read_text("ascii")
        context = server_context(Path(tls.certificate), Path(tls.key))
        _try_handshake(context, client_context(ca), host=host)
    except (OSError, ValueError) as err:  # an error of TLS is an OSError
        reason = getattr(err, "verify_message", "") or str(err)
        raise ConfigError(
            "clients would not accept the certificate of service_tls",
            {**where, "reason": reason},
            "Give PEM files that belong together, with a certificate that names this host and is "
            "valid now, and the authority that signed it.",
        ) from err
    return ServedTls(context=context, ca=ca)


def client_context(ca: str) -> ssl.SSLContext:
    """Accepts certificates that these authorities signed, for the host of the address.

    Args:
        ca: PEM text; empty: the authorities of this system.
    """
    context = ssl.create_default_context(cadata=ca or None)
    context.minimum_version = _LEAST
    return context


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Serves this certificate, and its newer version after the files changed.

    Raises:
        OSError: the files cannot be read, or do not belong together.
    """

    def loaded() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=_no_password)
        return context

    first = loaded()
    first.sni_callback = _Renewal(loaded, (certificate, key), first).choose
    return first


class _Renewal:
    """Chooses the newest usable context for each connection. The server's thread."""

    def __init__(
        self,
        load: Callable[[], ssl.SSLContext],
        files: tuple[Path, Path],
        first: ssl.SSLContext,
    ) -> None:
        self._load, self._files, self._newest = load, files, first
        self._seen = self._versions()

    def choose(self, connection: ssl.SSLObject, name: str | None, asked: ssl.SSLContext) -> None:
        """See `ssl.SSLContext.sni_callback`."""
        del name, asked
        found = self._versions()
        if found != self._seen:
            try:
                self._newest = self._load()
            except OSError:
                return  # half of a renewal: the next connection sees all of it
            self._seen = found
        connection.context = self._newest

    def _versions(self) -> tuple[tuple[int, int] | None, ...]:
        def version(file: Path) -> tuple[int, int] | None:
            try:
                found = file.stat()
            except OSError:
                return None
            return found.st_ino, found.st_mtime_ns

        return tuple(map(version, self._files))


def _no_password() -> bytes:
    return b""  # otherwise OpenSSL prompts on the terminal


def _context_of_text(certificate: str, key: str) -> ssl.SSLContext:
    """Python reads a key only from a file: one that only this user can read, for a moment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _try_handshake(server: ssl.SSLContext, client: ssl.SSLContext, *, host: str) -> None:
    """Raise the error that a client of this host would get; without a network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):  # flights of TLS 1.3
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _made_certificate(host: str) -> tuple[str, str]:
    """A certificate for this host that signs itself, and its key, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as err:
        raise MissingRequirementError(
            "a certificate cannot be made",
            {"missing": err.name},
            "Install sluice-spark[tls], or give a certificate: service_tls=ServiceTls(...).",
        ) from err

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sluice")])
    subject: x509.GeneralName
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
