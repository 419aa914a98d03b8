"""Kills a server after the process that started it has ended in any way.

Run as a program: ``python -I -S watchdog.py GROUP WORK SCRATCH``, with the server's process group,
which includes its forks. Its parent holds the other end of standard input. A line there means "not
needed any more"; the end without a line means that the parent died, even by SIGKILL. The watchdog
then also kills each process whose working directory is below WORK, and deletes SCRATCH; both may be
empty. It imports only fast modules, and lives in a session of its own, so that a signal to the
parent's process group does not end it first.
"""

import contextlib
import os
import select
import signal
import sys

_POLL_S = 1.0


def _parent_is_gone(parent: int) -> bool:
    """Wait for the line or the end; a forked child of the parent may also hold the pipe open."""
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable:
            return not os.read(0, 1)
        if os.getppid() != parent:
            return True


def _working_below(directory: str) -> list[int]:
    from pathlib import Path

    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if str((process / "cwd").readlink()).startswith(f"{directory}/"):
                found.append(int(process.name))
    return found


def _main() -> None:
    parent, group = os.getppid(), int(sys.argv[1])
    work, scratch = sys.argv[2:]
    if not _parent_is_gone(parent):
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while work and (found := _working_below(work)):  # one may fork meanwhile
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if scratch:
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    _main()
