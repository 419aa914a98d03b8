"""Rows that go on from the tasks' own writers to Spark's, and the tasks' answers beside them."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.model.arrow_leaves import infinite_count, leaves
from sluice.runtime.spark.tasks.task_result import TaskResult, without_errors

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

__all__ = ["FilePassThrough", "TaskAnswers"]


class TaskAnswers(AccumulatorParam[list[TaskResult]]):
    """A list that grows. Spark counts each task of a write once.

    It counts the attempt that it takes as done, which is the one whose files it keeps.
    """

    def zero(self, value: list[TaskResult]) -> list[TaskResult]:
        """See `AccumulatorParam`."""
        return []

    def addInPlace(self, value1: list[TaskResult], value2: list[TaskResult]) -> list[TaskResult]:
        """See `AccumulatorParam`."""
        return [*value1, *value2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePassThrough:
    """How a region's rows go on, and what its tasks have to say. Picklable; one for each life.

    Attributes:
        columns: what a chained task must yield; None where Spark knows.
        answers: an accumulator of `TaskAnswers`.
    """

    columns: pa.Schema | None
    answers: "Accumulator[list[TaskResult]]"

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Executor: ``batch`` with exactly the types that Spark was told."""
        if self.columns is None:
            return batch
        told = batch if batch.schema.equals(self.columns) else self._as_told(batch, self.columns)
        for field, column in zip(self.columns, told.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ConfigError(
                    "a function's column has a null, and is declared to have none",
                    {"column": field.name, "type": str(field.type)},
                    "Declare it nullable in the function, or fill it.",
                )
        return told

    def _as_told(self, batch: pa.RecordBatch, told: pa.Schema) -> pa.RecordBatch:
        if sorted(batch.schema.names) != sorted(told.names):
            raise ConfigError(
                "a function's columns are not those that it gave for an empty batch",
                {"now": ",".join(batch.schema.names), "then": ",".join(told.names)},
                "Files have one schema: give the same columns whatever the records are.",
            )
        columns = [_cast(batch.column(field.name), field) for field in told]
        return pa.RecordBatch.from_arrays(columns, schema=told)

    def on(self, writing: Generator[pa.RecordBatch, None, TaskResult]) -> Iterator[pa.RecordBatch]:
        """Executor: yield what was written; then leave the answer."""
        result = yield from writing
        self.answers.add([result])

    def take(self) -> list[TaskResult]:
        """Driver, when a batch's write is over: the answers since the last call.

        Raises:
            StreamError: what a task reported; or a task answered twice, so it ran twice and wrote
                twice, and which of the two the files are of is not known.
        """
        results = without_errors(self.answers.value)
        self.answers.value = []
        partitions = [result.task.partition(".")[0] for result in results]
        if len(set(partitions)) != len(partitions):
            raise IllegalTransitionError(
                "tasks that hand their rows on to files ran more than once",
                {"tasks": ",".join(sorted(result.task for result in results))},
                "Nothing of it becomes visible. This is a bug: please report it with these tasks.",
            )
        return results


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """The same values in another type, or an error.

    Arrow alone makes an infinity of a number that is too large, true of any number, and a date of
    a moment, takes a time's zone away or adds one, and leaves out the fields of a struct that it
    finds no place for. Only a float may be rounded, to another float.
    """
    if column.type == field.type:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        made = column.cast(field.type)
    except pa.ArrowException as err:
        raise _misfit(column, field, err) from err
    reason = next(_differences(column.type, field.type), None)
    if reason is None and infinite_count(made) != infinite_count(column):
        reason = "a number is too large"
    if reason is None and any(map(_is_another, leaves(column), leaves(made))):
        reason = "a value would be another one"
    if reason is not None:
        raise _misfit(column, field, reason)
    return made


def _is_another(now: pa.Array, then: pa.Array) -> bool:
    """Whether numbers, or times, have become others: then they do not come back either."""
    kinds = (now.type, then.type)
    are_floats = all(map(pa.types.is_floating, kinds))
    if now.type == then.type or are_floats or not all(map(_is_plain, kinds)):
        return False
    try:
        return not then.cast(now.type).equals(now)
    except pa.ArrowException:
        return True


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _differences(now: pa.DataType, then: pa.DataType) -> Iterator[str]:
    """In what a cast that Arrow does would give other values, by the types alone."""
    are = pa.types
    if are.is_timestamp(now) and are.is_timestamp(then) and (now.tz is None) != (then.tz is None):
        yield "a time with a zone is none without"
    if are.is_struct(now) and are.is_struct(then):
        mine, theirs = ({each.name: each.type for each in kind} for kind in (now, then))
        if mine.keys() != theirs.keys():
            yield "a struct has other fields"
        for name in mine.keys() & theirs.keys():
            yield from _differences(mine[name], theirs[name])
    elif now.num_fields == then.num_fields == 1:  # lists and maps
        yield from _differences(now.field(0).type, then.field(0).type)


def _misfit(column: pa.Array, field: pa.Field, reason: object) -> ConfigError:
    return ConfigError(
        "a function's column does not have the type that it had for an empty batch",
        {
            "column": field.name,
            "now": str(column.type),
            "then": str(field.type),
            "error": str(reason),
        },
        "Files have one schema: give the same types whatever the records are.",
    )
