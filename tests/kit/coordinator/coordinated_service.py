"""The service of a started job, on fakes, and a client of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorClient
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource

BATCH = BatchKey(region="main", attempt_id=0, batch_id=1)
"""The first batch of the job's one region."""


@contextmanager
def started_service() -> Iterator[CoordinatorService]:
    """A job of one region, ``main``, with five records in one partition."""
    with (
        _started_job(FakeSource("source", {0: 5}), FakeBroker()) as coordinator,
        CoordinatorService(coordinator) as made,
    ):
        yield made


@contextmanager
def _started_job(source: FakeSource, broker: FakeBroker) -> Iterator[BarrierCoordinator]:
    made = BarrierCoordinator(
        JobPlan(
            name="job",
            regions=(RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",)),),
        ),
        FakeStore(),
        sinks={"sink": FakeSink(broker)},
        sources={"source": source},
        settings=CheckpointSettings(interval_s=0.01),
    )
    made.start(300.0)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def source() -> FakeSource:
    """Five records in one partition."""
    return FakeSource("source", {0: 5})


@pytest.fixture
def broker() -> FakeBroker:
    """Shared by the job's sink and its tasks."""
    return FakeBroker()


@pytest.fixture
def coordinator(source: FakeSource, broker: FakeBroker) -> Iterator[BarrierCoordinator]:
    """A started job on fakes."""
    with _started_job(source, broker) as made:
        yield made


@pytest.fixture
def service(coordinator: BarrierCoordinator) -> Iterator[CoordinatorService]:
    """Its service."""
    with CoordinatorService(coordinator) as made:
        yield made


@pytest.fixture
def client(service: CoordinatorService) -> Iterator[CoordinatorClient]:
    """A client of it."""
    with CoordinatorClient(service.coordinator_address, deadline_s=120.0) as made:
        yield made
