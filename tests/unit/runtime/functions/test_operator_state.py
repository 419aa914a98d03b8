"""Operator state: what a function sees, what an epoch keeps, and what is refused."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.function_states import FunctionStates, states_after
from sluice.runtime.functions.operator_state import (
    MOST_BYTES,
    OperatorState,
    decoded,
    encoded,
    state_entry,
)
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry

SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])
BATCH = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})


def chained(
    function: Callable[[pa.RecordBatch, FunctionContext], pa.RecordBatch] | None = None,
    schema: pa.Schema = SCHEMA,
) -> ChainedFunction:
    return ChainedFunction(
        name="f",
        operator_id="id-f",
        function=function or counting,
        takes_context=True,
        state=OperatorState(schema),
    )


def counting(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    """Counts its rows in the one row of its state."""
    before = ctx.state[0]["n"] if len(ctx.state) else 0
    ctx.state.replace([{"name": "rows", "n": before + batch.num_rows}])
    return batch


class Task:
    def __init__(self, function: ChainedFunction, entries: tuple[StateEntry, ...] = ()) -> None:
        self.function, self.entries = function, entries
        self.states = FunctionStates([function], entries)

    def call(self) -> None:
        self.states.functions[0].call(BATCH)

    def end_epoch(self) -> None:
        changed = self.states.end_epoch()
        self.entries = states_after(self.entries, changed, [self.function])

    def rows(self) -> list[dict[str, object]]:
        (entry,) = self.entries
        found: list[dict[str, object]] = decoded(entry).to_pylist()
        return found


def test_the_record_of_an_epoch_has_the_changes_of_all_its_calls() -> None:
    task = Task(chained())
    task.call()
    task.call()
    task.end_epoch()
    assert task.rows() == [{"name": "rows", "n": 4}]
    task.call()
    assert task.rows() == [{"name": "rows", "n": 4}], "the next epoch has not ended"
    task.end_epoch()
    assert task.rows() == [{"name": "rows", "n": 6}]


def test_state_and_output_are_valid_together_an_epoch_that_is_read_again_begins_as_before() -> None:
    task = Task(chained())
    task.call()
    task.end_epoch()
    task.call()
    task.states.rollback()
    task.call()
    task.end_epoch()
    assert task.rows() == [{"name": "rows", "n": 4}]


def test_a_task_of_a_later_attempt_begins_with_the_record() -> None:
    task = Task(chained())
    task.call()
    task.end_epoch()
    task.call()  # not acknowledged
    again = Task(chained(), task.entries)
    again.call()
    again.end_epoch()
    assert again.rows() == [{"name": "rows", "n": 4}]


def test_an_epoch_that_changes_nothing_sends_nothing_and_the_record_keeps_the_list() -> None:
    task = Task(chained())
    assert task.states.end_epoch() == ()
    task.call()
    task.end_epoch()
    before = task.entries
    assert len(task.states.functions[0].list or ()) == 1  # a read may change a row
    assert task.states.end_epoch() == ()
    assert states_after(before, (), [task.function]) == before


def test_a_row_that_is_changed_in_place_is_saved() -> None:
    task = Task(chained())
    task.call()
    task.end_epoch()
    rows = task.states.functions[0].list
    assert rows is not None
    rows[0]["n"] = 7
    task.end_epoch()
    assert task.rows() == [{"name": "rows", "n": 7}]


def test_the_list_behaves_like_a_list_of_python() -> None:
    task = Task(chained())
    rows = task.states.functions[0].list
    assert rows is not None
    rows.append({"name": "a", "n": 1})
    rows.extend(pa.table({"name": ["b", "c"], "n": [2, 3]}))
    rows.insert(0, {"name": "z"})
    del rows[1]
    assert [row["name"] for row in rows] == ["z", "b", "c"]
    rows[1:] = [{"name": "d", "n": 4}]
    rows[0] = {"name": "y", "n": None}
    assert rows.to_table() == pa.Table.from_pylist(
        [{"name": "y"}, {"name": "d", "n": 4}], schema=SCHEMA
    )
    task.end_epoch()
    rows.clear()
    task.end_epoch()
    assert task.rows() == []


def test_only_functions_that_declare_a_state_keep_one_in_the_record() -> None:
    entry = state_entry(
        encoded(pa.table({"n": [1]})), operator_id="id-f", redistribution=Redistribution.SPLIT
    )
    stateless = ChainedFunction(name="f", operator_id="id-f", function=lambda batch: batch)
    assert states_after([entry], (), [stateless]) == ()
    assert states_after([entry], (), [chained()]) == (entry,)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"name": "a", "m": 1}, "unknown=m"),
        ({"name": "a", "n": "one"}, "error="),
        ({"name": "a", "n": 2**63}, "error="),
    ],
)
def test_rows_that_do_not_match_the_schema_fail_the_epoch(
    row: dict[str, object], error: str
) -> None:
    task = Task(chained())
    rows = task.states.functions[0].list
    assert rows is not None
    rows.append(row)
    with pytest.raises(ConfigError, match=error):
        task.end_epoch()


def test_a_region_has_a_bound_of_all_its_lists() -> None:
    def growing(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        ctx.state.append({"value": random.tobytes()})
        return batch

    import numpy as np

    random = np.random.default_rng(1).integers(0, 256, MOST_BYTES // 2, np.uint8)
    task = Task(chained(growing, pa.schema([("value", pa.binary())])))
    task.call()
    task.end_epoch()
    task.call()
    with pytest.raises(ConfigError, match=f"most_bytes={MOST_BYTES}"):
        task.end_epoch()


def test_a_changed_schema_may_add_columns_and_nothing_else() -> None:
    task = Task(chained())
    task.call()
    task.end_epoch()
    more = chained(schema=SCHEMA.append(pa.field("at", pa.timestamp("ms"))))
    assert list(Task(more, task.entries).states.functions[0].list or ()) == [
        {"name": "rows", "n": 2}
    ]
    for other in (pa.schema([("name", pa.string())]), pa.schema([("n", pa.string())])):
        with pytest.raises(ConfigError, match=r"checkpoint_has=.*n: int64"):
            Task(chained(schema=other), task.entries)


def test_a_context_without_a_declared_state_says_how_to_declare_one() -> None:
    with pytest.raises(ConfigError, match="OperatorState"):
        _ = FunctionContext("f").state


@pytest.mark.parametrize("redistribution", ["keyed_range", "round-robin"])
def test_other_redistributions_are_refused(redistribution: str) -> None:
    with pytest.raises(ConfigError, match="split, union or broadcast"):
        OperatorState(SCHEMA, redistribution)


def test_a_state_needs_a_schema() -> None:
    for wrong in ({"n": "int64"}, pa.schema([])):
        with pytest.raises(ConfigError, match="Arrow schema"):
            OperatorState(wrong)


def test_a_damaged_or_later_entry_is_refused_by_name() -> None:
    entry = state_entry(b"damaged", operator_id="id-f", redistribution=Redistribution.SPLIT)
    with pytest.raises(DamagedCheckpointError, match="operator_id=id-f"):
        Task(chained(), (entry,))
    from dataclasses import replace

    with pytest.raises(UnsupportedFormatError, match="version=2"):
        decoded(replace(entry, version=2))
