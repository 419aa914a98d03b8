"""A realm with an HDFS, whose tickets and tokens live for seconds, and clients of both."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from sluice.runtime.storage.hadoop_jvm import hadoop_jvm
from tests.kit.kerberos.kdc import REALM, Kdc, require_kerberos
from tests.kit.kerberos.secure_hdfs import BRIEF, USER, SecureHdfs

__all__ = ["TOKEN_LIFE_S", "Realm", "realm"]

TOKEN_LIFE_S = 90
"""Of a delegation token; a renewal adds nothing to it."""

_TICKET_LIFE_S = 90
_TOKENS = "dfs.namenode.delegation.token"


class Realm:
    """Started as a context manager.

    Args:
        directory: empty, for all data.
        token_life_s: of delegation tokens; a renewal adds nothing to it.

    Attributes:
        kdc: a test that stops it starts it again.
        hdfs: in its realm.
    """

    def __init__(self, directory: Path, *, token_life_s: int = TOKEN_LIFE_S) -> None:
        self._directory = directory
        self.kdc = Kdc(directory / "kdc")
        self.hdfs = SecureHdfs(
            self.kdc,
            directory,
            settings=dict.fromkeys(
                (f"{_TOKENS}.renew-interval", f"{_TOKENS}.max-lifetime"),
                str(token_life_s * 1000),
            ),
        )

    def __enter__(self) -> Self:
        self.kdc.__enter__()
        try:
            self.hdfs.__enter__()
        except BaseException:
            self.kdc.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.hdfs.close()
        self.kdc.stop()

    def keytab(self, user: str = USER) -> Path:
        """Of a user; tickets of `BRIEF` live for a short time."""
        life = f"{_TICKET_LIFE_S} seconds" if user == BRIEF else None
        return self.kdc.keytab(user, user, ticket_life=life)

    def environment(self, user: str | None) -> Mapping[str, str]:
        """Of a program that uses Spark as that user, by keytab; None: without one."""
        conf = self._directory / f"spark-{user}"
        conf.mkdir(exist_ok=True)
        lines = (
            []
            if user is None
            else [
                f"spark.kerberos.principal {user}@{REALM}",
                f"spark.kerberos.keytab {self.keytab(user)}",
                # Its default of an hour is for tokens that live for a day.
                "spark.security.credentials.retryWait 2s",
            ]
        )
        (conf / "spark-defaults.conf").write_text("\n".join(lines), "ascii")
        return {
            **self.kdc.environment,
            "HADOOP_CONF_DIR": str(self.hdfs.conf_dir),
            "SPARK_CONF_DIR": str(conf),
            "JAVA_TOOL_OPTIONS": self.kdc.java_option,
            "KRB5CCNAME": str(self._directory / "no-tickets"),
        }

    @contextmanager
    def hadoop_client(self, user: str | None = USER, *, cache: Path | None = None) -> Iterator[Any]:
        """py4j's view of a JVM with Hadoop's client, logged in as that user by keytab.

        Args:
            user: None: it logs in by its ticket cache, if at all.
            cache: of tickets; None: there is none.
        """
        with pytest.MonkeyPatch.context() as patch:  # only while the JVM starts
            for name, value in self.environment(user).items():
                patch.setenv(name, value)
            if cache is not None:
                patch.setenv("KRB5CCNAME", str(cache))
            started = hadoop_jvm()
            jvm = started.__enter__()
        try:
            if user is not None:
                users = jvm.org.apache.hadoop.security.UserGroupInformation
                users.loginUserFromKeytab(f"{user}@{REALM}", str(self.keytab(user)))
            yield jvm
        finally:
            started.__exit__(None, None, None)


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """The session's realm, with a KDC, a NameNode and a DataNode."""
    require_kerberos()
    with Realm(tmp_path_factory.mktemp("realm")) as started:
        yield started
