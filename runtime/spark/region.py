"""One region of a Job as one Spark streaming query."""

import logging
import threading
import time
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from runtime import offsets
from runtime.checkpoint.file_system import FileSystem
from runtime.contracts import Coordinator
from runtime.errors import FencedError
from runtime.failpoints import failpoint
from runtime.model import Acknowledgement, Barrier, BatchKey, RegionRecord
from runtime.spark import query_logs
from runtime.spark.session import own_workers
from runtime.spark.state import StateDescriber
from runtime.spark.tasks import (
    RESULT_SCHEMA,
    RegionTasks,
    require_each_range_once,
    results_of,
    sink_task,
)

__all__ = ["RegionQuery", "RegionSpec"]

log = logging.getLogger(__name__)

_LOG_TIMEOUT_S = 5.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """All that one run of a region needs to know.

    Attributes:
        tasks: what its tasks share: whose query this is, and its sinks.
        location: Spark's checkpoint location for this query, relative to the job's.
        source_name: Spark's name of the source, the key in its offset log.
        chained: the frame's rows are the tasks' results already, not records to be written.
        stateful: the frame keeps state: a decided batch that Spark replays runs into ``noop``.
        output_mode: Spark's, for a stateful frame; else ``append``.
    """

    tasks: RegionTasks
    location: str
    source_name: str
    chained: bool
    stateful: bool
    output_mode: str


class RegionQuery:
    """Runs a region until it is stopped or fails. Driver.

    `start` and `stop` are called by the job's thread; the batch callback runs in the one thread
    in which Spark calls back into Python, one batch at a time.
    """

    def __init__(self, spec: RegionSpec, coordinator: Coordinator, fs: FileSystem) -> None:
        self._spec = spec
        self._coordinator = coordinator
        self._fs = fs
        self._state = StateDescriber(fs, spec.location) if spec.stateful else None
        self._stopping = threading.Event()
        self._query: StreamingQuery | None = None
        self._returned: int | None = None  # last batch id whose callback returned normally
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        """The region's name."""
        return self._spec.tasks.region

    def start(self, frame: DataFrame) -> None:
        """Start the query over ``frame``, the region's functions applied (or run in its read).

        Inside `runtime.spark.session.query_settings`.
        """
        self._query = (
            frame.writeStream.foreachBatch(self._on_batch)
            .queryName(f"{self._spec.tasks.region}.{self._spec.tasks.generation}")
            .outputMode(self._spec.output_mode if self._spec.stateful else "append")
            .option("checkpointLocation", f"{self._fs.uri}/{self._spec.location}")
            .start()
        )

    @property
    def is_active(self) -> bool:
        """Whether Spark still runs the query."""
        return self._query is not None and self._query.isActive

    def prepare_stop(self) -> None:
        """What the callback raises from here on is the stop's doing, not a failure."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop the query; the caller has woken its callback first (rule 12)."""
        if self._query is not None:
            self._let_spark_log()
            self._query.stop()

    def _let_spark_log(self) -> None:
        """Give Spark a moment to write its commit log: a stop would interrupt it, loudly."""
        deadline_s = time.monotonic() + _LOG_TIMEOUT_S
        entry = f"{self._spec.location}/commits/{self._returned}"
        while self._returned is not None and self.is_active and time.monotonic() < deadline_s:
            if self._fs.exists(entry):
                return
            time.sleep(_POLL_S)  # Spark tells nobody when it has written its commit log

    def failure(self) -> BaseException | None:
        """Why the query ended, the typed error where there is one."""
        if self.error is not None:
            return self.error
        return None if self._query is None else self._query.exception()

    # --- the batch callback -----------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._run_batch(frame, batch_id)
            self._returned = batch_id
        except BaseException as err:  # noqa: BLE001 - kept here whole, Spark gets its name alone
            self._keep(err)
            # Spark matches the text of this error with a regular expression that overflows the
            # stack on a long one, so it gets a short one without a cause.
            raise RuntimeError(f"region {self._spec.tasks.region}: {type(err).__name__}") from None

    def _keep(self, err: BaseException) -> None:
        if self._stopping.is_set():
            log.debug("batch ended by stop: region=%s error=%s", self._spec.tasks.region, err)
            return
        self.error = err
        self._coordinator.fail(self._spec.tasks.region, self._spec.tasks.generation, err)

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        spec, tasks = self._spec, self._spec.tasks
        offset = query_logs.read_offset(self._fs, spec.location, batch_id, spec.source_name)
        barrier = offsets.decode(offset)
        batch = BatchKey(region=tasks.region, generation=barrier.generation, batch_id=batch_id)
        if offsets.is_initial(offset) or self._coordinator.is_decided(batch):
            self._replay_state(frame)
            return
        if barrier.generation != tasks.generation:
            raise FencedError(
                "Spark replays a batch that an earlier life of this region cut and nobody decided",
                {"region": tasks.region, "batch_id": batch_id, "generation": barrier.generation},
                "Restart the job: the region's logs are rewound at start.",
            )
        self._pre_commit(frame, batch, barrier)
        self._coordinator.await_committed(batch)
        failpoint("before-return")

    def _replay_state(self, frame: DataFrame) -> None:
        """Nothing is written for this batch; Spark still has to commit its state version."""
        if self._spec.stateful:
            frame.write.format("noop").mode("overwrite").save()

    def _pre_commit(self, frame: DataFrame, batch: BatchKey, barrier: Barrier) -> None:
        rows = self._results(frame, barrier).collect()
        results = results_of(rows)
        if self._spec.chained:
            require_each_range_once(results, barrier)
        region = RegionRecord(
            region=batch.region,
            generation=batch.generation,
            query_id="" if self._query is None else self._query.id,
            batch_id=batch.batch_id,
            splits=barrier.splits,
            committables=tuple(entry for result in results for entry in result.committables),
            least_watermark_ms=_least_watermark_ms(barrier),
            state=None if self._state is None else self._state.after(batch.batch_id),
        )
        self._coordinator.acknowledge(
            Acknowledgement(batch=batch, checkpoint_id=barrier.checkpoint_id, region=region)
        )

    def _results(self, frame: DataFrame, barrier: Barrier) -> DataFrame:
        """The frame whose rows are the tasks' results; to collect it is to run the tasks."""
        if self._spec.chained:
            return frame
        write = sink_task(self._spec.tasks, barrier.checkpoint_id)
        with own_workers(frame.sparkSession):
            return frame.mapInArrow(write, RESULT_SCHEMA)


def _least_watermark_ms(barrier: Barrier) -> int | None:
    """Over the splits that are not idle."""
    live = [s.watermark_ms for s in barrier.splits if s.idle_since_ms is None]
    return min((mark for mark in live if mark is not None), default=None)
