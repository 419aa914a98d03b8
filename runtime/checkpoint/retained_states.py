"""What operators keep in the records that can still be started from: no sweep touches it."""

import logging
import threading
from collections.abc import Iterable
from typing import Self

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.model import CheckpointRecord, StateEntry, Verdict

__all__ = ["KeptStates", "states_of"]

log = logging.getLogger(__name__)


def states_of(record: CheckpointRecord) -> tuple[StateEntry, ...]:
    """Operator states of a decided record; an aborted one keeps nothing."""
    if record.verdict is not Verdict.DECIDED:
        return ()
    return tuple(entry for region in record.regions for entry in region.operator_states)


class KeptStates:
    """Operator states by checkpoint id. Each record is read once, at the start, or noted as it is
    published. Noted by the coordinator's I/O thread, asked by its housekeeper.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, tuple[StateEntry, ...]] = {}

    @classmethod
    def read(cls, store: MetadataStore) -> Self:
        """Of every record in the checkpoint directory; nothing starts from one that is damaged."""
        found = cls()
        fenced = store.known_fencing_records()
        for checkpoint_id in store.places():
            if checkpoint_id in fenced:
                continue
            try:
                record = store.read(checkpoint_id)
            except DamagedCheckpointError:
                log.warning("a damaged checkpoint keeps nothing: checkpoint_id=%d", checkpoint_id)
                continue
            if record is not None:
                found.note(record)
        return found

    def note(self, record: CheckpointRecord) -> None:
        """A record is being published: it may be durable from now on."""
        states = states_of(record)
        with self._lock:
            if states:
                self._by_id[record.checkpoint_id] = states
            else:
                self._by_id.pop(record.checkpoint_id, None)

    def forget(self, checkpoint_ids: Iterable[int]) -> None:
        """These records are retired."""
        with self._lock:
            for checkpoint_id in checkpoint_ids:
                self._by_id.pop(checkpoint_id, None)

    def entries(self) -> tuple[StateEntry, ...]:
        """All that any of the records keeps, each once."""
        with self._lock:
            return tuple(
                dict.fromkeys(entry for states in self._by_id.values() for entry in states)
            )
