"""What a continuous task tells its coordinator while it writes."""

import time

from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.service_calls import call_with_retries
from sluice.runtime.contracts import Clock, RegisteredAttempt, WaitRegistry
from sluice.runtime.model.model import BatchKey

__all__ = ["TaskRegistry"]


class TaskRegistry:
    """Implements `sluice.runtime.contracts.WaitRegistry`. Executor, the task's thread.

    A task that waits for brokers, or for an answer, does not look at its barriers; its courier
    hears all the same that the life is over, or that the coordinator is lost.

    Args:
        client: to the coordinator; gives up within seconds.
        courier: of the task.
        lost_timeout_s: how long nobody may answer a registration.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: WaitRegistry,
        checkpoint_client: CheckpointClient,
        *,
        lost_timeout_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._checkpoint_client = checkpoint_client
        self._lost_timeout_s = lost_timeout_s
        self._clock = clock

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry.register`.

        Raises:
            CoordinatorLostError: nobody has answered for too long, here or where the courier asked.
            FencedError: the life is over.
        """
        at_s = call_with_retries(
            lambda: self._client.register(attempt),
            region=attempt.batch.region,
            attempt_id=attempt.batch.attempt_id,
            lost_timeout_s=self._lost_timeout_s,
            goes_on=self._is_wanted,
            clock=self._clock,
        )
        assert at_s is not None  # it is wanted, or `_is_wanted` has raised
        return at_s

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        """See `sluice.runtime.contracts.WaitRegistry.waits`."""
        self._checkpoint_client.require_wanted()
        self._client.waits(batch, what, why=why)

    def waited(self, batch: BatchKey, what: str) -> None:
        """See `sluice.runtime.contracts.WaitRegistry.waited`."""
        self._client.waited(batch, what)

    def _is_wanted(self) -> bool:
        self._checkpoint_client.require_wanted()
        return True
