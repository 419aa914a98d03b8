"""Containers with a network of their own, by Docker's command line. Every end removes them."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sluice.runtime.errors import MissingRequirementError, UnreachableError

_ANSWER_S = 600.0
_FREEZES = 5
_LABEL = "sluice-bed"
_OWNER = "sluice-bed-owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """How to make a container.

    Attributes:
        name: unique within a bed; other containers find it by this name.
        image: must exist.
        number: the last part of its address in the bed's network.
        command: None: the image's own.
        environment: variables.
        mounts: directory of the host, directory in the container, ``ro`` or ``rw``.
        user: None: the image's own.
        memory: Docker's limit.
    """

    name: str
    image: str
    number: int
    command: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[tuple[str, str, str]] = ()
    user: str | None = None
    memory: str = "1g"


class Container:
    """One container over its restarts. Used by one thread.

    Attributes:
        pid: of its first process, on the host; 0 while it does not run.
    """

    def __init__(self, engine: "Engine", spec: ContainerSpec, identity: str) -> None:
        self.name = spec.name
        self.address = engine.address(spec.number)
        self.pid = 0
        self._engine = engine
        self._identity = identity

    def start(self) -> None:
        """Start or restart it, on the same disk."""
        self._engine.run("start", self._identity)
        self.pid = int(self._engine.run("inspect", "--format", "{{.State.Pid}}", self._identity))

    @property
    def runs(self) -> bool:
        """Whether its first process is alive, paused or not."""
        return bool(self.pid) and _attempts(self.pid)

    @property
    def exit_code(self) -> int:
        """The exit code of its last run; waits until the Docker engine knows it.

        The first process ends before the engine has reaped it. Until then the engine returns 0.
        """
        return int(self._engine.run("wait", self._identity))

    def kill(self) -> None:
        """``kill -9`` of all its processes; keeps its disk. No error if it has ended."""
        self._engine.run("kill", "--signal", "KILL", self._identity, check=False)
        self._engine.run("wait", self._identity)
        self.pid = 0

    def stop(self, *, timeout_s: int) -> int:
        """Send SIGTERM, and SIGKILL after the timeout; returns the exit code."""
        bound_s = timeout_s + _ANSWER_S
        self._engine.run("stop", "--time", str(timeout_s), self._identity, timeout_s=bound_s)
        self.pid = 0
        return self.exit_code

    def pause(self) -> None:
        """Freeze all its processes."""
        for _ in range(_FREEZES - 1):
            # The freezer misses processes that start meanwhile, and then fails.
            if self._engine.run("pause", self._identity, check=False):
                return
        self._engine.run("pause", self._identity)

    def resume(self) -> None:
        """Resume all its processes."""
        self._engine.run("unpause", self._identity)

    def processes(self) -> list[tuple[int, str]]:
        """Host process id and command line of each of its processes."""
        listed = self._engine.run("top", self._identity, "-eo", "pid,args", check=False)
        lines = [line.split(maxsplit=1) for line in listed.splitlines()[1:]]
        return [(int(words[0]), words[1]) for words in lines if len(words) > 1]

    def logs(self) -> str:
        """The output of its first process."""
        return self._engine.run("logs", self._identity, check=False, both=True)

    def remove(self) -> None:
        """Kill it and delete its disk."""
        self._engine.run("rm", "--force", "--volumes", self._identity, check=False)
        self.pid = 0


class Engine:
    """A network and its containers; the end of the context removes all of them.

    The start of the context removes the containers of a bed that was killed: their network would
    conflict with the new one.

    Args:
        subnet: the first three numbers of the network's addresses.
    Raises:
        MissingRequirementError: no Docker engine answers.
    """

    def __init__(self, *, subnet: str = "10.231.77") -> None:
        self.identity = uuid.uuid4().hex[:12]
        self._subnet = subnet
        self._network = f"{_LABEL}-{self.identity}"
        self._hosts: dict[str, str] = {}

    def __enter__(self) -> Self:
        owner = f"{_OWNER}={_attempt(os.getpid())}"
        subnet = f"{self._subnet}.0/24"
        try:
            self._remove_left()
            self.run("network", "create", "--label", owner, "--subnet", subnet, self._network)
        except UnreachableError as error:
            raise MissingRequirementError(
                "the chaos bed needs a Docker engine",
                {"DOCKER_HOST": os.environ.get("DOCKER_HOST", "not set"), "answer": error},
                "Run `docker/engine.sh start DIR` and set DOCKER_HOST=unix://DIR/docker.sock.",
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._remove(self._network)

    def _remove_left(self) -> None:
        form = f'{{{{.Name}}}} {{{{.Label "{_OWNER}"}}}}'
        for line in self.run(
            "network", "ls", "--filter", f"label={_OWNER}", "--format", form
        ).splitlines():
            network, pid, started = line.split()
            if f"{pid} {started}" != _attempt(int(pid)):
                self._remove(network)

    def _remove(self, network: str) -> None:
        label = f"label={_LABEL}={network.removeprefix(f'{_LABEL}-')}"
        left = self.run("ps", "--all", "--quiet", "--filter", label, check=False).split()
        if left:
            self.run("unpause", *left, check=False)  # Docker cannot kill a frozen container
            self.run("rm", "--force", "--volumes", *left, check=False)
        self.run("network", "rm", network, check=False)

    def address(self, number: int) -> str:
        """The address of the container of this number; the host can reach it, too."""
        return f"{self._subnet}.{number}"

    def name(self, name: str, number: int) -> None:
        """Later containers resolve this name to this address."""
        self._hosts[name] = self.address(number)

    def create(self, spec: ContainerSpec) -> Container:
        """Make a container without starting it."""
        words = ["create", "--label", f"{_LABEL}={self.identity}", "--memory", spec.memory]
        words += ["--network", self._network, "--ip", self.address(spec.number)]
        words += ["--name", f"{_LABEL}-{self.identity}-{spec.name}", "--hostname", spec.name]
        words += ["--log-driver", "json-file"]
        words += ["--user", spec.user] if spec.user else []
        for name, address in self._hosts.items():
            words += ["--add-host", f"{name}:{address}"]
        for name, value in spec.environment.items():
            words += ["--env", f"{name}={value}"]
        for outside, inside, mode in spec.mounts:
            words += ["--volume", f"{outside}:{inside}:{mode}"]
        identity = self.run(*words, spec.image, *(spec.command or ()))
        return Container(self, spec, identity)

    def run(
        self, *words: str, check: bool = True, both: bool = False, timeout_s: float = _ANSWER_S
    ) -> str:
        """The output of Docker's command line.

        Raises:
            UnreachableError: the command failed and ``check`` is set.
        """
        done = subprocess.run(
            ["docker", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise UnreachableError(
                "the Docker engine refused",
                {"command": " ".join(words[:3]), "answer": done.stderr.strip()},
                "Read its log.",
            )
        return (done.stdout + done.stderr if both else done.stdout).strip()


def _attempts(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _stat(pid)[0] not in "ZX"
    return False


def _attempt(pid: int) -> str:
    """An identity that a later process of the same id does not have; "" without a process."""
    with contextlib.suppress(OSError):
        return f"{pid} {_stat(pid)[19]}"
    return ""


def _stat(pid: int) -> list[str]:
    """The fields after the command's name: state, …, start time in ticks (number 19), …."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
