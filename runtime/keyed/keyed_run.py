"""Runs a chained pipeline with keyed functions in one task attempt.

The functions before the key get the rows of one split at a time, so that the split of each of
their rows is known. A source's own functions get whole batches, if they return a row for each.
Keyed operators pass rows on with their splits. The functions after the last keyed operator get the
rows of all splits together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    DecodedRows,
    Due,
    KeyBy,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TaskTables,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun, WriteDeadLetter
from sluice.runtime.keyed.key_partitions import KeyPartitions
from sluice.runtime.keyed.row_keys import RowKeys
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.state.split_key import SplitKey
from sluice.runtime.model.state.wide_indexes import with_wide_indexes

__all__ = ["KeyedOperators", "KeyedRun"]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A keyed step; ``operator`` is None for `KeyBy`."""

    function: ChainedFunction
    operator: KeyedOperator | None


class KeyedOperators:
    """The keyed operators of one task attempt. Executor, the task's thread.

    Args:
        functions: of the pipeline, with a `KeyBy` before the first function with state.
        source_id: of the splits.
        tables: the keyed state of the task.
        numbers: of each operator's tables, by operator id and name.
        now_ms, closed_ms, time_column: see `OperatorScope`.
        job_name: for dead letters.
    """

    def __init__(
        self,
        functions: Sequence[ChainedFunction],
        *,
        source_id: str,
        tables: TaskTables,
        numbers: Mapping[str, Mapping[str, int]],
        now_ms: Callable[[], int],
        closed_ms: Callable[[int], int | None] = lambda _: None,
        time_column: str | None = None,
        job_name: str = "",
    ) -> None:
        self._closed_ms, self._time_column, self._now_ms = closed_ms, time_column, now_ms
        keyed = [at for at, function in enumerate(functions) if function.keyed is not None]
        first, end = keyed[0], keyed[-1] + 1
        self.first, self.end = first, end
        self.functions, self.job_name = tuple(functions), job_name
        self.source_id, self.tables = source_id, tables
        self.current: KeyedRun | None = None
        self.key_partitions, self.splits = KeyPartitions(), dict[int, SplitKey]()
        self.stages = tuple(self._opened(each, numbers) for each in functions[first:end])

    def _opened(
        self, function: ChainedFunction, numbers: Mapping[str, Mapping[str, int]]
    ) -> _Stage:
        if function.keyed is None or isinstance(function.keyed, KeyBy):
            _require_keyed(function)
            return _Stage(function, None)
        operator_id = function.operator_id

        def count_late(rows: int) -> None:
            self._run.count(operator_id, RecordCounts(late=rows))

        def count(name: str, n: int) -> None:
            self._run.count(operator_id, RecordCounts(counters={name: n}))

        scope = OperatorScope(
            tables=self.tables,
            numbers=numbers.get(operator_id, {}),
            count_late=count_late,
            write_late=lambda topic, rows: self._run.write_late(topic, rows),
            count=count,
            now_ms=self._now_ms,
            closed_ms=self._closed_ms,
            time_column=self._time_column,
        )
        return _Stage(function, function.keyed.open(scope))

    @property
    def _run(self) -> "KeyedRun":
        assert self.current is not None  # operators run inside an epoch
        return self.current

    def begin_epoch(self, functions: Sequence[ChainedFunction] = ()) -> "KeyedRun":
        """The run of the next epoch; ``functions``: instead of those that are not keyed."""
        self.current = KeyedRun(self, functions or self.functions)
        return self.current

    def rollback(self) -> None:
        """Forget the rows of the epoch under way."""
        for stage in self.stages:
            if stage.operator is not None:
                stage.operator.rollback()

    def due(self) -> Due:
        """When the first of its operators wants a barrier."""
        return Due.first(s.operator.due() for s in self.stages if s.operator is not None)


class KeyedRun:
    """All the functions of a keyed pipeline, over the batches of one epoch; as `FunctionRun`."""

    def __init__(self, operators: KeyedOperators, functions: Sequence[ChainedFunction]) -> None:
        counted = (each.operator_id for each in functions if each.is_counted)
        self.counts = {operator_id: RecordCounts() for operator_id in counted}
        self.examples: dict[str, str] = {}
        self.failed_rows: dict[str, int] = {}
        self._operators = operators
        whole = _row_wise(functions[: operators.first])
        before, after = functions[whole : operators.first], functions[operators.end :]
        self._has_before = bool(before)
        self._whole = FunctionRun(functions[:whole], job_name=operators.job_name)
        self._before = FunctionRun(before, job_name=operators.job_name)
        self._after = FunctionRun(after, job_name=operators.job_name)
        for run in (self._whole, self._before, self._after):  # they count into this run
            run.counts, run.examples, run.failed_rows = self.counts, self.examples, self.failed_rows
        self._write: WriteDeadLetter | None = None

    def applied(
        self, batches: Iterator[pa.RecordBatch], write_dead_letter: WriteDeadLetter
    ) -> Iterator[pa.RecordBatch]:
        """See `FunctionRun.applied`; operators may keep rows for a later batch or barrier."""
        self._write = write_dead_letter
        for batch in batches:
            for rows in self._keyed(batch, write_dead_letter):
                yield from self._out(self._through(rows, 0), write_dead_letter)

    def at_barrier(
        self, time: BarrierTime, write_dead_letter: WriteDeadLetter
    ) -> Iterator[pa.RecordBatch]:
        """The rest of the epoch's output: each operator ends it after those before it."""
        self._write = write_dead_letter
        for at, stage in enumerate(self._operators.stages):
            if stage.operator is None:
                continue
            for rows in _named(stage.function, stage.operator.at_barrier, time):
                yield from self._out(self._through(rows, at + 1), write_dead_letter)

    def count(self, operator_id: str, counts: RecordCounts) -> None:
        """Add to the counts of an operator."""
        self.counts[operator_id] += counts

    def write_late(self, topic: str, rows: pa.RecordBatch) -> None:
        """Write late rows in the epoch's transaction."""
        assert self._write is not None  # operators run inside `applied` or `at_barrier`
        self._write(topic, rows)

    def _out(
        self, made: Iterator[KeyedRows], write_dead_letter: WriteDeadLetter
    ) -> Iterator[pa.RecordBatch]:
        return self._after.applied((rows.batch for rows in made), write_dead_letter)

    def _through(self, rows: KeyedRows, first: int) -> Iterator[KeyedRows]:
        """``rows`` through the keyed stages from ``first`` on."""
        stages = self._operators.stages
        if not rows.batch.num_rows:
            return  # a user's key of no rows may have any type
        if first == len(stages):
            yield rows
            return
        stage = stages[first]
        if stage.operator is None:
            made = _named(stage.function, self._with_keys, stage.function, rows)
        else:
            self.count(stage.function.operator_id, RecordCounts(read=rows.batch.num_rows))
            wide = replace(rows, batch=with_wide_indexes(rows.batch))
            made = _named(stage.function, stage.operator.apply, wide)
        for each in made:
            yield from self._through(each, first + 1)

    # --- the splits of rows ---------------------------------------------------------------------

    def _keyed(
        self, batch: pa.RecordBatch, write_dead_letter: WriteDeadLetter
    ) -> Iterator[KeyedRows]:
        """The output of the functions before the key, with the split of each row."""
        first = self._operators.stages[0].function.keyed
        if isinstance(first, KeyBy) and first.decode is not None:
            yield from map(self._decoded, first.decode(batch))
            return
        splits = self._splits_of(batch)
        (batch,) = self._whole.applied(iter((batch,)), write_dead_letter)
        if not self._has_before:
            yield _unkeyed(batch, splits)
            return
        parts: list[pa.RecordBatch] = []
        numbers: list[npt.NDArray[np.int16]] = []
        for ordinal, part in _by_split(batch, splits):
            for made in self._before.applied(iter((part,)), write_dead_letter):
                parts.append(with_wide_indexes(made))
                numbers.append(np.full(made.num_rows, ordinal, np.int16))
        if parts and all(part.schema == parts[0].schema for part in parts):
            yield _unkeyed(pa.concat_batches(parts), np.concatenate(numbers))
            return
        for made, of_part in zip(parts, numbers, strict=True):
            yield _unkeyed(made, of_part)

    def _splits_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.int16]:
        """The split of each row of a source's batch."""
        names = batch.schema.names
        if "topic" not in names or "partition" not in names:
            raise ConfigError(
                "the source lacks columns that keyed state needs",
                {"missing": "topic, partition", "columns": ",".join(names)},
                "Let the source read topic and partition, too.",
            )
        if not batch.num_rows:
            return np.empty(0, np.int16)
        topics = batch.column("topic").dictionary_encode()
        partitions = batch.column("partition").to_numpy(zero_copy_only=False).astype(np.int64)
        topic_of = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        combined = (topic_of << 32) | partitions
        if combined[0] == combined[-1] and (combined == combined[0]).all():
            found, places = combined[:1], np.zeros(len(combined), np.int64)
        else:
            found, places = np.unique(combined, return_inverse=True)
        names_of = topics.dictionary.to_pylist()
        ordinals = [
            self._ordinal(names_of[each >> 32], each & 0xFFFFFFFF) for each in found.tolist()
        ]
        return np.array(ordinals, np.int16)[places]

    def _decoded(self, rows: DecodedRows) -> KeyedRows:
        """Rows of a repartition topic."""
        found, places = np.unique(rows.partitions, return_inverse=True)
        ordinals = [self._ordinal(rows.topic, each) for each in found.tolist()]
        return KeyedRows(
            batch=rows.batch,
            splits=np.array(ordinals, np.int16)[places],
            keys=rows.keys,
            key_schema=rows.key_schema,
        )

    def _ordinal(self, topic: str, partition: int) -> int:
        key = self._operators.source_id, topic, partition
        ordinal = self._operators.tables.ordinal(key)
        self._operators.splits[ordinal] = key
        return ordinal

    def _with_keys(self, function: ChainedFunction, rows: KeyedRows) -> Iterator[KeyedRows]:
        """The rows with the encoded key of each; those of a repartition topic have it already."""
        key_by = function.keyed
        assert isinstance(key_by, KeyBy)
        if key_by.decode is not None:
            yield rows
            return
        keys, schema = RowKeys(key_by, function.name)(rows.batch)
        rows = replace(rows, keys=keys, key_schema=schema)
        operators = self._operators
        if key_by.partitioned:
            operators.key_partitions.require_one_each(rows, operators.splits, function)
        yield rows


def _named(
    function: ChainedFunction, call: Callable[..., Iterator[KeyedRows]], *given: object
) -> Iterator[KeyedRows]:
    """The rows of a call; its errors name the function."""
    try:
        yield from call(*given)
    except ConfigError as err:
        what, where, remedy = err.args
        if function.name not in where.values():
            err.args = what, {"function": function.name, **where}, remedy
        raise


def _row_wise(functions: Sequence[ChainedFunction]) -> int:
    """How many of the first functions return one row for each: those of a source, such as
    deserializers. They may get the rows of all splits together."""
    for at, function in enumerate(functions):
        if function.policy is not None or not getattr(function.function, "is_row_wise", False):
            return at
    return len(functions)


def _unkeyed(batch: pa.RecordBatch, splits: npt.NDArray[np.int16]) -> KeyedRows:
    """Rows before their `KeyBy`."""
    keys = pa.nulls(batch.num_rows, pa.large_binary())
    return KeyedRows(batch=batch, splits=splits, keys=keys, key_schema=pa.schema([]))


def _by_split(
    batch: pa.RecordBatch, splits: npt.NDArray[np.int16]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each split, in order."""
    present = np.unique(splits)
    if len(present) <= 1:
        for ordinal in present.tolist():
            yield ordinal, batch
        return
    order = np.argsort(splits, kind="stable")
    bounds = np.searchsorted(splits[order], present, side="right").tolist()
    is_sorted = bool((order[1:] > order[:-1]).all())
    rows = batch if is_sorted else batch.take(pa.array(order))
    start = 0
    for ordinal, end in zip(present.tolist(), bounds, strict=True):
        yield ordinal, rows.slice(start, end - start)
        start = end


def _require_keyed(function: ChainedFunction) -> None:
    if function.keyed is None:
        raise ConfigError(
            "a function is between two keyed functions",
            {"function": function.name},
            "Call key_by again after it, with a repartition topic: its rows have no split.",
        )
