"""Regions that a handle is tried on: in threads of this process, over HTTP, and by Spark."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sluice.runtime.contracts import RegionAttempt, RegionHandle
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import Barrier
from sluice.runtime.service.remote_region import RegionDoor, RemoteRegion, region_key
from sluice.runtime.service.server import CoordinatorService
from tests.kit.coordinator.coordinated_job import Job
from tests.kit.coordinator.region_queries import ThreadRegions


class Bed(Protocol):
    """One region, the handle of it, and what may happen to it."""

    handle: RegionHandle

    def attempt(self, attempt_id: int | None = None) -> RegionAttempt:
        """The run's first attempt, or another one at the same place."""
        ...

    def begun(self) -> list[int]:
        """Attempts of the attempts that really began."""
        ...

    def fail(self) -> None:
        """The present life fails at its next batch."""
        ...

    def wait_for_commit(self) -> int:
        """Let a record come, and wait until its checkpoint is committed on record; its id."""
        ...


class ThreadBed:
    """A region in a thread, under a coordinator with its threads, on fakes.

    Attributes:
        regions: of all lives.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.coordinator, self._started = job.started()
        self.regions = ThreadRegions(self.coordinator, job.broker)
        self.handle: RegionHandle = self.regions.handle("main")

    def attempt(self, attempt_id: int | None = None) -> RegionAttempt:
        started = self._started
        first = started.attempt_id if attempt_id is None else attempt_id
        return RegionAttempt(attempt_id=first, restored=started.regions["main"], after=0)

    def begun(self) -> list[int]:
        return self.regions.attempt_ids.get("main", [])

    def fail(self) -> None:
        def fail(barrier: Barrier) -> None:
            raise UnreachableError("a broker went away", {}, "Try again.")

        self.regions.before_ack["main"] = fail
        self._job.source.ends[0] += 1

    def wait_for_commit(self) -> int:
        before = self.coordinator.last_committed
        self._job.source.ends[0] += 1
        while self.coordinator.last_committed == before:
            assert not self.coordinator.wait(0.01)
        return self.coordinator.last_committed

    def slow_down(self) -> Callable[[], None]:
        """The stop of the present life waits until the answer is called."""
        query = self.regions.queries["main"][-1]
        query.may_stop.clear()
        return query.may_stop.set

    def stop(self) -> None:
        """The end of the test."""
        for query in self.regions.queries.get("main", ()):
            query.may_stop.set()
        self.coordinator.cancel()
        self.handle.stop(10**6, timeout_s=300.0)


class LosingDoor(RegionDoor):
    """Does what it is asked for, and loses some answers.

    Attributes:
        loses: so many of the next answers.
        calls: as they came.
    """

    def __init__(self, handle: RegionHandle) -> None:
        super().__init__(handle)
        self.loses = 0
        self.calls: list[str] = []

    def call(self, call: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append(call)
        answer = super().call(call, payload)
        if self.loses:
            self.loses -= 1
            raise UnreachableError("the answer is lost", {"call": call}, "Ask again.")
        return answer


class HttpBed(ThreadBed):
    """The same region, reached through a service and a client.

    Attributes:
        door: may lose answers.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.door = LosingDoor(self.handle)
        self._service = CoordinatorService()
        self._service.mount(region_key("main"), self.door)
        self._service.start()
        self._remote = RemoteRegion("main", self._service.coordinator_address)
        self.handle = self._remote

    def stop(self) -> None:
        self.door.loses = 0
        super().stop()
        self._remote.close()
        self._service.stop()
