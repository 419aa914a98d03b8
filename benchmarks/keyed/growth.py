"""How the cost of a task's keyed state grows with keys, value sizes, epochs and splits.

Each point is a task alone, without Kafka: its tables, its change files and their merges. A table
varies one number and keeps all others.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measuring.figures import Figure
from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_settings import StateSettings
from sluice.runtime.state.state_writer import StateWriter
from sluice.runtime.storage.task_files import LocalTaskFiles

__all__ = ["measure"]

_BACKENDS = ("memory", "rocksdb")
_BATCH = 10_000
_TABLE = 1
_MEMORY_MIB = 4096
_MOST_BYTES = 4 << 30  # a point of more state is left out, and says so


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One measurement.

    Attributes:
        backend, keys, value_bytes, splits: of the state.
        epoch_updates: between two barriers; at 200,000 updates a second, half a second's.
        updates: after the state is filled.
    """

    backend: str
    keys: int = 100_000
    value_bytes: int = 100
    splits: int = 4
    epoch_updates: int = 100_000
    updates: int = 1_000_000


def measure(*, scale: float) -> list[Figure]:
    """All tables; ``scale`` makes every point smaller."""
    return [figure for backend in _BACKENDS for figure in _of_backend(backend, scale)]


def _of_backend(backend: str, scale: float) -> Iterator[Figure]:
    usual = _Point(backend=backend, updates=max(_BATCH, int(1_000_000 * scale)))
    usual = replace(usual, epoch_updates=max(1_000, int(100_000 * scale)))
    for keys in (10_000, 100_000, 1_000_000, 10_000_000):
        yield from _figures(replace(usual, keys=max(100, int(keys * scale))), "keys", keys)
    for value_bytes in (8, 100, 1_000, 10_000):
        keys = max(100, int(100_000 * scale))
        yield from _figures(
            replace(usual, keys=keys, value_bytes=value_bytes), "value bytes", value_bytes
        )
    for seconds in (0.1, 1.0, 10.0):
        point = replace(usual, keys=max(100, int(100_000 * scale)))
        each = max(100, int(200_000 * seconds * scale))
        point = replace(point, epoch_updates=each, updates=max(point.updates, 3 * each))
        yield from _figures(point, "epoch of s", seconds)
    for splits in (4, 16, 64, 256):
        point = replace(usual, keys=max(splits, int(100_000 * scale)), splits=splits)
        yield from _figures(point, "splits", splits)


def _figures(point: _Point, what: str, number: float) -> Sequence[Figure]:
    name = f"{point.backend}, {what} {number:,g}"
    if point.keys * (point.value_bytes + 16) > _MOST_BYTES:
        return ()
    with tempfile.TemporaryDirectory(prefix="sluice-growth-") as directory:
        task = _Task(point, Path(directory))
        fill_s, _, _ = task.run(point.keys, in_order=True)
        update_s, barriers_s, written = task.run(point.updates, in_order=False)
        restore_s = task.restored_s()
        task.close()
    return (
        Figure(
            what=f"{name}: updates",
            runs=[point.updates / update_s],
            unit="/s",
            note=f"filled at {point.keys / fill_s:,.0f}/s; restored in {restore_s:.2f} s",
        ),
        Figure(what=f"{name}: barrier, the slowest", runs=[1000 * max(barriers_s)], unit="ms"),
        Figure(what=f"{name}: bytes written over changed", runs=[written], unit="x"),
    )


class _Task:
    """A task's state, its files and its writer."""

    def __init__(self, point: _Point, directory: Path) -> None:
        self._point = point
        self._root = directory / "checkpoint"
        self._settings = StateSettings(
            backend=point.backend, memory_mib=_MEMORY_MIB, directory=str(directory / "local")
        )
        self._store = StateStore(files=LocalTaskFiles(), root=str(self._root))
        self._splits: list[SplitKey] = [("s", "t", number) for number in range(point.splits)]
        self._state = self._settings.open(self._store)
        self._state.add_splits(dict.fromkeys(self._splits))
        self._writer = StateWriter(self._store, region="r", attempt_id=0, on_outage=_raise)
        self._dice = random.Random(1)
        self._batch_id = 0
        self._recorded = KeyedState()

    def run(self, updates: int, *, in_order: bool) -> tuple[float, list[float], float]:
        """Update keys, with barriers; seconds, those of each barrier, and bytes written over those
        of change files."""
        began_s, done, barriers_s = time.monotonic(), 0, []
        before = self._written()
        while done < updates:
            for first in range(done, min(done + self._point.epoch_updates, updates), _BATCH):
                self._update(first, min(_BATCH, updates - first), in_order=in_order)
            done += self._point.epoch_updates
            barrier_s = time.monotonic()
            self._end_epoch()
            barriers_s.append(time.monotonic() - barrier_s)
        elapsed_s = time.monotonic() - began_s
        changes, every = (now - was for now, was in zip(self._written(), before, strict=True))
        return elapsed_s, barriers_s, every / max(1, changes)

    def _update(self, first: int, count: int, *, in_order: bool) -> None:
        """Read each key, and write it."""
        keys = self._point.keys
        numbers = (
            range(first, first + count)
            if in_order
            else [self._dice.randrange(keys) for _ in range(count)]
        )
        value = self._dice.randbytes(self._point.value_bytes)
        by_split: list[dict[bytes, None]] = [{} for _ in self._splits]
        for number in numbers:
            by_split[number % len(by_split)][b"\1key-%012d" % number] = None
        table = self._state.table(_TABLE)
        for split, found in zip(self._splits, by_split, strict=True):
            ordinal, names = self._state.ordinal(split), list(found)
            table.get(ordinal, names)
            table.put(ordinal, names, [value] * len(names))

    def _end_epoch(self) -> None:
        changes = self._state.end_epoch()
        at = BarrierTime(watermark_ms=None, now_ms=0)
        self._recorded = self._writer.write_epoch(self._batch_id, changes, KeyedState(), at)
        self._batch_id += 1

    def _written(self) -> tuple[int, int]:
        """Bytes of change files, and of all files. None is deleted here."""
        sizes = {path: path.stat().st_size for path in self._root.rglob("*.*")}
        changes = sum(size for path, size in sizes.items() if path.suffix == ".changes")
        return changes, sum(sizes.values())

    def restored_s(self) -> float:
        """Seconds to load the state into a new task."""
        restored = self._settings.open(self._store)
        began_s = time.monotonic()
        restored.add_splits({split: self._recorded.of([split]) for split in self._splits})
        elapsed_s = time.monotonic() - began_s
        restored.close()
        return elapsed_s

    def close(self) -> None:
        """Free everything."""
        self._writer.close()
        self._state.close()


def _raise(error: Exception) -> None:
    raise error
