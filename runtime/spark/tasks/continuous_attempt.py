"""One life of a continuous region as one long Spark job of one task."""

import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from sluice.runtime.continuous.barrier_service import AttemptLog
from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.heartbeat import LONGEST_STEP_S
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.continuous.task_registry import TaskRegistry
from sluice.runtime.contracts import (
    AttemptRegistry,
    Clock,
    ContinuousWriter,
    ContinuousWriterFactory,
    RecordStream,
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
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.model import SplitKey, SplitRange
from sluice.runtime.process.boot_clock import PauseTolerantClock
from sluice.runtime.process.failed_tasks import task_failed
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.spark.session.spark_session import own_workers, scheduler_pool
from sluice.runtime.spark.tasks.region_tasks import RegionTasks, pickled_for_tasks

__all__ = ["ContinuousAttempt", "ContinuousChain"]

log = logging.getLogger(__name__)

_CALL_DEADLINE_S = 5.0
_GOOD_END_S = 10.0
_CANCELLED_S = 60.0
_CANCEL_AGAIN_S = 1.0  # a job that was not there yet is not cancelled
_NO_CORE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousChain:
    """All that the task of one life of a region needs. Picklable.

    Attributes:
        tasks: whose it is, and its sinks, whose factories are `ContinuousWriterFactory`.
        reader: of the source.
        functions: applied to each batch, in order.
        job_name: for dead letters.
        splits: of the region, where the life begins.
        ends: of a bounded source; None: there are none.
        begins_after: newest committed checkpoint when the life began.
        lost_timeout_s: how long the task goes on without hearing of its coordinator.
    """

    tasks: RegionTasks
    reader: StreamingReader
    functions: tuple[ChainedFunction, ...]
    job_name: str
    splits: tuple[SplitRange, ...]
    ends: Mapping[SplitKey, int] | None
    begins_after: int
    lost_timeout_s: float

    def run(self) -> StreamError | None:
        """In the executor: until the life is over; what ended it, if that was an error."""
        try:
            _require_first_attempt(self.tasks)
            with contextlib.closing(self.reader.follow(self.splits, self.ends)) as follower:
                self._loop(follower).run()
        except StreamError as err:
            return self._told(err)
        except Exception as err:  # noqa: BLE001 - Spark would try again, and say that instead
            return self._told(_failed(self.tasks, err))
        return None

    def _told(self, error: StreamError) -> StreamError:
        """Here, too: a driver that is frozen or gone reads no answer."""
        log.warning(
            "a continuous task ends: region=%s attempt_id=%d error=%s",
            self.tasks.region,
            self.tasks.attempt_id,
            error,
        )
        return error

    def _loop(self, follower: RecordStream) -> TaskLoop:
        tasks = self.tasks
        link = CoordinatorClient(tasks.address, deadline_s=_CALL_DEADLINE_S)
        checkpoint_client = CheckpointClient(
            link, tasks.region, tasks.attempt_id, lost_timeout_s=self.lost_timeout_s
        )
        client = CoordinatorClient(tasks.address, deadline_s=_CALL_DEADLINE_S)
        registry = TaskRegistry(client, checkpoint_client, lost_timeout_s=self.lost_timeout_s)
        return TaskLoop(
            tasks.region,
            tasks.attempt_id,
            follower=follower,
            checkpoint_client=checkpoint_client,
            open_writers=partial(self._open, registry),
            functions=lambda: FunctionRun(self.functions, job_name=self.job_name),
            begins_after=self.begins_after,
            leaders={s.key: s.leader_epoch for s in self.splits if s.leader_epoch is not None},
            no_progress_timeout_s=self.reader.no_progress_timeout_s,
        )

    def _open(self, registry: AttemptRegistry, epoch: EpochScope) -> TaskWriters[ContinuousWriter]:
        tasks = self.tasks
        writers: dict[str, ContinuousWriter] = {}
        for operator_id, factory in tasks.factories.items():
            assert isinstance(factory, ContinuousWriterFactory)  # or the engine was refused
            scope = TaskScope(
                job_uid=tasks.job_uid,
                operator_id=operator_id,
                batch=epoch.batch,
                checkpoint_id=epoch.checkpoint_id,
                committed_through=self.begins_after,
                committed_batch=epoch.committed_batch,
                task="0.0",
            )
            writers[operator_id] = factory.open_continuous(scope, registry)
        return TaskWriters(writers, dead_letter_sink=tasks.dead_letter_sink)


def _require_first_attempt(tasks: RegionTasks) -> None:
    """A second attempt would begin where the life began, and read again what is decided since.

    Raises:
        FencedError: Spark tries the task again; the region's next life goes on in its place.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise FencedError(
            "the task of a continuous region was lost",
            {"region": tasks.region, "attempt_id": tasks.attempt_id},
            "The region begins a new life at the last checkpoint.",
        )


class ContinuousAttempt:
    """Implements `sluice.runtime.service.hosted_region.RunningAttempt`. Driver.

    A thread of its own waits for the Spark job; the service's threads use the book.

    Args:
        spark: the job's session.
        chain: what its task does.
        book: of the life.
        heartbeat_timeout_s: a task that does not ask for its next barrier for so long is given up.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        chain: ContinuousChain,
        book: AttemptLog,
        *,
        heartbeat_timeout_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._spark = spark
        self._chain = chain
        self._book = book
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
            self._error = self._given_up()
        return self._error is None and self._thread.is_alive()

    def _given_up(self) -> StreamError | None:
        pulse, region = self._book.pulse, self._chain.tasks.region
        now_s = self._clock()
        waits_s = 0.0 if pulse.has_asked else now_s - self._begun_s
        if waits_s > _NO_CORE_S:
            return MissingRequirementError(
                "the task of a continuous region does not begin",
                {"region": region, "waited_s": round(waits_s)},
                "It needs a core of its own for as long as the job runs: are all of them taken, or "
                "has the cluster lost one? Job(regions=...) says how many the job takes.",
            )
        silent_s = pulse.silent_s()
        if silent_s > self._heartbeat_timeout_s:
            return StreamError(
                "the task of a continuous region is not heard of",
                {
                    "region": region,
                    "attempt_id": self._chain.tasks.attempt_id,
                    "silent_s": round(silent_s, 1),
                },
                "Its process or its host hangs, or cannot reach the driver. The region begins "
                "again at the last checkpoint, as often as the job tolerates.",
            )
        return None

    def registration(self) -> RegionRegistration:
        """See `sluice.runtime.contracts.RegionHandle.register`."""
        return self._book.registration()

    def prepare_stop(self) -> None:
        """The task is told to end when it asks for its next barrier."""
        self._book.stop()

    def stop(self) -> None:
        """Wait for the task's good end; cancel it when that takes long."""
        self._book.stop()
        self._thread.join(_GOOD_END_S)
        until_s = time.monotonic() + _CANCELLED_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_AGAIN_S)
        if self._thread.is_alive():
            raise WaitedTooLongError(
                "a region's task did not end",
                {
                    "region": self._chain.tasks.region,
                    "attempt_id": self._chain.tasks.attempt_id,
                    "waited_s": _GOOD_END_S + _CANCELLED_S,
                },
                "Its executor may hang; what it has open is aborted by the next coordinator.",
            )

    def require_writable(self) -> None:
        """A life writes no files."""

    def failure(self) -> BaseException | None:
        """Why the task ended."""
        return self._error

    def _run(self) -> None:
        try:
            found = self._result()
        except StreamError as err:
            found = err
        except Exception as err:  # noqa: BLE001 - looked at by whoever watches the life
            found = _failed(self._chain.tasks, err)
        self._error = self._error or found
        self._book.stop()  # nobody answers any more, and what is decided is finished by hand

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
