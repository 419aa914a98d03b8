"""Publishes one file in a slot: whole, synced, never replacing another (`publish-whole`)."""

import logging
import re
import uuid

from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["SlotPublication", "session_text"]

log = logging.getLogger(__name__)


class SlotPublication:
    """One attempt to publish a file. Afterwards `was_tried` is true if it may have happened."""

    def __init__(
        self, fs: FileSystem, directory: str, name: str, data: bytes, session: str
    ) -> None:
        self._fs = fs
        self._path = f"{directory}/{name}"
        unique = f"{session_text(session)}.{uuid.uuid4().hex}"
        self._temporary = f"{directory}/.{name}.{unique}.tmp"
        self._data = data
        self.was_tried = False

    def run(self) -> PublishOutcome:
        """OURS or TAKEN; StorageError if neither is certain."""
        found = self._standing() if self._fs.has_temporaries else None
        if found is not None:
            return found
        self._fs.stage(self._temporary, self._data)
        failpoint("after-temp-sync")
        try:
            self.was_tried = True
            if self._fs.place(self._temporary, self._path, self._data):
                return PublishOutcome.OURS
        except StorageError as error:
            found = self._standing()
            if found is None:
                raise
            log.info("publish settled by reading back: path=%s error=%s", self._path, error)
            return found
        found = self._standing()
        self._discard()
        if found is None:
            raise StorageError(
                "the store refused a slot as taken, but the slot is empty",
                {"uri": self._fs.uri, "path": self._path},
                "Retry. If the error stays, use another store: this one breaks its promise.",
            )
        return found

    def _standing(self) -> PublishOutcome | None:
        data = self._fs.read(self._path)
        if data is None:
            return None
        if data != self._data:
            return PublishOutcome.TAKEN
        self._fs.make_durable(self._path)
        return PublishOutcome.OURS

    def _discard(self) -> None:
        if not self._fs.has_temporaries:
            return
        try:
            self._fs.delete(self._temporary)
        except StreamError as error:  # the next `clean` deletes it
            log.debug("temporary file was not deleted: path=%s error=%s", self._temporary, error)


def session_text(session: str) -> str:
    """The session inside a file name: only letters that every store takes."""
    return re.sub(r"[^A-Za-z0-9-]", "-", session) or "-"
