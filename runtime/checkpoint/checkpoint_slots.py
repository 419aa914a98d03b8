"""Which slots hold only the fencing record of a run, on record in ``_seals``.

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

from sluice.runtime.checkpoint.retention import SlotFacts, facts_of
from sluice.runtime.errors import DamagedCheckpointError, StreamError, UnsupportedFormatError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.model import FENCING, CheckpointKind, CheckpointRecord, Verdict
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["FENCING_FILE", "METADATA", "FencingList", "KnownSlots", "slot_name"]

log = logging.getLogger(__name__)

FENCING_FILE = "_fencing_records"
_VERSION = 1
_WORTH_WRITING = 16  # so many seals more: a start reads no more than these, and few starts write


class FencingList:
    """Part of a `CheckpointStore`; the caller serialises the calls.

    Args:
        fs: rooted at the checkpoint directory.
        read: a place's record.
    """

    def __init__(self, fs: FileSystem, *, read: Callable[[int], CheckpointRecord | None]) -> None:
        self._fs = fs
        self._read = read
        self._known: dict[int, SlotFacts] | None = None
        self._written = 0  # how many are in the file; fewer than none: it has to be written
        self._job_uid = ""

    def known(self) -> Mapping[int, SlotFacts]:
        """Those that the list names, and those that were read since. Raises as reading does."""
        return self._loaded()

    def note(self, record: CheckpointRecord) -> None:
        """A record was read, or published: if it is a seal, it is one for ever."""
        if _is_fencing_record(record):
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
                self._fs.replace(FENCING_FILE, _encoded(known, job_uid=self._job_uid))
                self._written = len(known)
            except StreamError as err:
                log.debug("the seals are not on record: uri=%s error=%s", self._fs.uri, err)

    def _loaded(self) -> dict[int, SlotFacts]:
        if self._known is None:
            data = self._fs.read(FENCING_FILE)
            self._known = {}  # while one of them is read, and where there is no list
            if data is not None:
                self._known = self._believed(data)
        return self._known

    def _believed(self, data: bytes) -> dict[int, SlotFacts]:
        """Those of a file, unless the newest one is none of theirs."""
        try:
            job_uid, fencing_records = _decoded(data)
            newest = self._read(max(fencing_records))
        except (ValueError, LookupError, TypeError, DamagedCheckpointError, UnsupportedFormatError):
            return self._disbelieved()  # whoever needs a damaged record meets it again
        except BaseException:
            self._known = None  # not answered: asked again
            raise
        if newest is None or not _is_fencing_record(newest) or newest.job_uid != job_uid:
            return self._disbelieved()
        self._job_uid, self._written = job_uid, len(fencing_records)
        return fencing_records

    def _disbelieved(self) -> dict[int, SlotFacts]:
        log.warning("the list of seals is made anew: uri=%s", self._fs.uri)
        self._written = -_WORTH_WRITING
        return {}


def _is_fencing_record(record: CheckpointRecord) -> bool:
    return (
        record.requested_by == FENCING
        and record.verdict is Verdict.ABORTED
        and record.kind is CheckpointKind.CHECKPOINT
        and not record.regions
    )


def _encoded(fencing_records: Mapping[int, SlotFacts], *, job_uid: str) -> bytes:
    found = [[each, fencing_records[each].restored_from] for each in sorted(fencing_records)]
    content = {
        "format_version": _VERSION,
        "job_uid": job_uid,
        "seals": found,
        "sha256": _digest(found),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _decoded(data: bytes) -> tuple[str, dict[int, SlotFacts]]:
    """Whose they are, and their facts; ValueError, LookupError or TypeError: it is no such file."""
    found: Any = parsed_json(data)
    if found["format_version"] != _VERSION or found["sha256"] != _digest(found["seals"]):
        raise ValueError("not a list of seals")
    fencing_records = {
        int(each): SlotFacts(
            checkpoint_id=int(each),
            verdict=Verdict.ABORTED,
            kind=CheckpointKind.CHECKPOINT,
            names=frozenset(),
            has_committables=False,
            restored_from=restored_from,
            is_fencing_record=True,
        )
        for each, restored_from in found["seals"]
    }
    return str(found["job_uid"]), fencing_records


def _digest(fencing_records: object) -> str:
    return hashlib.sha256(json.dumps(fencing_records, separators=(",", ":")).encode()).hexdigest()


METADATA = "_metadata"
_PLACE = re.compile(r"chk-\d{12,}")


def slot_name(checkpoint_id: int) -> str:
    """Name of a checkpoint's directory; names sort as numbers do."""
    return f"chk-{checkpoint_id:012d}"


class KnownSlots:
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
        fencing_records: FencingList,
        read: Callable[[int], CheckpointRecord | None],
        has_mark: Callable[[int, str], bool],
    ) -> None:
        self._fs = fs
        self._fencing_records = fencing_records
        self._read = read
        self._has_mark = has_mark
        self._facts: dict[int, SlotFacts] = {}

    def listed(self) -> list[int]:
        """Ids of all directories named like a place, ascending."""
        return sorted(int(name[4:]) for name in self._fs.names("", _PLACE))

    def ids(self) -> list[int]:
        """See `CheckpointStore.places`."""
        fencing_records = self._fencing_records.known()
        listed = self.listed()
        while True:
            asked = {
                each for each in listed if each not in self._facts and each not in fencing_records
            }
            found = {each for each in asked if self._has_mark(each, METADATA)}
            present = [each for each in listed if each not in asked or each in found]
            if not asked:
                return present  # at once: nothing was deleted meanwhile
            highest, listed = max(listed, default=-1), self.listed()
            if max(listed, default=-1) <= highest:
                return present

    def facts(self, *, committed: str, superseded: str) -> list[SlotFacts]:
        """What retention knows of every place that can be read, ascending.

        Args:
            committed, superseded: names of the marks.
        """
        present = self.ids()
        found = {each: self._facts_at(each, committed, superseded) for each in present}
        fencing_records = self._fencing_records.known()
        known = {each: facts for each, facts in found.items() if facts is not None}
        self._facts = {each: facts for each, facts in known.items() if each not in fencing_records}
        return list(known.values())

    def forget(self, checkpoint_id: int) -> None:
        """A mark of this place changes."""
        self._facts.pop(checkpoint_id, None)

    def _facts_at(self, checkpoint_id: int, committed: str, superseded: str) -> SlotFacts | None:
        """Only what may have changed is looked up: a seal is never asked about twice.

        Whoever supersedes runs before the first decision of a session, or is this store.
        """
        known = self._fencing_records.known().get(checkpoint_id) or self._facts.get(checkpoint_id)
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
