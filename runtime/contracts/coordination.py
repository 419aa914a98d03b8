"""The coordinator, as the engines see it."""

from collections.abc import Callable
from typing import Protocol, Self

from sluice.runtime.contracts.region_handle import RegionRegistration
from sluice.runtime.contracts.writing import AttemptRegistry
from sluice.runtime.model.model import Acknowledgement, Barrier, BatchKey, CheckpointKind

__all__ = ["Coordinator"]


class Coordinator(AttemptRegistry, Protocol):
    """One barrier checkpoint coordinator per job, in the driver. Every method is thread-safe."""

    def poll_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> Barrier | None:
        """The next barrier of a region once one is due and there is something to cut, else None.

        ``has_read``: there is something to end, whatever is left to cut.

        Asked again before the batch is acknowledged, it gives the same barrier again.

        ``until``: there is something else to tell, so nothing more is waited for, see `look_again`.
        """
        ...

    def look_again(self) -> None:
        """Whoever waits for a barrier looks whether it still has to. Never blocks."""
        ...

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether a decided checkpoint contains this batch (or a later one of the region)."""
        ...

    def is_committed(self, batch: BatchKey) -> bool:
        """Whether the checkpoint that contains this batch is committed on record."""
        ...

    def acknowledge(self, ack: Acknowledgement) -> None:
        """Step 3. FencedError for an older attempt."""
        ...

    def await_committed(self, batch: BatchKey, *, timeout_s: float | None = None) -> None:
        """Return only when the batch's checkpoint is committed on record; raise otherwise.

        A region that is being stopped is woken with FencedError.
        """
        ...

    def register_region(self, registration: RegionRegistration) -> None:
        """A life of a region says who it is, what it has open, and how far it is with a replay.

        Raises:
            FencedError: the region has a newer life, or the job another coordinator.
        """
        ...

    def fail(self, region: str, attempt_id: int, error: BaseException) -> None:
        """A region's batch failed: its open epoch is aborted."""
        ...

    def trigger(self, kind: CheckpointKind, *, requested_by: str) -> int:
        """Ask for a checkpoint now; returns its id."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
