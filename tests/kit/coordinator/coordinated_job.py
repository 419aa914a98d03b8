"""A coordinator with its threads, and a job on fakes around it."""

from collections.abc import Callable, Iterator

import pytest

from sluice.runtime.contracts import SinkCoordinator
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
    RestartedRegion,
    StartedJob,
)
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.request_thread import FileCopier
from sluice.runtime.model.splits import Barrier
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource
from tests.kit.threads.region_threads import RegionThread
from tests.kit.waiting import wait_for

QUICK = CheckpointSettings(
    interval_s=0.01, timeout_s=300.0, retry_s=0.01, idle_poll_s=0.01, discovery_interval_s=0.0
)


def restart(coordinator: BarrierCoordinator, region: str) -> RestartedRegion:
    """Ask for a region's next attempt and wait for it."""
    asked = coordinator.request_restart(region)
    return wait_for(asked.poll, what=f"{region} may begin again", poll_s=0.005)


class Job:
    """A job on fakes; everything is stopped by the fixture."""

    def __init__(self, stack: list[Callable[[], None]]) -> None:
        self.store = FakeStore()
        self.broker = FakeBroker()
        self.sink = FakeSink(self.broker)
        self.source = FakeSource("source", {0: 0, 1: 0})
        self.regions: tuple[str, ...] = ("main",)
        self.copier: FileCopier | None = None
        self._stack = stack

    def coordinator(
        self,
        settings: CheckpointSettings = QUICK,
        *,
        sink: SinkCoordinator | None = None,
        listeners: tuple[ProgressListener, ...] = (),
    ) -> BarrierCoordinator:
        """Not started yet."""
        made = BarrierCoordinator(
            JobPlan(
                name="job",
                regions=tuple(
                    RegionPlan(name=name, source_ids=("source",), sink_ids=("sink",))
                    for name in self.regions
                ),
            ),
            self.store,
            sinks={"sink": sink or FakeSink(self.broker)},
            sources={"source": self.source},
            settings=settings,
            listeners=listeners,
            copier=self.copier,
        )
        self._stack.append(made.stop)
        return made

    def started(
        self, settings: CheckpointSettings = QUICK
    ) -> tuple[BarrierCoordinator, StartedJob]:
        """Started."""
        made = self.coordinator(settings)
        return made, made.start(300.0)

    def region(
        self,
        coordinator: BarrierCoordinator,
        name: str = "main",
        *,
        attempt_id: int | None = None,
        before_ack: Callable[[Barrier], None] = lambda _: None,
    ) -> RegionThread:
        """A region's query, running."""
        started = coordinator.started
        assert started is not None
        return RegionThread(
            coordinator,
            self.broker,
            region=name,
            attempt_id=started.attempt_id if attempt_id is None else attempt_id,
            before_ack=before_ack,
        ).start()

    def visible(self) -> dict[int, list[int]]:
        """Input offsets as a read_committed reader finds them, by partition."""
        return {
            partition: [value[1] for value in self.broker.read_committed(partition)]  # type: ignore[index]
            for partition in self.source.ends
        }

    def expected(self) -> dict[int, list[int]]:
        """All of them."""
        return {partition: list(range(end)) for partition, end in self.source.ends.items()}


@pytest.fixture
def job() -> Iterator[Job]:
    """Stops every coordinator of the test."""
    stack: list[Callable[[], None]] = []
    yield Job(stack)
    for stop in reversed(stack):
        stop()
