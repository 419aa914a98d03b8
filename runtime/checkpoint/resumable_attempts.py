"""The attempts that a later coordinator may resume, as each run keeps them in a file of its own.

A coordinator aborts no work of an attempt before its file leaves that attempt out, and before it
has checked after that write that no later run exists. A later coordinator reads the file after its
own fencing record. So an attempt that it finds there has lost no transaction. Either the write came
first, or the older run finds the fencing record and aborts nothing.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["ResumableAttempts"]

log = logging.getLogger(__name__)

_PREFIX = "_attempts-"
_FILES = re.compile(rf"{_PREFIX}\d+")
_FORMAT_VERSION = 1


class ResumableAttempts:
    """Reads and writes these files. Coordinator process; the caller serialises the calls.

    Args:
        fs: rooted at the checkpoint directory.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def write(self, run_attempt_id: int, attempts: Mapping[str, int]) -> None:
        """Replace the file of this run; the caller checks afterwards that it is the newest run.

        Args:
            run_attempt_id: slot of its fencing record.
            attempts: attempt id by region.
        Raises:
            StreamError: the file may be written or not.
        """
        content = {"format_version": _FORMAT_VERSION, "attempts": dict(attempts)}
        self._fs.replace(f"{_PREFIX}{run_attempt_id}", json.dumps(content).encode())

    def before(self, run_attempt_id: int) -> dict[str, int]:
        """The attempts that the newest earlier run left resumable; none if its file cannot be read:
        then all regions restart.

        Raises:
            StreamError: the store does not answer.
        """
        return self._read([each for each in self._ids() if each < run_attempt_id])

    def newest(self) -> dict[str, int]:
        """The attempts that the newest run with a file left resumable. Those that a later run
        resumes are among them."""
        return self._read(self._ids())

    def _read(self, ids: Sequence[int]) -> dict[str, int]:
        if not ids:
            return {}
        name = f"{_PREFIX}{max(ids)}"
        try:
            content: Any = parsed_json(self._fs.read(name) or b"")
            if content["format_version"] != _FORMAT_VERSION:
                raise ValueError(content["format_version"])
            return from_json(dict[str, int], content["attempts"])
        except (ValueError, LookupError, TypeError, StorageError) as err:
            log.warning("no attempt is resumed: file=%s error=%r", name, err)
            return {}

    def forget_before(self, run_attempt_id: int) -> None:
        """Delete the files of earlier runs, once this run is certainly newer and has written its
        own. Nothing depends on it."""
        try:
            for each in self._ids():
                if each < run_attempt_id:
                    self._fs.delete(f"{_PREFIX}{each}")
        except StreamError as err:
            log.info("files of earlier runs were not deleted: error=%s", err)

    def _ids(self) -> list[int]:
        return [int(name.removeprefix(_PREFIX)) for name in self._fs.names("", _FILES)]
