"""The contract of a state backend: the base of a task's state, without the epoch under way."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from sluice.runtime.state.entries import Value

__all__ = ["StateBackend", "TableChanges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """The changes of an epoch in one split; None removes.

    Attributes:
        plain: by table number, then key.
        timed: by table number, time in milliseconds, then key.
    """

    plain: Mapping[int, Mapping[bytes, Value]] = field(default_factory=dict)
    timed: Mapping[int, Mapping[int, Mapping[bytes, Value]]] = field(default_factory=dict)


class StateBackend(Protocol):
    """The base of each split of a task. Executor, the task's thread; `load` in any thread.

    It holds the state after the last epoch. Splits are numbers of the caller. Reads do
    not disturb each other; nothing is applied while one is under way.
    """

    @property
    def size_bytes(self) -> int:
        """Memory that the entries take, of this process."""
        ...

    def require_room(self, changed_bytes: int) -> None:
        """Check that the base and the changes of an epoch fit in memory.

        Raises:
            ConfigError: they do not.
        """
        ...

    def add_split(self, split: int) -> None:
        """Begin a split without entries."""
        ...

    def drop_split(self, split: int) -> None:
        """Forget a split and its entries."""
        ...

    def load(self, split: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Apply rows of state files (`sluice.runtime.state.state_files`), in their order. Several
        threads may call it, each for a split of its own."""
        ...

    def apply(self, split: int, changes: TableChanges) -> None:
        """Apply the changes of an epoch."""
        ...

    def get(self, split: int, table: int, keys: Sequence[bytes]) -> list[Value]:
        """The value of each key; None: there is none."""
        ...

    def scan(self, split: int, table: int, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries whose key begins with ``prefix``, in any order."""
        ...

    def get_timed(
        self, split: int, table: int, times: Sequence[int], keys: Sequence[bytes]
    ) -> list[Value]:
        """The value at each (time, key)."""
        ...

    def until(
        self, split: int, table: int, until_ms: int | None
    ) -> Iterator[tuple[int, Mapping[bytes, bytes]]]:
        """The entries at each time <= ``until_ms``, or all; earliest first, read as needed."""
        ...

    def timed_keys(self, split: int, table: int) -> Iterator[tuple[int, bytes]]:
        """Time and key of each entry, earliest time first, read as needed."""
        ...

    def close(self) -> None:
        """Free memory and files. Safe to repeat."""
        ...
