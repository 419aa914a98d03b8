"""Named places where a test may kill, pause or fail this process; free when unset.

``SLUICE_FAILPOINTS="after-decision=kill,before-commit=pause@3"`` arms them for a process and all
its children: the action is taken at the named hit (``@3`` = the third, default the first). Actions:
``kill`` (SIGKILL to this process), ``kill-group`` (SIGKILL to its process group), ``kill-session``
(SIGKILL to its session), ``pause`` (SIGSTOP to this process) and ``raise`` (`FailpointError`). A
session contains the driver, JVM and workers of a program that was started in a session of its own.
``SLUICE_FAILPOINT_REPORT`` names a file to which the process appends the failpoint's name first.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.errors import ConfigError, StreamError

__all__ = ["REPORT_VARIABLE", "VARIABLE", "FailpointError", "failpoint"]

VARIABLE = "SLUICE_FAILPOINTS"
REPORT_VARIABLE = "SLUICE_FAILPOINT_REPORT"
_ACTIONS = ("kill", "kill-group", "kill-session", "pause", "raise")


class FailpointError(StreamError):
    """An armed failpoint requested an error."""


@dataclass(slots=True)
class _Armed:
    action: str
    hits_left: int


def _parse(text: str) -> dict[str, _Armed]:
    armed: dict[str, _Armed] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition("=")
        action, _, hit = rest.partition("@")
        if action not in _ACTIONS or (hit and not hit.isdigit()):
            raise ConfigError(
                "a failpoint is not of the form name=action[@hit]",
                {"variable": VARIABLE, "item": item},
                f"Use one of {', '.join(_ACTIONS)}.",
            )
        armed[name] = _Armed(action, int(hit or 1))
    return armed


_armed: dict[str, _Armed] | None = None


def failpoint(name: str) -> None:
    """Take the action armed for ``name``, if any. Call it before and after each remote step."""
    global _armed
    if _armed is None:
        _armed = _parse(os.environ.get(VARIABLE, ""))
    if not _armed:
        return
    point = _armed.get(name)
    if point is None:
        return
    point.hits_left -= 1
    if point.hits_left == 0:
        _act(name, point.action)


def _act(name: str, action: str) -> None:
    if report := os.environ.get(REPORT_VARIABLE):
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
    if action == "raise":
        raise FailpointError("a failpoint was reached", {"name": name}, f"Unset {VARIABLE}.")
    if action == "kill-group":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    if action == "kill-session":
        _kill_others_of_session()
    os.kill(os.getpid(), signal.SIGSTOP if action == "pause" else signal.SIGKILL)


def _kill_others_of_session() -> None:
    """Spark's daemon has a process group of its own, but shares the driver's session (Linux)."""
    session, here = os.getsid(0), os.getpid()
    others = {int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()} - {here}
    for pid in others:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
