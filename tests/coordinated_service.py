"""The service of a started job, on fakes."""

from collections.abc import Iterator
from contextlib import contextmanager

from runtime.checkpoint.coordinator import BarrierCoordinator
from runtime.checkpoint.plan import CheckpointSettings, JobPlan, RegionPlan
from runtime.service.server import CoordinatorService
from tests.fake_store import FakeStore
from tests.fakes import FakeBroker, FakeSink, FakeSource

__all__ = ["started_service"]


@contextmanager
def started_service() -> Iterator[CoordinatorService]:
    """A job of one region, ``main``, with five records in one partition."""
    coordinator = BarrierCoordinator(
        JobPlan(
            name="job",
            regions=(RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",)),),
        ),
        FakeStore(),
        sinks={"sink": FakeSink(FakeBroker())},
        sources={"source": FakeSource("source", {0: 5})},
        settings=CheckpointSettings(interval_s=0.01),
    )
    coordinator.start(300.0)
    with CoordinatorService(coordinator) as made:
        yield made
    coordinator.stop()
