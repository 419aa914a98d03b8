"""An embedded HDFS in a Kerberos realm: keytabs, block tokens, protected transfer, HTTPS alone."""

import secrets
import ssl
import subprocess
from pathlib import Path
from typing import Any

from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.embedded.hdfs.hdfs_site import HdfsPorts, render
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST
from tests.kit.kafka.certificates import Certificate, make_certificate
from tests.kit.kerberos.kdc import REALM, Kdc

__all__ = ["BRIEF", "USER", "SecureHdfs", "secured_site", "write_tls_files"]

USER = "alice"
"""The tests' user; a superuser of the file system."""

BRIEF = "brief"
"""The same, with tickets that live for a short time."""

_SERVICE = f"hdfs/localhost@{REALM}"
_WEB = f"HTTP/localhost@{REALM}"


class SecureHdfs(EmbeddedHdfs):
    """As `EmbeddedHdfs`.

    Args:
        kdc: of the realm; it runs.
        directory: for configuration, keys and data; empty.

    Attributes:
        conf_dir: for `HADOOP_CONF_DIR` of clients.
        certificate: of the web servers.
    """

    def __init__(self, kdc: Kdc, directory: Path, **options: Any) -> None:
        super().__init__(data_dir=directory / "hdfs", **options)
        self._kdc = kdc
        self.conf_dir = directory / "hdfs" / "conf"
        self.certificate = make_certificate(
            directory / "tls", find_java(), password=secrets.token_hex(16)
        )

    def _site(self, ports: HdfsPorts, data_dir: Path) -> dict[str, str]:
        self.conf_dir.mkdir(exist_ok=True, parents=True)
        write_tls_files(self.conf_dir, self.certificate)
        secured = secured_site(self._kdc) | {
            "dfs.namenode.https-address": f"{HOST}:{ports.web}",
            "dfs.datanode.https.address": f"{HOST}:0",
        }
        return {**secured, **super()._site(ports, data_dir)}

    def _java_options(self) -> tuple[str, ...]:
        return (self._kdc.java_option,)

    def _web_tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate.ca_file)


def secured_site(kdc: Kdc) -> dict[str, str]:
    """Settings of servers and clients in a realm."""
    keytab = str(kdc.keytab("hdfs", _SERVICE, _WEB))
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hadoop.user.group.static.mapping.overrides": f"{USER}=supergroup;{BRIEF}=supergroup;hdfs=supergroup",
        "hadoop.kerberos.min.seconds.before.relogin": "1",
        # YARN gets tokens for its users, as applications outlive theirs.
        "hadoop.proxyuser.yarn.hosts": "*",
        "hadoop.proxyuser.yarn.groups": "*",
        "dfs.block.access.token.enable": "true",
        "dfs.namenode.kerberos.principal": _SERVICE,
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": _SERVICE,
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.principal": _WEB,
        "dfs.web.authentication.kerberos.keytab": keytab,
        "dfs.data.transfer.protection": "authentication",
        "dfs.http.policy": "HTTPS_ONLY",
    }


def write_tls_files(conf_dir: Path, certificate: Certificate) -> None:
    """``ssl-server.xml`` and ``ssl-client.xml``."""
    trusted = _trust_store(certificate)
    stores = {"server.keystore": certificate.keystore, "client.truststore": trusted}
    for name, store in stores.items():
        prefix, side = f"ssl.{name}", name.partition(".")[0]
        found = {
            f"{prefix}.location": str(store),
            f"{prefix}.password": certificate.password,
            f"{prefix}.keypassword": certificate.password,
            f"{prefix}.type": "PKCS12",
        }
        (conf_dir / f"ssl-{side}.xml").write_text(render(found), encoding="utf-8")


def _trust_store(certificate: Certificate) -> Path:
    """A store of trusted authorities, as Java's clients want it: without a key."""
    made = certificate.keystore.with_name("trusted.p12")
    if not made.exists():
        keytool = find_java().executable.with_name("keytool")
        subprocess.run(
            [
                *(keytool, "-importcert", "-noprompt", "-alias", "ca"),
                *("-file", certificate.ca_file, "-keystore", made, "-storetype", "PKCS12"),
                *("-storepass", certificate.password),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
    return made
