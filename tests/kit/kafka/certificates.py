"""A certificate for servers on this machine, made by the Java that runs them."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from sluice.runtime.embedded.java import Java
from sluice.runtime.errors import MissingRequirementError

__all__ = ["Certificate", "make_certificate"]

_ALIAS = "server"
_VALID_DAYS = "30"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A self-signed certificate of ``localhost`` and 127.0.0.1.

    Attributes:
        keystore: PKCS12 file for the server; private key included.
        password: of the key store.
        ca_file: PEM file that makes clients trust the server.
    """

    keystore: Path
    password: str = field(repr=False)
    ca_file: Path


def make_certificate(directory: Path, java: Java, *, password: str) -> Certificate:
    """Make the files in ``directory``, or use the files of an earlier call."""
    made = Certificate(
        keystore=directory / "server.p12", password=password, ca_file=directory / "ca.pem"
    )
    if made.ca_file.exists():
        return made
    directory.mkdir(parents=True, exist_ok=True)
    store = ("-keystore", str(made.keystore), "-storetype", "PKCS12", "-storepass", password)
    _keytool(
        java,
        *("-genkeypair", "-alias", _ALIAS, "-keyalg", "EC", "-groupname", "secp256r1"),
        *("-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1"),
        *("-validity", _VALID_DAYS, *store),
    )
    _keytool(java, "-exportcert", "-rfc", "-alias", _ALIAS, "-file", str(made.ca_file), *store)
    return made


def _keytool(java: Java, *arguments: str) -> None:
    tool = java.executable.with_name("keytool")
    answer = subprocess.run(
        [tool, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if answer.returncode:
        raise MissingRequirementError(
            "keytool could not make a certificate",
            {"keytool": tool, "answer": answer.stdout.strip()},
            "Check that the directory is writable and that the Java is complete.",
        )
