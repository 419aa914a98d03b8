"""What the core found by looking at every region, kept until one of them may have changed. Pure.

With thousands of regions the core would do little else: each of them polls, cuts and acknowledges
in every checkpoint, and none of these three changes what the others are waited for. Whatever ends
or begins a life, parks a region or comes from a remote step makes the core look again.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from runtime.model import CheckpointKind

__all__ = ["Outlook"]


@dataclass(slots=True)
class _Awaited:
    names: list[str]
    until_s: float


@dataclass(slots=True)
class Outlook:
    """Answers that hold for a while.

    Attributes:
        behind: regions whose last cut left records behind; None: not looked yet.
        may_decide: by kind, whether a checkpoint begun now could be decided.
    """

    behind: set[str] | None = None
    may_decide: dict[CheckpointKind, bool] = field(default_factory=dict)
    _awaited: dict[int, _Awaited] = field(default_factory=dict)

    def wait_for(self, checkpoint_id: int, names: Iterable[str], until_s: float) -> None:
        """The handler has ruled to wait for these; until then time alone changes nothing."""
        self._awaited[checkpoint_id] = _Awaited(list(names), until_s)

    def is_waiting(self, checkpoint_id: int, acknowledged: Container[str], now_s: float) -> bool:
        """Whether it still waits for one of them. Each is looked at once, not at every call."""
        found = self._awaited.get(checkpoint_id)
        if found is None or now_s >= found.until_s:
            return False
        while found.names and found.names[-1] in acknowledged:
            found.names.pop()
        return bool(found.names)
