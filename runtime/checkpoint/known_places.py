"""Which places of a checkpoint directory hold a record, and what is known of each: asked once."""

import re
from collections.abc import Callable
from dataclasses import replace

from runtime.checkpoint.retention import PlaceFacts, facts_of
from runtime.checkpoint.seal_list import SealList
from runtime.errors import DamagedCheckpointError
from runtime.model import CheckpointRecord, Verdict
from runtime.storage.file_system import FileSystem

__all__ = ["METADATA", "KnownPlaces", "place_name"]

METADATA = "_metadata"
_PLACE = re.compile(r"chk-\d{12,}")


def place_name(checkpoint_id: int) -> str:
    """Name of a checkpoint's directory; names sort as numbers do."""
    return f"chk-{checkpoint_id:012d}"


class KnownPlaces:
    """Part of a `runtime.checkpoint.store.CheckpointStore`; the caller serialises the calls.

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
