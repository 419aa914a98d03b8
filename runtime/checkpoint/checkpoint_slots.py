"""Which places of a checkpoint directory hold nothing but the seal of a run, on record: ``_seals``.

Seals are kept for ever (ADR 0004), one of each run, so a directory may hold very many; the list
spares each start to read them all again. It is no more than that: what it does not name is looked
up, without it everything is, and what contradicts it ends it.

Which places of a checkpoint directory hold a record, and what is known of each: asked once.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sluice.runtime.checkpoint.retention import PlaceFacts, facts_of
from sluice.runtime.errors import DamagedCheckpointError, StreamError, UnsupportedFormatError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.model import SEAL, CheckpointKind, CheckpointRecord, Verdict
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["METADATA", "SEALS_FILE", "KnownPlaces", "SealList", "place_name"]

log = logging.getLogger(__name__)

SEALS_FILE = "_seals"
_VERSION = 1
_WORTH_WRITING = 16  # so many seals more: a start reads no more than these, and few starts write


class SealList:
    """Part of a `CheckpointStore`; the caller serialises the calls.

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


METADATA = "_metadata"
_PLACE = re.compile(r"chk-\d{12,}")


def place_name(checkpoint_id: int) -> str:
    """Name of a checkpoint's directory; names sort as numbers do."""
    return f"chk-{checkpoint_id:012d}"


class KnownPlaces:
    """Part of a `CheckpointStore`; the caller serialises the calls.

    Records never change, so what was read of a place is kept, as a few small facts.

    Args:
        fs: rooted at the checkpoint directory.
        seals: of which places it is known without a look.
        read: a place's record; may raise DamagedCheckpointError.
        has_mark: whether a place has a file of this name.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        seals: SealList,
        read: Callable[[int], CheckpointRecord | None],
        has_mark: Callable[[int, str], bool],
    ) -> None:
        self._fs = fs
        self._seals = seals
        self._read = read
        self._has_mark = has_mark
        self._facts: dict[int, PlaceFacts] = {}

    def listed(self) -> list[int]:
        """Ids of all directories named like a place, ascending."""
        return sorted(int(name[4:]) for name in self._fs.names("", _PLACE))

    def ids(self) -> list[int]:
        """See `CheckpointStore.places`."""
        seals = self._seals.known()
        listed = self.listed()
        while True:
            asked = {each for each in listed if each not in self._facts and each not in seals}
            found = {each for each in asked if self._has_mark(each, METADATA)}
            present = [each for each in listed if each not in asked or each in found]
            if not asked:
                return present  # at once: nothing was deleted meanwhile
            highest, listed = max(listed, default=-1), self.listed()
            if max(listed, default=-1) <= highest:
                return present

    def facts(self, *, committed: str, superseded: str) -> list[PlaceFacts]:
        """What retention knows of every place that can be read, ascending.

        Args:
            committed, superseded: names of the marks.
        """
        present = self.ids()
        found = {each: self._facts_at(each, committed, superseded) for each in present}
        seals = self._seals.known()
        known = {each: facts for each, facts in found.items() if facts is not None}
        self._facts = {each: facts for each, facts in known.items() if each not in seals}
        return list(known.values())

    def forget(self, checkpoint_id: int) -> None:
        """A mark of this place changes."""
        self._facts.pop(checkpoint_id, None)

    def _facts_at(self, checkpoint_id: int, committed: str, superseded: str) -> PlaceFacts | None:
        """Only what may have changed is looked up: a seal is never asked about twice.

        Whoever supersedes runs before the first decision of a session, or is this store.
        """
        known = self._seals.known().get(checkpoint_id) or self._facts.get(checkpoint_id)
        if known is None:
            try:
                record = self._read(checkpoint_id)
            except DamagedCheckpointError:
                return None  # left for a look; nothing starts from it, so it keeps nothing
            if record is None:
                return None
            is_superseded = self._has_mark(checkpoint_id, superseded)
            known = facts_of(record, is_superseded=is_superseded)
        if known.verdict is Verdict.ABORTED or known.is_committed:
            return known
        return replace(known, is_committed=self._has_mark(checkpoint_id, committed))
