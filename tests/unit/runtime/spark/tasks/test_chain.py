"""Tasks of a region: the chain of functions, what they count, and files that pass through."""

import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import TaskContext

from sluice.runtime.contracts import TaskScope, WriterFactory
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import (
    ConfigError,
    DeliveryError,
    FencedError,
    FunctionFailedError,
    IllegalTransitionError,
    PoisonRecordsError,
    StreamError,
)
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.record_counts import decode_totals
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.model.acknowledgement import RecordCounts, StageTimes
from sluice.runtime.model.event_time import EventTime, Monotonic
from sluice.runtime.model.on_error import DeadLetters, Policy, Skip
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough, TaskResults
from sluice.runtime.spark.tasks.region_tasks import Chain, RegionTasks, TaskResult, results_of
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.region_simulation import RegionWorld, barrier
from tests.kit.source.source_rows import source_rows

_ADDRESS = CoordinatorAddress(
    address="http://127.0.0.1:1", token="t", leader_session_id="s", job_uid="j"
)


class _Reader:
    """One record, whatever is asked for."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        yield source_rows(b"a")


class _Sink:
    """Its own factory; what it was asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open(self, scope: TaskScope, registry: object) -> "_Sink":
        return self

    def abort(self) -> None:
        self.asked.append("abort")


def _chain(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    *,
    policy: Policy | None = None,
    sinks: Mapping[str, object] = MappingProxyType({}),
) -> Chain:
    """One whose function raises this, in a task."""
    context = SimpleNamespace(
        partitionId=lambda: 0, attemptNumber=lambda: 0, getLocalProperty=lambda _name: "7"
    )
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: context))

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise error

    factories = cast(Mapping[str, WriterFactory], sinks)
    tasks = RegionTasks(
        address=_ADDRESS, job_uid="j", region="main", attempt_id=1, factories=factories
    )
    function = ChainedFunction(name="f", operator_id="f", function=fail, policy=policy)
    return Chain(tasks=tasks, reader=_Reader(), functions=(function,), job_name="j")


def test_a_task_reports_the_times_of_its_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that it did not read; a batch before it in the same worker leaves nothing."""
    clocks = SplitClocks(EventTime("offset", strategy=Monotonic()), lambda rows: rows["offset"])
    observing = ChainedFunction(name="time", operator_id="t", function=clocks, takes_context=True)
    chain = replace(_chain(ValueError("no"), monkeypatch), functions=(observing,))
    (record,) = source_rows(b"a").to_pylist()
    read = split(record["partition"], 0, 100)
    read = replace(read, topic=record["topic"])
    other = replace(split(77, 5, 5), watermark_ms=3)
    (row,) = chain.copy_ranges(3, (read, other))
    (result,) = results_of([[row.column("result")[0].as_py()]])
    assert result.ranges == (read, other)
    assert [each.watermark_ms for each in result.times] == [record["offset"], 3]
    (row,) = chain.copy_ranges(4, (other,))
    (result,) = results_of([[row.column("result")[0].as_py()]])
    assert [each.watermark_ms for each in result.times] == [3]


def _failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    chain = _chain(error, monkeypatch)
    with pytest.raises((LookupError, FunctionFailedError)) as caught:
        list(chain.copy_ranges(3, ()))
    return caught.value


def test_a_task_reports_of_how_many_rows_its_functions_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = _chain(ValueError("no"), monkeypatch, policy=Skip()).copy_ranges(3, ())
    (result,) = results_of([[row.column("result")[0].as_py()]])
    assert result.counts == {"f": RecordCounts(read=1, skipped=1)}
    assert result.failed_rows == {"f": 1}


@pytest.mark.parametrize(
    "error", [DeliveryError("refused", {}, "Look at the topic."), LookupError("not this time")]
)
def test_a_task_that_fails_aborts_in_all_its_sinks_what_it_has_open(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait after it until the next sweep. A typed error is the task's answer: Spark, which
    would try the task again, is not reported."""
    sinks = {"one": _Sink(), "two": _Sink()}
    chain = _chain(error, monkeypatch, sinks=sinks)
    if isinstance(error, StreamError):
        (row,) = chain.copy_ranges(3, ())
        with pytest.raises(DeliveryError, match=r"refused \[task=0\.0\]"):
            results_of([[row.column("result")[0].as_py()]])
    else:
        with pytest.raises(LookupError):
            list(chain.copy_ranges(3, ()))
    assert [sink.asked for sink in sinks.values()] == [["abort"], ["abort"]]


def test_an_error_of_a_function_goes_to_spark_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tries the task again, and shows it."""
    error = LookupError("not this time")
    assert _failing(error, monkeypatch) is error


def test_an_error_that_has_no_utf8_goes_to_spark_in_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's worker cannot encode it: the JVM would wait for it until the checkpoint expires."""
    found = _failing(ValueError("not a name: \ud800!"), monkeypatch)
    assert isinstance(found, FunctionFailedError)
    said = "".join(traceback.format_exception(found))
    assert b"ValueError: not a name: ?!" in said.encode()


PARSE = ChainedFunction(
    name="parse",
    operator_id="id-parse",
    function=lambda batch: batch,
    policy=DeadLetters(topic="dead"),
)


def counted(read: int, dead_lettered: int) -> TaskResult:
    counts = RecordCounts(read=read, dead_lettered=dead_lettered)
    return TaskResult(
        counts={"id-parse": counts},
        examples={"id-parse": "in-0@3 ValueError: no"},
        failed_rows={"id-parse": dead_lettered},
    )


def totals(world: RegionWorld) -> RecordCounts:
    assert world.coordinator.region is not None
    (entry,) = world.coordinator.region.operator_states
    assert entry.operator_id == "id-parse"
    return decode_totals(entry)


def test_times_of_the_slowest_task_travel_with_the_acknowledgement() -> None:
    world = RegionWorld()
    slow = StageTimes(read_s=1.0, function_s=2.0, write_s=3.0, flush_s=4.0)
    results = (TaskResult(stages=StageTimes(read_s=5.0)), TaskResult(stages=slow), TaskResult())
    world.batch(1, barrier(), results=results)
    assert world.coordinator.stages == [slow]


def test_counts_of_the_tasks_travel_with_the_acknowledgement() -> None:
    world = RegionWorld(functions=(PARSE,))
    world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError):
        world.batch(1, barrier(), results=(counted(5, 1),))
    world.coordinator.refusal = None
    world.batch(1, barrier(), results=(counted(5, 1), counted(7, 2)))
    assert world.coordinator.counts[-1] == {"parse": RecordCounts(read=12, dead_lettered=3)}
    assert totals(world) == RecordCounts(read=12, dead_lettered=3)
    world.batch(2, barrier(8), results=(counted(1, 1),))
    assert world.coordinator.counts[-1] == {"parse": RecordCounts(read=1, dead_lettered=1)}
    assert totals(world) == RecordCounts(read=13, dead_lettered=4)


def test_a_batch_without_tasks_keeps_the_totals() -> None:
    """A sink may ask for one when there are no records."""
    world = RegionWorld(functions=(PARSE,))
    world.batch(1, barrier(), results=(counted(5, 1),))
    world.batch(2, barrier(8), results=())
    assert world.coordinator.counts[-1] == {"parse": RecordCounts()}
    assert totals(world) == RecordCounts(read=5, dead_lettered=1)


def test_an_epoch_with_too_many_failures_is_never_acknowledged() -> None:
    """Over all its tasks; the error says what failed first, for the dead letters are gone."""
    world = RegionWorld(functions=(PARSE,))
    with pytest.raises(RuntimeError, match="PoisonRecordsError"):
        world.batch(1, barrier(), results=(counted(100, 70), counted(50, 50)))
    [(what, error)] = cast(list[Any], world.coordinator.told)
    assert what == "failed"
    assert isinstance(error, PoisonRecordsError)
    assert isinstance(error, PERMANENT_ERRORS)
    assert "read=150 failed=120" in str(error)
    assert "in-0@3 ValueError: no" in str(error)


def test_a_batch_of_the_pipelines_own_dead_letters_is_not_run() -> None:
    policy = DeadLetters(topic="in")
    world = RegionWorld(functions=(replace(PARSE, policy=policy),))
    with pytest.raises(RuntimeError, match="ConfigError"):
        world.batch(1, barrier())
    [(what, error)] = cast(list[Any], world.coordinator.told)
    assert what == "failed"
    assert isinstance(error, ConfigError)


SCHEMA = pa.schema({"key": pa.binary(), "value": pa.int64()})


class Answers:
    """An accumulator of this process."""

    def __init__(self) -> None:
        self.value: list[TaskResult] = []

    def add(self, term: list[TaskResult]) -> None:
        self.value = TaskResults().addInPlace(self.value, term)


def pass_through(*results: TaskResult, columns: pa.Schema | None = SCHEMA) -> FilePassThrough:
    answers: Any = Answers()
    answers.value = list(results)
    return FilePassThrough(columns=columns, results=answers)


def written(*batches: pa.RecordBatch, result: TaskResult) -> Generator[Any, None, TaskResult]:
    yield from batches
    return result


def batch(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_are_handed_on_and_the_answer_comes_after_them() -> None:
    rows = batch(key=[b"k"], value=[1])
    result = TaskResult(task="0.0", records_out=1)
    through = pass_through()
    assert list(through.deliver(written(rows, result=result))) == [rows]
    assert through.take_results() == [result]
    assert through.take_results() == []


def test_an_answer_is_missing_where_the_rows_were_not_all_taken() -> None:
    """A task that Spark gives up half way counts for nothing."""
    through = pass_through()
    rows = through.deliver(written(batch(), batch(), result=TaskResult(task="0.0")))
    next(rows)
    cast(Generator[Any, None, None], rows).close()
    assert through.take_results() == []


def test_a_typed_error_of_a_task_is_raised_with_its_type() -> None:
    through = pass_through(TaskResult(task="0.0"), TaskResult(error=DeliveryError("no", {}, "")))
    with pytest.raises(DeliveryError):
        through.take_results()


def test_a_task_that_answers_twice_has_run_twice() -> None:
    """Rule `ids-never-reused`: which of the two attempts the files are of is not known, so nothing
    is decided."""
    with pytest.raises(IllegalTransitionError, match="more than once"):
        pass_through(
            TaskResult(task="0.0"), TaskResult(task="1.0"), TaskResult(task="0.1")
        ).take_results()


def test_types_become_those_that_spark_was_reported() -> None:
    """A batch whose values fit is cast; a column that was left null has no type of its own."""
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([1], pa.int32()), "key": pa.array([None], pa.null())}
    )
    conformed = pass_through().conform(rows)
    assert conformed.schema.equals(SCHEMA)
    assert conformed.to_pylist() == [{"key": None, "value": 1}]
    assert pass_through(columns=None).conform(rows) is rows


@pytest.mark.parametrize("columns", [{"key": [b"k"]}, {"key": [b"k"], "valu": [1]}, {}])
def test_other_columns_than_for_an_empty_batch_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="empty batch"):
        pass_through().conform(pa.RecordBatch.from_pydict(columns))


def test_a_null_where_none_was_reported_is_named() -> None:
    """Spark reads such a column without looking for any, and fails of an index."""
    told = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.int64())])
    through = pass_through(columns=told)
    full = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([None], pa.int64())], schema=told)
    assert through.conform(full) is full
    for schema in (told, pa.schema({"n": pa.int64(), "m": pa.int64()})):
        arrays = [pa.array([None], pa.int64()), pa.array([1])]
        with pytest.raises(ConfigError, match=r"declared non-nullable .column=n ") as refused:
            through.conform(pa.RecordBatch.from_arrays(arrays, schema=schema))
        assert "nullable" in str(refused.value)


def test_a_null_inside_a_value_where_none_was_reported_is_named() -> None:
    """Of a required decimal in a struct, Spark writes a Parquet file that no reader can read."""
    told = pa.schema({"v": pa.struct([pa.field("n", pa.decimal128(5, 2), nullable=False)])})
    through = pass_through(columns=told)
    values = pa.array([None, {"n": Decimal(1)}, {"n": None}], told.field("v").type)
    rows = pa.RecordBatch.from_arrays([values], schema=told)
    assert through.conform(rows.slice(0, 2)).num_rows == 2
    with pytest.raises(ConfigError, match=r"column=v\.n "):
        through.conform(rows)


def test_a_value_that_does_not_fit_is_an_error_and_not_another_value() -> None:
    rows = pa.RecordBatch.from_pydict({"key": [b"k"], "value": [1.5]})
    with pytest.raises(ConfigError, match="value"):
        pass_through().conform(rows)


UTC, WALL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("told", "now", "value"),
    [
        (pa.float32(), pa.float64(), 1e39),
        (pa.list_(pa.float32()), pa.list_(pa.float64()), [1.0, -1e39]),
        (pa.float32(), pa.string(), "1e39"),
        (WALL, UTC, 0),
        (UTC, WALL, 0),
        (pa.struct([("at", WALL)]), pa.struct([("at", UTC)]), {"at": 0}),
        (pa.struct([("a", WALL)]), pa.struct([("a", WALL), ("b", WALL)]), {"b": 0}),
        (WALL, pa.string(), "2024-01-01T00:00:00+02:00"),
        (pa.bool_(), pa.int64(), 2),
        (pa.list_(pa.bool_()), pa.list_(pa.float64()), [0.5]),
        (pa.bool_(), pa.dictionary(pa.int8(), pa.int64()), 5),
        (pa.date32(), WALL, 1),
        (pa.time64("us"), WALL, 86_400_000_001),
        (pa.decimal128(5, 2), pa.float64(), 1.234),
        (pa.float64(), pa.decimal128(25, 20), Decimal("0.12345678901234567891")),
    ],
    ids=[
        *["wide", "nested", "text", "zone", "no zone", "field", "more fields", "offset"],
        *["truth", "nested truth", "category", "day", "time of day", "rounded", "decimal"],
    ],
)
def test_no_infinity_no_other_zone_and_no_less_comes_of_a_value(
    told: pa.DataType, now: pa.DataType, value: object
) -> None:
    """Arrow would cast nearly each without a word."""
    rows = pa.RecordBatch.from_pydict({"value": pa.array([value], now)})
    with pytest.raises(ConfigError, match="column=value"):
        pass_through(columns=pa.schema({"value": told})).conform(rows)


def test_what_means_the_same_is_cast_at_every_depth() -> None:
    """Another zone's name for a moment, an infinity that was one, numbers that are rounded."""
    zoned = pa.timestamp("us", tz="Europe/Berlin")
    kinds = {"at": zoned, "share": pa.float32(), "shares": pa.map_(pa.string(), pa.float32())}
    rows = pa.RecordBatch.from_pydict(
        {
            "at": pa.array([0, None], UTC),
            "share": [float("inf"), 0.1],
            "shares": pa.array([[("a", 0.5)], None], pa.map_(pa.string(), pa.float64())),
        }
    )
    conformed = pass_through(columns=pa.schema(kinds)).conform(rows)
    assert conformed.schema.equals(pa.schema(kinds))
    assert conformed.column("at").cast(pa.int64()).to_pylist() == [0, None]
    assert conformed.column("share").to_pylist() == [float("inf"), pytest.approx(0.1)]


def test_the_zero_of_the_answers_is_empty() -> None:
    assert TaskResults().zero([TaskResult(task="0.0")]) == []
