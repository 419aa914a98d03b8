"""Processes of ``sluice coordinator start`` for a job under measurement."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.measuring.rig import Running, wait_until
from sluice.runtime.embedded.program import Program, ProgramSpec

__all__ = ["Coordinators"]

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "sluice", "coordinator", "start")
_LEADS = "leader started: session="
_WAITS = "standby: leader="
_ELECTED = re.compile(r"elected: session=(\S+)")
_START_S = 600.0


class Coordinators:
    """All coordinators of one job; a context that kills them. Used by one thread.

    Args:
        running: the job's driver.
        options: of the command, such as ``--ha lease``.
    """

    def __init__(self, running: Running, options: Sequence[str] = ()) -> None:
        self._running = running
        self._options = options
        self._started: list[Program] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start(self) -> Program:
        """One more."""
        directory = self._running.directory
        arguments = ("--checkpoint", str(directory / "checkpoint"), *self._options)
        spec = ProgramSpec(
            command=(*_COMMAND, *arguments),
            log_path=directory / f"coordinator-{len(self._started)}.log",
            environment={"PYTHONPATH": str(_ROOT)},
            working_dir=directory,
        )
        self._started.append(self._stack.enter_context(Program(spec)))
        return self._started[-1]

    def leader(self) -> Program:
        """One more that leads."""
        found = self.start()
        self.await_lead(found)
        return found

    def standby(self) -> Program:
        """One more that waits for the leader."""
        found = self.start()
        self._await(found, lambda: _WAITS in found.log())
        return found

    def await_lead(self, program: Program) -> None:
        """Until it leads."""
        self._await(program, lambda: _LEADS in program.log())

    def sessions(self) -> list[str]:
        """Leader session ids of all that were elected, in no order."""
        return [found for each in self._started for found in _ELECTED.findall(each.log())]

    def _await(self, program: Program, condition: Callable[[], bool]) -> None:
        """The condition, while this coordinator and the driver live."""
        driver = self._running.program

        def is_true() -> bool:
            if driver.exit_code is not None:
                raise RuntimeError(f"the driver has ended:\n{driver.log_tail()}")
            return condition()

        wait_until(is_true, program=program, timeout_s=_START_S)
