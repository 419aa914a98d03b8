"""Batches without records of a query that keeps state: when Spark wants one, and when not."""

import json
import logging
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.model.model import SplitRange
from sluice.runtime.model.output_modes import COMPLETE

__all__ = ["repeats_its_result", "wants_another", "without_rows"]

log = logging.getLogger(__name__)

_NO_ROW = "spark_partition_id() < 0"  # nothing that the optimizer could tell without running it


def wants_another(query: StreamingQuery | None, frame: DataFrame) -> bool:
    """Whether the plan of the batch that has just run asks for one more, also without records: its
    records have moved a watermark behind which something is due, or it has processing-time timers.

    To be asked in the batch's callback, once its rows have been run: Spark itself moves the
    watermark a moment later, to the same place. As Spark does between two batches, where
    ``noDataMicroBatches`` is on (`MicroBatchExecution.constructNextBatch`).

    Args:
        query: that runs the batch; None: it is being started, and nobody has it yet.
        frame: of the batch.
    """
    if query is None:
        return True
    try:
        execution = query._jsq.streamingQuery()  # noqa: SLF001 - PySpark has no public way
        last, tracker = execution.lastExecution(), execution.watermarkTracker()
        tracker.updateWatermark(last.executedPlan())
        said = {"batchWatermarkMs": tracker.currentWatermark(), "batchTimestampMs": 0, "conf": {}}
        jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - Spark's own classes
        streaming = jvm.org.apache.spark.sql.execution.streaming
        metadata = streaming.checkpointing.OffsetSeqMetadata
        return bool(last.shouldRunAnotherBatch(metadata.apply(json.dumps(said))))
    except Py4JError as err:  # one that is not wanted gives nothing, and costs a batch
        log.warning("whether Spark wants a batch without records is not known: error=%s", err)
        return True


def repeats_its_result(output_mode: str, splits: Iterable[SplitRange]) -> bool:
    """Whether a batch has no news: in complete mode its rows are the whole result. To be asked
    where that changes with records alone (`repeats_result`):
    Spark runs no such batch then, and here a sink may have asked for it."""
    return output_mode == COMPLETE and all(split.is_empty for split in splits)


def without_rows(frame: DataFrame) -> DataFrame:
    """``frame`` run to its end, as its state needs, with none of its rows."""
    return frame.where(_NO_ROW)
