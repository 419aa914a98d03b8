"""Rule 22: what a run that was replaced leaves to the other one."""

from dataclasses import replace

from tests.coordinated_job import QUICK, Job
from tests.unit.test_owner_watch import OwnedSink
from tests.waiting import PATIENCE_S


def test_rule_22_an_end_waits_for_no_sweep_of_a_run_that_was_replaced(job: Job) -> None:
    """What is open is the other one's, and holds readers back for as long as that likes."""
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
