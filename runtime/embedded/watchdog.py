"""Kills a server after the process that started it has ended in any way.

Run as a program: ``python -I -S watchdog.py GROUP [DIRECTORY]``, with the server's process group,
which includes its forks. Its parent holds the other end of standard input. A line there means "not
needed any more"; the end without a line means that the parent died, even by SIGKILL. The watchdog
then also deletes DIRECTORY (scratch data). It imports only fast modules, and lives in a session of
its own, so that a signal to the parent's process group does not end it first.
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


def _main() -> None:
    parent, group = os.getppid(), int(sys.argv[1])
    if not _parent_is_gone(parent):
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for directory in sys.argv[2:]:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main()
