"""Which places of a checkpoint directory hold nothing but the seal of a run, on record: ``_seals``.

Seals are kept for ever (ADR 0004), one of each run, so a directory may hold very many; the list
spares each start to read them all again. It is no more than that: what it does not name is looked
up, without it everything is, and what contradicts it ends it.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from runtime.checkpoint.retention import PlaceFacts, facts_of
from runtime.errors import DamagedCheckpointError, StreamError, UnsupportedFormatError
from runtime.json_text import parsed_json
from runtime.model import SEAL, CheckpointKind, CheckpointRecord, Verdict
from runtime.storage.file_system import FileSystem

__all__ = ["SEALS_FILE", "SealList"]

log = logging.getLogger(__name__)

SEALS_FILE = "_seals"
_VERSION = 1
_WORTH_WRITING = 16  # so many seals more: a start reads no more than these, and few starts write


class SealList:
    """Part of a `runtime.checkpoint.store.CheckpointStore`; the caller serialises the calls.

    Args:
        fs: rooted at the checkpoint directory.
        read: a place's record.
    """

    def __init__(self, fs: FileSystem, *, read: Callable[[int], CheckpointRecord | None]) -> None:
        self._fs = fs
        self._read = read
        self._known: dict[int, PlaceFacts] | None = None
        self._written = 0  # how many are in the file; fewer than none: it has to be written
        self._job_uid = ""

    def known(self) -> Mapping[int, PlaceFacts]:
        """Those that the list names, and those that were read since. Raises as reading does."""
        return self._loaded()

    def note(self, record: CheckpointRecord) -> None:
        """A record was read, or published: if it is a seal, it is one for ever."""
        if _is_mere_seal(record):
            self._job_uid = record.job_uid
            self._loaded().setdefault(record.checkpoint_id, facts_of(record))
        else:
            self.contradict(record.checkpoint_id)

    def contradict(self, checkpoint_id: int) -> None:
        """There is no seal at a place. If the list names it, somebody has put back, or deleted,
        parts of the directory: every place is looked at."""
        if checkpoint_id in self._loaded():
            self._known = self._disbelieved()

    def save(self) -> None:
        """Put the list on record. Nothing depends on it, and another run may do the same."""
        known = self._loaded()
        if len(known) >= self._written + _WORTH_WRITING:
            try:
                self._fs.replace(SEALS_FILE, _encoded(known, job_uid=self._job_uid))
                self._written = len(known)
            except StreamError as err:
                log.debug("the seals are not on record: uri=%s error=%s", self._fs.uri, err)

    def _loaded(self) -> dict[int, PlaceFacts]:
        if self._known is None:
            data = self._fs.read(SEALS_FILE)
            self._known = {}  # while one of them is read, and where there is no list
            if data is not None:
                self._known = self._believed(data)
        return self._known

    def _believed(self, data: bytes) -> dict[int, PlaceFacts]:
        """Those of a file, unless the newest one is none of theirs."""
        try:
            job_uid, seals = _decoded(data)
            newest = self._read(max(seals))
        except (ValueError, LookupError, TypeError, DamagedCheckpointError, UnsupportedFormatError):
            return self._disbelieved()  # whoever needs a damaged record meets it again
        except BaseException:
            self._known = None  # not answered: asked again
            raise
        if newest is None or not _is_mere_seal(newest) or newest.job_uid != job_uid:
            return self._disbelieved()
        self._job_uid, self._written = job_uid, len(seals)
        return seals

    def _disbelieved(self) -> dict[int, PlaceFacts]:
        log.warning("the list of seals is made anew: uri=%s", self._fs.uri)
        self._written = -_WORTH_WRITING
        return {}


def _is_mere_seal(record: CheckpointRecord) -> bool:
    return (
        record.asked_by == SEAL
        and record.verdict is Verdict.ABORTED
        and record.kind is CheckpointKind.CHECKPOINT
        and not record.regions
    )


def _encoded(seals: Mapping[int, PlaceFacts], *, job_uid: str) -> bytes:
    found = [[each, seals[each].restored_from] for each in sorted(seals)]
    content = {
        "format_version": _VERSION,
        "job_uid": job_uid,
        "seals": found,
        "sha256": _digest(found),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _decoded(data: bytes) -> tuple[str, dict[int, PlaceFacts]]:
    """Whose they are, and their facts; ValueError, LookupError or TypeError: it is no such file."""
    found: Any = parsed_json(data)
    if found["format_version"] != _VERSION or found["sha256"] != _digest(found["seals"]):
        raise ValueError("not a list of seals")
    seals = {
        int(each): PlaceFacts(
            checkpoint_id=int(each),
            verdict=Verdict.ABORTED,
            kind=CheckpointKind.CHECKPOINT,
            names=frozenset(),
            has_committables=False,
            restored_from=restored_from,
            is_seal=True,
        )
        for each, restored_from in found["seals"]
    }
    return str(found["job_uid"]), seals


def _digest(seals: object) -> str:
    return hashlib.sha256(json.dumps(seals, separators=(",", ":")).encode()).hexdigest()
