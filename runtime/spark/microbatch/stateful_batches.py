"""Batches of a query that keeps state: those without records, and replays of a decided one."""

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.errors import StreamError
from sluice.runtime.model.output_modes import COMPLETE
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.process.side_thread import SideThread

__all__ = [
    "ReplayProgress",
    "late_rows",
    "repeats_its_result",
    "tasks_done",
    "wants_another",
    "without_rows",
]

log = logging.getLogger(__name__)

_NO_ROW = "spark_partition_id() < 0"  # the optimizer cannot evaluate it before the plan runs
_REPORT_S = 5.0
_GROUP = "spark.jobGroup.id"
_LATE = "numRowsDroppedByWatermark"  # Spark's metric of each stateful operator


def wants_another(query: StreamingQuery | None, frame: DataFrame) -> bool:
    """Whether the plan of the batch that has just run needs one more batch, also without records.

    It does if its records moved a watermark past a due window, or if it has processing-time timers.

    Call it in the batch's callback, after its rows have run. Spark itself moves the watermark a
    moment later, to the same value, and makes the same decision between two batches if
    ``noDataMicroBatches`` is on (`MicroBatchExecution.constructNextBatch`).

    Args:
        query: that runs the batch; None while it is being started.
        frame: of the batch.
    """
    if query is None:
        return True
    try:
        execution = query._jsq.streamingQuery()  # noqa: SLF001 - PySpark has no public way
        last, tracker = execution.lastExecution(), execution.watermarkTracker()
        tracker.updateWatermark(last.executedPlan())
        next_batch = {
            "batchWatermarkMs": tracker.currentWatermark(),
            "batchTimestampMs": 0,
            "conf": {},
        }
        jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - Spark's own classes
        streaming = jvm.org.apache.spark.sql.execution.streaming
        metadata = streaming.checkpointing.OffsetSeqMetadata
        return bool(last.shouldRunAnotherBatch(metadata.apply(json.dumps(next_batch))))
    except Py4JError as err:  # an unneeded batch has no output, and costs little
        log.warning("Spark did not report whether it needs a batch without records: error=%s", err)
        return True


def late_rows(query: StreamingQuery | None) -> tuple[int, int]:
    """The rows that the stateful operators of the batch have dropped as later than the watermark,
    and the watermark in ms since 1970.

    Call it in the batch's callback, after its rows have run: Spark reports the same number only
    after the callback (`StreamingQueryProgress.stateOperators`).
    """
    if query is None:
        return 0, 0
    try:
        execution = query._jsq.streamingQuery()  # noqa: SLF001 - PySpark has no public way
        rows = _late_in(execution.lastExecution().executedPlan())
        return rows, int(execution.watermarkTracker().currentWatermark()) if rows else 0
    except Py4JError as err:
        log.warning("Spark did not report its late rows: error=%s", err)
        return 0, 0


def _late_in(plan: Any) -> int:  # noqa: ANN401 - py4j's view of a physical plan
    found, children = plan.metrics().get(_LATE), plan.children()
    own = int(found.get().value()) if found.isDefined() else 0
    return own + sum(_late_in(children.apply(at)) for at in range(children.size()))


def repeats_its_result(output_mode: str, splits: Iterable[SplitRange]) -> bool:
    """Whether a batch repeats the whole result: in complete mode, without new records.

    For queries whose result changes with records alone (`RegionSpec.repeats_result`). Spark runs
    no such batch; here a sink may have requested one.
    """
    return output_mode == COMPLETE and all(split.is_empty for split in splits)


def without_rows(frame: DataFrame) -> DataFrame:
    """``frame`` run to its end, as its state needs, with none of its rows."""
    return frame.where(_NO_ROW)


def tasks_done(context: SparkContext) -> Callable[[], int]:
    """A function that counts the finished tasks of this thread's query; call this in the batch's
    callback, where Spark has set the job group."""
    group, tracker = context.getLocalProperty(_GROUP), context.statusTracker()

    def count() -> int:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        infos = [tracker.getStageInfo(stage) for stage in stages]
        return sum(info.numCompletedTasks for info in infos if info is not None)

    return count


class ReplayProgress(SideThread):
    """Reports the progress of a replayed batch whenever it changes, while the context is open.

    Driver; a thread of its own. A failed report does not fail the batch.

    Args:
        done: returns the number of finished tasks.
        report: receives each new number.
        interval_s: between two polls of ``done``.
    """

    def __init__(
        self,
        done: Callable[[], int],
        report: Callable[[int], None],
        *,
        interval_s: float = _REPORT_S,
    ) -> None:
        super().__init__("sluice-replay", stop_s=0.0)
        self._done = done
        self._report = report
        self._interval_s = interval_s

    @property
    def is_reporting(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def _work(self) -> None:
        reported: int | None = None
        while True:
            try:
                done = self._done()
                if done != reported:
                    self._report(done)
                reported = done
            except StreamError as err:  # the attempt is over
                log.debug("replay progress is no longer reported: error=%s", err)
                return
            except Exception:  # for example while the session stops
                log.debug("replay progress is unknown", exc_info=True)
            if self._stopping.wait(self._interval_s):
                return
