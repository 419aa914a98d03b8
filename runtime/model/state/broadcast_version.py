"""The version of a broadcast stream's table that an epoch uses. Frozen, picklable."""

from dataclasses import dataclass

from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = ["BroadcastVersion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastVersion:
    """A broadcast stream as of a decided checkpoint.

    Attributes:
        operator_id: of its last function (`sluice.runtime.keyed.broadcast.LatestRows`).
        state: of its region; None: no checkpoint has one yet, so its table has no rows.
    """

    operator_id: str
    state: KeyedState | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no row of the stream is decided yet."""
        return self.state is None or not any(split.parts for split in self.state.splits)
