"""Poison records at random places: the others once and in order, the poison once and in order."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.functions.dead_letters import SOURCE_OFFSET
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import DeadLetters, Policy, Skip
from tests.kit.source.source_rows import source_rows, values_of

GOOD, TWICE, NEVER, FIRST, SECOND = b"good", b"twice", b"never", b"first", b"second"
"""What becomes of a record: as it is, doubled, filtered out, failed by one of two functions."""

KINDS = st.sampled_from([GOOD, GOOD, GOOD, TWICE, NEVER, FIRST, SECOND])
BATCHES = st.lists(st.lists(KINDS, max_size=12), max_size=5)
POLICIES = st.sampled_from([Skip(), DeadLetters(topic="a"), DeadLetters(topic="b")])


def first(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails, drops and doubles rows, as a row-wise function may."""
    values = values_of([batch])
    if FIRST in values:
        raise ValueError("first")
    rows = [at for at, v in enumerate(values) for _ in range({NEVER: 0, TWICE: 2}.get(v or b"", 1))]
    return batch.take(pa.array(rows, pa.int64()))


def second(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails for some rows, and loses their position."""
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
            ChainedFunction(name="1", operator_id="1", function=first, policy=of_first),
            ChainedFunction(name="2", operator_id="2", function=second, policy=of_second),
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
    assert run.counts == {
        "1": _counts(of_first, len(kinds), kinds.count(FIRST)),
        "2": _counts(of_second, len(expected) + kinds.count(SECOND), kinds.count(SECOND)),
    }


def _counts(policy: Policy, read: int, failed: int) -> RecordCounts:
    if isinstance(policy, DeadLetters):
        return RecordCounts(read=read, dead_lettered=failed)
    return RecordCounts(read=read, skipped=failed)
