"""Excludes hosts from a running Spark session."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession

from sluice.runtime.contracts import Clock, Placement
from sluice.runtime.errors import ConfigError

__all__ = ["Executor", "Executors", "HostExclusion", "RunningTask", "SparkExecutors"]

log = logging.getLogger(__name__)

_DRIVER = "driver"
_ENFORCE_S = 1.0
_MOST_TASKS = 1_000
_REGION_GROUP = re.compile(r"(?P<region>.+)\.\d+ (?P<job_uid>\S+)")  # of a continuous region


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """An executor of the session.

    Attributes:
        executor_id: Spark's.
        host: as Spark names it, without a port.
        is_active: it has not ended.
    """

    executor_id: str
    host: str
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that runs now: Spark's group of its job, and its host."""

    job_group: str
    host: str


class Executors(Protocol):
    """The executors of one session."""

    @property
    def driver_host(self) -> str:
        """Spark's name of the driver's host."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why their number cannot be changed here; None: it can."""
        ...

    def known(self) -> Sequence[Executor]:
        """All executors that the session ever had."""
        ...

    def tasks(self) -> Sequence[RunningTask]:
        """Tasks that run now, of jobs with a group."""
        ...

    def end(self, executor_ids: Sequence[str], *, keep: int) -> None:
        """End these; then the session wants only ``keep`` executors, so none is replaced."""
        ...


class HostExclusion:
    """A `sluice.runtime.coordinator.shell.operator_commands.HostControl`. Driver; any thread.

    Spark 4.3 has no call that excludes a host. Only failures of tasks fill its own exclude lists
    (``spark.excludeOnFailure``). They need a setting at the session's start, and forget a host
    after an hour. But Spark can end single executors, and it has a target number of them. So
    `exclude` ends the executors on the host and lowers the target. It holds for the whole session,
    not for one region: a host that is bad for one is bad for all. Spark retries the tasks of other
    regions elsewhere, and that does not count as a failure of theirs.

    The cluster manager may start an executor there later, to replace one that died elsewhere.
    `enforce` ends it.
    """

    def __init__(self, executors: Executors, *, clock: Clock = time.monotonic) -> None:
        self._executors = executors
        self._clock = clock
        self._enforced_s = float("-inf")
        self._excluded: frozenset[str] = frozenset()
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def require(self, hosts: Sequence[str]) -> None:
        """See `HostControl.require`.

        Raises:
            ConfigError: the session is local, or changes the number of its executors by itself.
            ConfigError: it never had an executor on one of the hosts, or none would be left.
        """
        if self._executors.refusal is not None:
            raise ConfigError(
                "hosts cannot be excluded in this Spark session",
                {"hosts": ",".join(hosts), "reason": self._executors.refusal},
                "Restart the region without an exclusion, or the job on other hosts.",
            )
        known = self._executors.known()
        unknown = set(hosts) - {found.host for found in known}
        if unknown:
            raise ConfigError(
                "Spark had no executor on a host to exclude",
                {
                    "hosts": ",".join(sorted(unknown)),
                    "known": ",".join(sorted({found.host for found in known})) or "none",
                },
                "Use Spark's name of the host.",
            )
        excluded = self._excluded | set(hosts)
        if not any(found.is_active and found.host not in excluded for found in known):
            raise ConfigError(
                "no executor would be left",
                {"hosts": ",".join(hosts), "excluded": ",".join(sorted(self._excluded)) or "none"},
                "Start workers on other hosts first.",
            )

    def placement(self, job_uid: str) -> Placement:
        """See `HostControl.placement`."""
        groups = [(_REGION_GROUP.fullmatch(t.job_group), t.host) for t in self._executors.tasks()]
        return Placement(
            driver=self._executors.driver_host,
            executors=dict(Counter(e.host for e in self._executors.known() if e.is_active)),
            excluded=tuple(sorted(self._excluded)),
            regions={
                group["region"]: host
                for group, host in groups
                if group is not None and group["job_uid"] == job_uid
            },
        )

    def exclude(self, hosts: Sequence[str]) -> int:
        """See `HostControl.exclude`; until the session ends."""
        with self._lock:
            self._excluded |= set(hosts)
            return self._end_there()

    def enforce(self) -> None:
        """End executors that were started on an excluded host meanwhile; at most once a second."""
        now_s = self._clock()
        if self._excluded and now_s - self._enforced_s >= _ENFORCE_S:
            self._enforced_s = now_s
            with self._lock:
                self._end_there()

    def _end_there(self) -> int:
        active = [found for found in self._executors.known() if found.is_active]
        elsewhere = [found for found in active if found.host not in self._excluded]
        there = [  # an executor is active for some seconds after the request to end it
            found
            for found in active
            if found.host in self._excluded and found.executor_id not in self._ended
        ]
        if not there:
            return 0
        log.warning(
            "executors ended on excluded hosts: executors=%s",
            ",".join(f"{found.executor_id}@{found.host}" for found in there),
        )
        ids = [found.executor_id for found in there]
        self._executors.end(ids, keep=len(elsewhere))
        self._ended.update(ids)
        return len(there)


class SparkExecutors(Executors):
    """`Executors` of a SparkSession, by Spark's developer API."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def refusal(self) -> str | None:
        master = self._spark.sparkContext.master or ""
        if master.startswith("local") and not master.startswith("local-cluster"):
            return f"its master is {master}: everything runs in the driver's process"
        conf = self._spark.sparkContext.getConf()
        if (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true":
            return "spark.dynamicAllocation.enabled=true: Spark would start executors there again"
        return None

    @property
    def driver_host(self) -> str:
        return self._spark.sparkContext.getConf().get("spark.driver.host") or ""

    def tasks(self) -> Sequence[RunningTask]:
        store = self._context.statusStore()
        running = self._jvm.java.util.ArrayList()
        running.add(self._jvm.org.apache.spark.JobExecutionStatus.RUNNING)
        group_of = {
            job.stageIds().apply(at): job.jobGroup().get()
            for job in _each(store.jobsList(running))
            if job.jobGroup().isDefined()
            for at in range(job.stageIds().size())
        }
        return [
            RunningTask(job_group=group_of[stage.stageId()], host=task.host())
            for stage in _each(store.activeStages())
            if stage.stageId() in group_of
            for task in _each(store.taskList(stage.stageId(), stage.attemptId(), _MOST_TASKS))
            if task.status() == "RUNNING"
        ]

    def known(self) -> Sequence[Executor]:
        summaries = _each(self._context.statusStore().executorList(False))
        return [
            Executor(
                executor_id=summary.id(),
                host=summary.hostPort().rpartition(":")[0],
                is_active=summary.isActive(),
            )
            for summary in summaries
            if summary.id() != _DRIVER
        ]

    def end(self, executor_ids: Sequence[str], *, keep: int) -> None:
        jvm = self._jvm
        scala = jvm.org.apache.spark.api.python.PythonUtils
        self._context.killExecutors(scala.toSeq(list(executor_ids)))
        # That lowers Spark's target by as many. Without an earlier target it is 0, and Spark would
        # not replace an executor that dies later.
        nowhere = scala.toScalaMap(jvm.java.util.HashMap())
        self._context.requestTotalExecutors(keep, 0, nowhere)

    @property
    def _jvm(self) -> Any:  # noqa: ANN401 - py4j's view
        return self._spark._jvm  # noqa: SLF001 - PySpark's only way to Spark's own calls

    @property
    def _context(self) -> Any:  # noqa: ANN401 - a Java object
        return self._spark.sparkContext._jsc.sc()  # noqa: SLF001 - Spark's own, for its developers


def _each(found: Any) -> Iterator[Any]:  # noqa: ANN401 - a Scala sequence
    return (found.apply(at) for at in range(found.size()))
