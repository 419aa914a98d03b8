"""Deletes half-made files of killed writers in a directory that many runs write."""

import logging
import re

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError, StorageError
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["HALF_MADE", "Leftovers"]

log = logging.getLogger(__name__)

HALF_MADE = re.compile(r"\.[._][a-z0-9-]+\.[0-9a-f]{32}\.tmp")
"""Names of the temporary files that `FileSystem.replace` makes for hidden files."""

_INTERVAL_S = 3600.0


class Leftovers:
    """Half-made files of one directory; the caller serialises the calls.

    In a checkpoint directory they lie beside ``_leader`` and the command files, which any run may
    be writing at this moment, also a newer one. But each name is random and is renamed within
    moments. So a file that is still there after an hour has no writer any more. Files inside a slot
    are deleted with the slot.

    Args:
        fs: that holds the directory.
        clock: monotonic seconds.
        directory: relative to the root of ``fs``.
        pattern: of the random names.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        clock: Clock,
        directory: str = "",
        pattern: re.Pattern[str] = HALF_MADE,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._pattern = pattern
        self._found: frozenset[str] = frozenset()
        self._due_s = float("-inf")

    def delete_abandoned(self) -> None:
        """List the files, and delete those that the last listing had too; at most once an hour.

        A file that cannot be deleted, for example of another user, stays: nothing depends on it.
        """
        now_s = self._clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _INTERVAL_S
        try:
            found = frozenset(self._fs.names(self._directory, self._pattern))
            for name in sorted(found & self._found):
                self._fs.delete(f"{self._directory}/{name}".lstrip("/"))
            self._found = found
        except (StorageError, AuthenticationError) as err:
            log.warning(
                "incomplete files were not deleted: uri=%s directory=%s error=%s",
                self._fs.uri,
                self._directory,
                err,
            )
