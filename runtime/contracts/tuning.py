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
        """The memory that the user's own settings take of a task; 0: there are none."""
        ...

    def within(self, memory: TaskMemory) -> Self:
        """The same source, whose readers keep to this share.

        Raises:
            ConfigError: the share is too small.
        """
        ...

    def compression(self, *, timeout_s: float) -> str | None:
        """The compression of its records, by a name that sinks know: ``none``, ``gzip``, …; None:
        there are no records yet, or no broker answered in time. Driver; never raises.

        Logs whatever else the brokers report that does not fit into its memory.
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
        """Whether it takes the compression of the source: its user has set none."""
        ...

    def within(self, memory: TaskMemory) -> Self:
        """As of `TunedSource`."""
        ...

    def compressed_as(self, codec: str) -> Self:
        """The same sink, with this compression of its records."""
        ...
