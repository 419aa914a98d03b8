"""A real key management server of Hadoop (KMS), which keeps its keys in a key store."""

import getpass
from pathlib import Path
from typing import Self

from sluice.runtime.embedded.hdfs.hdfs_site import render
from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.embedded.process import ServerProcess, ServerSpec

__all__ = ["Kms"]

_NAME = "hadoop-kms-3.4.2"
_CHECKSUMS = Path(__file__).parents[2] / "data" / f"{_NAME}.sha256"
_SERVER = "org.apache.hadoop.crypto.key.kms.server.KMSWebServer"
_LOGGING = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c - %m%n
"""


class Kms:
    """Started as a context manager; a test may stop and start it again.

    Args:
        directory: for keys, configuration and log.

    Attributes:
        provider: for ``hadoop.security.key.provider.path`` of servers and clients.
    """

    def __init__(self, directory: Path) -> None:
        (port,) = free_ports(1)
        self.provider = f"kms://http@{HOST}:{port}/kms"
        conf = directory / "conf"
        conf.mkdir(parents=True)
        user = getpass.getuser()
        site: dict[str, str] = {
            "hadoop.kms.http.host": HOST,
            "hadoop.kms.http.port": str(port),
            "hadoop.kms.key.provider.uri": f"jceks://file@{directory}/keys.jceks",
            "hadoop.kms.authentication.type": "simple",
            f"hadoop.kms.proxyuser.{user}.users": "*",  # a DataNode acts for the user of WebHDFS
            f"hadoop.kms.proxyuser.{user}.hosts": "*",
        }
        rights = ("MANAGEMENT", "GENERATE_EEK", "DECRYPT_EEK", "READ")
        acls = {f"default.key.acl.{right}": "*" for right in rights}
        for name, settings in (("core-site", {}), ("kms-acls", acls), ("kms-site", site)):
            (conf / f"{name}.xml").write_text(render(settings), encoding="utf-8")
        (conf / "log4j.properties").write_text(_LOGGING, encoding="ascii")
        self._server = ServerProcess(
            ServerSpec(
                name="kms",
                command=(
                    *(str(find_java().executable), "-Xmx192m", "-XX:TieredStopAtLevel=1"),
                    *("--add-opens=java.base/java.lang=ALL-UNNAMED", f"-Dkms.config.dir={conf}"),
                    f"-Dlog4j.configuration=file:{conf}/log4j.properties",
                    *("-cp", f"{conf}:{_jars()}/*", _SERVER),
                ),
                log_path=directory / "kms.log",
                ready_text="KMS Started",
            )
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Answer again."""
        self._server.start()

    def stop(self) -> None:
        """Answer nothing: its port is closed."""
        self._server.stop()


def _jars() -> Path:
    """Downloaded at a user's first call; Hadoop's newest release of it is not in Maven."""
    artifact = Artifact(organisation="org.apache.hadoop", name="hadoop-kms", version="3.4.2")
    checksums = parse_checksums(_CHECKSUMS.read_text("ascii"))
    return fetch(Bundle(name=_NAME, artifacts=(artifact,), checksums=checksums))
