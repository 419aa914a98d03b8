"""The coordinator as the engines use it."""

from collections.abc import Callable
from typing import Protocol, Self

from sluice.runtime.contracts.region_handle import RegionRegistration
from sluice.runtime.contracts.writing import AttemptRegistry
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import Barrier, BatchKey

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
        """The next barrier of a region, if one is due and there are records to end; else None.

        ``has_read``: the batch has read records, so an epoch is due even if nothing is left.

        A repeated call before the batch is acknowledged returns the same barrier.

        ``until``: returns early when this becomes true, see `wake_waiters`.
        """
        ...

    def wake_waiters(self) -> None:
        """Wakes every thread that waits for a barrier, so that it checks ``until`` again. Never
        blocks."""
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

        If the region is being stopped, raises FencedError.
        """
        ...

    def register_region(self, registration: RegionRegistration) -> None:
        """Announce an attempt of a region: its identity, its open work, and its progress in a
        replay.

        Raises:
            FencedError: the region has a newer attempt, or the job another coordinator.
        """
        ...

    def fail(self, region: str, attempt_id: int, error: BaseException) -> None:
        """A batch of a region failed: abort its open epoch."""
        ...

    def trigger(self, kind: CheckpointKind, *, requested_by: str) -> int:
        """Request a checkpoint; returns its id."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
