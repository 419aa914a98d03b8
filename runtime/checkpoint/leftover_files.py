"""Half-made files in a directory that many runs write, whose writers were killed."""

import logging
import re

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError, StorageError
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["HALF_MADE", "Leftovers"]

log = logging.getLogger(__name__)

HALF_MADE = re.compile(r"\.[._][a-z0-9-]+\.[0-9a-f]{32}\.tmp")
"""As `FileSystem.replace` names the files that it makes of hidden ones."""

_INTERVAL_S = 3600.0


class Leftovers:
    """Of a `CheckpointStore`, or of what holds a lease; the caller
    serialises the calls.

    They lie beside `_seals`, `_leader` and the command line's file, which any run may be writing
    at this moment, a newer one, too. But a name is random and is renamed within moments: what two
    looks have found an hour apart is nobody's. Those inside a place go when it is retired.

    Args:
        fs: that the directory lies in.
        clock: monotonic seconds.
        directory: relative to the root of ``fs``.
        pattern: of their names, which are random.
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

    def look(self) -> None:
        """Delete what the last look has found, too; does nothing within an hour of it.

        What cannot be deleted, as a file of somebody else, stays: nothing depends on it.
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
                "half-made files are left: uri=%s directory=%s error=%s",
                self._fs.uri,
                self._directory,
                err,
            )
