"""The tables of broadcast streams in a task, as of the version that its epoch uses."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sluice.runtime.model.state.broadcast_version import BroadcastVersion

__all__ = ["Broadcast", "LoadTable", "Tables", "TaskBroadcasts", "no_table"]

LoadTable = Callable[[BroadcastVersion], pa.Table]
"""Reads the table of a version: `sluice.runtime.keyed.broadcast.broadcast_table`."""


def no_table(version: BroadcastVersion) -> pa.Table:
    """A `LoadTable` where no function reads a broadcast stream: a table without columns."""
    del version
    return pa.table({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A broadcast stream that a function reads.

    Attributes:
        name: in ``ctx.broadcast``; "": it is the only one, and ``ctx.broadcast`` is its table.
        operator_id: of the stream.
        waits: the task reads no record before the stream has a row.
    """

    name: str
    operator_id: str
    waits: bool = False


class Tables:
    """``ctx.broadcast`` of one function. Executor, the task's thread.

    Attributes:
        current: the table, or tables by name.
    """

    def __init__(self, broadcasts: Iterable[Broadcast]) -> None:
        self._broadcasts = tuple(broadcasts)
        self.current: pa.Table | Mapping[str, pa.Table] = pa.table({})
        self.update({})

    def update(self, tables: Mapping[str, pa.Table]) -> None:
        """Take the tables of the next epoch, by operator id."""
        none = pa.table({})
        named = {each.name: tables.get(each.operator_id, none) for each in self._broadcasts}
        self.current = named.get("", named)


class TaskBroadcasts:
    """The versions of all broadcast streams of one task. Executor, the task's thread.

    Args:
        broadcasts: that the task's functions read.
        load: of a version; called once for each new one.
    """

    def __init__(self, broadcasts: Iterable[Broadcast], load: LoadTable) -> None:
        self._waited_for = {each.operator_id for each in broadcasts if each.waits}
        self._load = load
        self._versions: dict[str, BroadcastVersion] = {}
        self.tables: dict[str, pa.Table] = {}

    def has(self, versions: Iterable[BroadcastVersion]) -> bool:
        """Whether the task uses these versions."""
        return all(self._versions.get(each.operator_id) == each for each in versions)

    def adopt(self, versions: Iterable[BroadcastVersion]) -> bool:
        """Use these versions from now on; whether a table has changed.

        Raises:
            StreamError: a table cannot be read.
        """
        changed = [v for v in versions if self._versions.get(v.operator_id) != v]
        for version in changed:
            self.tables[version.operator_id] = self._load(version)
            self._versions[version.operator_id] = version
        return bool(changed)

    @property
    def waits(self) -> bool:
        """Whether the task must not read yet."""
        return any(
            operator_id not in self._versions or self._versions[operator_id].is_empty
            for operator_id in self._waited_for
        )
