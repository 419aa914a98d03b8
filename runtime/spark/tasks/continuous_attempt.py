"""One attempt of a continuous region as one long Spark job of one task."""

import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from sluice.runtime.continuous.barrier_service import KEYED_STATE, LONGEST_STEP_S, AttemptEpochs
from sluice.runtime.continuous.checkpoint_client import CheckpointClient, TaskRegistry
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.contracts import (
    AttemptRegistry,
    Clock,
    ContinuousWriter,
    ContinuousWriterFactory,
    RegionRegistration,
    StreamingReader,
    TaskScope,
)
from sluice.runtime.errors import (
    FencedError,
    MissingRequirementError,
    StreamError,
    WaitedTooLongError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.function_states import FunctionStates
from sluice.runtime.functions.split_clocks import clocks_of
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.keyed.keyed_plan import LOADING, STATE_FILES, KeyedPlan, LoadReports
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.process.failed_tasks import note_task, task_failed
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.spark.session.spark_session import own_workers, scheduler_pool
from sluice.runtime.spark.tasks.region_tasks import RegionTasks, pickled_for_tasks

__all__ = ["ContinuousAttempt", "ContinuousChain"]

log = logging.getLogger(__name__)

_CALL_DEADLINE_S = 5.0
_ORDERLY_END_S = 10.0
_CANCELLED_S = 60.0
_CANCEL_PAUSE_S = 1.0  # Spark does not cancel a job that has not begun yet
_NO_CORE_S = 120.0
_ONLY_TASK = "0.0"  # each region is one task, which Spark does not retry


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousChain:
    """Everything that the task of one attempt of a region needs. Picklable.

    Attributes:
        tasks: the attempt's identity, and its sinks, whose factories are `ContinuousWriterFactory`.
        reader: of the source.
        functions: applied to each batch, in order.
        job_name: for dead letters.
        splits: of the region, at the attempt's first positions.
        ends: of a bounded source; None: there are none.
        begins_after: newest committed checkpoint when the attempt began.
        lost_timeout_s: how long the task runs without an answer from its coordinator.
        operator_states: in the record that the attempt begins with.
        keyed: where the keyed state of its functions is; None: they have no keys.
        keyed_state: in that record.
    """

    tasks: RegionTasks
    reader: StreamingReader
    functions: tuple[ChainedFunction, ...]
    job_name: str
    splits: tuple[SplitRange, ...]
    ends: Mapping[SplitKey, int] | None
    begins_after: int
    lost_timeout_s: float
    operator_states: tuple[StateEntry, ...] = ()
    keyed: KeyedPlan | None = None
    keyed_state: KeyedState | None = None

    def run(self) -> StreamError | None:
        """In the executor, until the attempt is over; returns the error that ended it, if any."""
        try:
            _require_first_attempt(self.tasks)
            with contextlib.ExitStack() as opened:
                self._loop(opened).run()
        except StreamError as err:
            note_task(err, _ONLY_TASK)
            return self._logged(err)
        except Exception as err:  # noqa: BLE001 - Spark would retry, and report the retry instead
            return self._logged(_failed(self.tasks, err))
        return None

    def _logged(self, error: StreamError) -> StreamError:
        """Log the error in the executor, too: a paused or dead driver reads no result."""
        log.warning(
            "a continuous task ends: region=%s attempt_id=%d error=%s",
            self.tasks.region,
            self.tasks.attempt_id,
            error,
        )
        return error

    def _loop(self, opened: contextlib.ExitStack) -> TaskLoop:
        tasks = self.tasks
        link = CoordinatorClient(tasks.address, deadline_s=_CALL_DEADLINE_S)
        checkpoint_client = CheckpointClient(
            link, tasks.region, tasks.attempt_id, lost_timeout_s=self.lost_timeout_s
        )
        client = CoordinatorClient(tasks.address, deadline_s=_CALL_DEADLINE_S)
        registry = TaskRegistry(client, checkpoint_client)
        states = FunctionStates(self.functions, self.operator_states, tasks.load_table)
        if any(function.broadcasts for function in self.functions):
            states.adopt(client.task_inputs(tasks.region, tasks.attempt_id).broadcasts)
        keyed = self._keyed(states.functions, checkpoint_client)
        if keyed is not None:
            opened.callback(keyed.close)
        stream = self.reader.follow(self.splits, self.ends)
        opened.callback(stream.close)
        return TaskLoop(
            tasks.region,
            tasks.attempt_id,
            stream=stream,
            client=checkpoint_client,
            open_writers=partial(self._open, registry),
            functions=lambda: FunctionRun(states.functions, job_name=self.job_name),
            states=states,
            keyed=keyed,
            clocks=clocks_of(states.functions),
            begins_after=self.begins_after,
            leaders={s.key: s.leader_epoch for s in self.splits if s.leader_epoch is not None},
            no_progress_timeout_s=self.reader.no_progress_timeout_s,
        )

    def _keyed(
        self, functions: tuple[ChainedFunction, ...], checkpoint_client: CheckpointClient
    ) -> KeyedTask | None:
        """The keyed functions with the state of the splits, which is loaded here."""
        if self.keyed is None:
            return None
        tasks = self.tasks
        # Of its own: the checkpoint client's thread calls it, too.
        client = CoordinatorClient(tasks.address, deadline_s=_CALL_DEADLINE_S)
        registry = TaskRegistry(client, checkpoint_client)
        key = BatchKey(region=tasks.region, attempt_id=tasks.attempt_id, batch_id=0)
        reports = LoadReports(lambda: registry.waits(key, KEYED_STATE, why=LOADING))
        reports()  # the task has begun
        failpoint("before-state-loaded")
        keyed = self.keyed.open(
            functions,
            region=tasks.region,
            attempt_id=tasks.attempt_id,
            restored=self.keyed_state,
            splits=self.splits,
            on_outage=lambda error: registry.waits(key, STATE_FILES, why=str(error)),
            job_name=self.job_name,
            on_progress=reports,
        )
        reports.end()
        failpoint("after-state-loaded")
        registry.waited(key, KEYED_STATE)
        return keyed

    def _open(self, registry: AttemptRegistry, epoch: EpochScope) -> TaskWriters[ContinuousWriter]:
        tasks = self.tasks
        writers: dict[str, ContinuousWriter] = {}
        for operator_id, factory in tasks.factories.items():
            assert isinstance(
                factory, ContinuousWriterFactory
            )  # the choice of the engine requires it
            scope = TaskScope(
                job_uid=tasks.job_uid,
                operator_id=operator_id,
                batch=epoch.batch,
                checkpoint_id=epoch.checkpoint_id,
                committed_through=self.begins_after,
                committed_batch=epoch.committed_batch,
                task=_ONLY_TASK,
            )
            writers[operator_id] = factory.open_continuous(scope, registry)
        return TaskWriters(writers, dead_letter_sink=tasks.dead_letter_sink)


def _require_first_attempt(tasks: RegionTasks) -> None:
    """A second Spark attempt would begin at the region attempt's first positions, and read records
    again that are decided since.

    Raises:
        FencedError: Spark retries the task; the region's next attempt replaces it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise FencedError(
            "the task of a continuous region was lost",
            {"region": tasks.region, "attempt_id": tasks.attempt_id},
            "Let the region restart: its next attempt begins at the last checkpoint.",
        )


class ContinuousAttempt:
    """Implements `sluice.runtime.service.hosted_region.RunningAttempt`. Driver.

    A thread of its own waits for the Spark job; the service's threads use the epochs.

    Args:
        spark: the job's session.
        chain: the work of its task.
        epochs: of the attempt.
        heartbeat_timeout_s: the attempt fails if its task does not poll for a barrier for so long.
        no_core_s: and if its task does not begin for so long; None: it waits without a limit.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        chain: ContinuousChain,
        epochs: AttemptEpochs,
        *,
        heartbeat_timeout_s: float,
        no_core_s: float | None = _NO_CORE_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self._no_core_s = no_core_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._spark = spark
        self._chain = chain
        self._epochs = epochs
        self._name = f"{chain.tasks.region}.{chain.tasks.attempt_id}"
        self._group = f"{self._name} {chain.tasks.job_uid}"  # jobs may share a session
        self._clock = PauseTolerantClock(clock, longest_step_s=LONGEST_STEP_S)
        self._begun_s = self._clock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"sluice-continuous-{self._name}", daemon=True
        )

    def start(self) -> None:
        """Begin the Spark job."""
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether Spark runs the task, or waits for a core that may soon be free
        (`continuous-order`)."""
        if self._error is None:
            self._error = self._timed_out()
        return self._error is None and self._thread.is_alive()

    def _timed_out(self) -> StreamError | None:
        heartbeat, region = self._epochs.heartbeat, self._chain.tasks.region
        now_s = self._clock()
        waited_s = 0.0 if heartbeat.has_begun else now_s - self._begun_s
        if self._no_core_s is not None and waited_s > self._no_core_s:
            return MissingRequirementError(
                "the task of a continuous region does not begin",
                {"region": region, "waited_s": round(waited_s)},
                "Check that the session has a free core for each region of the job "
                "(Job(regions=...)): a continuous task keeps one for as long as the job runs.",
            )
        overdue_s = heartbeat.overdue_s()
        if overdue_s > self._heartbeat_timeout_s:
            return StreamError(
                "the task of a continuous region sends no heartbeat",
                {
                    "region": region,
                    "attempt_id": self._chain.tasks.attempt_id,
                    "overdue_s": round(overdue_s, 1),
                },
                "Check its process and its host: it hangs, or cannot reach the driver. The region "
                "restarts at the last checkpoint, as often as the job tolerates.",
            )
        return None

    def registration(self) -> RegionRegistration:
        """See `sluice.runtime.contracts.RegionHandle.register`."""
        return self._epochs.registration()

    def prepare_stop(self) -> None:
        """Let the task end with its next poll for a barrier."""
        self._epochs.stop()

    def stop(self) -> None:
        """Wait until the task has ended in good order; cancel it when that takes long."""
        self._epochs.stop()
        self._thread.join(_ORDERLY_END_S)
        until_s = time.monotonic() + _CANCELLED_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_PAUSE_S)
        if self._thread.is_alive():
            raise WaitedTooLongError(
                "a region's task did not end",
                {
                    "region": self._chain.tasks.region,
                    "attempt_id": self._chain.tasks.attempt_id,
                    "waited_s": _ORDERLY_END_S + _CANCELLED_S,
                },
                "Check its executor, which may hang. The next coordinator aborts its open work.",
            )

    def require_writable(self) -> None:
        """A continuous task writes no files."""

    def failure(self) -> BaseException | None:
        """Why the task ended."""
        return self._error

    def _run(self) -> None:
        try:
            found = self._result()
        except StreamError as err:
            found = err
        except Exception as err:  # noqa: BLE001 - the thread that watches the attempt raises it
            found = _failed(self._chain.tasks, err)
        self._error = self._error or found
        self._epochs.stop()  # the task is gone, and the driver commits its decided epochs

    def _result(self) -> StreamError | None:
        context = self._spark.sparkContext
        work = pickled_for_tasks(self._chain, region=self._chain.tasks.region)

        def run(_: Iterable[int]) -> Iterator[bytes]:
            chain: ContinuousChain = pickle.loads(work)  # written above
            yield pickle.dumps(chain.run())

        context.setJobGroup(self._group, f"continuous {self._name}", interruptOnCancel=True)
        with own_workers(self._spark):
            rows = context.parallelize([0], 1).mapPartitions(run)
            rows._jrdd  # noqa: B018, SLF001 - made now, with the environment of its own workers
        with scheduler_pool(self._spark, f"{self._chain.job_name}-{self._chain.tasks.region}"):
            (answer,) = rows.collect()
        found: StreamError | None = pickle.loads(answer)
        return found


def _failed(tasks: RegionTasks, error: Exception) -> StreamError:
    what = "the task of a continuous region failed"
    return task_failed(what, error, region=tasks.region, attempt_id=tasks.attempt_id)
