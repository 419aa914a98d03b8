"""Runs the functions of one task, and isolates the records that they fail for.

Functions get whole batches. If one raises that has a policy, the source's batch is halved. Each
half passes all functions up to the last one with a policy again, until only single failing records
are left. These are skipped or become dead letters; all other records keep their order. So a
function with such a policy, and each function before it, must be

- deterministic: for the same rows it returns the same rows, or raises again;
- row-wise: its output for a batch is its output for the parts of the batch, in order (it may drop
  and add rows), and an empty batch gives no rows.

If a batch fails although each half of it passes, the function is not row-wise, which is an error.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime, KeyBy, KeyedFunction
from sluice.runtime.errors import ConfigError, FunctionFailedError, PoisonRecordsError, StreamError
from sluice.runtime.functions.broadcasts import Broadcast, Tables
from sluice.runtime.functions.dead_letters import NEEDED_COLUMNS, Failure, dead_letter_rows
from sluice.runtime.functions.function_context import FunctionContext, require_few
from sluice.runtime.functions.operator_state import OperatorState, StateList
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import ALWAYS_LET_THROUGH, DeadLetters, Policy
from sluice.runtime.model.splits import SplitRange, ranges_text
from sluice.runtime.process.failed_tasks import note_ranges

__all__ = [
    "ArrowFunction",
    "ChainedFunction",
    "FunctionRun",
    "WriteDeadLetter",
    "dead_letter_topics",
    "require_other_topics",
    "require_within_limits",
]

ArrowFunction = (
    Callable[[pa.RecordBatch], pa.RecordBatch]
    | Callable[[pa.RecordBatch, FunctionContext], pa.RecordBatch]
)
WriteDeadLetter = Callable[[str, pa.RecordBatch], None]
"""Writes dead letters to a topic; see `sluice.runtime.contracts.DeadLetterWriter`."""

_MOST_EXAMPLE_CHARACTERS = 300
_NO_COUNTERS: Mapping[str, int] = {}
_POSITION = frozenset({"topic", "partition", "offset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedFunction:
    """One function of a chained pipeline. Picklable as far as the function is.

    Attributes:
        name, operator_id: of the operator.
        function: the user's; None: of a keyed one.
        policy: None: its first error fails the task.
        takes_context: it has a second parameter, for a `FunctionContext`.
        keyed: how rows get their key, or a function with keyed state (`KeyedRun`); None: neither.
        state: the declared operator state; None: it has none.
        list: the rows of that state, in a task; see `FunctionStates`.
        broadcasts: the broadcast streams that it reads.
        tables: their tables, in a task.
    """

    name: str
    operator_id: str
    function: ArrowFunction | None = None
    policy: Policy | None = None
    takes_context: bool = False
    keyed: KeyBy | KeyedFunction | None = None
    state: OperatorState | None = None
    list: StateList | None = None
    broadcasts: tuple[Broadcast, ...] = ()
    tables: Tables | None = None

    @property
    def is_counted(self) -> bool:
        """Whether its records are counted: it has a policy, or may have counters or late rows."""
        is_stateful = self.keyed is not None and not isinstance(self.keyed, KeyBy)
        return self.policy is not None or self.takes_context or is_stateful

    def call(self, rows: pa.RecordBatch) -> tuple[object, Mapping[str, int]]:
        """Its result for these rows, and the increments of its counters."""
        function = cast(Any, self.function)
        if not self.takes_context:
            return function(rows), _NO_COUNTERS
        context = FunctionContext(self.name, self.list, self.tables)
        try:
            return function(rows, context), context.close()
        finally:
            context.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """A function raised for a batch.

    ``given``: number of input rows of each function up to it.
    """

    function: ChainedFunction
    error: Exception
    given: Sequence[int]


class FunctionRun:
    """All the functions of a pipeline, over the batches of one task. Executor, one thread.

    Attributes:
        counts: so far, by operator id of the functions that are counted.
        examples: a description of the first failure of each, for the message of an error.
        failed_rows: input rows of the records that each function failed for. They are more than
            its `counts` if a function before it makes several rows of a record.
    """

    def __init__(self, functions: Sequence[ChainedFunction] = (), *, job_name: str = "") -> None:
        tolerant = max(
            (at + 1 for at, f in enumerate(functions) if f.policy is not None), default=0
        )
        self._functions = tuple(functions[:tolerant])  # a failing batch passes them again
        self._once = tuple(functions[tolerant:])
        self._job_name = job_name
        self.counts = {f.operator_id: RecordCounts() for f in functions if f.is_counted}
        self.examples: dict[str, str] = {}
        self.failed_rows: dict[str, int] = {}

    def applied(
        self, batches: Iterator[pa.RecordBatch], write_dead_letter: WriteDeadLetter
    ) -> Iterator[pa.RecordBatch]:
        """The functions' output for the source's batches, in order. Dead letters go to
        ``write_dead_letter``, also in order, after the rows of their batch.

        Raises:
            Exception: from a function without a policy.
            StreamError: from any function: it needs another reaction than a skipped record.
            FunctionFailedError: a batch fails, and its single records pass.
            ConfigError: a function returns no batch, or the source lacks a column that dead
                letters need.
        """
        for batch in batches:
            parts = self._tolerated(batch, write_dead_letter) if self._functions else (batch,)
            for made in parts:
                yield self._through_once(made, batch)

    def _through_once(self, made: pa.RecordBatch, source: pa.RecordBatch) -> pa.RecordBatch:
        for function in self._once:
            given = made.num_rows
            made, counters = _call(function, made, source)
            if function.is_counted:
                self._count(function, RecordCounts(read=given, counters=counters))
        return made

    def at_barrier(
        self, time: BarrierTime, write_dead_letter: WriteDeadLetter
    ) -> Iterator[pa.RecordBatch]:
        """The rest of the epoch's output: there is none without keyed functions (`KeyedRun`)."""
        yield from ()

    def _tolerated(
        self, batch: pa.RecordBatch, write_dead_letter: WriteDeadLetter
    ) -> Iterator[pa.RecordBatch]:
        topics = dead_letter_topics(self._functions)
        if topics:
            _require_source_columns(batch)
        letters: dict[str, list[Failure]] = {topic: [] for topic in topics}
        yield from self._parts(batch, 0, batch.num_rows, letters)
        for topic, failures in letters.items():
            if failures:
                write_dead_letter(topic, dead_letter_rows(batch, failures, job_name=self._job_name))

    def _parts(
        self, batch: pa.RecordBatch, start: int, rows: int, letters: Mapping[str, list[Failure]]
    ) -> Iterator[pa.RecordBatch]:
        """The output for ``rows`` rows from ``start``, in one batch or in several."""
        whole, failed = self._through(batch.slice(start, rows))
        if whole is not None:
            yield whole
        if failed is None:
            return
        if rows == 1:
            self._apply_policy(batch, start, failed, letters)
            return
        known, half = self._failures(), rows // 2
        yield from self._parts(batch, start, half, letters)
        yield from self._parts(batch, start + half, rows - half, letters)
        if self._failures() == known:
            raise _not_row_wise(batch, start, rows, failed) from failed.error

    def _through(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, _Failed | None]:
        """The output of the last function, or the failure; neither if no row is left."""
        given: list[int] = []
        counted: list[Mapping[str, int]] = []
        made = batch
        for function in self._functions:
            if not made.num_rows:
                break
            given.append(made.num_rows)
            try:
                made, counters = _call(function, made, batch)
            except (StreamError, MemoryError):
                raise  # no record has caused it
            except Exception as err:
                if function.policy is None:
                    raise
                return None, _Failed(function=function, error=err, given=given)
            counted.append(counters)
        self._count_given(given)
        for function, counters in zip(self._functions, counted, strict=False):
            self._count(function, RecordCounts(counters=counters))
        return (made if made.num_rows else None), None

    def _apply_policy(
        self,
        batch: pa.RecordBatch,
        row: int,
        failed: _Failed,
        letters: Mapping[str, list[Failure]],
    ) -> None:
        """Apply the policy of the function that raised to one record that failed by itself."""
        self._count_given(failed.given)
        function = failed.function
        known = self.failed_rows.get(function.operator_id, 0)
        self.failed_rows[function.operator_id] = known + failed.given[-1]
        failure = Failure.of(failed.error, row=row, operator=function.name)
        if isinstance(function.policy, DeadLetters):
            letters[function.policy.topic].append(failure)
            self._count(function, RecordCounts(dead_lettered=1))
        else:
            self._count(function, RecordCounts(skipped=1))
        if function.operator_id not in self.examples:
            text = f"{_position(batch, row)} {failure.error_class}: {failure.error_message}"
            self.examples[function.operator_id] = text[:_MOST_EXAMPLE_CHARACTERS].strip()

    def _count_given(self, given: Sequence[int]) -> None:
        for function, rows in zip(self._functions, given, strict=False):  # later ones did not run
            self._count(function, RecordCounts(read=rows))

    def _count(self, function: ChainedFunction, counts: RecordCounts) -> None:
        if function.is_counted:
            self.counts[function.operator_id] += counts
            require_few(self.counts[function.operator_id].counters, function=function.name)

    def _failures(self) -> int:
        return sum(counts.failed for counts in self.counts.values())


def dead_letter_topics(functions: Sequence[ChainedFunction]) -> tuple[str, ...]:
    """Topics that the functions' policies name, and those of late rows, each once."""
    found = [f.policy.topic for f in functions if isinstance(f.policy, DeadLetters)]
    keyed = [f.keyed for f in functions if not isinstance(f.keyed, KeyBy | None)]
    late = [each.late_topic for each in keyed if each.late_topic is not None]
    return tuple(dict.fromkeys([*found, *late]))


def require_other_topics(
    functions: Sequence[ChainedFunction], splits: Sequence[SplitRange]
) -> None:
    """Dead letters must not be read again by the pipeline that writes them.

    Raises:
        ConfigError: one of the splits is of a dead-letter topic.
    """
    again = sorted({split.topic for split in splits} & set(dead_letter_topics(functions)))
    if again:
        raise ConfigError(
            "a pipeline reads the topic that it writes its dead letters to",
            {"topics": ",".join(again)},
            "Use another dead-letter topic: these letters would fail and be written forever.",
        )


def require_within_limits(
    functions: Sequence[ChainedFunction],
    counts: Mapping[str, RecordCounts],
    examples: Mapping[str, str],
    where: Mapping[str, object],
    *,
    failed_rows: Mapping[str, int],
) -> None:
    """Refuse an epoch with too many failed records.

    Args:
        counts: of the epoch, by operator id.
        examples: a description of one failure of each operator.
        where: for the message.
        failed_rows: of the epoch, by operator id; see `FunctionRun`.
    Raises:
        PoisonRecordsError: more failed than a policy allows.
    """
    for function in functions:
        found = counts.get(function.operator_id)
        if function.policy is None or found is None or found.failed <= ALWAYS_LET_THROUGH:
            continue
        rows = failed_rows.get(function.operator_id, 0)
        if rows > function.policy.max_ratio * found.read:
            raise PoisonRecordsError(
                "a function failed for more records of an epoch than max_ratio",
                {
                    "operator": function.name,
                    "read": found.read,
                    "failed": found.failed,
                    "failed_rows": rows,
                    "max_ratio": function.policy.max_ratio,
                    "first": examples.get(function.operator_id, "unknown"),
                    **where,
                },
                "Correct the function or the records, or raise max_ratio. No record and no dead "
                "letter of this epoch becomes visible.",
            )


def _call(
    function: ChainedFunction, rows: pa.RecordBatch, source: pa.RecordBatch
) -> tuple[pa.RecordBatch, Mapping[str, int]]:
    """The function's output for ``rows``, which the functions before it made of ``source``, and its
    counters. An error that ends the task has the ranges of ``source``, and the record if it is a
    deserializer's.
    """
    try:
        made, counters = function.call(rows)
    except StreamError:
        raise
    except Exception as err:
        if function.policy is None:
            record = _failing_record(function, rows, source)
            note_ranges(err, ranges_text(_ranges_of(source)), record=record)
        raise
    return _require_batch(made, function), counters


def _failing_record(function: ChainedFunction, rows: pa.RecordBatch, source: pa.RecordBatch) -> str:
    """The first record that the function fails for by itself. Empty if there is none, or if the
    function may not be called again: without a policy only a source's own functions may."""
    if not getattr(function.function, "is_row_wise", False) or rows.num_rows != source.num_rows:
        return ""
    start, count = 0, rows.num_rows
    while count > 1:
        half = count // 2
        if _raises(function, rows.slice(start, half)):
            count = half
        else:
            start, count = start + half, count - half
    return _position(source, start) if _raises(function, rows.slice(start, 1)) else ""


def _raises(function: ChainedFunction, rows: pa.RecordBatch) -> bool:
    try:
        function.call(rows)
    except StreamError:
        return False  # no record has caused it
    except Exception:  # noqa: BLE001 - any error of a deserializer
        return True
    return False


def _ranges_of(source: pa.RecordBatch) -> list[SplitRange]:
    """The range of each partition in a source's batch; none if the source does not read them."""
    if not _POSITION.issubset(source.schema.names):
        return []
    positions = pa.Table.from_batches([source.select(["topic", "partition", "offset"])])
    bounds = positions.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max")]
    )
    return [
        SplitRange(
            source_id="",
            topic=row["topic"],
            topic_id="",
            partition=row["partition"],
            start_offset=row["offset_min"],
            end_offset=row["offset_max"] + 1,
        )
        for row in bounds.to_pylist()
    ]


def _require_batch(made: object, function: ChainedFunction) -> pa.RecordBatch:
    """No record causes a wrong return type, so a policy does not apply, and a restart would not
    help."""
    if isinstance(made, pa.RecordBatch):
        return made
    raise ConfigError(
        "a function of map_batches did not return a RecordBatch",
        {"function": function.name, "returned": _type_name(made)},
        "Return a pyarrow.RecordBatch; without rows if there is nothing to write.",
    )


def _type_name(value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _require_source_columns(batch: pa.RecordBatch) -> None:
    missing = [name for name in NEEDED_COLUMNS if name not in batch.schema.names]
    if missing:
        raise ConfigError(
            "the source lacks columns that dead letters need",
            {"missing": ",".join(missing), "columns": ",".join(batch.schema.names)},
            "Let the source read the missing columns, too.",
        )


def _not_row_wise(
    batch: pa.RecordBatch, start: int, rows: int, failed: _Failed
) -> FunctionFailedError:
    failure = Failure.of(failed.error, row=start, operator=failed.function.name)
    return FunctionFailedError(
        "a function fails for records together and for none of them alone",
        {
            "operator": failure.operator,
            "rows": rows,
            "first": _position(batch, start),
            "error": f"{failure.error_class}: {failure.error_message}"[:_MOST_EXAMPLE_CHARACTERS],
        },
        "Make the function deterministic and row-wise, as skip and dead letters require, or use "
        "on_error='fail'. No record of this epoch becomes visible.",
    )


def _position(batch: pa.RecordBatch, row: int) -> str:
    """``topic-partition@offset`` of a source's row; empty if the source does not read them."""
    if not _POSITION.issubset(batch.schema.names):
        return ""
    topic, partition, offset = (
        batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
    )
    return f"{topic}-{partition}@{offset}"
