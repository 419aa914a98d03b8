"""A program of which a test kills or pauses single processes: its driver, its JVM, its workers."""

import contextlib
import signal
from collections.abc import Container

import psutil

from sluice.runtime.embedded.program import Program

__all__ = ["MortalProgram"]

_DAEMONS = ("pyspark.daemon", "sluice.runtime.spark.fast_start.python_daemon")


class MortalProgram(Program):
    """See `Program`."""

    def workers(self) -> list[psutil.Process]:
        """Python workers of Spark: forks of its daemon, with the daemon's command line."""
        daemons = {p.pid: p for p in self.members() if _is_daemon(p)}
        return [process for process in daemons.values() if _is_child(process, daemons)]

    def kill_driver(self) -> None:
        """``kill -9`` of the driver alone."""
        self._driver.send_signal(signal.SIGKILL)

    def kill_jvm(self) -> bool:
        """``kill -9`` of the JVM alone; False if there is none."""
        return _kill(next((p for p in self.members() if _name(p).startswith("java")), None))

    def kill_worker(self) -> bool:
        """``kill -9`` of one Python worker; False if there is none."""
        return _kill(next(iter(self.workers()), None))

    def pause_driver(self) -> None:
        """Suspend the driver (SIGSTOP); the other processes continue."""
        self._driver.send_signal(signal.SIGSTOP)

    def resume_driver(self) -> None:
        """Resume a suspended driver."""
        self._driver.send_signal(signal.SIGCONT)

    def is_driver_paused(self) -> bool:
        """Whether a signal has stopped the driver."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return _is_paused(psutil.Process(self.pid))
        return False

    def is_any_paused(self) -> bool:
        """Whether a signal has stopped the driver or one of its child processes."""
        return any(_is_paused(process) for process in self.members())


def _kill(process: psutil.Process | None) -> bool:
    if process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        return True
    return False


def _is_paused(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def _is_daemon(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        command = " ".join(process.cmdline())
        return any(module in command for module in _DAEMONS)
    return False


def _is_child(process: psutil.Process, parents: Container[int]) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.ppid() in parents
    return False


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""
