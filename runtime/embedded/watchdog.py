"""Kills a server when the process that started it is gone, however it went.

Run as a program: ``python -I -S _watchdog.py GROUP [DIRECTORY]``, with the server's process group:
what it has forked ends with it. Its parent holds the other end of standard input: a line there
means "not needed any more", its end without a line means that the parent died, SIGKILL included.
DIRECTORY (scratch data) is then deleted too.
It imports only what starts fast, and lives in a session of its own, so that a signal to the
parent's process group does not end it first.
"""

import contextlib
import os
import select
import signal
import sys

_POLL_S = 1.0


def _parent_is_gone(parent: int) -> bool:
    """Wait for the line or the end; a forked child of the parent may hold the pipe open too."""
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
