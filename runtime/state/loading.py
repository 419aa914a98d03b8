"""Loads the state of splits from their files into a backend."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.backend import StateBackend
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_parts import PlacedPart, placed_parts
from sluice.runtime.state.state_rows import merged_rows

__all__ = ["load_splits"]

_THREADS = 4
"""In a task: reads wait for the store, and Arrow works beside the interpreter."""


def load_splits(
    store: StateStore,
    on_progress: Callable[[], None],
    backend: StateBackend,
    states: Mapping[int, KeyedState],
) -> None:
    """Load each split, by its number in the backend, several at once. The task's thread.

    Args:
        on_progress: called for each batch of rows, in any thread; raises to end the load.
    Raises:
        DamagedCheckpointError: a file is missing, damaged, or another one.
        StorageUnreachableError: the store does not answer.
    """
    parts = {
        ordinal: [part for each in placed_parts(state).values() for part in each]
        for ordinal, state in states.items()
    }
    files: dict[FileReference, None] = {part.file: None for each in parts.values() for part in each}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sluice-state-load") as pool:
        for _ in pool.map(store.require, files):
            pass
        loads = [pool.submit(_load, store, on_progress, backend, *each) for each in parts.items()]
        try:
            for load in loads:
                load.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _load(
    store: StateStore,
    on_progress: Callable[[], None],
    backend: StateBackend,
    ordinal: int,
    parts: list[PlacedPart],
) -> None:
    def noted() -> Iterator[pa.RecordBatch]:
        for rows in merged_rows(streams, drops={}):
            on_progress()
            yield rows

    streams = [store.rows(part.file, part.offset, part.length) for part in parts]
    backend.load(ordinal, noted())
