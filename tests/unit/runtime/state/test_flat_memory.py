"""Memory, threads and files of a task do not grow with its epochs, if its keys do not grow."""

import gc
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from sluice.runtime.state.state_settings import StateSettings
from tests.kit.state.state_beds import P0, P1, StateTask, state_store

EPOCHS = 10_000
KEYS = 500
CHANGED = 40
SAMPLE_EVERY = 250
BUDGET_MIB = 64
MOST_PARTS = 33
"""Of a split: one with 32 parts waits for its merge, and then gets the part of its epoch."""


def resident_mib() -> float:
    """Of this process, after a collection."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def median(found: Sequence[float]) -> float:
    return sorted(found)[len(found) // 2]


@pytest.mark.extended
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_ten_thousand_epochs_of_a_bounded_key_set_take_no_more_memory(
    backend: str, tmp_path: Path
) -> None:
    """Values change, keys leave and come back; timers are set, and fire. Files that no
    acknowledgement names any more are deleted, as retention does it."""
    dice = random.Random(7)
    root = tmp_path / "checkpoints"
    settings = StateSettings(
        backend=backend, memory_mib=BUDGET_MIB, directory=str(tmp_path / "local")
    )
    task = StateTask(state_store(root), {P0: None, P1: None}, settings=settings)
    named: set[str] = set()
    resident: list[float] = []
    overlay: list[int] = []
    handles: list[int] = []
    threads: list[int] = []
    for epoch in range(EPOCHS):
        for split in (P0, P1):
            keys = [b"key-%d" % dice.randrange(KEYS) for _ in range(CHANGED)]
            task.put(split, {k: None if dice.random() < 0.1 else b"%d" % epoch for k in keys})
            ordinal = task.state.ordinal(split)
            timers = task.state.timed_table(2)
            for time_ms, entries in list(timers.due(ordinal, epoch)):
                fired = [key for key, _ in entries]
                timers.put(ordinal, [time_ms] * len(fired), fired, [None] * len(fired))
            task.put_timed(split, {(epoch + dice.randrange(1, 9), key): b"" for key in keys[:5]})
        overlay.append(task.state.overlay_bytes)
        acknowledged = task.end_epoch()
        before, named = named, {file.path for file in acknowledged.files}
        for path in before - named:
            (root / path).unlink()
        assert max(len(split.parts) for split in acknowledged.splits) <= MOST_PARTS
        assert len(acknowledged.files) <= 2 * MOST_PARTS
        if epoch % SAMPLE_EVERY == SAMPLE_EVERY - 1:
            resident.append(resident_mib())
            handles.append(psutil.Process().num_fds())
            threads.append(threading.active_count())
            assert task.state.base_bytes < BUDGET_MIB * 2**20
    task.close()
    quarter = len(resident) // 4
    grown = median(resident[-quarter:]) - median(resident[quarter : 2 * quarter])
    assert grown < (4 if backend == "memory" else 8), resident  # RocksDB's own memory moves more
    assert max(handles[-quarter:]) <= max(handles[quarter : 2 * quarter]) + 2, handles
    assert max(threads[-quarter:]) <= max(threads[quarter : 2 * quarter]) + 1, threads
    assert max(overlay[-1000:]) <= 1.2 * max(overlay[1000:2000])
