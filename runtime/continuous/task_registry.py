"""What a continuous task tells its coordinator while it writes."""

from runtime.continuous.courier import Courier
from runtime.contracts import RegisteredAttempt, WaitRegistry
from runtime.model import BatchKey

__all__ = ["TaskRegistry"]


class TaskRegistry:
    """Implements `runtime.contracts.WaitRegistry`. Executor, the task's thread.

    A task that waits for brokers does not look at its barriers; its courier hears all the same that
    the life is over.

    Args:
        client: to the coordinator.
        courier: of the task.
    """

    def __init__(self, client: WaitRegistry, courier: Courier) -> None:
        self._client = client
        self._courier = courier

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `runtime.contracts.AttemptRegistry.register`."""
        return self._client.register(attempt)

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        """See `runtime.contracts.WaitRegistry.waits`."""
        self._courier.require_wanted()
        self._client.waits(batch, what, why=why)

    def waited(self, batch: BatchKey, what: str) -> None:
        """See `runtime.contracts.WaitRegistry.waited`."""
        self._client.waited(batch, what)
