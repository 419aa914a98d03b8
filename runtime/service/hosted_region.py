"""A region whose attempts run in this process."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.contracts import (
    AttemptState,
    AttemptStatus,
    RegionAttempt,
    RegionHandle,
    RegionRegistration,
)
from sluice.runtime.errors import (
    FencedError,
    IllegalTransitionError,
    RegionUnansweredError,
    StorageUnreachableError,
)
from sluice.runtime.process.closing import close_logged

__all__ = ["HostedRegion", "RunningAttempt"]


class RunningAttempt(Protocol):
    """Runs one attempt of a region: for example `RegionQuery`."""

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        ...

    def registration(self) -> RegionRegistration:
        """See `RegionHandle.register`. Never blocks."""
        ...

    def prepare_stop(self) -> None:
        """Errors of its callback after this call are caused by the stop. Never blocks."""
        ...

    def stop(self) -> None:
        """Stop it and release what its writers hold; blocks within a bound. Called once."""
        ...

    def require_writable(self) -> None:
        """StorageUnreachableError if a new attempt could not write now; valid after the stop,
        too."""
        ...

    def failure(self) -> BaseException | None:
        """Why it ended."""
        ...


@dataclass(slots=True)
class _Attempt:
    attempt_id: int
    running: RunningAttempt
    stopping: Future[None] | None = None

    def stop_soon(self, region: str) -> Future[None]:
        if self.stopping is None:
            # The stop continues: work that still runs would write records that no checkpoint
            # decides.
            close_logged(self.running.prepare_stop, f"stopping region {region}")
            self.stopping = _in_background(self.running.stop, name=f"sluice-stop-{region}")
        return self.stopping


class HostedRegion(RegionHandle):
    """`sluice.runtime.contracts.RegionHandle` for a region of this process.

    Driver. An attempt starts in the thread of the caller. It stops in a thread of its own, so that
    no caller waits for a query that is slow to stop.

    Args:
        region: name of the region.
        begin: makes and starts the runner of an attempt; if it raises, nothing runs.
    """

    def __init__(self, region: str, begin: Callable[[RegionAttempt], RunningAttempt]) -> None:
        self._region = region
        self._begin = begin
        self._changed = threading.Condition()
        self._attempt: _Attempt | None = None
        self._starting: int | None = None
        self._failed: tuple[int, Exception] | None = None
        self._over_through = -1  # attempts up to this one must not run

    @property
    def region(self) -> str:
        return self._region

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        """See `RegionHandle.start`. The timeout does not interrupt an attempt that is starting.

        If the start fails, a repeated call raises the same error: the answer to the first one may
        be lost.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._starting is None, timeout_s):
                raise RegionUnansweredError(
                    "an attempt of the region is still starting",
                    {"region": self._region, "attempt_id": self._starting},
                    "Query its status.",
                )
            if self._attempt is not None and self._attempt.attempt_id == attempt.attempt_id:
                return
            if self._failed is not None and self._failed[0] == attempt.attempt_id:
                raise self._failed[1]
            self._require_next(attempt)
            self._starting = attempt.attempt_id
        running: RunningAttempt | None = None
        try:
            running = self._begin(attempt)
        except Exception as err:
            self._failed = attempt.attempt_id, err
            raise
        finally:
            with self._changed:
                self._starting = None
                if running is not None:
                    self._enter(_Attempt(attempt.attempt_id, running))
                self._changed.notify_all()

    def _enter(self, attempt: _Attempt) -> None:
        self._attempt = attempt
        if attempt.attempt_id <= self._over_through:
            attempt.stop_soon(self._region)

    def _require_next(self, attempt: RegionAttempt) -> None:
        newest = -1 if self._attempt is None else self._attempt.attempt_id
        where = {"region": self._region, "attempt_id": attempt.attempt_id, "newest": newest}
        if attempt.attempt_id < newest or attempt.attempt_id <= self._over_through:
            raise FencedError(
                "this attempt of the region was stopped before it started",
                where,
                "Start a newer attempt; nothing runs of this one.",
            )
        if self._attempt is not None and _state_of(self._attempt) is not AttemptState.STOPPED:
            raise IllegalTransitionError(
                "the previous attempt of the region is not stopped",
                where,
                "Stop the previous attempt first, until the call returns true: its callback may "
                "still write.",
            )

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        with self._changed:
            self._over_through = max(self._over_through, attempt_id)

            def is_begun() -> bool:
                return self._starting is None or self._starting > attempt_id

            if not self._changed.wait_for(is_begun, timeout_s):
                return False  # it is stopped as soon as it has started
            if self._attempt is None or self._attempt.attempt_id > attempt_id:
                return True
            stopping = self._attempt.stop_soon(self._region)
        try:
            stopping.result(max(0.0, until_s - time.monotonic()))
        except FutureTimeoutError:
            if not stopping.done():
                return False
            stopping.result()  # it ended just now, or reached a time limit of its own
        return True

    def register(self, attempt_id: int, *, timeout_s: float) -> RegionRegistration:
        del timeout_s
        with self._changed:
            attempt = self._attempt
        if attempt is None or attempt.attempt_id != attempt_id:
            raise FencedError(
                "this is not the newest attempt of the region",
                {
                    "region": self._region,
                    "attempt_id": attempt_id,
                    "newest": None if attempt is None else attempt.attempt_id,
                },
                "Use the newest attempt; the sweep ends open work of older ones.",
            )
        return attempt.running.registration()

    def status(self, *, check_storage: bool = False, timeout_s: float) -> AttemptStatus:
        del timeout_s  # the client of a file system bounds each of its calls
        with self._changed:
            attempt, starting = self._attempt, self._starting
        if starting is not None:
            return self._status(starting, AttemptState.STARTING)
        if attempt is None:
            return self._status(None, AttemptState.NONE)
        state = _state_of(attempt)
        error = None if state is AttemptState.RUNNING else attempt.running.failure()
        hindrance = (
            _hindrance(attempt.running) if check_storage and state is AttemptState.STOPPED else None
        )
        return self._status(attempt.attempt_id, state, error, hindrance)

    def _status(
        self,
        attempt_id: int | None,
        state: AttemptState,
        error: BaseException | None = None,
        hindrance: BaseException | None = None,
    ) -> AttemptStatus:
        return AttemptStatus(
            region=self._region,
            attempt_id=attempt_id,
            state=state,
            error=error,
            hindrance=hindrance,
        )


def _state_of(attempt: _Attempt) -> AttemptState:
    if attempt.stopping is not None:
        return AttemptState.STOPPED if attempt.stopping.done() else AttemptState.STOPPING
    return AttemptState.RUNNING if attempt.running.is_active else AttemptState.ENDED


def _hindrance(running: RunningAttempt) -> BaseException | None:
    try:
        running.require_writable()
    except StorageUnreachableError as err:
        return err
    return None


def _in_background(work: Callable[[], None], *, name: str) -> Future[None]:
    """Done after ``work`` has returned, with its error if it raised."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            work()
            result.set_result(None)
        except BaseException as err:  # noqa: BLE001 - raised again in the thread that asks
            result.set_exception(err)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
