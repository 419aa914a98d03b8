"""States and files of all records that a job can still start from: no sweep touches them."""

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Self

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry, Verdict

__all__ = ["KeptStates", "left_by_attempts_before", "states_of"]

log = logging.getLogger(__name__)

_BY_ATTEMPT = re.compile(r"state/[^/]+/(\d+)-[^/]+")
_BY_RESTORE = re.compile(r"state/restored-([^/]+)/.+")


def states_of(record: CheckpointRecord) -> tuple[StateEntry, ...]:
    """Operator states of a decided record; an aborted one has none."""
    if record.verdict is not Verdict.DECIDED:
        return ()
    return tuple(entry for region in record.regions for entry in region.operator_states)


def left_by_attempts_before(path: str, attempt_id: int, *, session: str = "") -> bool:
    """Whether a file of keyed state is of an attempt that can no longer be decided, or of a restore
    other than this session's; pure.

    Args:
        path: relative to the checkpoint directory.
        attempt_id: of the first record of the newest run: its attempts have this number or a larger
            one.
    """
    made, copied = _BY_ATTEMPT.fullmatch(path), _BY_RESTORE.fullmatch(path)
    if copied is not None:
        return copied[1] != session
    return made is not None and int(made[1]) < attempt_id


class KeptStates:
    """Operator states and files of keyed state by checkpoint id. Each record is read once, at the
    start, or noted when it is published. So the cost of a retirement depends on the retired records
    alone. The coordinator's I/O thread notes records, its housekeeping thread reads the states.

    Attributes:
        has_damaged: a record cannot be read: it may name any file of its time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, tuple[StateEntry, ...]] = {}
        self._files: dict[int, frozenset[str]] = {}
        self._names: Counter[str] = Counter()  # the records that name a file
        self._unnamed: set[str] = set()
        self.has_damaged = False

    @classmethod
    def read(cls, store: MetadataStore) -> Self:
        """Read every record in the checkpoint directory; no job starts from a damaged one."""
        found = cls()
        fenced = store.known_fencing_records()
        for checkpoint_id in store.slots():
            if checkpoint_id in fenced:
                continue
            try:
                record = store.read(checkpoint_id)
            except DamagedCheckpointError:
                log.warning("damaged checkpoint protects no state: checkpoint_id=%d", checkpoint_id)
                found.has_damaged = True
                continue
            if record is not None:
                found.note(record)
        return found

    def note(self, record: CheckpointRecord) -> None:
        """Add a record that is being published: it may be durable from now on."""
        is_decided = record.verdict is Verdict.DECIDED
        files = frozenset(each.path for each in record.keyed_files) if is_decided else frozenset()
        with self._lock:
            self._drop(record.checkpoint_id)
            self._by_id[record.checkpoint_id] = states_of(record)
            self._files[record.checkpoint_id] = files
            self._names.update(files)

    def forget(self, checkpoint_ids: Iterable[int]) -> None:
        """Remove retired records. Files that only they named are `unnamed_files` from now on."""
        with self._lock:
            for checkpoint_id in checkpoint_ids:
                self._unnamed |= self._drop(checkpoint_id)

    def entries(self) -> tuple[StateEntry, ...]:
        """The states of all records, each once."""
        with self._lock:
            return tuple(
                dict.fromkeys(entry for states in self._by_id.values() for entry in states)
            )

    def is_named(self, path: str) -> bool:
        """Whether a record names this file."""
        with self._lock:
            return path in self._names

    def unnamed_files(self) -> list[str]:
        """Files that only retired records named, until `files_deleted`."""
        with self._lock:
            return sorted(each for each in self._unnamed if each not in self._names)

    def files_deleted(self, paths: Iterable[str]) -> None:
        """These are gone."""
        with self._lock:
            self._unnamed.difference_update(paths)

    def _drop(self, checkpoint_id: int) -> set[str]:
        """Remove a record, if it is there; the files that no other one names."""
        self._by_id.pop(checkpoint_id, None)
        last = set()
        for path in self._files.pop(checkpoint_id, ()):
            self._names[path] -= 1
            if not self._names[path]:
                del self._names[path]
                last.add(path)
        return last
