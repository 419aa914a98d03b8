"""What counts as a kill; real processes are in `tests/integration/test_kill_and_restart.py`."""

import pytest

from sluice.connectors.testing.killing import ProgramRun


@pytest.mark.parametrize(
    ("at", "failpoint", "exit_code", "is_killed"),
    [
        ("decision", "after-decision", -9, True),
        ("decision", None, -9, False),  # by the system, which was short of memory
        ("decision", "after-decision", 1, False),
        ("decision", None, 0, False),
        (2.5, None, -9, True),
        (2.5, None, 0, False),
        (2.5, None, -15, False),
        (None, None, -9, False),
        (None, None, 0, False),
    ],
)
def test_a_kill_needs_its_signal_and_at_a_step_its_failpoint(
    at: str | float | None, failpoint: str | None, exit_code: int, is_killed: bool
) -> None:
    run = ProgramRun(at=at, failpoint=failpoint, exit_code=exit_code, elapsed_s=1.0, log="")
    assert run.is_killed == is_killed
