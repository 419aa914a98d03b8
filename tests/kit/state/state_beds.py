"""Tasks with keyed state over a checkpoint directory, and the states that they should have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_rows import ROW_SCHEMA
from sluice.runtime.state.state_settings import StateSettings
from sluice.runtime.state.state_writer import StateWriter
from sluice.runtime.state.task_state import TaskState
from sluice.runtime.storage.task_files import LocalTaskFiles, TaskFiles

__all__ = ["AT", "P0", "P1", "Content", "StateTask", "content_of", "rows", "state_store"]

P0, P1 = ("source", "topic", 0), ("source", "topic", 1)
AT = BarrierTime(watermark_ms=None, now_ms=0)
PLAIN, TIMED = 1, 2
"""Numbers of the two tables."""


@dataclass(slots=True)
class Content:
    """What the tables of one split should hold."""

    plain: dict[bytes, bytes] = field(default_factory=dict)
    timed: dict[tuple[int, bytes], bytes] = field(default_factory=dict)

    def copy(self) -> "Content":
        return Content(dict(self.plain), dict(self.timed))


class StateTask:
    """One attempt of a task: its state and its writer."""

    def __init__(
        self,
        store: StateStore,
        splits: Mapping[SplitKey, KeyedState | None],
        *,
        attempt_id: int = 0,
        settings: StateSettings | None = None,
        declared: KeyedState | None = None,
    ) -> None:
        self.state = (settings or StateSettings()).open(store)
        self.writer = StateWriter(
            store,
            region="r",
            attempt_id=attempt_id,
            on_outage=self._note_outage,
            sleep=lambda _: None,
        )
        self.outages: list[Exception] = []
        self.on_outage: Callable[[], None] = lambda: None
        self.batch_id = -1
        self._declared = declared or KeyedState()
        self.state.add_splits(splits)

    def put(self, split: SplitKey, changes: Mapping[bytes, bytes | None]) -> None:
        """Change the plain table."""
        self.state.table(PLAIN).put(
            self.state.ordinal(split), list(changes), list(changes.values())
        )

    def put_timed(self, split: SplitKey, changes: Mapping[tuple[int, bytes], bytes | None]) -> None:
        """Change the timed table."""
        times, keys = [time for time, _ in changes], [key for _, key in changes]
        table = self.state.timed_table(TIMED)
        table.put(self.state.ordinal(split), times, keys, list(changes.values()))

    def end_epoch(self, at: BarrierTime = AT) -> KeyedState:
        """Freeze and write an epoch; the state that the region acknowledges."""
        self.batch_id += 1
        return self.writer.write_epoch(self.batch_id, self.state.end_epoch(), self._declared, at)

    def close(self) -> None:
        self.writer.close()
        self.state.close()

    def _note_outage(self, error: Exception) -> None:
        self.outages.append(error)
        self.on_outage()


def content_of(state: TaskState, split: SplitKey) -> Content:
    """All that the two tables of a split hold."""
    ordinal = state.ordinal(split)
    due = state.timed_table(TIMED).due(ordinal, (1 << 63) - 1)
    return Content(
        plain=dict(state.table(PLAIN).scan(ordinal)),
        timed={(time, key): value for time, entries in due for key, value in entries},
    )


def rows(*entries: tuple[int, int | None, bytes, bytes | None]) -> pa.RecordBatch:
    """Rows of state files: table, time, key, value."""
    columns = zip(*entries, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def state_store(root: Path, files: TaskFiles | None = None) -> StateStore:
    """A checkpoint directory."""
    return StateStore(files=files or LocalTaskFiles(), root=str(root))
