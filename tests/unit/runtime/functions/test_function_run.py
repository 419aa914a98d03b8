"""Records that a function fails for: found, left out by its policy, counted, or sent as dead letters."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    FunctionFailedError,
    PoisonRecordsError,
    StreamError,
)
from sluice.runtime.functions import dead_letters
from sluice.runtime.functions.dead_letters import MOST_MESSAGE_CHARACTERS, Failure, dead_letter_rows
from sluice.runtime.functions.function_run import (
    ArrowFunction,
    ChainedFunction,
    FunctionRun,
    require_other_topics,
    require_within_limits,
)
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import ALWAYS_LET_THROUGH, DeadLetters, Policy, Skip, policy_of
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.process.failed_tasks import task_failed
from tests.kit.source.source_rows import FIRST_MS, source_rows, values_of

DEAD = DeadLetters(topic="dead")


def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Needs every value to be a number, as a decoder would."""
    column = batch.column("value").cast(pa.string())
    again = column.cast(pa.int64()).cast(pa.string()).cast(pa.binary())
    return batch.set_column(batch.schema.get_field_index("value"), "value", again)


def chained(
    function: ArrowFunction, policy: Policy | None = DEAD, name: str = "f"
) -> ChainedFunction:
    return ChainedFunction(name=name, operator_id=f"id-{name}", function=function, policy=policy)


class Task:
    """One task's functions, and what left them."""

    def __init__(self, *functions: ChainedFunction) -> None:
        self.run = FunctionRun(functions, job_name="job")
        self.buried: list[tuple[str, pa.RecordBatch]] = []

    def write_dead_letter(self, topic: str, letters: pa.RecordBatch) -> None:
        self.buried.append((topic, letters))

    def through(self, *batches: pa.RecordBatch) -> list[bytes | None]:
        return values_of(self.run.applied(iter(batches), self.write_dead_letter))

    def dead(self, topic: str = "dead") -> list[bytes | None]:
        return values_of(letters for named, letters in self.buried if named == topic)


def test_good_records_of_a_failing_batch_continue_in_order_and_once() -> None:
    task = Task(chained(numbers))
    given = [b"1", b"x", b"2", b"3", b"y", b"z", b"4"]
    assert task.through(source_rows(*given), source_rows(b"5")) == [b"1", b"2", b"3", b"4", b"5"]
    assert task.dead() == [b"x", b"y", b"z"]
    assert task.run.counts == {"id-f": RecordCounts(read=8, dead_lettered=3)}


def test_without_a_policy_the_first_error_is_the_functions_own() -> None:
    """Nothing is called again. Its note has the range of the batch, and of no other."""
    task = Task(chained(lambda batch: batch, None, name="first"), chained(numbers, None))
    with pytest.raises(pa.ArrowInvalid) as caught:
        task.through(source_rows(b"1"), source_rows(b"2", b"x", first_offset=10))
    assert task.run.counts == {}
    failed = task_failed("a task failed", caught.value, region="r", attempt_id=1, ranges="wider")
    assert failed.args[1]["source_ranges"] == "orders-3[10,12)"
    assert "ArrowInvalid: " in failed.args[1]["error"]
    assert "source_ranges" not in failed.args[1]["error"]
    assert re.search(r"test_function_run\.py:\d+ in numbers$", failed.args[1]["raised_at"])


def test_an_error_of_a_library_has_no_function_of_the_user() -> None:
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("")
    trace = caught.value.__traceback__
    assert trace is not None
    caught.value.__traceback__ = trace.tb_next  # as if a task had called it
    failed = task_failed("a task failed", caught.value, region="r", attempt_id=1)
    assert "raised_at" not in failed.args[1]


@dataclass
class Parsing:
    """As a source's deserializer: it may be called again under each policy."""

    is_row_wise = True
    calls: int = 0
    fails_for: tuple[bytes, ...] = (b"x",)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        if any(value in self.fails_for for value in values_of([batch])):
            raise ValueError("not a number")
        return batch


@pytest.mark.parametrize("at", [0, 1, 37, 98, 99])
def test_without_a_policy_the_record_of_a_deserializer_is_found(at: int) -> None:
    """By the halves of its batch, although it fails the task."""
    values = [b"x" if n in (at, 99) else b"1" for n in range(100)]
    parsing = Parsing()
    task = Task(chained(lambda batch: batch, None, name="key"), chained(parsing, None))
    with pytest.raises(ValueError, match="not a number") as caught:
        task.through(source_rows(*values, first_offset=10))
    failed = task_failed("a task failed", caught.value, region="r", attempt_id=1)
    assert failed.args[1]["source_ranges"] == "orders-3[10,110)"
    assert failed.args[1]["record"] == f"orders-3@{10 + at}"
    assert failed.args[1]["error"] == "ValueError: not a number"
    assert parsing.calls < 10


@pytest.mark.parametrize("errors", [1, 2])
def test_no_record_is_named_if_none_fails_by_itself(errors: int) -> None:
    """A server of a deserializer was away for a moment; or it does not answer at all."""

    class Busy(Parsing):
        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.calls += 1
            if self.calls == 1:
                raise ValueError("busy")
            if errors > 1:
                raise ConfigError("no server", {}, "Start one.")
            return batch

    with pytest.raises(ValueError, match="busy") as caught:
        Task(chained(Busy(), None)).through(source_rows(b"1", b"2", b"3"))
    assert caught.value.__notes__ == ["sluice: source_ranges=orders-3[0,3)"]


def test_a_function_without_a_policy_fails_the_task_also_after_one_with() -> None:
    task = Task(chained(lambda batch: batch, name="first"), chained(numbers, None, name="second"))
    with pytest.raises(pa.ArrowInvalid):
        task.through(source_rows(b"1", b"x"))
    assert task.buried == []


def test_the_function_that_failed_is_named_and_the_source_record_is_the_letter() -> None:
    def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
        value = pc.binary_join_element_wise(batch.column("value"), b"!", b"")
        return pa.record_batch({"value": value})  # no key, no position

    def no_y(batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"y!" in values_of([batch]):
            raise LookupError("no y")
        return batch

    def no_x(batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"x" in values_of([batch]):
            raise LookupError("no x")
        return batch

    task = Task(
        chained(no_x, Skip(), name="first"),
        chained(exclaim, None, name="second"),
        chained(no_y, DEAD, name="third"),
    )
    assert task.through(source_rows(b"a", b"x", b"y", b"b")) == [b"a!", b"b!"]
    assert task.dead() == [b"y"]
    [(_, letters)] = task.buried
    headers = {entry["key"]: entry["value"] for entry in letters.column("headers")[0].as_py()}
    assert headers["sluice.operator"] == b"third"
    assert headers["sluice.source.offset"] == b"2"
    assert task.run.counts == {
        "id-first": RecordCounts(read=4, skipped=1),
        "id-third": RecordCounts(read=3, dead_lettered=1),
    }


def test_a_failure_of_the_whole_batch_alone_is_an_error_and_not_hidden() -> None:
    """A function that is not row-wise, or failed for a moment: no record may be named as the cause."""

    def sums(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows > 1:
            raise ValueError("too many")
        return batch

    task = Task(chained(sums))
    with pytest.raises(FunctionFailedError, match=r"none of them alone.*operator=f.*too many"):
        task.through(source_rows(b"1", b"2", b"3"))
    assert task.buried == []


def test_a_part_that_fails_without_a_record_to_blame_is_not_hidden_by_another_poison() -> None:
    def fussy(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = values_of([batch])
        if b"x" in values or {b"1", b"2"} <= set(values):
            raise ValueError("either")
        return batch

    with pytest.raises(FunctionFailedError):
        Task(chained(fussy)).through(source_rows(b"1", b"2", b"3", b"x"))


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        MemoryError(),
        FencedError("a newer run", {}, "Stop."),
        StreamError("ours", {}, "Look."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_record_is_to_blame_for_stops_the_task(error: BaseException) -> None:
    """Signals, a full memory, and errors that ask for another reaction."""

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise error

    task = Task(chained(fails))
    with pytest.raises(type(error)):
        task.through(source_rows(b"1"))
    assert task.buried == []


def test_an_error_of_the_dead_letters_writer_is_not_the_functions() -> None:
    """A broker that refuses a dead letter fails the task; nothing is left out for it."""
    run = FunctionRun([chained(numbers)])

    def refusing(topic: str, letters: pa.RecordBatch) -> None:
        raise ValueError("the client's own")

    with pytest.raises(ValueError, match="the client's own"):
        list(run.applied(iter([source_rows(b"x", b"1")]), refusing))


def test_no_function_with_a_policy_sees_an_empty_batch() -> None:
    """A filter before it may leave nothing of a part, which is no failure."""

    def needs_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, batch.num_rows) if batch.column("value")[0].as_py() else batch

    def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pa.array([row % 2 == 1 for row in batch.column("offset").to_pylist()]))

    task = Task(chained(odd, None, "odd"), chained(needs_rows), chained(numbers, DEAD, "numbers"))
    assert task.through(source_rows(b"0", b"x", b"2", b"3"), source_rows(), source_rows(b"4")) == [
        b"3"
    ]
    assert task.dead() == [b"x"]


@pytest.mark.parametrize("policy", [None, Skip(), DEAD])
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (None, "NoneType"),
        ("text", "str"),
        (pa.table({"value": [b"1"]}), "pyarrow.lib.Table"),
        ([source_rows(b"1")], "list"),
    ],
)
def test_a_function_that_returns_no_batch_is_refused_by_name(
    made: pa.RecordBatch, kind: str, policy: Policy | None
) -> None:
    """That is no record's fault, and would come again: under each policy it is asked once."""
    calls: list[int] = []

    def forgetful(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return made

    task = Task(chained(forgetful, policy), chained(lambda batch: batch, None, "behind"))
    with pytest.raises(
        ConfigError, match=rf"return a RecordBatch \[function=f returned={kind}\]"
    ) as said:
        task.through(source_rows(b"1", b"2"))
    assert isinstance(said.value, PERMANENT_ERRORS)
    assert "Return a pyarrow.RecordBatch" in str(said.value)
    assert calls == [2]
    assert task.buried == []


def test_dead_letters_without_their_columns_are_refused_before_the_first_failure() -> None:
    """A misconfigured source shows at once, not with the first poison record."""
    task = Task(chained(numbers))
    with pytest.raises(ConfigError, match="missing=key,topic,partition,offset"):
        task.through(pa.record_batch({"value": pa.array([b"1"])}))
    assert Task(chained(numbers, Skip())).through(
        pa.record_batch({"value": pa.array([b"1", b"x"])})
    ) == [b"1"]


# --- limits and places ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "failed", "max_ratio", "passes"),
    [
        (ALWAYS_LET_THROUGH, ALWAYS_LET_THROUGH, 0.01, True),
        (ALWAYS_LET_THROUGH + 1, ALWAYS_LET_THROUGH + 1, 0.5, False),
        (1000, 500, 0.5, True),
        (1000, 501, 0.5, False),
        (1000, 1000, 1.0, True),
    ],
)
def test_too_many_failures_fail_the_epoch(
    read: int, failed: int, max_ratio: float, passes: bool
) -> None:
    """A broken function must not empty a topic into another one."""
    function = chained(numbers, DeadLetters(topic="dead", max_ratio=max_ratio))
    counts = {"id-f": RecordCounts(read=read, skipped=1, dead_lettered=failed - 1)}
    if passes:
        require_within_limits([function], counts, {}, {}, failed_rows={"id-f": failed})
        return
    said = {"id-f": "x-0@1 ValueError"}
    with pytest.raises(PoisonRecordsError, match=rf"failed={failed} .*first=x-0@1 ValueError"):
        require_within_limits(
            [function], counts, said, {"region": "r"}, failed_rows={"id-f": failed}
        )


def test_the_limit_trips_after_a_function_that_makes_several_rows_of_a_record() -> None:
    """Rows are compared with rows: half as many source records as rows given, all of which failed,
    would be within every ratio from a half on."""

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array([at for at in range(batch.num_rows) for _ in range(2)]))

    def raises(_batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    functions = [chained(twice, None, "twice"), chained(raises, Skip())]
    task = Task(*functions)
    assert task.through(source_rows(*[b"1"] * 200)) == []
    assert task.run.counts == {"id-f": RecordCounts(read=400, skipped=200)}
    assert task.run.failed_rows == {"id-f": 400}
    with pytest.raises(PoisonRecordsError, match="read=400 failed=200 failed_rows=400"):
        require_within_limits(
            functions, task.run.counts, task.run.examples, {}, failed_rows=task.run.failed_rows
        )


def test_a_pipeline_must_not_read_its_own_dead_letters() -> None:
    split = SplitRange(
        source_id="s", topic="dead", topic_id="t", partition=0, start_offset=0, end_offset=1
    )
    require_other_topics([chained(numbers, Skip())], [split])
    with pytest.raises(ConfigError, match="topics=dead"):
        require_other_topics([chained(numbers)], [split])


def test_policies_as_users_say_them() -> None:
    assert policy_of("fail") is None
    assert policy_of("skip") == Skip()
    assert policy_of(DEAD) is DEAD
    for wrong in ("dead-letter", "Skip", ""):
        with pytest.raises(ConfigError, match="DeadLetters"):
            policy_of(wrong)
    for ratio in (0.0, -1.0, 1.01, math.nan):
        with pytest.raises(ConfigError, match="max_ratio"):
            Skip(max_ratio=ratio)
        with pytest.raises(ConfigError, match="max_ratio"):
            DeadLetters(topic="dead", max_ratio=ratio)


FROZEN = {
    "ERROR_CLASS": "sluice.error.class",
    "ERROR_MESSAGE": "sluice.error.message",
    "SOURCE_TOPIC": "sluice.source.topic",
    "SOURCE_PARTITION": "sluice.source.partition",
    "SOURCE_OFFSET": "sluice.source.offset",
    "SOURCE_TIMESTAMP": "sluice.source.timestamp",
    "JOB": "sluice.job",
    "OPERATOR": "sluice.operator",
}


class OddError(Exception):
    """With an exception in its text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def failure(row: int, error: Exception | None = None) -> Failure:
    return Failure.of(error or ValueError("no number"), row=row, operator="parse")


def headers_of(rows: pa.RecordBatch, row: int) -> list[tuple[str, bytes | None]]:
    return [(entry["key"], entry["value"]) for entry in rows.column("headers")[row].as_py()]


def test_the_names_of_the_headers_are_frozen() -> None:
    found: Mapping[str, object] = vars(dead_letters)
    assert {name: found[name] for name in FROZEN} == FROZEN


def test_a_dead_letter_is_the_source_record_with_headers_after_its_own() -> None:
    """Key and value byte for byte; in the order given."""
    given = source_rows(b"\xff\x00", None, b"c", first_offset=40)
    rows = dead_letter_rows(given, [failure(0), failure(1)], job_name="orders")
    assert rows.column("key").to_pylist() == [b"k0", b"k1"]
    assert rows.column("value").to_pylist() == [b"\xff\x00", None]
    assert headers_of(rows, 1) == [
        ("trace", b"1"),
        ("sluice.error.class", b"ValueError"),
        ("sluice.error.message", b"no number"),
        ("sluice.source.topic", b"orders"),
        ("sluice.source.partition", b"3"),
        ("sluice.source.offset", b"41"),
        ("sluice.source.timestamp", b"%d" % (FIRST_MS + 1)),
        ("sluice.job", b"orders"),
        ("sluice.operator", b"parse"),
    ]


def test_the_sink_takes_dead_letters_as_they_are() -> None:
    rows = dead_letter_rows(source_rows(b"a"), [failure(0)], job_name="j")
    columns = RecordColumns.of(rows.schema, "dead")
    assert (columns.partition, columns.timestamp, columns.topic_column) == (None, None, None)
    arguments = columns.arguments(rows)
    assert list(arguments.values) == [b"a"]
    [headers] = arguments.headers
    assert headers is not None
    assert headers[0] == ("trace", b"0")


def test_headers_that_the_source_does_not_read_are_left_out() -> None:
    rows = dead_letter_rows(source_rows(b"a", headers=False), [failure(0)], job_name="j")
    assert next(iter(headers_of(rows, 0)))[0] == "sluice.error.class"


def test_a_record_without_a_timestamp_has_none_in_its_letter() -> None:
    """Kafka says -1; a source may also leave the column out."""
    given = source_rows(b"a")
    at = given.schema.get_field_index("timestamp")
    never = pa.array([-1000], pa.int64()).view(given.schema.field(at).type)
    for batch in (given.set_column(at, "timestamp", never), given.remove_column(at)):
        rows = dead_letter_rows(batch, [failure(0)], job_name="j")
        assert "sluice.source.timestamp" not in dict(headers_of(rows, 0))


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (KeyError("k"), b"KeyError", b"'k'"),
        (ValueError(), b"ValueError", b""),
        (OddError(), b"tests.unit.runtime.functions.test_function_run.OddError", b""),
        (ValueError("half \ud800"), b"ValueError", b"half ?"),
        (ValueError("x" * 5000), b"ValueError", b"x" * MOST_MESSAGE_CHARACTERS),
        (pa.ArrowInvalid("a"), b"pyarrow.lib.ArrowInvalid", b"a"),
    ],
    ids=["builtin", "empty", "without text", "surrogate", "long", "module"],
)
def test_any_exception_fits_into_the_headers(error: Exception, name: bytes, message: bytes) -> None:
    rows = dead_letter_rows(source_rows(b"a"), [failure(0, error)], job_name="j")
    found = dict(headers_of(rows, 0))
    assert (found["sluice.error.class"], found["sluice.error.message"]) == (name, message)
