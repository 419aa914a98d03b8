"""What the functions of a task have beside their rows, as the coordinator sends it."""

from dataclasses import dataclass

from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.state.broadcast_version import BroadcastVersion

__all__ = ["TaskInputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInputs:
    """For an attempt of a region, at the beginning of its epoch.

    Attributes:
        states: operator states in the region's last decided record.
        broadcasts: versions of the broadcast streams that the epoch uses: in micro-batches those of
            its barrier, else those that it probably uses.
    """

    states: tuple[StateEntry, ...] = ()
    broadcasts: tuple[BroadcastVersion, ...] = ()
