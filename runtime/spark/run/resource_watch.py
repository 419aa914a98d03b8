"""Reports a job that waits for cores or executors, and ends it when it has waited too long."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from pyspark.sql import SparkSession

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.region.status_views import WaitingForResources
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.process.host_clock import wall_ms as host_wall_ms
from sluice.runtime.spark.session.spark_session import task_slots

__all__ = ["ResourceWatch", "SparkSlots", "TaskSlots"]

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_GRACE_S = 5.0  # Spark starts a task of a new job within moments


class TaskSlots(Protocol):
    """The cores of a session."""

    def present(self) -> int:
        """Tasks that it can run at once now."""
        ...

    def has_starved_stage(self) -> bool:
        """Whether a stage has tasks to run, and none of them runs."""
        ...


class SparkSlots(TaskSlots):
    """Implements `TaskSlots` for a Spark session. Driver; one thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def present(self) -> int:
        return task_slots(self._spark, wanted=0, timeout_s=0.0)

    def has_starved_stage(self) -> bool:
        tracker = self._spark.sparkContext.statusTracker()
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(
            stage is not None
            and stage.numActiveTasks == 0
            and stage.numCompletedTasks < stage.numTasks
            for stage in stages
        )


class ResourceWatch:
    """Watches a job's cores. Driver, the job's thread.

    A job lacks cores if the session has fewer than it needs, and tasks wait for one. Fewer cores
    alone are no reason: with dynamic allocation an idle session has few executors.

    Args:
        slots: of the session.
        needed: tasks that must run at once.
        timeout_s: how long the job may lack them; None: without a limit.
        report: takes each change, for the status.
        clock: monotonic seconds.
        wall_ms: wall clock.
    """

    def __init__(
        self,
        slots: TaskSlots,
        *,
        needed: int,
        timeout_s: float | None,
        report: Callable[[WaitingForResources | None], None],
        clock: Clock = time.monotonic,
        wall_ms: Callable[[], int] = host_wall_ms,
    ) -> None:
        self._slots = slots
        self._needed = needed
        self._timeout_s = timeout_s
        self._report = report
        self._clock = clock
        self._wall_ms = wall_ms
        self._due_s = clock()
        self._since_s: float | None = None
        self._reported: WaitingForResources | None = None

    def check(self) -> None:
        """Look again if it is time.

        Raises:
            MissingRequirementError: the job has lacked cores for too long.
        """
        now_s = self._clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _EVERY_S
        present = self._slots.present()
        if present >= self._needed or not (self._reported or self._slots.has_starved_stage()):
            self._has_enough(present)
            return
        self._since_s = now_s if self._since_s is None else self._since_s
        waited_s = now_s - self._since_s
        if waited_s >= _GRACE_S:
            self._lacks(present, waited_s)

    def _has_enough(self, present: int) -> None:
        self._since_s = None
        if self._reported is not None:
            self._reported = None
            self._report(None)
            log.info("job has its resources: needed=%d present=%d", self._needed, present)

    def _lacks(self, present: int, waited_s: float) -> None:
        if self._reported is None:
            log.warning(
                "job state WAITING_FOR_RESOURCES: needed=%d present=%d timeout_s=%s",
                self._needed,
                present,
                self._timeout_s,
            )
        if self._reported is None or self._reported.present != present:
            since_ms = self._wall_ms() - round(waited_s * 1000)
            self._reported = WaitingForResources(
                needed=self._needed, present=present, since_ms=since_ms
            )
            self._report(self._reported)
        if self._timeout_s is not None and waited_s >= self._timeout_s:
            raise MissingRequirementError(
                "the job has too few cores",
                {"needed": self._needed, "present": present, "waited_s": round(waited_s)},
                "Add executors or cores, use fewer regions, or raise resource_timeout_s. The job "
                "resumes from its last checkpoint.",
            )
