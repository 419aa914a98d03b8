"""A keyed task without records that Spark runs again: windows still end, and state is still kept."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyspark import TaskContext

from sluice.runtime.contracts import SinkWriter, TaskScope
from sluice.runtime.contracts.keyed import BarrierTime, KeyBy
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.declarations import Count, Tumbling
from sluice.runtime.keyed.kept_state import KeyedBatch
from sluice.runtime.keyed.keyed_plan import KeyedPlan
from sluice.runtime.keyed.operators.windows import WindowAggregation
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.tasks import region_tasks
from sluice.runtime.spark.tasks.region_tasks import Chain, RegionTasks, results_of
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.storage.task_files import LocalTaskFiles
from tests.kit.coordinator.core_driver import split

_WINDOW_MS = 60


class _Coordinator:
    """Answers what a task reports while it loads state."""

    def __init__(self, address: CoordinatorAddress) -> None:
        del address

    def waits(self, key: object, what: object, *, why: object) -> None:
        del key, what, why

    def waited(self, key: object, what: object) -> None:
        del key, what


class _Reader:
    """A record of one window for each offset."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        for each in splits:
            count = each.end_offset - each.start_offset
            yield pa.record_batch(
                {
                    "topic": [each.topic] * count,
                    "partition": pa.array([each.partition] * count, pa.int32()),
                    "key": [b"key"] * count,
                    "t": [10] * count,
                }
            )


class _Sink:
    """Its own factory and writer; keeps the rows."""

    decide_by_s: float | None = None

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def open(self, scope: TaskScope, registry: object) -> SinkWriter:
        del scope, registry
        return cast(SinkWriter, self)

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def pre_commit(self) -> list[StateEntry]:
        return []

    def abort(self) -> None:
        raise AssertionError("no task fails")


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Spark's number of the task's attempt, as ``number``."""
    made = SimpleNamespace(number=0)
    context = SimpleNamespace(
        partitionId=lambda: 0,
        attemptNumber=lambda: made.number,
        getLocalProperty=lambda _name: "7",
    )
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: context))
    monkeypatch.setattr(region_tasks, "CoordinatorClient", _Coordinator)
    return made


@pytest.mark.parametrize("number", [0, 1])
def test_the_end_of_the_input_ends_windows_in_any_attempt(
    number: int, attempt: SimpleNamespace, tmp_path: Path
) -> None:
    sink = _Sink()
    chain = Chain(
        tasks=RegionTasks(
            address=CoordinatorAddress(
                address="http://127.0.0.1:1", token="t", leader_session_id="s", job_uid="j"
            ),
            job_uid="j",
            region="main",
            attempt_id=0,
            factories={"sink": sink},
        ),
        reader=_Reader(),
        functions=(
            ChainedFunction(
                name="by", operator_id="by", keyed=KeyBy(columns=("key",), partitioned=True)
            ),
            ChainedFunction(
                name="w",
                operator_id="w",
                keyed=WindowAggregation(
                    window=Tumbling(_WINDOW_MS), aggregates={"n": Count()}, on="t"
                ),
            ),
        ),
        job_name="j",
        keyed=KeyedPlan(
            store=StateStore(files=LocalTaskFiles(), root=str(tmp_path)), source_id="source"
        ),
    )
    state = _after(chain, KeyedState(), split(0, 0, 3), is_end=False)
    assert sink.rows == []
    attempt.number = number
    state = _after(chain, state, split(0, 3, 3), is_end=True)
    assert [row["n"] for row in sink.rows] == [3]
    assert [each.partition for each in state.splits] == [0]


def _after(chain: Chain, state: KeyedState, asked: SplitRange, *, is_end: bool) -> KeyedState:
    time = BarrierTime(watermark_ms=0, now_ms=0, is_end=is_end)
    (row,) = chain.copy_ranges(1, (asked,), KeyedBatch(time=time, state=state))
    (result,) = results_of([[row.column("result")[0].as_py()]])
    assert result.keyed is not None
    return result.keyed.state
