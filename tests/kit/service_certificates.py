"""An authority and its certificates for the driver's service, as PEM files."""

import contextlib
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.runtime.service.listening.service_tls import ServiceTls

__all__ = ["Authority"]

_HOUR = datetime.timedelta(hours=1)


class Authority:
    """Signs certificates. Its key lives in this process only.

    Attributes:
        pem: its own certificate.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        now = datetime.datetime.now(datetime.UTC)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        made = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 24 * _HOUR)
            .not_valid_after(now + 24 * _HOUR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.pem = made.public_bytes(serialization.Encoding.PEM).decode()

    def written(self, path: Path) -> Path:
        """The file with its own certificate."""
        path.write_text(self.pem)
        return path

    def issue(
        self, directory: Path, *hosts: str, until: datetime.datetime | None = None
    ) -> ServiceTls:
        """Write a certificate for these hosts, its key and the authority, over older ones."""
        directory.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 12 * _HOUR)
            .not_valid_after(until or now + 12 * _HOUR)
            .add_extension(
                x509.SubjectAlternativeName([_named(host) for host in hosts]), critical=True
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        files = ServiceTls(
            certificate=directory / "certificate.pem",
            key=directory / "key.pem",
            ca=self.written(directory / "ca.pem"),
        )
        Path(files.certificate).write_bytes(made.public_bytes(serialization.Encoding.PEM))
        Path(files.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


def _named(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)
