"""A directory on this machine's disk for as long as the process that made it lives."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from sluice.runtime.process.temporary_files import temporary_dir
from sluice.runtime.storage.local_fs import local_failure

__all__ = ["LocalDirectory"]

_PREFIX = "sluice-state-"
_LOCK = "lock"


class LocalDirectory:
    """Deleted by `close`, or by the next one that is made after its process was killed.

    The kernel releases the lock of a process that ends. Process ids differ between containers.

    Attributes:
        path: the directory.
    """

    def __init__(self, parent: str | None) -> None:
        """Args:
        parent: where to make it; None: where temporary files are.
        Raises:
            StorageError: it cannot be made.
        """
        above = Path(parent or temporary_dir())
        try:
            above.mkdir(parents=True, exist_ok=True)
            _sweep(above)
            made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=above))
            self._lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.path = made.rename(above / made.name[1:])  # swept from here on, if unlocked
        except OSError as error:
            raise local_failure(error, "make a directory for state", {"path": above}) from error

    def close(self) -> None:
        """Delete it. Safe to repeat."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)
        self._lock = -1


def _sweep(above: Path) -> None:
    """Delete the directories of processes that were killed."""
    for found in above.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or swept by another process
            lock = os.open(found / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(found, ignore_errors=True)
            finally:
                os.close(lock)
