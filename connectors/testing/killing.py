"""`kill_and_restart`: kills a program at a named step of a checkpoint, and starts it again."""

import contextlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.runtime.embedded.program import Program, ProgramSpec, command_of
from sluice.runtime.errors import ConfigError, StreamError, WaitedTooLongError
from sluice.runtime.failpoints import REPORT_VARIABLE, VARIABLE
from sluice.runtime.process.interpreter import import_path

__all__ = ["STEPS", "KillReport", "ProgramRun", "UnexpectedEndError", "kill_and_restart"]

STEPS: Mapping[str, tuple[str, ...]] = {
    "start": ("after-first", "after-fencing"),
    "record": ("mid-write", "mid-stage", "after-part", "after-stage"),
    "pre-commit": ("before-decision",),
    "decision": ("after-decision",),
    "commit": ("mid-commit", "after-commit"),
    "completion": ("after-mark",),
}
"""Steps at which `kill_and_restart` kills, each with its failpoints: the first one reached counts.

- ``start``: a start has fenced older runs, and has not yet committed what they had decided.
- ``record``: a task has written records into an open transaction, or rows into a staged file.
- ``pre-commit``: all tasks have flushed their work, and nothing is decided.
- ``decision``: the decision is durable, and nothing is committed.
- ``commit``: one or all of its transactions are committed; the checkpoint is not complete.
- ``completion``: the checkpoint is complete.
"""

_POLL_S = 0.1
_INTERRUPTED = (0, -signal.SIGINT, 128 + signal.SIGINT)  # by a signal, or as `Job.run` ends then
_CALL = "import pickle, sys; call, given = pickle.load(open(sys.argv[1], 'rb')); call(*given)"


class UnexpectedEndError(StreamError):
    """A program ended in another way than the test asked for: no kill, or a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """One start of a program, and its end.

    Attributes:
        at: step or seconds of its kill; None: it ended by itself, or by the interrupt of ``until``.
        failpoint: where it was killed; None: not at a step.
        exit_code: negative: the signal that ended it.
        elapsed_s: from the start to the end of its last process.
        log: standard output and error.
    """

    at: str | float | None
    failpoint: str | None
    exit_code: int | None
    elapsed_s: float
    log: str

    @property
    def is_killed(self) -> bool:
        """Whether the kill of `at` ended it: for a step, a failpoint must have been reached."""
        is_signalled = self.at is not None and self.exit_code == -signal.SIGKILL
        return is_signalled and (self.failpoint is not None or not isinstance(self.at, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReport:
    """All starts of a program: each but the last one ended in a kill."""

    runs: tuple[ProgramRun, ...]

    @property
    def kills(self) -> tuple[ProgramRun, ...]:
        """The runs that were killed."""
        return self.runs[:-1]


def kill_and_restart(
    program: str | os.PathLike[str] | Callable[..., object],
    arguments: Sequence[object] = (),
    *,
    at: str | float | Sequence[str | float],
    after: int = 0,
    until: Callable[[], object] | None = None,
    timeout: float = 300.0,
    environment: Mapping[str, str] | None = None,
) -> KillReport:
    """Start a program, ``kill -9`` all its processes, start it again and wait for its end.

    The program and its processes (driver, JVM, Python workers) run in a session of their own. They
    also end if this process ends in any way.

    Args:
        program: a Python file, another command, or a function of a module.
        arguments: of its command line, as text; those of a function must be picklable.
        at: a name of `STEPS`, or seconds after the start. Several: one start for each kill.
        after: how often the first killed run passes its step before the kill. Most steps are passed
            once in each checkpoint, ``commit`` more often with several sinks. ``record`` counts
            the batches of one worker process. Each further run is killed at its first step.
        until: for a program that does not end: after the last start, wait until this returns a true
            value, then interrupt the program as Ctrl-C does.
        timeout: seconds for each start.
        environment: added to that of this process.
    Raises:
        ConfigError: no such step or program, or the function cannot be imported by another process.
        UnexpectedEndError: a run ended before its kill, or the last run failed, also at the
            interrupt of ``until``.
        WaitedTooLongError: a run did not end in time; all its processes are killed.
    """
    kills = [at] if isinstance(at, str | int | float) else list(at)
    _check(kills, after)
    with tempfile.TemporaryDirectory(prefix="sluice-kill-") as scratch:
        starts = _Starts(
            command=_command(program, arguments, Path(scratch), (environment or {}).get("PATH")),
            environment={**_import_path(program), **(environment or {})},
            scratch=Path(scratch),
            timeout_s=timeout,
        )
        for number, kill in enumerate(kills):
            starts.kill(kill, after=0 if number else after)
        starts.finish(until)
    return KillReport(runs=tuple(starts.runs))


def _check(kills: Sequence[str | float], after: int) -> None:
    known = [kill in STEPS if isinstance(kill, str) else kill > 0 for kill in kills]
    if not kills or not all(known) or after < 0:
        raise ConfigError(
            "kill_and_restart has no such step or time",
            {"at": kills, "after": after},
            f"Name one of {', '.join(STEPS)}, or seconds above 0; after is 0 or more.",
        )
    if after and not isinstance(kills[0], str):
        raise ConfigError(
            "after counts steps, and this kill is at a time",
            {"at": kills[0], "after": after},
            "Leave after out, or name a step.",
        )


def _command(
    program: str | os.PathLike[str] | Callable[..., object],
    arguments: Sequence[object],
    scratch: Path,
    path: str | None,
) -> tuple[str, ...]:
    if not callable(program):
        words = [str(argument) for argument in arguments]
        is_python = os.fspath(program).endswith(".py")
        if not (Path(program).is_file() if is_python else shutil.which(program, path=path)):
            raise ConfigError(
                "there is no such program to kill",
                {"program": program, "directory": Path.cwd()},
                "Pass a path from this directory, such as Path(__file__).with_name(…).",
            )
        return (
            command_of(sys.executable, Path(program), words)
            if is_python
            else (os.fspath(program), *words)
        )
    call = scratch / "call.pickle"
    try:
        call.write_bytes(pickle.dumps((program, tuple(arguments))))
    except (pickle.PicklingError, AttributeError, TypeError) as err:
        raise ConfigError(
            "another process cannot import the function, or load its arguments",
            {"function": program, "error": err},
            "Use a function at the top level of a module, and plain arguments.",
        ) from err
    return (sys.executable, "-u", "-c", _CALL, str(call))


def _import_path(program: object) -> Mapping[str, str]:
    """A function's module may be importable only by the path that pytest has set up."""
    return {"PYTHONPATH": import_path()} if callable(program) else {}


@dataclass(kw_only=True)
class _Starts:
    """All starts of one program; used by one thread. Nothing of a run outlives its method."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    scratch: Path
    timeout_s: float
    runs: list[ProgramRun] = field(default_factory=list)

    def kill(self, at: str | float, *, after: int) -> None:
        """Start it, and end with its kill."""
        armed = ""
        if isinstance(at, str):
            armed = ",".join(f"{name}=kill-session@{after + 1}" for name in STEPS[at])
        with self._program(armed) as program:
            if isinstance(at, str):
                self._await_exit(program, f"its step {at!r}", "Send more records, or lower after.")
            else:
                with contextlib.suppress(WaitedTooLongError):
                    program.await_exit(timeout_s=at)
            is_early = not isinstance(at, str) and program.exit_code is not None
            program.kill()
            run = self._noted(program, at)
        if is_early or not run.is_killed:
            raise UnexpectedEndError(
                "the program ended before its kill",
                {"at": at, "after": after, **_end_of(run)},
                "Send more records, lower after, or kill earlier; the log shows other causes.",
            )

    def finish(self, until: Callable[[], object] | None) -> None:
        """Start it, and wait for its own end, or for the condition that ends it."""
        with self._program("") as program:
            is_interrupted = until is not None and self._await(until, program)
            if is_interrupted:
                program.interrupt()
                remedy = "Let it end by SIGINT; a program inherits an ignored one from pytest."
            else:
                remedy = "Bound its input, or pass until."
            self._await_exit(program, "its end", remedy)
            program.kill()
            run = self._noted(program, None)
        if run.exit_code not in (_INTERRUPTED if is_interrupted else (0,)):
            raise UnexpectedEndError(
                "the restarted program failed", _end_of(run), "Read the log of the program."
            )

    def _program(self, failpoints: str) -> Program:
        number = len(self.runs)
        report = {VARIABLE: failpoints, REPORT_VARIABLE: str(self._report(number))}
        log_path = self.scratch / f"program-{number}.log"
        return Program(
            ProgramSpec(
                command=self.command,
                log_path=log_path,
                environment={**self.environment, **report},
            )
        )

    def _report(self, number: int) -> Path:
        return self.scratch / f"failpoint-{number}"

    def _await(self, until: Callable[[], object], program: Program) -> bool:
        """False if the program ended first."""
        while program.exit_code is None:
            if until():
                return True
            if self._left_s(program) <= 0:
                raise self._too_long(program, "the condition of until", "Check that condition.")
            time.sleep(_POLL_S)  # only the caller's function knows the condition
        return False

    def _await_exit(self, program: Program, what: str, remedy: str) -> None:
        try:
            program.await_exit(timeout_s=max(0.0, self._left_s(program)))
        except WaitedTooLongError as err:
            raise self._too_long(program, what, remedy) from err

    def _left_s(self, program: Program) -> float:
        return self.timeout_s - (time.monotonic() - program.started_s)

    def _too_long(self, program: Program, what: str, remedy: str) -> WaitedTooLongError:
        return WaitedTooLongError(
            f"the program did not reach {what} in time",
            {"waited_s": self.timeout_s, "log": "\n" + program.log_tail()},
            f"{remedy} A busy machine may need a longer timeout.",
        )

    def _noted(self, program: Program, at: str | float | None) -> ProgramRun:
        report = self._report(len(self.runs))
        reached = report.read_text("utf-8").split() if report.exists() else []
        run = ProgramRun(
            at=at,
            failpoint=next(iter(reached), None),
            exit_code=program.exit_code,
            elapsed_s=time.monotonic() - program.started_s,
            log=program.log(),
        )
        self.runs.append(run)
        return run


def _end_of(run: ProgramRun) -> Mapping[str, object]:
    return {"exit_code": run.exit_code, "log": "\n" + "\n".join(run.log.splitlines()[-40:])}
