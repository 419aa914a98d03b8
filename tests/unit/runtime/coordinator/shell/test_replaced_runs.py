"""Rule `lease-guards-outputs`: what a run that was replaced decides and sweeps no more, and leaves
to the other one."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.runtime.contracts import SweepReport, SweepView
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import FencedError
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.fakes import FakeSink
from tests.kit.waiting import PATIENCE_S, wait_for

FENCED = FencedError("another job uses this prefix", {}, "Stop one of them.")


class OwnedSink(FakeSink):
    """Another run may have its record; it counts its sweeps."""

    is_lost = False
    sweeps = 0

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        if self.is_lost:
            raise FENCED
        super().renew()

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """See `SinkCoordinator.sweep`."""
        self.sweeps += 1
        return super().sweep(view, timeout_s=timeout_s)


def test_lease_guards_outputs_what_a_start_has_found_is_not_enough_for_the_first_decision(
    job: Job,
) -> None:
    """Its sweep came after a look; the other start's claim may have come after that."""
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, interval_s=None, sweep_interval_s=600.0, renew_interval_s=600.0)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    sink.is_lost = True
    with pytest.raises(FencedError):
        coordinator._leases.require()  # noqa: SLF001


def test_lease_guards_outputs_a_run_that_was_replaced_sweeps_nothing_more(job: Job) -> None:
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, sweep_interval_s=0.02, renew_interval_s=0.02)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    wait_for(lambda: sink.sweeps >= 2, poll_s=0.005)
    sink.is_lost = True
    wait_for(lambda: coordinator.status().state == "fenced", poll_s=0.005)
    sweep_soon(coordinator)
    before = sink.sweeps
    for _ in range(3):
        sweep_soon(coordinator)
    coordinator.stop()
    assert sink.sweeps == before


def test_lease_guards_outputs_a_sweep_after_a_pause_looks_first(job: Job) -> None:
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, sweep_interval_s=600.0, renew_interval_s=600.0)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    before = sink.sweeps
    sink.is_lost = True
    coordinator._slept = lambda: 3_600.0  # noqa: SLF001
    sweep_soon(coordinator)
    assert sink.sweeps == before
    wait_for(lambda: coordinator.status().state == "fenced", poll_s=0.005)


def test_lease_guards_outputs_the_first_sweep_of_a_start_looks_too(job: Job) -> None:
    """It may have waited for a broker since it had the record."""
    sink = OwnedSink(job.broker)
    coordinator = job.coordinator(sink=sink)

    def claim(*_: object, **__: object) -> None:
        sink.is_lost = True
        coordinator._slept = lambda: 3_600.0  # noqa: SLF001

    with patch.object(sink, "claim", claim), pytest.raises(FencedError):
        coordinator.start(PATIENCE_S)
    assert sink.sweeps == 0


def test_lease_guards_outputs_an_end_waits_for_no_sweep_of_a_run_that_was_replaced(
    job: Job,
) -> None:
    sink = OwnedSink(job.broker)
    settings = replace(QUICK, sweep_interval_s=600.0, renew_interval_s=600.0)
    coordinator = job.coordinator(settings, sink=sink)
    coordinator.start(PATIENCE_S)
    sink.is_lost = True
    coordinator._slept = lambda: 3_600.0  # noqa: SLF001
    threads = coordinator._threads  # noqa: SLF001
    assert threads is not None
    before = sink.sweeps
    assert threads._sweep_whole()  # noqa: SLF001
    assert sink.sweeps == before


def sweep_soon(coordinator: BarrierCoordinator) -> None:
    threads = coordinator._threads  # noqa: SLF001
    assert threads is not None
    assert threads.sweep_soon().wait(PATIENCE_S)
