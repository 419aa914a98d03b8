"""Counters of users: which functions get them, which names they have, and which calls count."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sluice import FunctionContext
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_context import takes_context
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.record_counts import decode_totals, totals_after
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import Skip
from tests.kit.source.source_rows import source_rows


class _Object:
    def __call__(self, batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        return batch

    def method(self, batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        return batch

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def _with_option(batch: pa.RecordBatch, factor: int = 2) -> pa.RecordBatch:
    return batch


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda batch: batch, False),
        (lambda batch, ctx: batch, True),
        (_Object(), True),
        (_Object().method, True),
        (_Object().plain, False),
        (_with_option, False),
        (functools.partial(lambda batch, ctx, limit: batch, limit=3), True),
        (functools.partial(lambda limit, batch, ctx: batch, 3), True),
        (lambda batch, *, limit=3: batch, False),
        (lambda *args: args[0], False),
        (dict, False),
    ],
)
def test_a_second_required_parameter_is_the_context(
    function: Callable[..., Any], expected: bool
) -> None:
    """One with a default, as users have it today, keeps its default."""
    assert takes_context(function) is expected


def _run(
    function: Callable[[pa.RecordBatch, FunctionContext], pa.RecordBatch], policy: Skip | None
) -> RecordCounts:
    chained = ChainedFunction(
        name="clean", operator_id="c", function=function, policy=policy, takes_context=True
    )
    run = FunctionRun([chained])
    list(run.applied(iter([source_rows(b"1", b"x"), source_rows(b"2")]), lambda *_: None))
    return run.counts["c"]


@pytest.mark.parametrize("policy", [None, Skip()])
def test_a_counter_takes_integers_of_python_numpy_and_arrow(policy: Skip | None) -> None:
    def clean(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        ctx.counter("python").inc()
        ctx.counter("numpy").inc(np.int64(2))
        ctx.counter("arrow").inc(pc.sum(pa.array([1, 2])))
        ctx.counter("seen")
        return batch

    counters = _run(clean, policy).counters
    assert counters == {"python": 2, "numpy": 4, "arrow": 6, "seen": 0}


@pytest.mark.parametrize("value", [-1, 1.5, None, "1", pa.scalar(None, pa.int64())])
def test_a_counter_refuses_all_else_and_no_policy_skips_a_record_for_it(value: Any) -> None:
    with pytest.raises(ConfigError, match="counter=rejected"):
        _run(lambda batch, ctx: ctx.counter("rejected").inc(value), Skip())


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "\ud800", 7, None])
def test_a_name_is_short_and_printable(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"function=clean.*1 to 100 printable"):
        _run(lambda batch, ctx: ctx.counter(name), None)


def test_a_function_has_a_bounded_number_of_counters() -> None:
    """In one call, in one task, and in its totals: a name for each record would fill them."""

    def many(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        for number in range(101):
            ctx.counter(f"n{number}")
        return batch

    def other_names(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        for number in range(60):
            ctx.counter(f"{batch.num_rows}-{number}")
        return batch

    for function in (many, other_names):
        with pytest.raises(ConfigError, match=r"too many counters.*most=100"):
            _run(function, None)
    assert ConfigError in PERMANENT_ERRORS
    full = RecordCounts(counters={f"n{number}": 1 for number in range(100)})
    before = totals_after((), {"c": full})
    with pytest.raises(ConfigError, match=r"function=c.*another uid"):
        totals_after(before, {"c": RecordCounts(counters={"one more": 1})})
    # Two regions that become one may have more names: they continue, without a new one.
    others = totals_after((), {"c": RecordCounts(counters={"other": 1})})
    (entry,) = totals_after((*before, *others), {"c": full})
    assert len(decode_totals(entry).counters) == 101


def test_a_counter_that_is_kept_for_the_next_call_is_refused() -> None:
    """It would belong to an epoch that is decided, and its increments would be lost."""
    kept: list[Any] = []

    def clean(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        kept.append(kept[0] if kept else ctx.counter("rejected"))
        kept[-1].inc()
        return batch

    with pytest.raises(ConfigError, match=r"after its function had returned.*counter=rejected"):
        _run(clean, None)


def test_threads_of_a_function_count_exactly() -> None:
    def clean(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
        counter = ctx.counter("seen")
        threads = [
            threading.Thread(target=lambda: [counter.inc() for _ in range(1_000)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return batch

    assert _run(clean, None).counters == {"seen": 8_000}
