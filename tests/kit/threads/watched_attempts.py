"""Regions of a job on fakes whose lives a test watches, as the thread that runs the job does."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.runtime.contracts import RegionAttempt
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import Barrier
from sluice.runtime.spark.run.attempt_supervisor import RegionAttempts
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.coordinator.region_queries import ThreadRegions
from tests.kit.fakes import ManualClock
from tests.kit.waiting import PATIENCE_S

SETTINGS = replace(QUICK, handler=RegionalCheckpointHandler(max_failed_ratio=0.7))


class Watched:
    """Regions of a job on fakes, and the thread that watches them: the test's own."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.coordinator: BarrierCoordinator
        self.regions: ThreadRegions
        self.attempts: RegionAttempts
        self.hold = threading.Event()
        self.clock = ManualClock()

    def begin(self, *names: str, settings: CheckpointSettings = SETTINGS) -> None:
        """Start the job; nothing of its regions runs yet."""
        self.job.regions = names
        self.coordinator, started = self.job.started(settings)
        self.regions = ThreadRegions(self.coordinator, self.job.broker)
        self.attempts = RegionAttempts(
            self.coordinator,
            {name: self.regions.handle(name) for name in names},
            outage_limit_s=20.0,
            clock=self.clock,
        )
        self.names = names
        self._started = started

    def run(self) -> None:
        """Begin the first lives."""
        for name in self.names:
            self.attempts.begin(
                RegionAttempt(
                    attempt_id=self._started.attempt_id,
                    restored=self._started.regions[name],
                    after=0,
                )
            )

    def fail_once(self, name: str) -> None:
        """Its next batch fails, the ones after it do not."""

        def fail(barrier: Barrier) -> None:
            del self.regions.before_ack[name]
            raise UnreachableError("a broker went away", {}, "Try again.")

        self.regions.before_ack[name] = fail

    def keep_open(self, name: str) -> threading.Event:
        """Its batches continue only once ``hold`` is set; the event: one is waiting."""
        reached = threading.Event()

        def wait(barrier: Barrier) -> None:
            reached.set()
            assert self.hold.wait(PATIENCE_S)

        self.regions.before_ack[name] = wait
        return reached

    def lives_of(self, name: str) -> int:
        """Lives so far, after one more look at all."""
        self.attempts.watch()
        return len(self.regions.queries[name])

    def stop(self) -> None:
        """End all that waits."""
        self.hold.set()
        for queries in self.regions.queries.values():
            for query in queries:
                query.may_stop.set()
        self.attempts.stop()


@pytest.fixture
def watched(job: Job) -> Iterator[Watched]:
    """Stopped after the test."""
    made = Watched(job)
    yield made
    made.stop()
