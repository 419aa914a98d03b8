"""A real systemd as process 1 of a container, with the programs of this host.

The container shares ``/usr`` with this host, so that it needs no image but an empty one.
"""

import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Self

from tests.kit.kafka.kafka_records import unique
from tests.kit.waiting import wait_for

SYSTEMD = Path("/lib/systemd/systemd")
_IMAGE = "local/systemd"
_SHARED = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/login.defs")
_FOR_ROOT = "auth sufficient pam_rootok.so\nsession required pam_permit.so\n"
# A kernel may withhold one from its containers, so not `--privileged`.
_RIGHTS = ("--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--security-opt=seccomp=unconfined")


class SystemdMachine:
    """As a context manager it starts and is removed.

    Args:
        shared: more directories of this host and where it sees them, read-only. A service with
            ``PrivateTmp`` sees nothing that is below ``/tmp``.
    """

    def __init__(self, *, shared: Mapping[Path, str]) -> None:
        self.name = unique("systemd")
        java = [path for path in Path("/etc").glob("java-*") if path.is_dir()]
        places = {place: str(place) for place in (*map(Path, _SHARED), *java) if place.exists()}
        mounts = (places | dict(shared)).items()
        self._mounts = [f"--volume={place}:{inside}:ro" for place, inside in mounts]

    def __enter__(self) -> Self:
        _make_image()
        # systemd makes mounts shared except in a container, and credentials need shared ones.
        _docker(
            *("run", "--detach", "--name", self.name, "--network=host", *_RIGHTS),
            *("--tmpfs=/run", "--tmpfs=/tmp:exec", "--volume=/sys/fs/cgroup:/sys/fs/cgroup"),
            *(*self._mounts, "--env=container=docker", _IMAGE, "/bin/bash", "-c"),
            f"mount --make-rshared / && exec {SYSTEMD} --unit=basic.target",
        )
        wait_for(lambda: self.run("systemctl is-system-running || true").strip() == "running")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            sys.stderr.write(self.run("journalctl --no-pager --no-hostname --lines=400 || true"))
        _docker("rm", "--force", self.name)

    @property
    def inside(self) -> tuple[str, ...]:
        """The command in front of a command that runs in it."""
        path = f"{sys.base_prefix}/bin:/usr/sbin:/usr/bin"
        return ("docker", "exec", f"--env=PATH={path}", "--workdir=/root", self.name)

    def run(self, script: str) -> str:
        """Output of a script in it, which may not fail."""
        return _run(*self.inside, "bash", "-c", script)

    def put(self, source: Path, target: str) -> None:
        """Copy a file or directory into it."""
        _docker("cp", str(source), f"{self.name}:{target}")

    def status(self, setting: str, *, unit: str = "orders") -> str:
        """A property of a unit."""
        return self.run(f"systemctl show --value --property={setting} {unit}").strip()


def _make_image() -> None:
    """Nothing but directories, and the users that systemd asks for."""
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in (
            "etc/pam.d",
            "etc/systemd/system",
            "opt",
            "proc",
            "root",
            "run",
            "sys",
            "tmp",
            "var",
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        for name, text in {
            "etc/passwd": "root:x:0:0::/root:/bin/bash\nmessagebus:x:100:100::/:/bin/false\n",
            "etc/group": "root:x:0:\nmessagebus:x:100:\n",
            "etc/machine-id": "",
            "etc/pam.d/runuser": _FOR_ROOT,
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, BytesIO(text.encode()))
    _run("docker", "import", "-", _IMAGE, given=content.getvalue())


def _docker(*arguments: str) -> str:
    return _run("docker", *arguments)


def _run(*command: str, given: bytes = b"") -> str:
    done = subprocess.run(
        command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{command}: {output}"
    return output
