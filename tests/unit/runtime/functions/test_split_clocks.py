"""The watermark of each split, from the batches of one task."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import BoundedOutOfOrderness, EventTime, Monotonic, Punctuated
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.split_clocks import SplitClocks, clocks_of
from sluice.runtime.model.on_error import Skip
from sluice.runtime.model.splits import SplitRange

Row = tuple[str, int, int | None]


def split(partition: int = 0, topic: str = "in", **times: int | None) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=topic,
        topic_id="id",
        partition=partition,
        start_offset=0,
        end_offset=9,
        **times,  # type: ignore[arg-type]
    )


def batch(rows: Sequence[Row], **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic for topic, _, _ in rows], pa.string()),
            "partition": pa.array([number for _, number, _ in rows], pa.int32()),
            "at": pa.array([at for _, _, at in rows], pa.int64()),
            **columns,
        }
    )


def _times(rows: pa.RecordBatch) -> pa.Int64Array:
    return rows.column("at")


def clocks(
    *splits: SplitRange, of: Any = "at", now_ms: Callable[[], int] = lambda: 0, **settings: Any
) -> SplitClocks:
    settings.setdefault("strategy", Monotonic())
    made = SplitClocks(EventTime(of, **settings), _times, now_ms)
    if splits:
        made.keep(each.key for each in splits)
    return made


def observe(made: SplitClocks, rows: Sequence[Row], **columns: Any) -> dict[str, int]:
    context = FunctionContext("time")
    made(batch(rows, **columns), context)
    return dict(context.close())


def marks(made: SplitClocks, *splits: SplitRange) -> list[int | None]:
    return [made.ended(each).watermark_ms for each in splits or (split(0), split(1))]


def test_each_split_has_the_largest_time_of_its_own_rows() -> None:
    made = clocks(strategy=BoundedOutOfOrderness("1 s"))
    observe(made, [("in", 0, 5_000), ("in", 1, 9_000), ("in", 0, 4_000)])
    assert marks(made) == [4_000, 8_000]
    assert made.ended(split(0)).largest_timestamp_ms == 5_000
    observe(made, [("in", 0, 1_000)])
    assert marks(made) == [4_000, 8_000]


def test_partitions_of_the_same_number_in_two_topics_are_two_splits() -> None:
    mine = split(0, "a"), split(0, "b"), split(1, "b")
    made = clocks(*mine)
    observe(made, [("a", 0, 1), ("b", 0, 2), ("b", 1, 3), ("a", 0, 4)])
    assert marks(made, *mine) == [4, 2, 3]
    observe(made, [("b", 1, 9)])
    assert marks(made, *mine) == [4, 2, 9]


def test_a_restart_forgets_the_rows_of_the_epoch_and_keeps_what_is_on_record() -> None:
    """An epoch that is read again may be read by another task."""
    made = clocks()
    observe(made, [("in", 0, 50)])
    made.forget()
    assert marks(made, split(0, watermark_ms=7), split(1)) == [7, None]
    observe(made, [("in", 0, 9), ("in", 1, 3)])
    made.keep([split(1).key])
    assert marks(made, split(0), split(1)) == [None, 3]


def test_the_watermark_on_record_is_never_lowered() -> None:
    """As with a larger delay than that of the last run."""
    made = clocks(strategy=BoundedOutOfOrderness("1 h"))
    observe(made, [("in", 0, 200)])
    assert marks(made, split(0, watermark_ms=300)) == [300]
    assert made.ended(split(0, largest_timestamp_ms=300)).largest_timestamp_ms == 300


def test_rows_without_a_time_are_counted_and_move_nothing() -> None:
    made = clocks()
    assert observe(made, [("in", 0, None), ("in", 1, 2)])["without_time"] == 1
    assert marks(made) == [None, 2]
    assert observe(made, []) == {}


def test_a_time_beyond_max_future_is_counted_and_moves_nothing() -> None:
    """The limit counts from the driver's clock, once that is known."""
    made = clocks(max_future="1 s", now_ms=lambda: 10_000)
    counts = observe(made, [("in", 0, 11_000), ("in", 0, 11_001), ("in", 1, 99_999)])
    assert counts["beyond_max_future"] == 2
    assert marks(made) == [11_000, None]
    made.note_time(98_999)
    assert observe(made, [("in", 1, 99_999), ("in", 1, None)])["beyond_max_future"] == 0
    assert marks(made) == [11_000, 99_999]


def test_only_marks_move_a_punctuated_watermark() -> None:
    made = clocks(strategy=Punctuated(lambda rows: rows.column("mark")), max_future="1 s")
    observe(made, [("in", 0, 70), ("in", 1, 80)], mark=pa.array([None, 60], pa.int64()))
    assert marks(made) == [None, 60]
    observe(made, [("in", 0, 70), ("in", 0, 71)], mark=pa.array([50, 2_000], pa.int64()))
    assert marks(made) == [50, 60]
    with pytest.raises(ConfigError, match="one value for each row"):
        clocks(strategy=Punctuated(lambda rows: pa.array([1, 2])))(
            batch([("in", 0, 1)]), FunctionContext("time")
        )


def test_rows_get_a_column_of_their_time_unless_they_have_one() -> None:
    rows = batch([("in", 0, 5), ("in", 0, None)])
    assert clocks()(rows, FunctionContext("time")) is rows
    timed = clocks(of=lambda rows: rows["at"])(rows, FunctionContext("time"))
    assert timed.schema.field("event_time").type == pa.timestamp("ms", tz="UTC")
    assert timed.column("event_time").cast(pa.int64()).to_pylist() == [5, None]
    with pytest.raises(ConfigError, match="name of their event time"):
        clocks(of="kafka")(timed, FunctionContext("time"))


def test_rows_without_their_position_are_refused() -> None:
    rows = batch([("in", 0, 5)]).drop_columns(["partition"])
    with pytest.raises(ConfigError, match="positions"):
        clocks()(rows, FunctionContext("time"))


def test_rows_that_pass_twice_are_counted_once() -> None:
    """A later function fails for a record, and its batch is halved."""

    def fails(rows: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(rows.column("at"), 4)).as_py():
            raise ValueError("four")
        return rows

    made = clocks()
    functions = [
        ChainedFunction(name="time", operator_id="t", function=made, takes_context=True),
        ChainedFunction(name="fails", operator_id="f", function=fails, policy=Skip(max_ratio=1.0)),
    ]
    assert clocks_of(functions) is made
    assert clocks_of(functions[1:]) is None
    run = FunctionRun(functions)
    rows = [("in", 0, at) for at in (1, 2, None, 4, None)]
    list(run.applied(iter((batch(rows),)), lambda topic, letters: None))
    assert run.counts["t"].counters == {"without_time": 2, "beyond_max_future": 0}
    assert marks(made, split(0)) == [4]


def test_clocks_travel_to_the_task() -> None:
    made = SplitClocks(EventTime("at", max_future="1 h"), _times)
    sent: SplitClocks = pickle.loads(pickle.dumps(made))
    observe(sent, [("in", 0, 7)])
    assert marks(sent, split(0)) == [2 + 7 - 2 - 5_000]


_rows = st.lists(
    st.tuples(st.just("in"), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 100))),
    max_size=30,
)


@given(_rows, st.lists(st.integers(0, 30), max_size=4), st.integers(0, 30))
def test_watermarks_do_not_depend_on_batches_and_never_go_back(
    rows: list[Row], cuts: list[int], again: int
) -> None:
    """However the rows are cut, and if an epoch is read again from its start: each split ends with
    the largest of its times, and every step keeps or raises it."""
    splits = tuple(split(number) for number in range(4))
    made = clocks(*splits)
    done, record = 0, splits
    for cut in (*sorted(cuts), len(rows)):
        cut = min(cut, len(rows))
        observe(made, rows[done:cut])
        ended = tuple(made.ended(each) for each in record)
        if again % 2:  # the epoch is aborted: nothing of it is on record
            made.forget()
            observe(made, rows[done:cut])
            assert tuple(made.ended(each) for each in record) == ended
        for before, after in zip(record, ended, strict=True):
            assert before.watermark_ms is None or (
                after.watermark_ms is not None and after.watermark_ms >= before.watermark_ms
            )
        record, done = ended, max(done, cut)
        if again % 3 == 0:  # another task reads on
            made = clocks(*splits)
    for number, each in enumerate(record):
        times = [at for _, mine, at in rows if mine == number and at is not None]
        assert each.watermark_ms == max(times, default=None)
