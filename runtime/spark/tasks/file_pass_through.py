"""Tasks that pass the rows on from their own writers to Spark's file writers.

The rows are the task's output for Spark, so its result travels in an accumulator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.model.arrow_leaves import infinite_count, leaves
from sluice.runtime.spark.tasks.region_tasks import TaskResult, Writing, without_errors

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

__all__ = ["FilePassThrough", "TaskResults"]


class TaskResults(AccumulatorParam[list[TaskResult]]):
    """A list that grows. Spark counts the one attempt of each task whose files it keeps."""

    def zero(self, value: list[TaskResult]) -> list[TaskResult]:
        """See `AccumulatorParam`."""
        return []

    def addInPlace(self, value1: list[TaskResult], value2: list[TaskResult]) -> list[TaskResult]:
        """See `AccumulatorParam`."""
        return [*value1, *value2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePassThrough:
    """Implements `sluice.runtime.spark.tasks.region_tasks.TaskOutput`: Spark gets the rows.

    Picklable; one for each attempt of a region, so a late task of an earlier attempt adds nothing.

    Attributes:
        columns: schema that a chained task must yield; None if Spark knows the rows' types itself.
        results: an accumulator of `TaskResults`.
    """

    columns: pa.Schema | None
    results: "Accumulator[list[TaskResult]]"

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Executor: ``batch`` in exactly the types that were declared to Spark."""
        if self.columns is None:
            return batch
        same = batch if batch.schema.equals(self.columns) else _cast_batch(batch, self.columns)
        for field, column in zip(self.columns, same.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ConfigError(
                    "a function's column has a null but is declared non-nullable",
                    {"column": field.name, "type": str(field.type)},
                    "Declare it nullable in the function, or fill it.",
                )
        return same

    def deliver(self, writing: Writing) -> Iterator[pa.RecordBatch]:
        """Executor: yield each written batch; then add the result to the accumulator."""
        result = yield from writing
        self.results.add([result])

    def take_results(self) -> list[TaskResult]:
        """Driver, after a batch's write: the results since the last call.

        Raises:
            StreamError: a task reported it.
            IllegalTransitionError: a task has two results, so it ran and wrote twice. Either run
                may have written the files.
        """
        results = without_errors(self.results.value)
        self.results.value = []
        partitions = [result.task.partition(".")[0] for result in results]
        if len(set(partitions)) != len(partitions):
            raise IllegalTransitionError(
                "tasks that write rows to files ran more than once",
                {"tasks": ",".join(sorted(result.task for result in results))},
                "Report this bug with these tasks. No output of this batch becomes visible.",
            )
        return results


def _cast_batch(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    if sorted(batch.schema.names) != sorted(columns.names):
        raise ConfigError(
            "a function's columns differ from those that an empty batch gave",
            {"now": ",".join(batch.schema.names), "empty_batch": ",".join(columns.names)},
            "Return the same columns for all records: files have one schema.",
        )
    cast = [_cast(batch.column(field.name), field) for field in columns]
    return pa.RecordBatch.from_arrays(cast, schema=columns)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """The same values in another type, or an error.

    Arrow's own cast turns a number that is too large into infinity, any number into a boolean and
    a timestamp into a date. It also adds or removes time zones and omits unknown fields of a
    struct. Here only a float may be rounded, to another float.
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
        reason = "a value would change"
    if reason is not None:
        raise _misfit(column, field, reason)
    return made


def _is_another(now: pa.Array, then: pa.Array) -> bool:
    """Whether the cast changed numbers or times: then a cast back does not restore them."""
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
    """Reasons, from the types alone, why Arrow's cast would change values."""
    are = pa.types
    if are.is_timestamp(now) and are.is_timestamp(then) and (now.tz is None) != (then.tz is None):
        yield "one time has a zone and the other has none"
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
        "a function's column has another type than for an empty batch",
        {
            "column": field.name,
            "now": str(column.type),
            "empty_batch": str(field.type),
            "error": str(reason),
        },
        "Return the same types for all records: files have one schema.",
    )
