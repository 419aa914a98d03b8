"""Half-made files at the top of a checkpoint directory, whose writers were killed."""

import logging
import re

from runtime.contracts import Clock
from runtime.errors import AuthenticationError, StorageError
from runtime.storage.file_system import FileSystem

__all__ = ["Leftovers"]

log = logging.getLogger(__name__)

_HALF_MADE = re.compile(r"\._[a-z]+\.[0-9a-f]{32}\.tmp")  # as `FileSystem.replace` names them
_INTERVAL_S = 3600.0


class Leftovers:
    """Part of a `runtime.checkpoint.store.CheckpointStore`; the caller serialises the calls.

    They lie beside `_seals`, `_leader` and the command line's file, which any run may be writing
    at this moment, a newer one, too. But a name is random and is renamed within moments: what two
    looks have found an hour apart is nobody's. Those inside a place go when it is retired.

    Args:
        fs: rooted at the checkpoint directory.
        clock: monotonic seconds.
    """

    def __init__(self, fs: FileSystem, *, clock: Clock) -> None:
        self._fs = fs
        self._clock = clock
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
            found = frozenset(self._fs.names("", _HALF_MADE))
            for name in sorted(found & self._found):
                self._fs.delete(name)
            self._found = found
        except (StorageError, AuthenticationError) as err:
            log.warning("half-made files are left: uri=%s error=%s", self._fs.uri, err)
