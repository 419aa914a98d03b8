"""A region whose lives this process runs."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.contracts import LifeState, LifeStatus, RegionLife, RegionRegistration
from sluice.runtime.errors import (
    FencedError,
    IllegalTransitionError,
    RegionUnansweredError,
    StorageUnreachableError,
)
from sluice.runtime.process.closing import close_logged

__all__ = ["HostedRegion", "RunningLife"]


class RunningLife(Protocol):
    """What runs one life of a region: `RegionQuery`, for one."""

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        ...

    def registration(self) -> RegionRegistration:
        """See `RegionHandle.register`. Never blocks."""
        ...

    def prepare_stop(self) -> None:
        """What its callback raises from here on is the stop's doing. Never blocks."""
        ...

    def stop(self) -> None:
        """Stop it and release what its writers hold; blocks within a bound. Called once."""
        ...

    def require_writable(self) -> None:
        """StorageUnreachableError where a new life could not write now; also once it is stopped."""
        ...

    def failure(self) -> BaseException | None:
        """Why it ended."""
        ...


@dataclass(slots=True)
class _Life:
    generation: int
    running: RunningLife
    stopping: Future[None] | None = None

    def stop_soon(self, region: str) -> Future[None]:
        if self.stopping is None:
            # It stops in any case: whatever still runs would write what nobody decides.
            close_logged(self.running.prepare_stop, f"region {region}, told of its stop")
            self.stopping = _in_background(self.running.stop, name=f"sluice-stop-{region}")
        return self.stopping


class HostedRegion:
    """`sluice.runtime.contracts.RegionHandle` of a region of this process.

    Driver. A life begins in the thread of the caller and is stopped in one of its own, so that
    nobody who asks has to wait for a query that is slow to stop.

    Args:
        region: name of the region.
        begin: makes and starts what runs a life; when it raises, nothing runs.
    """

    def __init__(self, region: str, begin: Callable[[RegionLife], RunningLife]) -> None:
        self._region = region
        self._begin = begin
        self._changed = threading.Condition()
        self._life: _Life | None = None
        self._starting: int | None = None
        self._over_through = -1  # generations up to this one shall not run

    @property
    def region(self) -> str:
        """See `RegionHandle.region`."""
        return self._region

    def start(self, life: RegionLife, *, timeout_s: float) -> None:
        """See `RegionHandle.start`. A life that begins is not interrupted when time runs out."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._starting is None, timeout_s):
                raise RegionUnansweredError(
                    "a life of the region is being begun, which takes long",
                    {"region": self._region, "generation": self._starting},
                    "Ask for its status.",
                )
            if self._life is not None and self._life.generation == life.generation:
                return
            self._require_next(life)
            self._starting = life.generation
        running: RunningLife | None = None
        try:
            running = self._begin(life)
        finally:
            with self._changed:
                self._starting = None
                if running is not None:
                    self._enter(_Life(life.generation, running))
                self._changed.notify_all()

    def _enter(self, life: _Life) -> None:
        self._life = life
        if life.generation <= self._over_through:
            life.stop_soon(self._region)

    def _require_next(self, life: RegionLife) -> None:
        newest = -1 if self._life is None else self._life.generation
        where = {"region": self._region, "generation": life.generation, "newest": newest}
        if life.generation < newest or life.generation <= self._over_through:
            raise FencedError(
                "this life of the region is over before it began",
                where,
                "A newer one was begun, or this one was stopped; nothing runs.",
            )
        if self._life is not None and _state_of(self._life) is not LifeState.STOPPED:
            raise IllegalTransitionError(
                "a life of the region begins before the old one is stopped",
                where,
                "Stop it first, until that is answered with true: its callback may still write.",
            )

    def stop(self, generation: int, *, timeout_s: float) -> bool:
        """See `RegionHandle.stop`."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            self._over_through = max(self._over_through, generation)

            def is_begun() -> bool:
                return self._starting is None or self._starting > generation

            if not self._changed.wait_for(is_begun, timeout_s):
                return False  # it is stopped as soon as it has begun
            if self._life is None or self._life.generation > generation:
                return True
            stopping = self._life.stop_soon(self._region)
        try:
            stopping.result(max(0.0, until_s - time.monotonic()))
        except FutureTimeoutError:
            if not stopping.done():
                return False
            stopping.result()  # it ended just now; or ran into a time limit of its own
        return True

    def register(self, generation: int, *, timeout_s: float) -> RegionRegistration:
        """See `RegionHandle.register`."""
        del timeout_s
        with self._changed:
            life = self._life
        if life is None or life.generation != generation:
            raise FencedError(
                "this is not the newest life of the region",
                {
                    "region": self._region,
                    "generation": generation,
                    "newest": None if life is None else life.generation,
                },
                "What it left open belongs to an older generation, and is swept.",
            )
        return life.running.registration()

    def status(self, *, looks: bool = False, timeout_s: float) -> LifeStatus:
        """See `RegionHandle.status`."""
        del timeout_s  # a file system's client bounds each of its own calls
        with self._changed:
            life, starting = self._life, self._starting
        if starting is not None:
            return self._status(starting, LifeState.STARTING)
        if life is None:
            return self._status(None, LifeState.NONE)
        state = _state_of(life)
        error = None if state is LifeState.RUNNING else life.running.failure()
        hindrance = _hindrance(life.running) if looks and state is LifeState.STOPPED else None
        return self._status(life.generation, state, error, hindrance)

    def _status(
        self,
        generation: int | None,
        state: LifeState,
        error: BaseException | None = None,
        hindrance: BaseException | None = None,
    ) -> LifeStatus:
        return LifeStatus(
            region=self._region,
            generation=generation,
            state=state,
            error=error,
            hindrance=hindrance,
        )


def _state_of(life: _Life) -> LifeState:
    if life.stopping is not None:
        return LifeState.STOPPED if life.stopping.done() else LifeState.STOPPING
    return LifeState.RUNNING if life.running.is_active else LifeState.ENDED


def _hindrance(running: RunningLife) -> BaseException | None:
    try:
        running.require_writable()
    except StorageUnreachableError as err:
        return err
    return None


def _in_background(work: Callable[[], None], *, name: str) -> Future[None]:
    """Done, with its error if it raised, when ``work`` has returned."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            work()
            result.set_result(None)
        except BaseException as err:  # noqa: BLE001 - raised again in the thread that asks
            result.set_exception(err)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
