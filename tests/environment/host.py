"""Faults that the host injects into containers: in their network, their disks and their clocks.

The images need no tools for this: the host enters a container's network namespace, and keeps the
disks and clocks in its own directories. Needs root.
"""

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

from sluice.runtime.errors import MissingRequirementError, UnreachableError

_TOOLS = ("docker", "ps", "nsenter", "iptables", "ip", "tc", "mount", "umount", "cc")
_PEER = re.compile(r"eth0@if(\d+)")
_ANSWER_S = 600.0


def require_tools() -> None:
    """Raises `MissingRequirementError` if a tool, or the right to use it, is missing."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        raise MissingRequirementError(
            "the chaos bed changes networks and disks of containers",
            {"missing": ", ".join(missing) or "nothing", "user": os.geteuid()},
            "Run it as root; Debian: docker.io, procps, iptables, iproute2, util-linux, gcc.",
        )


class Link:
    """The network of one running container, by its first process.

    A restarted container has a new network, without the changes.
    """

    def __init__(self, pid: int) -> None:
        self._enter = ("nsenter", "--target", str(pid), "--net")

    def cut(self, *, incoming: bool, outgoing: bool) -> None:
        """Drop incoming or outgoing packets silently. Connections stay open."""
        if incoming:
            self._run("iptables", "-A", "INPUT", "!", "-i", "lo", "-j", "DROP")
        if outgoing:
            self._run("iptables", "-A", "OUTPUT", "!", "-o", "lo", "-j", "DROP")

    def mend(self) -> None:
        """Undo `cut`."""
        for chain in ("INPUT", "OUTPUT"):
            self._run("iptables", "-F", chain)

    def slow(self, *, incoming: bool, outgoing: bool, kbit: int) -> None:
        """Delay incoming or outgoing packets for seconds, by a slow link with a queue of 10 s.

        The link drops packets that would wait longer, as a full router does.
        """
        narrow = ("tbf", "rate", f"{kbit}kbit", "burst", "4kb", "latency", "10s")
        if outgoing:
            self._run("tc", "qdisc", "replace", "dev", "eth0", "root", *narrow)
        if incoming:
            _run("tc", "qdisc", "replace", "dev", self._outer(), "root", *narrow)

    def hasten(self) -> None:
        """Undo `slow`."""
        self._run("tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        _run("tc", "qdisc", "del", "dev", self._outer(), "root", check=False)

    def _outer(self) -> str:
        """The host's end of the container's link: it sends the container's incoming packets."""
        found = _PEER.search(self._run("ip", "-o", "link", "show", "eth0"))
        for line in _run("ip", "-o", "link").splitlines():
            number, name, _ = line.split(":", maxsplit=2)
            if found and number == found[1]:
                return name.strip().partition("@")[0]
        raise UnreachableError(
            "the host's end of a container's link was not found",
            {"container": " ".join(self._enter)},
            "Make its network a bridge.",
        )

    def _run(self, *words: str, check: bool = True) -> str:
        return _run(*self._enter, *words, check=check)


class Disk:
    """A small file system for one container, which a fault can fill. It outlives the container."""

    _FILLER = ".filler"

    def __init__(self, directory: Path, *, size_mib: int, owner: int) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "sluice-bed", str(directory))
        os.chown(directory, owner, owner)

    def fill(self) -> None:
        """Write until no byte is free."""
        with (self.directory / self._FILLER).open("ab", buffering=0) as file:
            block = bytes(1 << 20)
            while block:
                try:
                    file.write(block)
                except OSError:  # a smaller part may still fit
                    block = block[: len(block) // 2]

    def clear(self) -> None:
        """Undo `fill`."""
        (self.directory / self._FILLER).unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount and delete it. Remove its containers before."""
        _run("umount", "--lazy", str(self.directory), check=False)


class Clock:
    """The error of one container's wall clock, in seconds; see ``clock.c``."""

    FORMAT = "<q"

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(struct.pack(self.FORMAT, 0))

    def jump(self, offset_s: int) -> None:
        """Set its difference from the host's clock."""
        with self.path.open("r+b", buffering=0) as file:  # in place: the file is mapped
            file.write(struct.pack(self.FORMAT, offset_s))


def build_clock(library: Path) -> None:
    """Compile ``clock.c``."""
    source = Path(__file__).with_name("clock.c")
    _run("cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl")


def _run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    if check and done.returncode:
        raise UnreachableError(
            "a command of the host failed",
            {"command": " ".join(words), "answer": done.stderr.strip()},
            "The chaos bed needs root, iptables and tc.",
        )
    return done.stdout
