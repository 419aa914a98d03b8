"""Directories for downloaded files and small state of a user, and a lock against concurrent
changes."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.runtime.errors import MissingRequirementError

__all__ = ["cache_dir", "exclusive", "require_directory", "state_dir"]


def cache_dir() -> Path:
    """``SLUICE_CACHE``, else ``sluice`` in the user's cache directory; may be deleted."""
    own = os.environ.get("SLUICE_CACHE")
    return Path(own) if own else _base("XDG_CACHE_HOME", ".cache") / "sluice"


def state_dir() -> Path:
    """``SLUICE_STATE``, else ``sluice`` in the user's state directory: servers that run in the
    background."""
    own = os.environ.get("SLUICE_STATE")
    return Path(own) if own else _base("XDG_STATE_HOME", ".local/state") / "sluice"


def _base(variable: str, default: str) -> Path:
    named = os.environ.get(variable)
    return Path(named) if named else Path.home() / default


def require_directory(path: Path) -> Path:
    """The directory, resolved, created if it is missing.

    Raises:
        MissingRequirementError: it cannot be created, or is not a directory.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingRequirementError(
            "the directory cannot be used",
            {"directory": path, "error": error.strerror},
            "Set a directory that this user may write to.",
        ) from error
    return path.resolve()


@contextmanager
def exclusive(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock file ``path`` against other processes; the lock of a dead holder is free.

    Raises:
        MissingRequirementError: another process held it for all of ``timeout_s``, or its directory
            cannot be created.
    """
    require_directory(path.parent)
    deadline = time.monotonic() + timeout_s
    with path.open("a") as lock:
        while not _try_lock(lock.fileno()):
            if time.monotonic() > deadline:
                raise MissingRequirementError(
                    "another process holds the lock for too long",
                    {"lock": path, "timeout_s": timeout_s},
                    "Wait for that process, or end it: the lock ends with it.",
                )
            time.sleep(0.1)  # flock has no timeout
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
