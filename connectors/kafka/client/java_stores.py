"""Java's key and trust stores (JKS, JCEKS, PKCS12), as the certificates and keys that we need.

A connection reads them once, where it is made: in the driver. It keeps the text of certificates and
keys, which travels to executors with its other secrets. So executors need no file.
"""

import datetime
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.runtime.embedded.java import find_java
from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

__all__ = ["without_java_stores"]

log = logging.getLogger(__name__)

_KEYTOOL_S = 120.0
_JAVA_TYPES = frozenset({"JKS", "JCEKS", "PKCS12"})
_SUFFIXES = frozenset({".jks", ".jceks", ".keystore", ".p12", ".pfx", ".truststore"})
_MAGIC = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}
_DER = b"\x30"  # PKCS12 begins so; PEM is text
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_STORE, _KEY = "SLUICE_STORE_PASSWORD", "SLUICE_KEY_PASSWORD"  # of keytool
_HOW = "It holds one private key with its certificates."


def without_java_stores(options: Mapping[str, str]) -> dict[str, str]:
    """The options with the content of Java's stores in place of their files; others as they are.

    A file's first bytes show its kind. Java, too, reads PKCS12 where JKS is named.

    Args:
        options: without the prefix ``kafka.``, lower case.
    Raises:
        ConfigError: a store is missing, has another password, or holds nothing usable.
        MissingRequirementError: the package ``cryptography`` is not installed, or JKS needs a Java.
    """
    changed = dict(options)
    trusted = _Store.of(options, "ssl.truststore")
    if trusted is not None:
        changed["ssl.ca.pem"] = trusted.certificates()
    own = _Store.of(options, "ssl.keystore")
    if own is not None:
        key, chain = own.key_and_chain(options.get("ssl.key.password"))
        changed |= {"ssl.key.pem": key, "ssl.certificate.pem": chain}
        changed.pop("ssl.key.password", None)
    for store in (each for each in (trusted, own) if each is not None):
        for part in ("location", "password", "type"):
            changed.pop(f"{store.option}.{part}", None)
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """One store file.

    Attributes:
        option: first part of its options' names.
        kind: JKS, JCEKS or PKCS12.
        password: "": none was given.
    """

    option: str
    path: Path
    kind: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], option: str) -> "_Store | None":
        """The store of these options; None: there is none, or it is PEM."""
        location = options.get(f"{option}.location", "").strip()
        named = options.get(f"{option}.type", "").strip().upper()
        if named not in ("", "PEM", *_JAVA_TYPES):
            raise ConfigError(
                "this kind of key store is not supported",
                {"option": f"kafka.{option}.type", "value": named},
                f"Use PEM, or one of {', '.join(sorted(_JAVA_TYPES))}.",
            )
        if named in _JAVA_TYPES and not location:
            raise ConfigError(
                "the type of a key store is given without its file",
                {"option": f"kafka.{option}.type", "value": named},
                f"Set kafka.{option}.location, or remove the type.",
            )
        if not location or named == "PEM":
            return None
        path = Path(location)
        kind = _kind_of(path, option, must_exist=bool(named) or path.suffix.lower() in _SUFFIXES)
        if kind is None:
            return None
        password = options.get(f"{option}.password", "")
        return cls(option=option, path=path, kind=kind, password=password)

    def certificates(self) -> str:
        """All certificates, as PEM."""
        certificates = self._listed() if self.kind in _MAGIC.values() else self._in_pkcs12()
        if not certificates:
            raise self._error("a trust store holds no certificates", "Add the broker's authority.")
        valid = [each for each in certificates if not _is_expired(each)]
        if not valid:
            raise self._error(
                "all certificates of a trust store have expired", "Renew them.", certificates[0]
            )
        if len(valid) < len(certificates):
            log.warning(
                "certificates of a trust store have expired: count=%d file=%s",
                len(certificates) - len(valid),
                self.path,
            )
        return "".join(map(_pem, certificates))

    def _in_pkcs12(self) -> "list[Certificate]":
        found = self._read()
        own = [] if found.cert is None else [found.cert]
        return [each.certificate for each in (*own, *found.additional_certs)]

    def _listed(self) -> "list[Certificate]":
        """By Java's own tool, which lists certificates also without a password, as Java does."""
        with extras_named():
            from cryptography.x509 import load_pem_x509_certificates
        done = self._keytool("-list", "-rfc", has_password=bool(self.password))
        found = _CERTIFICATE.findall(done.stdout)
        if done.returncode:
            raise self._not_converted(done.stdout)
        return load_pem_x509_certificates("\n".join(found).encode()) if found else []

    def key_and_chain(self, key_password: str | None) -> tuple[str, str]:
        """The private key without a password, and its certificates, own one first; as PEM."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        found = self._read(key_password)
        if found.key is None or found.cert is None:
            raise self._error("a key store holds no private key", f"Give another one. {_HOW}")
        if _is_expired(found.cert.certificate):
            raise self._error(
                "the client certificate of a key store has expired",
                "Renew it.",
                found.cert.certificate,
            )
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        chain = [found.cert, *found.additional_certs]
        return key, "".join(_pem(each.certificate) for each in chain)

    def _read(self, key_password: str | None = None) -> "PKCS12KeyAndCertificates":
        with extras_named():
            from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
        password = self.password
        if self.kind == "PKCS12":
            content = self.path.read_bytes()
        else:
            content = self._converted(key_password or password)
        try:
            return load_pkcs12(content, password.encode() if password else None)
        except ValueError as err:
            raise self._error(
                "a key store cannot be opened: wrong password, or damaged",
                f"Correct kafka.{self.option}.password, or the file.",
            ) from err

    def _converted(self, key_password: str) -> bytes:
        """The store as PKCS12, by Java's own tool, in a directory that only this user can read."""
        with tempfile.TemporaryDirectory(prefix="sluice-store-") as directory:
            made = Path(directory) / "store.p12"
            arguments = ["-importkeystore", "-noprompt", "-destkeystore", str(made)]
            arguments += ["-deststoretype", "PKCS12", "-deststorepass:env", _STORE]
            if key_password != self.password:
                arguments += ["-srckeypass:env", _KEY, "-destkeypass:env", _STORE]
                arguments += ["-srcalias", self._only_alias()]
            done = self._keytool(*arguments, key_password=key_password, prefix="src")
            if made.exists() and not done.returncode:
                return made.read_bytes()
        raise self._not_converted(done.stdout)

    def _only_alias(self) -> str:
        done = self._keytool("-list")
        entries = [line for line in done.stdout.splitlines() if "PrivateKeyEntry" in line]
        if done.returncode:
            raise self._not_converted(done.stdout)
        if len(entries) != 1:
            raise self._error(
                "a key store does not hold exactly one private key", f"Give another one. {_HOW}"
            )
        return entries[0].partition(",")[0]

    def _keytool(
        self,
        *arguments: str,
        key_password: str = "",
        prefix: str = "",
        has_password: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run it; passwords go by its environment, which no process list shows."""
        tool = find_java().executable.with_name("keytool")
        command = [str(tool), *arguments, f"-{prefix}keystore", str(self.path)]
        command += [f"-{prefix}storetype", self.kind, "-J-Duser.language=en"]
        if has_password:
            command += [f"-{prefix}storepass:env", _STORE]
        return subprocess.run(
            command,
            input="\n",  # no password
            env={**os.environ, _STORE: self.password, _KEY: key_password},
            capture_output=True,
            text=True,
            timeout=_KEYTOOL_S,
            check=False,
        )

    def _not_converted(self, output: str) -> ConfigError:
        reason = next((line for line in output.splitlines() if "rror" in line), "no answer")
        return self._error(
            "a key store cannot be opened: wrong password, or damaged",
            f"Correct kafka.{self.option}.password or kafka.ssl.key.password, or the file.",
            reason=reason.removeprefix("keytool error: "),
        )

    def _error(
        self,
        what: str,
        remedy: str,
        certificate: "Certificate | None" = None,
        **where: str,
    ) -> ConfigError:
        if certificate is not None:
            where["expired"] = certificate.not_valid_after_utc.isoformat()
            where["subject"] = certificate.subject.rfc4514_string()
        return ConfigError(
            what, {f"kafka.{self.option}.location": self.path, "type": self.kind, **where}, remedy
        )


def _kind_of(path: Path, option: str, *, must_exist: bool) -> str | None:
    """The kind of Java's stores that a file is; None: PEM, or not there and perhaps PEM."""
    try:
        with path.open("rb") as file:
            first = file.read(4)
    except OSError as err:
        if not must_exist:
            return None
        raise ConfigError(
            "a key store cannot be read",
            {f"kafka.{option}.location": path, "reason": err.strerror or err},
            "Give a file that the driver can read.",
        ) from err
    return _MAGIC.get(first, "PKCS12" if first.startswith(_DER) else None)


def _is_expired(certificate: "Certificate") -> bool:
    return certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC)


def _pem(certificate: "Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()
