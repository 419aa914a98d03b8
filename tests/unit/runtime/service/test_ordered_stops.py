"""Several things are closed in order: one that fails leaves none of the others open."""

import socket
import threading
from pathlib import Path

import pytest
import uvicorn

from sluice.runtime.contracts import AttemptState, RegionAttempt
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.core_loop import CoreLoop
from sluice.runtime.coordinator.shell.run_threads import Housekeeper, RunThreads
from sluice.runtime.errors import MissingRequirementError, WaitedTooLongError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.service import http_thread
from sluice.runtime.service.hosted_region import HostedRegion
from sluice.runtime.service.server import CoordinatorService
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.region_queries import ThreadQuery
from tests.kit.drop_in_simulation import World
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource
from tests.kit.waiting import PATIENCE_S, wait_for


class _Sink(FakeSink):
    closes = 0

    def close(self) -> None:
        self.closes += 1
        raise RuntimeError("the sink's client does not close")


class _Source(FakeSource):
    closes = 0

    def close(self) -> None:
        self.closes += 1


class _Listener:
    """It has a thread of its own."""

    def on_progress(self, progress: Progress) -> None:
        """See `ProgressListener`."""


def _job() -> tuple[BarrierCoordinator, _Sink, _Source]:
    sink, source = _Sink(FakeBroker()), _Source("source", {0: 5})
    plan = RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",))
    coordinator = BarrierCoordinator(
        JobPlan(name="job", regions=(plan,)),
        FakeStore(),
        sinks={"sink": sink},
        sources={"source": source},
        settings=CheckpointSettings(interval_s=0.01),
        listeners=(_Listener(),),
    )
    coordinator.start(300.0)
    return coordinator, sink, source


def _of_sluice() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("sluice")}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Housekeeper, "stop"),
        (RunThreads, "_settle_last"),
        (RunThreads, "cancel"),
        (CoreLoop, "stop"),
    ],
)
def test_a_coordinator_that_cannot_stop_one_part_stops_all_others(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _of_sluice()
    coordinator, sink, source = _job()
    assert _of_sluice() > before
    real = getattr(owner, name)

    def broken(self: object, *args: object, **words: object) -> None:
        real(self, *args, **words)
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        coordinator.stop()
    assert (sink.closes, source.closes) == (1, 1)
    wait_for(lambda: _of_sluice() <= before, what="the end of all threads")
    coordinator.stop()  # repeatable, also after a failure
    assert (sink.closes, source.closes) == (1, 1)


def _require_free(port: int) -> None:
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_a_service_that_does_not_start_leaves_no_port_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    service = CoordinatorService()
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(MissingRequirementError, match="did not start"):
        service.start()
    _require_free(port)


def test_a_service_that_is_slow_to_start_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread, too."""
    ended = threading.Event()

    def run(self: uvicorn.Server, sockets: object) -> None:
        while not self.should_exit:
            ended.wait(0.01)
        ended.set()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(http_thread, "_START_S", 0.05)
    service = CoordinatorService()
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(WaitedTooLongError, match=r"does not answer yet.*waited_s=0\.05"):
        service.start()
    assert ended.wait(PATIENCE_S)
    _require_free(port)


def test_a_drop_in_query_whose_service_does_not_start_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator would renew the lease for ever, and refuse the next start."""
    world = World(tmp_path)
    try:
        before = _of_sluice()

        def refused(self: CoordinatorService) -> None:
            raise MissingRequirementError("no thread is left", {}, "End others.")

        with monkeypatch.context() as patch:
            patch.setattr(CoordinatorService, "start", refused)
            with pytest.raises(MissingRequirementError, match="no thread is left"):
                world.begin()
        wait_for(lambda: _of_sluice() <= before, what="the end of its threads")
        assert world.begin().run_id == world.query.runId
    finally:
        world.close()


class _Attempt(ThreadQuery):
    """One that cannot be reported its stop."""

    def __init__(self) -> None:
        self.stops = 0

    @property
    def is_active(self) -> bool:
        return self.stops == 0

    def prepare_stop(self) -> None:
        raise RuntimeError("its JVM is gone")

    def stop(self) -> None:
        self.stops += 1

    def failure(self) -> BaseException | None:
        return None


def test_an_attempt_that_cannot_be_reported_its_stop_is_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else it would write on beside its successor."""
    attempt = _Attempt()
    region = HostedRegion("main", lambda _: attempt)
    restored = RegionRecord(region="main", attempt_id=1)
    region.start(RegionAttempt(attempt_id=1, restored=restored, after=0), timeout_s=1.0)
    assert region.stop(1, timeout_s=PATIENCE_S)
    assert attempt.stops == 1
    assert region.status(timeout_s=1.0).state is AttemptState.STOPPED
    assert "its JVM is gone" in caplog.text
