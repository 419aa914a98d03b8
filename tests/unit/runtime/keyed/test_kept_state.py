"""Keyed state that a Python worker keeps between batches: only if it is exactly the recorded one."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    KeyBy,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.errors import StorageError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.kept_state import KeptTasks, KeyedBatch
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.keyed.processing_clock import ProcessingClock
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from sluice.runtime.model.state.keyed_state import Due, KeyedState
from tests.kit.coordinator.core_driver import split
from tests.kit.keyed_parts import PlayedStateFiles, counting, counts_in

OWNER = ("job", "main", 7)


class Worker:
    """One Python worker that runs tasks of batches."""

    def __init__(self, files: PlayedStateFiles) -> None:
        self.files = files
        self.kept = KeptTasks()
        self.loads = 0
        self.fails = False

    def _load(self, state: KeyedState, splits: tuple[SplitRange, ...]) -> KeyedTask:
        self.loads += 1
        files = self.files.attempt()
        return KeyedTask(
            counting(),
            source_id="source",
            state=files.state(),
            writer=files,
            restored=state,
            splits=splits,
        )

    def run(
        self, before: KeyedState, *splits: SplitRange, owner: tuple[str, str, int] = OWNER
    ) -> KeyedState:
        """One task of a batch; its state after it."""
        batch = KeyedBatch(
            time=BarrierTime(watermark_ms=None, now_ms=0),
            state=before.covering({s.key for s in splits}),
        )
        opened = self.kept.open(owner, batch, splits, self._load)
        run = opened.begin(counting())
        for each in splits:
            rows = {
                "topic": [each.topic] * (each.end_offset - each.start_offset),
                "partition": [each.partition] * (each.end_offset - each.start_offset),
                "offset": list(range(each.start_offset, each.end_offset)),
            }
            list(run.applied(iter((pa.RecordBatch.from_pydict(rows),)), _no_letters))
        list(run.at_barrier(batch.time, _no_letters))
        if self.fails:
            opened.close()
            raise StorageError("the disk is full", {}, "")
        result = opened.end(BatchKey(region="main", attempt_id=7, batch_id=0))
        opened.keep(result)
        return result.state


@dataclass(frozen=True)
class _Closed:
    """A keyed function without state: at a barrier it returns the watermark that closed the
    split's last epoch, and the time of the rows before the barrier."""

    tables: tuple[TableSpec, ...] = ()
    late_topic: str | None = None

    def open(self, scope: OperatorScope) -> "_ClosedOperator":
        return _ClosedOperator(scope)


class _ClosedOperator(KeyedOperator):
    def __init__(self, scope: OperatorScope) -> None:
        self._scope = scope

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        yield from ()

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        (split,) = self._scope.tables.splits()
        yield KeyedRows(
            batch=pa.RecordBatch.from_pydict(
                {"closed_ms": [self._scope.closed_ms(split)], "now_ms": [self._scope.now_ms()]}
            ),
            splits=np.array([split], np.int16),
            keys=pa.array([b"k"], pa.large_binary()),
            key_schema=pa.schema([]),
        )

    def rollback(self) -> None:
        """It keeps no rows."""

    def due(self) -> Due:
        return Due()


_FUNCTIONS = (
    ChainedFunction(name="key", operator_id="key", keyed=KeyBy(columns=("key",))),
    ChainedFunction(name="closed", operator_id="closed", keyed=_Closed()),
)


def test_rows_of_a_batch_have_the_time_of_its_barrier_and_others_that_after_the_last_one() -> None:
    files, at = PlayedStateFiles(), split(0, 0, 0)
    task = KeyedTask(
        _FUNCTIONS,
        source_id="source",
        state=files.state(),
        writer=files,
        restored=KeyedState().covering({at.key}),
        splits=(at,),
        clock=ProcessingClock(wall_s=lambda: 1.0, monotonic_s=lambda: 0.0),
    )
    found = []
    for known_ms, barrier_ms in ((None, 7_000), (None, 8_000), (9_000, 9_500), (None, 9_900)):
        time = BarrierTime(watermark_ms=None, now_ms=barrier_ms)
        (made,) = task.begin_epoch(now_ms=known_ms).at_barrier(time, _no_letters)
        task.end_epoch(time)
        found.append(made.column("now_ms")[0].as_py())
    assert found == [1_000, 7_000, 9_000, 9_500]


def test_a_batch_that_is_tried_again_closes_no_window_earlier() -> None:
    """Its first try has changed no state, so the worker keeps it, but its barrier may count no more."""
    files, kept, loads = PlayedStateFiles(), KeptTasks(), []

    def load(state: KeyedState, splits: tuple[SplitRange, ...]) -> KeyedTask:
        loads.append(splits)
        return KeyedTask(
            _FUNCTIONS,
            source_id="source",
            state=files.state(),
            writer=files,
            restored=state,
            splits=splits,
        )

    def run(closed_ms: int | None, watermark_ms: int) -> int | None:
        splits = (replace(split(0, 0, 0), barrier_watermark_ms=closed_ms),)
        batch = KeyedBatch(
            time=BarrierTime(watermark_ms=watermark_ms, now_ms=2 * watermark_ms),
            state=KeyedState().covering({splits[0].key}),
        )
        opened = kept.open(OWNER, batch, splits, load)
        (made,) = opened.begin(_FUNCTIONS).at_barrier(batch.time, _no_letters)
        assert made.column("now_ms")[0].as_py() == batch.time.now_ms
        opened.keep(opened.end(BatchKey(region="main", attempt_id=7, batch_id=0)))
        found: int | None = made.column("closed_ms")[0].as_py()
        return found

    assert [run(None, 50), run(None, 40), run(40, 60)] == [None, None, 40]
    assert len(loads) == 1


def _no_letters(topic: str, rows: pa.RecordBatch) -> None:
    raise AssertionError(topic)


def expected(end: int) -> dict[tuple[int, str], int]:
    return {(0, key): n for key, n in Counter(str(at % 3) for at in range(end)).items()}


def test_a_worker_that_ended_the_last_batch_has_the_state_still() -> None:
    worker = Worker(PlayedStateFiles())
    first = worker.run(KeyedState(), split(0, 0, 10))
    second = worker.run(first, split(0, 10, 25))
    assert counts_in(worker.files, second) == expected(25)
    assert worker.loads == 1


def test_state_with_output_a_batch_that_is_tried_again_uses_no_state_of_the_first_try() -> None:
    """Whose change file no record names."""
    worker = Worker(PlayedStateFiles())
    first = worker.run(KeyedState(), split(0, 0, 10))
    worker.run(first, split(0, 10, 25))
    again = worker.run(first, split(0, 10, 25))
    assert counts_in(worker.files, again) == expected(25)
    assert worker.loads == 2


def test_state_with_output_a_task_that_failed_leaves_no_state_behind() -> None:
    worker = Worker(PlayedStateFiles())
    first = worker.run(KeyedState(), split(0, 0, 10))
    worker.fails = True
    with pytest.raises(StorageError):
        worker.run(first, split(0, 10, 25))
    worker.fails = False
    assert counts_in(worker.files, worker.run(first, split(0, 10, 25))) == expected(25)


def test_another_attempt_or_job_in_the_same_worker_loads_its_own() -> None:
    worker = Worker(PlayedStateFiles())
    first = worker.run(KeyedState(), split(0, 0, 10))
    second = worker.run(first, split(0, 10, 25), owner=("job", "main", 8))
    assert counts_in(worker.files, second) == expected(25)
    assert worker.loads == 2


def test_a_task_gets_the_state_of_its_own_splits_and_the_barriers_time() -> None:
    files = PlayedStateFiles()
    state = Worker(files).run(KeyedState(), split(0, 0, 10), split(1, 0, 10))
    barrier = Barrier(
        checkpoint_id=3,
        region="main",
        attempt_id=7,
        splits=(split(0, 10, 20), split(1, 10, 20)),
        watermark_ms=5,
        time_ms=9,
        is_end=True,
        new_state=state,
    )
    batch = KeyedBatch.of(barrier, (split(1, 10, 20),))
    assert batch is not None
    assert batch.time == BarrierTime(watermark_ms=5, now_ms=9, is_end=True)
    assert {key for key, _ in counts_in(files, batch.state)} == {1}
    assert KeyedBatch.of(replace(barrier, new_state=None), barrier.splits) is None
