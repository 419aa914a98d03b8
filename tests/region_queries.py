"""Queries of regions as `runtime.spark.lives.RegionLives` sees them, in threads without Spark."""

import threading
from collections.abc import Callable

from runtime.checkpoint.coordinator import BarrierCoordinator
from runtime.errors import StreamError
from runtime.model import Barrier, RegionRecord
from tests.fakes import FakeBroker
from tests.region_threads import RegionThread

__all__ = ["ThreadLauncher", "ThreadQuery"]


class ThreadQuery:
    """A `runtime.spark.lives.LifeQuery` around a region's thread.

    Attributes:
        may_stop: `stop` waits for it, as Spark's does for a callback that goes on.
        is_stopped: `stop` has returned.
    """

    def __init__(self, thread: RegionThread) -> None:
        self.thread = thread
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.is_stopped = False

    @property
    def is_active(self) -> bool:
        return self.thread.is_alive

    def prepare_stop(self) -> None:
        pass

    def stop(self) -> None:
        assert self.may_stop.wait(20.0)
        self.thread.stop()
        self.is_stopped = True

    def close(self) -> None:
        pass

    def require_writable(self) -> None:
        pass

    def failure(self) -> BaseException | None:
        return self.thread.error


class ThreadLauncher:
    """A `runtime.spark.lives.Launcher`.

    Attributes:
        queries: by region, all lives in order.
        generations: of these lives.
        before_ack: what a region's lives do with each barrier; may raise or wait.
        error: raised once by the next launch.
    """

    def __init__(self, coordinator: BarrierCoordinator, broker: FakeBroker) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self.queries: dict[str, list[ThreadQuery]] = {}
        self.generations: dict[str, list[int]] = {}
        self.before_ack: dict[str, Callable[[Barrier], None]] = {}
        self.error: StreamError | None = None

    def launch(
        self, name: str, generation: int, restored: RegionRecord, *, after: int
    ) -> ThreadQuery:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        thread = RegionThread(
            self._coordinator,
            self._broker,
            region=name,
            generation=generation,
            before_ack=lambda barrier: self.before_ack.get(name, _nothing)(barrier),
        ).start()
        self.queries.setdefault(name, []).append(ThreadQuery(thread))
        self.generations.setdefault(name, []).append(generation)
        return self.queries[name][-1]


def _nothing(barrier: Barrier) -> None:
    pass
