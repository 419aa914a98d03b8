"""A real KDC of one realm: MIT Kerberos as a process of the tests, on a free port, without root."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest

from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.embedded.process import ServerProcess, ServerSpec

__all__ = ["REALM", "Kdc", "require_kerberos"]

REALM = "SLUICE.TEST"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")


def require_kerberos() -> None:
    """Skip the test on a machine without a KDC; CI has one."""
    missing = [each for each in _PROGRAMS if shutil.which(each, path=_PATH) is None]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}: apt install krb5-kdc krb5-admin-server krb5-user"
    if os.environ.get("SLUICE_REQUIRE_KERBEROS"):
        pytest.fail(reason)
    pytest.skip(reason)  # where a KDC is required it is an error, above


class Kdc:
    """Started as a context manager; a test may stop and start it again.

    Args:
        directory: for its database, keytabs and log.

    Attributes:
        conf: the ``krb5.conf`` of clients.
    """

    def __init__(self, directory: Path) -> None:
        (self._port,) = free_ports(1)
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.conf = directory / "krb5.conf"
        self.conf.write_text(_CLIENT.format(realm=REALM, host=HOST, port=self._port), "ascii")
        (directory / "kdc.conf").write_text(
            _SERVER.format(
                realm=REALM,
                host=HOST,
                port=self._port,
                directory=directory,
            ),
            "ascii",
        )
        program = shutil.which("krb5kdc", path=_PATH)
        self._server = ServerProcess(
            ServerSpec(
                name="krb5kdc",
                command=("env", *self._variables(), str(program), "-n"),
                log_path=directory / "kdc.log",
                ready_text="commencing operation",
            )
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs that use this realm."""
        return {"KRB5_CONFIG": str(self.conf)}

    @property
    def java_option(self) -> str:
        """For JVMs that use this realm."""
        return f"-Djava.security.krb5.conf={self.conf}"

    def __enter__(self) -> Self:
        password = secrets.token_hex(16)
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", password)
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

    def keytab(self, name: str, *principals: str, ticket_life: str | None = None) -> Path:
        """The keytab of these principals, made once: ``user``, or ``service/host``.

        Args:
            ticket_life: longest life of their tickets, such as ``40 seconds``.
        """
        path = self._directory / f"{name}.keytab"
        if not path.exists():
            life = () if ticket_life is None else ("-maxlife", ticket_life)
            for each in principals:
                self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", *life, each)
            self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(path), *principals)
        return path

    def renew_keys(self, principal: str) -> None:
        """Change a principal's keys: its keytabs are worth nothing any more."""
        self._run("kadmin.local", "-r", REALM, "cpw", "-randkey", principal)

    def ticket_cache(self, principal: str, keytab: Path, *words: str) -> Path:
        """A cache with a fresh ticket; ``words`` are options of kinit."""
        cache = self._directory / f"{principal}.cache"
        self._run("kinit", *words, "-c", str(cache), "-k", "-t", str(keytab), principal)
        return cache

    def _variables(self) -> tuple[str, ...]:
        profile = self._directory / "kdc.conf"
        return (f"KRB5_CONFIG={self.conf}", f"KRB5_KDC_PROFILE={profile}", f"PATH={_PATH}")

    def _run(self, program: str, *words: str) -> None:
        answer = subprocess.run(
            ["env", *self._variables(), program, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert answer.returncode == 0, f"{program}: {answer.stdout}{answer.stderr}"


_CLIENT = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  forwardable = true
  ticket_lifetime = 10h
  kdc_timeout = 3s
  max_retries = 1
[realms]
  {realm} = {{
    kdc = {host}:{port}
  }}
[domain_realm]
  localhost = {realm}
  {host} = {realm}
"""

_SERVER = """\
[kdcdefaults]
  kdc_listen = {host}:{port}
  kdc_tcp_listen = {host}:{port}
[realms]
  {realm} = {{
    database_name = {directory}/principal
    key_stash_file = {directory}/stash
    acl_file = {directory}/kadm5.acl
    max_life = 10h
    max_renewable_life = 7d
    default_principal_flags = +renewable,+forwardable
  }}
[logging]
  kdc = STDERR
  default = STDERR
"""
