"""A pipeline with keyed functions: which split a row is of, and in which order rows pass."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

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
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.declarations import Last
from sluice.runtime.keyed.keyed_run import KeyedOperators, KeyedRun
from sluice.runtime.keyed.operators.aggregate import Aggregation
from sluice.runtime.keyed.operators.operator_memory import MEMORY_TABLE, OperatorMemory
from sluice.runtime.keyed.operators.process import Process
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import Skip
from sluice.runtime.model.state.keyed_state import Due
from sluice.runtime.state.codec.row_codec import schema_to_json
from tests.kit.coordinator.core_driver import split
from tests.kit.keyed_parts import PlayedStateFiles

_TIME = BarrierTime(watermark_ms=None, now_ms=0)
Lines = list[tuple[int, str, int]]
"""Split, key and value of rows."""


@dataclass(frozen=True)
class Holding:
    """A keyed function that holds all rows until the barrier; notes what it gets.

    Attributes:
        seen: the rows.
        late_topic: a row whose value is negative is late.
    """

    seen: Lines = field(default_factory=list)
    tables: tuple[TableSpec, ...] = ()
    late_topic: str | None = None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        return _Holding(self, scope)


class _Holding(KeyedOperator):
    def __init__(self, function: Holding, scope: OperatorScope) -> None:
        self._function = function
        self._scope = scope
        self._rows: list[KeyedRows] = []

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        values = rows.batch.column("value").to_pylist()
        keys = [key[1:].decode() for key in rows.keys.to_pylist()]
        self._function.seen.extend(zip(rows.splits.tolist(), keys, values, strict=True))
        if self._function.late_topic and any(value < 0 for value in values):
            self._scope.count_late(1)
            self._scope.count("negative", 1)
            self._scope.write_late(self._function.late_topic, rows.batch)
            return
        self._rows.append(rows)
        yield from ()

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        held, self._rows = self._rows, []
        yield from held

    def rollback(self) -> None:
        self._rows = []

    def due(self) -> Due:
        return Due()


def key_by() -> ChainedFunction:
    return ChainedFunction(name="key", operator_id="key", keyed=KeyBy(columns=("key",)))


def keyed(function: Holding, name: str = "held") -> ChainedFunction:
    return ChainedFunction(name=name, operator_id=name, keyed=function)


def mapped(
    function: Callable[[pa.RecordBatch], pa.RecordBatch], *, skips: bool = False
) -> ChainedFunction:
    policy = Skip() if skips else None
    return ChainedFunction(name="f", operator_id="f", function=function, policy=policy)


class Task:
    """A task of two splits."""

    def __init__(
        self, *functions: ChainedFunction, numbers: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        self.state = PlayedStateFiles().state()
        self.state.add_splits({split(number, 0, 0).key: None for number in range(2)})
        self.late: list[tuple[str, int]] = []
        self.operators = KeyedOperators(
            functions,
            source_id="source",
            tables=self.state,
            numbers=numbers or {},
            now_ms=lambda: 0,
        )
        self.run: KeyedRun = self.operators.begin_epoch()

    def give(self, *rows: tuple[int, str, int]) -> list[int]:
        """Rows of one batch of the source: partition, key and value."""
        partitions, keys, values = zip(*rows, strict=True)
        batch = pa.RecordBatch.from_pydict(
            {"topic": ["input"] * len(rows), "partition": partitions, "key": keys, "value": values}
        )
        return _values(self.run.applied(iter((batch,)), self._write_late))

    def end(self) -> list[int]:
        return _values(self.run.at_barrier(_TIME, self._write_late))

    def _write_late(self, topic: str, rows: pa.RecordBatch) -> None:
        self.late.append((topic, rows.num_rows))


def _values(made: Iterator[pa.RecordBatch]) -> list[int]:
    return [value for batch in made for value in batch.column("value").to_pylist()]


def test_rows_have_the_split_of_their_partition_and_the_order_of_their_batch() -> None:
    held = Holding()
    task = Task(key_by(), keyed(held))
    task.give((1, "a", 1), (0, "b", 2), (1, "a", 3), (0, "b", 4))
    assert held.seen == [(1, "a", 1), (0, "b", 2), (1, "a", 3), (0, "b", 4)]


def test_a_function_before_the_key_gets_one_split_at_a_time_and_may_add_and_drop_rows() -> None:
    """In the order of each split."""
    held, sizes = Holding(), []

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        rows = [row for row in batch.to_pylist() if row["value"] != 3]
        return pa.RecordBatch.from_pylist([row for row in rows for _ in range(2)], batch.schema)

    task = Task(mapped(doubled), key_by(), keyed(held))
    task.give((1, "a", 1), (0, "b", 2), (1, "a", 3), (0, "b", 4), (1, "c", 5))
    assert sizes == [2, 3]
    assert [row for row in held.seen if row[0] == 0] == [(0, "b", n) for n in (2, 2, 4, 4)]
    assert [row[2] for row in held.seen if row[0] == 1] == [1, 1, 5, 5]


def test_a_deserializer_gets_whole_batches() -> None:
    class Decoded:
        is_row_wise = True

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            sizes.append(batch.num_rows)
            return batch

    held, sizes = Holding(), list[int]()
    Task(mapped(Decoded()), key_by(), keyed(held)).give((1, "a", 1), (0, "b", 2))
    assert sizes == [2]
    assert held.seen == [(1, "a", 1), (0, "b", 2)]


def test_records_that_a_function_skips_reach_no_keyed_function() -> None:
    held = Holding()

    def fails_for_two(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 2 in batch.column("value").to_pylist():
            raise ValueError("two")
        return batch

    task = Task(mapped(fails_for_two, skips=True), key_by(), keyed(held))
    task.give((0, "a", 1), (0, "a", 2), (0, "a", 3))
    assert [row[2] for row in held.seen] == [1, 3]
    assert task.run.counts["f"] == RecordCounts(read=3, skipped=1)


def test_rows_of_batches_with_other_dictionaries_go_together() -> None:
    """A categorical of pandas has indexes of 8 bits; two batches have more values than that."""
    kind = pa.dictionary(pa.int8(), pa.string())

    def categorical(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = pa.array([f"v{value}" for value in batch.column("value").to_pylist()])
        return batch.append_column("name", names.dictionary_encode().cast(kind))

    function = Process(
        function=lambda key, rows, state, timers: {"value": rows.num_rows},
        output=pa.schema([("value", pa.int64())]),
        states={},
    )
    aggregate = Aggregation(aggregates={"value": Last("name")})
    for keyed_function in (function, aggregate):
        numbers = {"held": {table.name: at for at, table in enumerate(keyed_function.tables)}}
        chained = ChainedFunction(name="held", operator_id="held", keyed=keyed_function)
        task = Task(mapped(categorical), key_by(), chained, numbers=numbers)
        task.give(*((at % 2, f"k{at}", at) for at in range(100)))
        task.give(*((at % 2, f"k{at}", at) for at in range(100, 200)))
        assert len(_values(task.run.at_barrier(_TIME, lambda *_: None))) == 200


def test_types_of_narrow_dictionaries_in_the_state_are_those_of_wide_ones() -> None:
    """An earlier version kept them as the rows had them; the stored values are the same."""
    narrow, wide = (
        pa.schema([("x", pa.dictionary(index, pa.string()))]) for index in (pa.int8(), pa.int32())
    )
    state = PlayedStateFiles().state()
    state.add_splits({split(0, 0, 0).key: None})
    text = json.dumps([schema_to_json(narrow)]).encode()
    state.table(0).put(state.splits()[0], [b"schemas of rows"], [text])
    scope = OperatorScope(
        tables=state,
        numbers={MEMORY_TABLE.name: 0},
        count_late=lambda _: None,
        write_late=lambda *_: None,
        count=lambda *_: None,
        now_ms=lambda: 0,
    )
    memory = OperatorMemory(scope)
    assert memory.schemas() == [wide]
    memory.keep_schemas(state.splits(), wide)


def test_a_batch_without_rows_gets_no_keys() -> None:
    """What a user's function returns for it may have any type."""
    held = Holding()
    untyped = KeyBy(function=lambda batch: pa.array(batch.column("key").to_pylist()))
    task = Task(
        mapped(lambda batch: batch.slice(0, 0)),
        ChainedFunction(name="key", operator_id="key", keyed=untyped),
        keyed(held),
    )
    assert task.give((0, "a", 1)) == []
    assert held.seen == []


def test_each_keyed_function_ends_the_epoch_after_those_before_it() -> None:
    """What the first one returns at the barrier, the second one gets before it ends the epoch."""
    first, second = Holding(), Holding()
    task = Task(key_by(), keyed(first, "first"), keyed(second, "second"), mapped(_plus_ten))
    assert task.give((0, "a", 1), (1, "b", 2)) == []
    assert second.seen == []
    assert task.end() == [11, 12]
    assert second.seen == [(0, "a", 1), (1, "b", 2)]
    assert task.end() == []


def _plus_ten(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = pa.array([value + 10 for value in batch.column("value").to_pylist()])
    return pa.RecordBatch.from_pydict({"value": values})


def test_a_rollback_forgets_the_rows_of_the_epoch() -> None:
    task = Task(key_by(), keyed(Holding()))
    task.give((0, "a", 1))
    task.operators.rollback()
    assert task.end() == []


def test_late_rows_are_counted_and_written_in_the_epoch() -> None:
    task = Task(key_by(), keyed(Holding(late_topic="late")))
    task.give((0, "a", -1))
    assert task.late == [("late", 1)]
    assert task.run.counts["held"] == RecordCounts(read=1, late=1, counters={"negative": 1})
    assert task.operators.begin_epoch().counts["held"] == RecordCounts()


def test_a_function_between_keyed_ones_is_refused() -> None:
    """Its rows have no split."""
    with pytest.raises(ConfigError, match="between two keyed functions"):
        Task(key_by(), keyed(Holding(), "one"), mapped(_plus_ten), keyed(Holding(), "two"))


def test_a_source_without_positions_is_refused() -> None:
    task = Task(key_by(), keyed(Holding()))
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "value": [1]})
    with pytest.raises(ConfigError, match="missing=topic, partition"):
        list(task.run.applied(iter((batch,)), lambda *_: None))


class TestErrorsNameTheirFunction:
    """A pipeline has several functions, and a task's error has no line of the user's program."""

    @dataclass(frozen=True)
    class Failing(Holding):
        at_end: bool = False

        def open(self, scope: OperatorScope) -> KeyedOperator:
            failing = self.at_end

            class Operator(_Holding):
                def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
                    if not failing:
                        raise ConfigError("no such column", {"missing": "x"}, "Name another one.")
                    yield rows

                def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
                    if failing:
                        raise ConfigError("no such column", {"missing": "x"}, "Name another one.")
                    yield from ()

            return Operator(self, scope)

    @pytest.mark.parametrize("at_end", [False, True])
    def test_of_an_operator(self, at_end: bool) -> None:
        task = Task(key_by(), keyed(self.Failing(at_end=at_end), "totals"), keyed(Holding(), "b"))
        with pytest.raises(ConfigError) as caught:  # noqa: PT012 - either call may fail
            task.give((0, "a", 1))
            task.end()
        assert caught.value.args[1] == {"function": "totals", "missing": "x"}

    def test_of_a_key(self) -> None:
        wrong = ChainedFunction(name="ids", operator_id="ids", keyed=KeyBy(columns=("kye",)))
        task = Task(wrong, keyed(Holding()))
        with pytest.raises(ConfigError, match="key_by names a column") as caught:
            task.give((0, "a", 1))
        assert caught.value.args[1]["function"] == "ids"

    def test_a_name_that_an_error_has_is_not_repeated(self) -> None:
        places = ChainedFunction(
            name="ids", operator_id="ids", keyed=KeyBy(columns=("key",), partitioned=True)
        )
        task = Task(places, keyed(Holding()))
        with pytest.raises(ConfigError, match="in two partitions") as caught:
            task.give((0, "a", 1), (1, "a", 2))
        assert "function" not in caught.value.args[1]
