"""The attempts that a later coordinator may resume, as each run keeps them in a file of its own.

A coordinator aborts no work of an attempt before its file leaves that attempt out, and before it
has checked after that write that no later run exists. A later coordinator reads the file after its
own fencing record. So an attempt that it finds there has lost no transaction. Either the write came
first, or the older run finds the fencing record and aborts nothing.

Each list of a run has a file of its own, and the last one counts. An object store may execute a
request that was repeated once more, long after the next list: that changes an earlier file only.

The file also names the checkpoint from which the run resumed. The attempts continue from there, or
from the run's newest decision, and from no other place.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from sluice.runtime.errors import DamagedCheckpointError, StorageError, StreamError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["ListedAttempts", "ResumableAttempts"]

log = logging.getLogger(__name__)

_PREFIX = "_attempts-"
_FILES = re.compile(rf"{_PREFIX}\d+(?:-\d+)?")
_FORMAT_VERSION = 1
_KEPT = 2  # lists of a run: another process may have listed the last one but one, and reads it now


class _File(NamedTuple):
    """A list of a run: ``_attempts-12``, then ``_attempts-12-1`` and so on. They sort by age."""

    run_attempt_id: int
    number: int

    @classmethod
    def named(cls, name: str) -> Self:
        run, _, number = name.removeprefix(_PREFIX).partition("-")
        return cls(int(run), int(number or 0))

    @property
    def name(self) -> str:
        later = f"-{self.number}" if self.number else ""
        return f"{_PREFIX}{self.run_attempt_id}{later}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAttempts:
    """The list of one run.

    Attributes:
        run_attempt_id: slot of its fencing record; -1: no run has listed any attempt.
        resumed_from: the checkpoint that it resumed from.
        attempts: attempt id by region.
    """

    run_attempt_id: int = -1
    resumed_from: int = -1
    attempts: Mapping[str, int] = field(default_factory=dict)

    def follow(self, checkpoint_id: int, decided: Iterable[int]) -> bool:
        """Whether the attempts read on from this checkpoint.

        Args:
            decided: slots of the newest decisions, at least down to a settled one, and of records
                that cannot be read. A later run lists its attempts before it decides, so those
                above the run are its own.
        """
        own = (each for each in decided if each > self.run_attempt_id)
        return checkpoint_id == max(own, default=self.resumed_from)


class ResumableAttempts:
    """Reads and writes these files. Coordinator process; the caller serialises the calls. One
    object writes all lists of a run.

    Args:
        fs: rooted at the checkpoint directory.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._last = _File(-1, 0)  # that was written, or may be

    def write(self, listed: ListedAttempts) -> None:
        """Write the next list of a run; the caller checks afterwards that it is the newest run.

        Raises:
            StreamError: the file may be written or not.
        """
        content = {
            "format_version": _FORMAT_VERSION,
            "resumed_from": listed.resumed_from,
            "attempts": dict(listed.attempts),
        }
        run = listed.run_attempt_id
        mine = [each for each in (*self._files(), self._last) if each.run_attempt_id == run]
        self._last = _File(run, max((each.number + 1 for each in mine), default=0))
        self._fs.replace(self._last.name, json.dumps(content).encode())
        self._forget(each for each in mine if each.number <= self._last.number - _KEPT)

    def end_all(self, run_attempt_id: int) -> None:
        """End the attempts of earlier runs, for a run whose own attempts end with it. A file with
        unreadable content may become readable again, so it counts as a list of attempts.

        Raises:
            StreamError: the attempts may be resumable still: the run must not abort any work.
        """
        files = self._files()
        if files and self._may_list(max(files)):
            self.write(ListedAttempts(run_attempt_id=run_attempt_id))

    def _may_list(self, file: _File) -> bool:
        try:
            return bool(self._parsed(file).attempts)
        except (ValueError, LookupError, TypeError):
            return True

    def before(self, run_attempt_id: int) -> ListedAttempts:
        """The attempts that the newest earlier run left resumable; none if its file cannot be read:
        then all regions restart.

        Raises:
            StreamError: the store does not answer.
        """
        return self._read([each for each in self._files() if each.run_attempt_id < run_attempt_id])

    def running(self) -> Mapping[str, int]:
        """The attempts that the newest run with a file left resumable, for a command that deletes
        what no attempt needs. Those that a later run resumes are among them.

        Raises:
            DamagedCheckpointError: the file cannot be read: any attempt may run.
            StreamError: the store does not answer.
        """
        files = self._files()
        try:
            return self._parsed(max(files)).attempts if files else {}
        except (ValueError, LookupError, TypeError) as err:
            raise DamagedCheckpointError(
                "the attempts that may run are unknown",
                {"file": f"{self._fs.uri}/{max(files).name}", "error": repr(err)},
                "Start the job: its first decision writes the file anew. Then repeat the command.",
            ) from err

    def _read(self, files: Sequence[_File]) -> ListedAttempts:
        if not files:
            return ListedAttempts()
        try:
            return self._parsed(max(files))
        except (ValueError, LookupError, TypeError, StorageError) as err:
            log.warning("no attempt is resumed: file=%s error=%r", max(files).name, err)
            return ListedAttempts()

    def _parsed(self, file: _File) -> ListedAttempts:
        content: Any = parsed_json(self._fs.read(file.name) or b"")
        if content["format_version"] != _FORMAT_VERSION:
            raise ValueError(content["format_version"])
        return ListedAttempts(
            run_attempt_id=file.run_attempt_id,
            resumed_from=from_json(int, content["resumed_from"]),
            attempts=from_json(dict[str, int], content["attempts"]),
        )

    def forget_before(self, run_attempt_id: int) -> None:
        """Delete the files of earlier runs, once this run is certainly newer and has written its
        own. Nothing depends on it."""
        try:
            files = self._files()
        except StreamError as err:
            log.info("files of earlier runs were not listed: error=%s", err)
            return
        self._forget(each for each in files if each.run_attempt_id < run_attempt_id)

    def _forget(self, files: Iterable[_File]) -> None:
        try:
            for each in files:
                self._fs.delete(each.name)
        except StreamError as err:
            log.info("older lists of attempts were not deleted: error=%s", err)

    def _files(self) -> list[_File]:
        return [_File.named(name) for name in self._fs.names("", _FILES)]
