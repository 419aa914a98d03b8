"""Regions whose attempts are threads without Spark, after the handles that a job has of them."""

import threading
from collections.abc import Callable

from sluice.runtime.contracts import RegionAttempt, RegionHandle, RegionRegistration
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import StorageUnreachableError
from sluice.runtime.model.splits import Barrier
from sluice.runtime.service.hosted_region import HostedRegion
from tests.kit.fakes import FakeBroker
from tests.kit.threads.region_threads import RegionThread
from tests.kit.waiting import PATIENCE_S


class ThreadQuery:
    """A `sluice.runtime.service.hosted_region.RunningAttempt` around a region's thread.

    Attributes:
        may_stop: `stop` waits for it, as Spark's does for a callback that continues.
        is_stopped: `stop` has returned.
        hindrance: what keeps a next attempt from writing.
    """

    def __init__(self, thread: RegionThread) -> None:
        self.thread = thread
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.is_stopped = False
        self.hindrance: StorageUnreachableError | None = None

    @property
    def is_active(self) -> bool:
        return self.thread.is_alive

    def registration(self) -> RegionRegistration:
        return self.thread.registration()

    def prepare_stop(self) -> None:
        self.thread.prepare_stop()

    def stop(self) -> None:
        assert self.may_stop.wait(PATIENCE_S)
        self.thread.stop()
        self.is_stopped = True

    def require_writable(self) -> None:
        if self.hindrance is not None:
            raise self.hindrance

    def failure(self) -> BaseException | None:
        return self.thread.error


class ThreadRegions:
    """Handles of regions whose attempts are threads.

    Attributes:
        queries: by region, all lives in order.
        attempt_ids: of these lives.
        before_ack: what a region's lives do with each barrier; may raise or wait.
        error: raised once by the next attempt that is to begin.
    """

    def __init__(self, coordinator: BarrierCoordinator, broker: FakeBroker) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self.queries: dict[str, list[ThreadQuery]] = {}
        self.attempt_ids: dict[str, list[int]] = {}
        self.before_ack: dict[str, Callable[[Barrier], None]] = {}
        self.error: Exception | None = None

    def handle(self, region: str) -> RegionHandle:
        """Of one region; it has run nothing yet."""
        return HostedRegion(region, self._begin)

    def _begin(self, attempt: RegionAttempt) -> ThreadQuery:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        name = attempt.region
        thread = RegionThread(
            self._coordinator,
            self._broker,
            region=name,
            attempt_id=attempt.attempt_id,
            before_ack=lambda barrier: self.before_ack.get(name, _nothing)(barrier),
        ).start()
        self.queries.setdefault(name, []).append(ThreadQuery(thread))
        self.attempt_ids.setdefault(name, []).append(attempt.attempt_id)
        return self.queries[name][-1]


def _nothing(barrier: Barrier) -> None:
    pass
