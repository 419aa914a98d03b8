"""Which places of a checkpoint directory hold a record, and what is known of each: asked once.

Records never change. Seals are kept for ever (ADR 0004), one of each run, so a directory may hold
very many; ``_seals`` says which they are, and spares each start to read them all again. It is no
more than that: what it does not name is looked up, and without it everything is.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from runtime.checkpoint.retention import PlaceFacts, facts_of
from runtime.errors import DamagedCheckpointError, StreamError, UnsupportedFormatError
from runtime.json_text import parsed_json
from runtime.model import SEAL, CheckpointKind, CheckpointRecord, Verdict
from runtime.storage.file_system import FileSystem

__all__ = ["METADATA", "SEALS_FILE", "KnownPlaces", "place_name"]

log = logging.getLogger(__name__)

METADATA = "_metadata"
SEALS_FILE = "_seals"
_SEALS_VERSION = 1
_WORTH_WRITING = 16  # so many seals more: a start reads no more than these, and few starts write
_PLACE = re.compile(r"chk-\d{12,}")


def place_name(checkpoint_id: int) -> str:
    """Name of a checkpoint's directory; names sort as numbers do."""
    return f"chk-{checkpoint_id:012d}"


class KnownPlaces:
    """Part of a `runtime.checkpoint.store.CheckpointStore`; the caller serialises the calls.

    Args:
        fs: rooted at the checkpoint directory.
        read: a place's record; may raise DamagedCheckpointError.
        has_mark: whether a place has a file of this name.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        read: Callable[[int], CheckpointRecord | None],
        has_mark: Callable[[int, str], bool],
    ) -> None:
        self._fs = fs
        self._read = read
        self._has_mark = has_mark
        self._facts: dict[int, PlaceFacts] = {}
        self._seals: dict[int, PlaceFacts] | None = None
        self._written = 0
        self._is_to_write = False
        self._job_uid = ""

    def listed(self) -> list[int]:
        """Ids of all directories named like a place, ascending."""
        return sorted(int(name[4:]) for name in self._fs.names("", _PLACE))

    def ids(self) -> list[int]:
        """See `CheckpointStore.places`."""
        seals = self._known_seals()
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

    def seals(self) -> Mapping[int, int | None]:
        """See `MetadataStore.known_seals`."""
        return {each: facts.restored_from for each, facts in self._known_seals().items()}

    def facts(self, *, committed: str, superseded: str) -> list[PlaceFacts]:
        """What retention knows of every place that can be read, ascending.

        Args:
            committed, superseded: names of the marks.
        """
        present = self.ids()
        self._facts = {
            each: facts
            for each in present
            if (facts := self._facts_at(each, committed, superseded)) is not None
        }
        return list(self._facts.values())

    def _facts_at(self, checkpoint_id: int, committed: str, superseded: str) -> PlaceFacts | None:
        """Only what may have changed is looked up: a seal is never asked about twice.

        Whoever supersedes runs before the first decision of a session, or is this store.
        """
        known = self._facts.get(checkpoint_id) or self._known_seals().get(checkpoint_id)
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

    def forget(self, checkpoint_id: int) -> None:
        """A mark of this place changes."""
        self._facts.pop(checkpoint_id, None)

    def note(self, record: CheckpointRecord) -> None:
        """A record was read, or published: if it is a seal, it is one for ever."""
        is_seal = record.asked_by == SEAL and record.verdict is Verdict.ABORTED
        if is_seal and record.kind is CheckpointKind.CHECKPOINT and not record.regions:
            self._job_uid = record.job_uid
            self._known_seals().setdefault(record.checkpoint_id, facts_of(record))
        elif record.checkpoint_id in self._known_seals():
            self._distrust(record.checkpoint_id)

    def note_empty(self, checkpoint_id: int) -> None:
        """There is no record at a place."""
        if checkpoint_id in self._known_seals():
            self._distrust(checkpoint_id)

    def _distrust(self, checkpoint_id: int) -> None:
        """Somebody has put back, or deleted, parts of the directory: look at every place."""
        log.warning(
            "the list of seals is not this directory's, it is made anew: uri=%s checkpoint_id=%d",
            self._fs.uri,
            checkpoint_id,
        )
        self._seals, self._facts = {}, {}
        self._is_to_write = True

    def save(self) -> None:
        """Put the seals on record. Nothing depends on it, and another run may do the same."""
        seals = self._known_seals()
        if self._is_to_write or len(seals) >= self._written + _WORTH_WRITING:
            try:
                self._fs.replace(SEALS_FILE, _encoded(seals, job_uid=self._job_uid))
                self._written, self._is_to_write = len(seals), False
            except StreamError as err:
                log.debug("the seals are not on record: uri=%s error=%s", self._fs.uri, err)

    def _known_seals(self) -> dict[int, PlaceFacts]:
        if self._seals is None:
            data = self._fs.read(SEALS_FILE)
            self._seals = {} if data is None else self._believed(data)
            self._written = len(self._seals)
        return self._seals

    def _believed(self, data: bytes) -> dict[int, PlaceFacts]:
        """Those of a file, unless a record that it names says that it is none of theirs."""
        seals, job_uid = _parsed(data, uri=self._fs.uri)
        self._job_uid = job_uid
        self._seals = {}  # while one is read
        if seals and self._is_seal_of(job_uid, max(seals)):
            return seals
        log.warning("the list of seals is made anew: uri=%s", self._fs.uri)
        self._is_to_write = True
        return {}

    def _is_seal_of(self, job_uid: str, checkpoint_id: int) -> bool:
        try:
            record = self._read(checkpoint_id)
        except (DamagedCheckpointError, UnsupportedFormatError):
            return False  # whoever needs the record meets it again
        except BaseException:
            self._seals = None  # not known: asked again
            raise
        return record is not None and record.asked_by == SEAL and record.job_uid == job_uid


def _encoded(seals: Mapping[int, PlaceFacts], *, job_uid: str) -> bytes:
    found = [[each, seals[each].restored_from] for each in sorted(seals)]
    content = {
        "format_version": _SEALS_VERSION,
        "job_uid": job_uid,
        "seals": found,
        "sha256": _digest(found),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _parsed(data: bytes, *, uri: str) -> tuple[dict[int, PlaceFacts], str]:
    try:
        found: Any = parsed_json(data)
        if found["format_version"] != _SEALS_VERSION or found["sha256"] != _digest(found["seals"]):
            raise ValueError(found["format_version"])
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
        return seals, str(found["job_uid"])
    except (ValueError, LookupError, TypeError) as error:
        log.warning("the list of seals cannot be read: uri=%s error=%r", uri, error)
        return {}, ""


def _digest(seals: object) -> str:
    return hashlib.sha256(json.dumps(seals, separators=(",", ":")).encode()).hexdigest()
