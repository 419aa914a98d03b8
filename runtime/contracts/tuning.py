"""Sources and sinks that Sluice tunes: within a task's memory, and as the source is compressed."""

from typing import Protocol, Self, runtime_checkable

from sluice.runtime.contracts.operators import Source, TaskSink
from sluice.runtime.model.task_memory import TaskMemory

__all__ = ["TunedSink", "TunedSource"]


@runtime_checkable
class TunedSource(Source, Protocol):
    """A source whose reader holds records in memory."""

    @property
    def claimed_bytes(self) -> int:
        """What the user's own settings take of a task's memory; 0: there are none."""
        ...

    def within(self, memory: TaskMemory) -> Self:
        """The same source, whose readers keep to their part.

        Raises:
            ConfigError: that cannot be.
        """
        ...

    def compression(self, *, timeout_s: float) -> str | None:
        """How its records are compressed now, by a name that sinks know: ``none``, ``gzip``, …;
        None: there are no records yet, or nobody told in time. Driver; never raises.

        Whatever else the brokers tell that does not fit into its memory is logged.
        """
        ...


@runtime_checkable
class TunedSink(TaskSink, Protocol):
    """A sink whose writers hold records in memory, and may compress them."""

    @property
    def claimed_bytes(self) -> int:
        """As of `TunedSource`."""
        ...

    @property
    def keeps_compression(self) -> bool:
        """Whether it leaves to the source how records are compressed: its user has not said."""
        ...

    def within(self, memory: TaskMemory) -> Self:
        """As of `TunedSource`."""
        ...

    def compressed_as(self, codec: str) -> Self:
        """The same sink, whose records are compressed so."""
        ...
