"""The lines that a regional job prints for each checkpoint."""

import io
from typing import Any

from examples.regional import RegionLines
from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.events import Progress, RegionFailed, Report
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.model.checkpoint_record import CheckpointKind
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver


def _progress(checkpoint_id: int, state: State, **more: Any) -> Progress:
    return Progress(
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=state,
        **more,
    )


def test_a_line_for_each_checkpoint_and_the_attempts_at_any_end() -> None:
    """A region that failed after the last checkpoint counts, too."""
    out = io.StringIO()
    lines = RegionLines(out)
    once = {"a": 1, "b": 1}
    with lines:
        lines.on_progress(_progress(7, State.DECIDED, attempts=once))
        lines.on_progress(
            _progress(
                7,
                State.MARKED,
                attempts=once,
                skipped={"b": FailureReason.ERROR},
                records=5,
                marked_s=0.25,
            )
        )
        lines.on_progress(_progress(8, State.ALIGNING, attempts={"a": 1, "b": 2}))
    assert out.getvalue().splitlines() == [
        "checkpoint=7 completed=a skipped=b records=5 seconds=0.250",
        "region=a attempts=1",
        "region=b attempts=2",
        "last_checkpoint=7",
    ]


def test_a_run_without_a_checkpoint_says_so() -> None:
    """The run ended before its first checkpoint."""
    out = io.StringIO()
    with RegionLines(out):
        pass
    assert out.getvalue() == "last_checkpoint=none\n"


def test_the_core_reports_the_values_of_the_lines() -> None:
    """Here a region has failed once."""
    out, driver = io.StringIO(), CoreDriver(FAST, regions=TWO)
    driver.tell(RegionFailed(region="side", attempt_id=0, error=RuntimeError("a task failed")))
    again = driver.restart("side")
    driver.tick(1.0)
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side", attempt_id=again), region="side", attempt_id=again)
    with RegionLines(out) as lines:
        for report in driver.seen(Report):
            lines.on_progress(report.progress)
    checkpoint, *ends = out.getvalue().splitlines()
    assert checkpoint.startswith("checkpoint=2 completed=main,side skipped=- records=6 ")
    assert ends == ["region=main attempts=1", "region=side attempts=2", "last_checkpoint=2"]
