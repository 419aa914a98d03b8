"""Tasks that pass the rows on from their own writers to Spark's file writers.

The rows are the task's output for Spark, so its result travels in an accumulator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.model.arrow_leaves import missing_part
from sluice.runtime.model.value_casts import cast_values
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
            missing = missing_part(column, field)
            if missing is not None:
                raise ConfigError(
                    "a function's column has a null but is declared non-nullable",
                    {"column": missing, "type": str(field.type)},
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
    try:
        return cast_values(column, field.type)
    except (ValueError, pa.ArrowException) as err:
        raise _misfit(column, field, err) from err


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
