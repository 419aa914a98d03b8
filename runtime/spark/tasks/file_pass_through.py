"""Tasks that pass the rows on from their own writers to Spark's file writers.

The rows are the task's output for Spark, so its result travels in an accumulator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.functions.declared_types import with_declared_types
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
        return batch if self.columns is None else with_declared_types(batch, self.columns)

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
