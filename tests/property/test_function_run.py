"""Poison records at random places: the others once and in order, the poison once and in order."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.functions.dead_letters import SOURCE_OFFSET
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.functions.function_run import ArrowFunction, ChainedFunction, FunctionRun
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import DeadLetters, Policy, Skip
from tests.kit.source.source_rows import source_rows, values_of

GOOD, TWICE, NEVER, FIRST, SECOND = b"good", b"twice", b"never", b"first", b"second"
"""What becomes of a record: as it is, doubled, filtered out, failed by one of two functions."""

KINDS = st.sampled_from([GOOD, GOOD, GOOD, TWICE, NEVER, FIRST, SECOND])
BATCHES = st.lists(st.lists(KINDS, max_size=12), max_size=5)
POLICIES = st.sampled_from([Skip(), DeadLetters(topic="a"), DeadLetters(topic="b")])


def first(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    """Fails, drops and doubles rows, as a row-wise function may; counts what it got and dropped."""
    values = values_of([batch])
    ctx.counter("got").inc(len(values))
    ctx.counter("dropped").inc(values.count(NEVER))
    if FIRST in values:
        raise ValueError("first")
    rows = [at for at, v in enumerate(values) for _ in range({NEVER: 0, TWICE: 2}.get(v or b"", 1))]
    return batch.take(pa.array(rows, pa.int64()))


def second(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    """Fails for some rows, and loses their position; counts each row by itself."""
    for _ in range(batch.num_rows):
        ctx.counter("got").inc()
    if SECOND in values_of([batch]):
        raise LookupError("second")
    return pa.record_batch({"value": batch.column("value"), "at": batch.column("offset")})


def numbered(batches: list[list[bytes]]) -> list[pa.RecordBatch]:
    start, made = 0, []
    for values in batches:
        made.append(source_rows(*values, first_offset=start))
        start += len(values)
    return made


def offsets_in(letters: pa.RecordBatch) -> list[int]:
    headers = [dict(map(dict.values, row)) for row in letters.column("headers").to_pylist()]
    return [int(row[SOURCE_OFFSET]) for row in headers]


@given(BATCHES, POLICIES, POLICIES)
def test_poison_at_random_places_takes_nobody_along(
    batches: list[list[bytes]], of_first: Policy, of_second: Policy
) -> None:
    """Exactly what would have come without the poison, in order; each poison record by its
    function's own policy; the counts say so."""
    buried: dict[str, list[int]] = {"a": [], "b": []}
    run = FunctionRun(
        [
            _chained("1", first, of_first),
            _chained("2", second, of_second),
        ],
        job_name="job",
    )
    out = list(
        run.applied(
            iter(numbered(batches)), lambda topic, rows: buried[topic].extend(offsets_in(rows))
        )
    )
    kinds = [kind for values in batches for kind in values]
    expected = [at for at, k in enumerate(kinds) for _ in range({GOOD: 1, TWICE: 2}.get(k, 0))]
    assert [at for batch in out for at in batch.column("at").to_pylist()] == expected

    letters: dict[str, list[int]] = {"a": [], "b": []}
    for at, kind in enumerate(kinds):
        policy = {FIRST: of_first, SECOND: of_second}.get(kind)
        if isinstance(policy, DeadLetters):
            letters[policy.topic].append(at)
    assert buried == letters
    kept = [kind for kind in kinds if kind not in (FIRST, SECOND)]
    kept_by_first = {"got": len(kept), "dropped": kept.count(NEVER)} if kept else {}
    assert run.counts == {
        "1": _counts(of_first, len(kinds), kinds.count(FIRST), kept_by_first),
        "2": _counts(
            of_second,
            len(expected) + kinds.count(SECOND),
            kinds.count(SECOND),
            {"got": len(expected)} if expected else {},
        ),
    }


def _chained(name: str, function: ArrowFunction, policy: Policy | None) -> ChainedFunction:
    return ChainedFunction(
        name=name, operator_id=name, function=function, policy=policy, takes_context=True
    )


def _counts(policy: Policy, read: int, failed: int, counters: dict[str, int]) -> RecordCounts:
    if isinstance(policy, DeadLetters):
        return RecordCounts(read=read, dead_lettered=failed, counters=counters)
    return RecordCounts(read=read, skipped=failed, counters=counters)


@given(BATCHES)
def test_without_a_policy_counters_are_those_of_each_call(batches: list[list[bytes]]) -> None:
    """Nothing is called twice, so nothing may count twice."""
    good = [[v for v in values if v not in (FIRST, SECOND)] for values in batches]
    run = FunctionRun([_chained("1", first, None), _chained("2", second, None)])
    list(run.applied(iter(numbered(good)), lambda *_: None))
    values = [value for each in good for value in each]
    got = len(values) + values.count(TWICE) - values.count(NEVER)
    if good:
        assert run.counts["1"].counters == {"got": len(values), "dropped": values.count(NEVER)}
    assert run.counts["2"].counters == ({"got": got} if got else {})
    assert (run.counts["1"].read, run.counts["2"].read) == (len(values), got)
