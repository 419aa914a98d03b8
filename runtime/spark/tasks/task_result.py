"""The answer of one Spark task of a region, which crosses to the driver by pickle."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.errors import StreamError
from sluice.runtime.model.model import RecordCounts, SplitRange, StateEntry

__all__ = ["TaskResult", "without_errors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task's answer: its committables, or the typed error that ended it.

    Attributes:
        ranges: what a chained task was dealt; empty at the end of a transform.
        dropped: it read nothing of them: they are left out.
        committables: of all sinks; empty when nothing was produced.
        decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
        records_out: rows handed to the sinks.
        task: ``partition.attempt`` of the Spark task.
        counts: of the functions that count their records, by operator id.
        examples: a failed record of each in words.
        failed_rows: of the rows that each was given; see `FunctionRun`.
        error: set when the task failed; Spark sees a finished task, so that it is not retried
            against a broker that has already refused, and the error keeps its type.
    """

    ranges: tuple[SplitRange, ...] = ()
    dropped: bool = False
    committables: tuple[StateEntry, ...] = ()
    decide_by_s: float | None = None
    records_out: int = 0
    task: str = ""
    counts: Mapping[str, RecordCounts] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    failed_rows: Mapping[str, int] = field(default_factory=dict)
    error: StreamError | None = None


def without_errors(results: list[TaskResult]) -> list[TaskResult]:
    """``results``; raises the first error a task reported."""
    for result in results:
        if result.error is not None:
            raise result.error
    return results
