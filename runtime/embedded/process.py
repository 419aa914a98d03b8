"""A server as a plain JVM process: started, awaited, killed; it never outlives its owner."""

import contextlib
import logging
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.runtime.embedded.start_timeout import LOG_TIMEOUT_S, LONGEST_S, StartTimeout
from sluice.runtime.errors import MissingRequirementError

__all__ = [
    "STOP_TIMEOUT_S",
    "WATCHDOG_ANSWER_S",
    "Identity",
    "ServerProcess",
    "ServerSpec",
    "start_watchdog",
    "stop_identity",
]

log = logging.getLogger(__name__)

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_TAIL_LINES = 15
_POLL_S = 0.05

STOP_TIMEOUT_S = 60.0
"""Time for a server to end in good order, before it is killed."""

WATCHDOG_ANSWER_S = 120.0
"""Time for a watchdog to end after its dismissal; it only has to be scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How to start one server.

    Attributes:
        name: for people, e.g. ``Kafka 4.3.1``.
        command: program and arguments.
        log_path: its standard output and error, appended.
        ready_text: the server answers once its log has this text.
        log_timeout_s: longest time without a new line in its log.
        longest_start_s: longest time of a start.
        work_dir: processes that work below it die if this process dies without stopping the
            server: those that the server started in sessions of their own.
        scratch_dir: deleted if this process dies without stopping the server.
        detached: the server keeps running after this process ends.
    """

    name: str
    command: tuple[str, ...]
    log_path: Path
    ready_text: str
    log_timeout_s: float = LOG_TIMEOUT_S
    longest_start_s: float = LONGEST_S
    work_dir: Path | None = None
    scratch_dir: Path | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identifies a process: another process may get the same process id later."""

    pid: int
    created_at: float

    @classmethod
    def of(cls, pid: int) -> "Identity":
        """The process that has ``pid`` now; raises `psutil.NoSuchProcess`."""
        return cls(pid=pid, created_at=psutil.Process(pid).create_time())

    def is_running(self) -> bool:
        """Whether that same process lives (a zombie does not)."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created_at) < 1.0
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        return False


class ServerProcess:
    """One run of a server at a time; it may be started again after its end.

    Used by one thread. Unless detached, the server dies with this process, even by SIGKILL: a
    watchdog process waits for the end of a pipe that only this process holds.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._server is None:
            raise MissingRequirementError(
                f"{self._spec.name} is not running", {"log": self._spec.log_path}, "Start it."
            )
        return self._server.pid

    def is_running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._server is not None and self._server.poll() is None

    def start(self) -> None:
        """Start and wait until ready; after a failure nothing keeps running.

        Raises:
            MissingRequirementError: it ended, logged nothing for too long, or was not ready in
                time; with the log's last lines.
        """
        spec = self._spec
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        seen = spec.log_path.stat().st_size if spec.log_path.exists() else 0
        with spec.log_path.open("ab") as output:
            self._server = subprocess.Popen(
                spec.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if not spec.detached:
            self._watchdog = start_watchdog(
                self._server.pid, work_dir=spec.work_dir, scratch_dir=spec.scratch_dir
            )
        try:
            self._await_ready(seen)
        except BaseException:
            self.kill()
            raise

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it in good order, by force if it takes longer; does nothing if it has ended."""
        if self._server is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it at once, as ``kill -9``."""
        if self._server is None:
            return
        self._signal(signal.SIGKILL)
        self._server.wait()
        self._server = None
        self._dismiss_watchdog()

    def pause(self) -> None:
        """Suspend all of it (SIGSTOP); its connections stay open without answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(number)

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is None:
            return
        with contextlib.suppress(BrokenPipeError, OSError):
            self._watchdog.communicate(b"\n", timeout=WATCHDOG_ANSWER_S)
        self._watchdog = None

    def _await_ready(self, seen: int) -> None:
        spec = self._spec
        start_timeout = StartTimeout(
            [spec.log_path], log_timeout_s=spec.log_timeout_s, longest_s=spec.longest_start_s
        )
        while not _contains(spec.log_path, spec.ready_text, after=seen):
            if not self.is_running():
                raise self._not_started("ended before it was ready", seen)
            given_up = start_timeout.end()
            if given_up:
                raise self._not_started(given_up, seen)
            time.sleep(_POLL_S)  # a server reports only in its log that it is ready
        log.info(
            "server ready: name=%s pid=%d elapsed_s=%.1f",
            spec.name,
            self.pid,
            start_timeout.elapsed_s,
        )

    def _not_started(self, why: str, seen: int) -> MissingRequirementError:
        lines = _text(self._spec.log_path, after=seen).splitlines()[-_TAIL_LINES:]
        return MissingRequirementError(
            f"{self._spec.name} did not start: it {why}",
            {"log": self._spec.log_path, "last_lines": "\n" + "\n".join(lines)},
            "Read its log.",
        )


def stop_identity(identity: Identity) -> bool:
    """End a process of another run; False if it had already ended."""
    if not identity.is_running():
        return False
    process = psutil.Process(identity.pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
    return True


def start_watchdog(
    pid: int, *, work_dir: Path | None = None, scratch_dir: Path | None = None
) -> subprocess.Popen[bytes]:
    """A process that kills the process group ``pid`` and all processes that work below ``work_dir``
    (and deletes ``scratch_dir``) after this process has ended.

    A line to its standard input dismisses it.
    """
    directories = [str(path or "") for path in (work_dir, scratch_dir)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WATCHDOG), str(pid), *directories],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _text(path: Path, *, after: int) -> str:
    with path.open("rb") as file:
        file.seek(after)
        return file.read().decode("utf-8", errors="replace")


def _contains(path: Path, text: str, *, after: int) -> bool:
    return text in _text(path, after=after)
