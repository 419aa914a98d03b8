"""A user's program in a session of its own: started, killed as a whole or in part; nothing outlives
it.

Spark spreads one program over a Python driver, a JVM, its Python daemon (in a process group of its
own) and workers. All stay in the session of the driver, even after their parents died, so the
session finds them.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from sluice.runtime.embedded.process import WATCHDOG_ANSWER_S, start_watchdog
from sluice.runtime.errors import WaitedTooLongError

__all__ = ["Program", "ProgramSpec", "command_of"]

_POLL_S = 0.05
_KILL_S = 120.0
_TAIL_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """How to start a program.

    Attributes:
        command: program and arguments.
        log_path: its standard output and error, appended.
        environment: added to this process's.
        working_dir: None: that of this process.
    """

    command: tuple[str, ...]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: Path | None = None


class Program:
    """One run of a program. Used by one thread; as a context manager it kills all that still
    runs."""

    def __init__(self, spec: ProgramSpec) -> None:
        self._spec = spec
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = spec.log_path.stat().st_size if spec.log_path.exists() else 0
        self.started_s = time.monotonic()
        with spec.log_path.open("ab") as output:
            self._driver = subprocess.Popen(
                spec.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.environment},
                cwd=spec.working_dir,
                start_new_session=True,
            )
        # Spark's JVM ends with its driver, so waiting for the driver is enough.
        self._watchdog: subprocess.Popen[bytes] | None = start_watchdog(self._driver.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the driver, and number of the session."""
        return self._driver.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the driver; negative: the signal that ended it; None while it runs."""
        return self._driver.poll()

    def log(self) -> str:
        """The output of this run so far."""
        with self._spec.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", errors="replace")

    def log_tail(self) -> str:
        """The last lines of `log`."""
        return "\n".join(self.log().splitlines()[-_TAIL_LINES:])

    def members(self) -> list[psutil.Process]:
        """Every living process of the session, orphans included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self.pid and not _is_dead(process):
                    found.append(process)
        return found

    def await_exit(self, *, timeout_s: float) -> int:
        """Wait for the driver's end; its exit code.

        Raises:
            WaitedTooLongError: it still runs; with the end of its log. It keeps running.
        """
        try:
            return self._driver.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise WaitedTooLongError(
                "the program did not end in time",
                {
                    "command": " ".join(self._spec.command),
                    "waited_s": timeout_s,
                    "log": "\n" + self.log_tail(),
                },
                "Read its log: it keeps running.",
            ) from None

    def await_end(self, *, timeout_s: float) -> bool:
        """Wait until no process of the session lives; False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None or self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)  # only a parent can wait for a process
        return True

    def kill(self) -> None:
        """``kill -9`` of everything the program started; returns after all of it has ended."""
        deadline = time.monotonic() + _KILL_S
        while True:
            # Repeats until none is left: a process may fork between the listing and the signal.
            for process in self.members():
                _send(process, signal.SIGKILL)
            if self.await_end(timeout_s=0.5):
                self._dismiss_watchdog()
                return
            if time.monotonic() > deadline:
                raise WaitedTooLongError(
                    "a program could not be killed",
                    {"pids": [process.pid for process in self.members()], "waited_s": _KILL_S},
                    "End these processes yourself.",
                )

    def pause(self) -> None:
        """SIGSTOP to all of its processes."""
        for process in self.members():
            _send(process, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to all of its processes."""
        for process in self.members():
            _send(process, signal.SIGCONT)

    def interrupt(self) -> None:
        """Request the driver's end, as Ctrl-C does."""
        self._driver.send_signal(signal.SIGINT)

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.communicate(b"\n", timeout=WATCHDOG_ANSWER_S)
            self._watchdog = None


def command_of(interpreter: str, script: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """A Python program's command line, unbuffered so that its log is complete after a kill."""
    return (interpreter, "-u", str(script), *arguments)


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _is_dead(process: psutil.Process) -> bool:
    return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
