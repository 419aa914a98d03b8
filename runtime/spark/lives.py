"""The lives of a job's regions: begun, watched, begun again after a failure, ended."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from runtime.checkpoint.asked_restart import AskedRestart
from runtime.checkpoint.coordinator import BarrierCoordinator
from runtime.checkpoint.failures import PERMANENT_ERRORS
from runtime.checkpoint.plan import RestartedRegion
from runtime.errors import StorageUnreachableError, StreamError
from runtime.model import RegionRecord
from runtime.spark.outages import Outages

__all__ = ["Launcher", "LifeQuery", "RegionLives"]

log = logging.getLogger(__name__)

_LONGEST_STOP_S = 90.0  # Spark's own limit of a query's stop, and room for its answer


class LifeQuery(Protocol):
    """The query of one life of a region, as `runtime.spark.region.RegionQuery` promises it."""

    @property
    def is_active(self) -> bool:
        """Whether Spark still runs it."""
        ...

    def prepare_stop(self) -> None:
        """What its callback raises from here on is the stop's doing. Never blocks."""
        ...

    def stop(self) -> None:
        """Stop it; blocks within a bound. From any thread, and again."""
        ...

    def close(self) -> None:
        """Release what its writers hold, once it is stopped; again, too."""
        ...

    def require_writable(self) -> None:
        """StorageUnreachableError where a new life could not write now."""
        ...

    def failure(self) -> BaseException | None:
        """Why it ended."""
        ...


class Launcher(Protocol):
    """Starts the query of a new life, as `runtime.spark.launcher.RegionLauncher` promises it."""

    def launch(
        self, name: str, generation: int, restored: RegionRecord, *, after: int
    ) -> LifeQuery:
        """At the ends of ``restored``, decided by checkpoint ``after``; or raise, with none."""
        ...


@dataclass(slots=True, kw_only=True)
class _Life:
    """One life of a region, until its successor has begun.

    Attributes:
        name: of the region.
        generation: of this life.
        query: runs it.
        why: it ended.
        stopping: the stop of its query, once it has ended.
        asked: its successor, once the query is stopped.
        is_away: its file system went away while the successor was begun.
    """

    name: str
    generation: int
    query: LifeQuery
    why: object = None
    stopping: Future[None] | None = None
    asked: AskedRestart | None = None
    is_away: bool = False


class RegionLives:
    """One query for each region, replaced when it fails. Used by the thread that runs the job.

    A life that failed, or whose checkpoint expired, is told to the coordinator, which stops the job
    when it were too many (`CheckpointSettings.tolerable_failures`, or its ``restart_strategy``) or
    the error would come again. Otherwise the region's query is stopped, its open work aborted, its
    Spark logs rewound, and a query of a new generation goes on at the last decision (rules 9 and
    12). A region that the coordinator has parked stays stopped until somebody asks for it.

    No region waits for another one: a query is stopped in a thread of its own, and what a new life
    has to wait for (the others' open epoch, an outage) is only looked at, when `watch` comes by.

    Args:
        coordinator: of the job, started.
        launcher: begins queries.
        outage_limit_s: a file system that is away for longer ends the job.
    """

    def __init__(
        self, coordinator: BarrierCoordinator, launcher: Launcher, *, outage_limit_s: float
    ) -> None:
        self._coordinator = coordinator
        self._launcher = launcher
        self._lives: dict[str, _Life] = {}
        self._outages = Outages(limit_s=outage_limit_s)

    def begin(self, name: str, generation: int, restored: RegionRecord, *, after: int) -> None:
        """Start the region's query at the ends of ``restored``, decided by checkpoint ``after``."""
        query = self._launcher.launch(name, generation, restored, after=after)
        self._lives[name] = _Life(name=name, generation=generation, query=query)

    def watch(self) -> None:
        """Look at every life; bring back those that have ended as far as that is possible now.

        Raises:
            StreamError: a query was stopped from outside, or cannot go on.
        """
        for life in list(self._lives.values()):
            if self._coordinator.is_over:
                return  # whoever waits for the coordinator learns why
            if life.stopping is None:
                self._look(life)
            elif life.stopping.done():
                self._bring_back(life)

    def _look(self, life: _Life) -> None:
        if not self._coordinator.is_live(life.name, life.generation):
            life.why = self._coordinator.why_ended(life.name) or "its checkpoint failed"
        elif not life.query.is_active:
            life.why = self._failed(life)
        else:
            return
        life.query.prepare_stop()
        life.stopping = _in_background(life.query.stop, name=f"sluice-stop-{life.name}")

    def _failed(self, life: _Life) -> BaseException:
        """Tell the coordinator what the batch callback did not see."""
        error = life.query.failure()
        if error is None:
            raise StreamError(
                "a region's query ended without an error",
                {"region": life.name},
                "Was it stopped from outside the job? Start the job again.",
            )
        self._coordinator.fail(life.name, life.generation, error)
        return error

    def _bring_back(self, life: _Life) -> None:
        """The query is stopped: ask for the next life, and begin it once it is granted."""
        if life.asked is None:
            if life.stopping is not None:
                life.stopping.result()
            if self._is_too_early(life):
                return
            life.query.close()
            if self._coordinator.is_parked(life.name):
                return
        try:
            if life.asked is None:
                life.asked = self._coordinator.ask_restart(life.name)
            restarted = life.asked.poll()
        except StreamError:
            if self._coordinator.is_over:
                return
            raise
        if restarted is not None:
            self._begin_again(life, restarted)

    def _begin_again(self, life: _Life, restarted: RestartedRegion) -> None:
        log.warning(
            "region restarted: region=%s generation=%d why=%s",
            life.name,
            restarted.generation,
            life.why,
        )
        after = self._coordinator.last_committed
        try:
            self.begin(life.name, restarted.generation, restarted.restored, after=after)
        except (StorageUnreachableError, *PERMANENT_ERRORS) as err:
            # The old life, of which the coordinator knows that it is over, stands for this one.
            life.why, life.asked = err, None
            life.is_away = isinstance(err, StorageUnreachableError)
            self._coordinator.fail(life.name, restarted.generation, err)

    def _is_too_early(self, life: _Life) -> bool:
        """Whether the file system that ended this life is still away."""
        if not life.is_away and not isinstance(life.query.failure(), StorageUnreachableError):
            return False
        return not self._outages.may_begin(
            life.name,
            committed=self._coordinator.last_committed,
            look=life.query.require_writable,
        )

    def stop(self) -> None:
        """Wake the callbacks first, then stop the queries (rule 12)."""
        lives = list(self._lives.values())
        for life in lives:
            life.query.prepare_stop()
        self._coordinator.cancel()
        for life in lives:
            try:
                if life.stopping is None:
                    life.query.stop()
                else:
                    life.stopping.result(_LONGEST_STOP_S)
            except Exception:  # a signal to all processes ends Spark's first: the rest goes on
                log.exception("a region's query was not stopped in order: region=%s", life.name)
            life.query.close()


def _in_background(work: Callable[[], None], *, name: str) -> Future[None]:
    """Done, with its error if it raised, when ``work`` has returned."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            work()
            result.set_result(None)
        except BaseException as err:  # noqa: BLE001 - raised again in the thread that looks
            result.set_exception(err)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
