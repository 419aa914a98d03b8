"""Hosts that Spark shall run nothing on any more, in a session that is running."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession

from sluice.runtime.contracts import Clock
from sluice.runtime.errors import ConfigError

__all__ = ["Executor", "Executors", "HostExclusion", "SparkExecutors"]

log = logging.getLogger(__name__)

_DRIVER = "driver"
_LOOK_S = 1.0


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


class Executors(Protocol):
    """The executors of one session, as far as an exclusion needs them."""

    @property
    def refusal(self) -> str | None:
        """Why their number cannot be changed here; None: it can."""
        ...

    def known(self) -> Sequence[Executor]:
        """All that the session ever had."""
        ...

    def end(self, executor_ids: Sequence[str], *, keep: int) -> None:
        """End these; afterwards the session wants ``keep`` and no more, so none is replaced."""
        ...


class HostExclusion:
    """A `sluice.runtime.coordinator.shell.operator_commands.HostControl`. Driver; any thread.

    Spark 4.3 has no call that excludes a host: its own exclude lists (``spark.excludeOnFailure``)
    are filled by failures of tasks alone, are not looked at unless the session was started with
    them, and forget a host after an hour. What it has is the number of executors that a session
    wants, and the end of single ones. So the executors on the host are ended, and the session wants
    fewer from then on. It holds for the whole session, not for one region: a host that is bad for
    one is bad for all. Tasks of other regions that ran there are tried again elsewhere, by Spark,
    and none of that counts as a failure of theirs.

    An executor that the cluster manager starts there later, in place of one that died elsewhere, is
    ended when `look` comes by.
    """

    def __init__(self, executors: Executors, *, clock: Clock = time.monotonic) -> None:
        self._executors = executors
        self._clock = clock
        self._looked_s = float("-inf")
        self._excluded: frozenset[str] = frozenset()
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def require(self, hosts: Sequence[str]) -> None:
        """See `HostControl.require`.

        Raises:
            ConfigError: the session is local, or changes the number of its executors by itself; it
                never had an executor on one of the hosts; or none would be left.
        """
        if self._executors.refusal is not None:
            raise ConfigError(
                "hosts cannot be excluded in this Spark session",
                {"hosts": ",".join(hosts), "reason": self._executors.refusal},
                "Restart the region without it, or the job on other hosts.",
            )
        known = self._executors.known()
        unknown = set(hosts) - {found.host for found in known}
        if unknown:
            raise ConfigError(
                "Spark never ran anything on a host that shall be excluded",
                {
                    "hosts": ",".join(sorted(unknown)),
                    "known": ",".join(sorted({found.host for found in known})) or "none",
                },
                "Give the name that Spark has for it.",
            )
        off = self._excluded | set(hosts)
        if not any(found.is_active and found.host not in off for found in known):
            raise ConfigError(
                "no executor would be left",
                {"hosts": ",".join(hosts), "excluded": ",".join(sorted(self._excluded)) or "none"},
                "Start workers on other hosts first.",
            )

    def exclude(self, hosts: Sequence[str]) -> int:
        """See `HostControl.exclude`; until the session ends."""
        with self._lock:
            self._excluded |= set(hosts)
            return self._end_there()

    def look(self) -> None:
        """End what was started on an excluded host meanwhile; about once a second, if called more
        often."""
        now_s = self._clock()
        if self._excluded and now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            with self._lock:
                self._end_there()

    def _end_there(self) -> int:
        active = [found for found in self._executors.known() if found.is_active]
        elsewhere = [found for found in active if found.host not in self._excluded]
        there = [  # one that was told to end is active for some seconds more
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


class SparkExecutors:
    """`Executors` of a SparkSession, by Spark's developer API."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def refusal(self) -> str | None:
        """See `Executors.refusal`."""
        master = self._spark.sparkContext.master or ""
        if master.startswith("local") and not master.startswith("local-cluster"):
            return f"its master is {master}: all runs in the driver's process"
        conf = self._spark.sparkContext.getConf()
        if (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true":
            return "spark.dynamicAllocation.enabled=true: Spark would start executors there again"
        return None

    def known(self) -> Sequence[Executor]:
        """See `Executors.known`."""
        found = self._context.statusStore().executorList(False)
        summaries = [found.apply(at) for at in range(found.size())]
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
        """See `Executors.end`."""
        jvm: Any = self._spark._jvm  # noqa: SLF001 - PySpark's only way to Spark's own calls
        scala = jvm.org.apache.spark.api.python.PythonUtils
        self._context.killExecutors(scala.toSeq(list(executor_ids)))
        # With that Spark wants fewer by these; if it was never asked for a number, none at all, and
        # an executor that dies later would not be replaced.
        nowhere = scala.toScalaMap(jvm.java.util.HashMap())
        self._context.requestTotalExecutors(keep, 0, nowhere)

    @property
    def _context(self) -> Any:  # noqa: ANN401 - a Java object
        return self._spark.sparkContext._jsc.sc()  # noqa: SLF001 - Spark's own, for its developers
