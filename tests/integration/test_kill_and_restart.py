"""`kill_and_restart` with real processes that pass failpoints, without Spark: each kill happens,
or the test fails; nothing of a program remains."""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from sluice.connectors.testing.killing import STEPS, UnexpectedEndError, kill_and_restart
from sluice.runtime.errors import ConfigError, WaitedTooLongError
from tests.kit.stand_in_programs import (
    CHECKPOINTS,
    checkpoints,
    dies_elsewhere,
    failing_at_its_interrupt,
    failing_the_second_time,
    forever,
    forever_with_a_child,
    with_a_child,
)
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


def noted(journal: Path) -> list[str]:
    return journal.read_text().splitlines()


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def runs_now(journal: Path) -> bool:
    """Whether a process that noted its id here is alive: the last one, after a kill."""
    lines = noted(journal) if journal.exists() else []
    return any(is_alive(int(line.split()[1])) for line in lines if line.startswith("runs"))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The program notes here what it does, over all its starts."""
    return tmp_path / "journal"


def test_kills_in_a_row_at_each_named_step_are_one_start_each(journal: Path) -> None:
    """Only the first run passes its step; a later one is killed as soon as it gets there."""
    report = kill_and_restart(checkpoints, [journal], at=tuple(STEPS), after=2, timeout=PATIENCE_S)
    assert [run.at for run in report.kills] == [*STEPS]
    assert [run.failpoint for run in report.runs] == [*(each[-1] for each in STEPS.values()), None]
    assert [run.exit_code for run in report.runs] == [-signal.SIGKILL] * len(STEPS) + [0]
    lines = noted(journal)
    ends = [lines[at - 1] for at, text in enumerate(lines) if text == "begun" and at]
    first, *others = STEPS
    assert ends == [f"{first} 2", *(f"{step} 0" for step in others)]
    assert lines[-1] == "end"


@pytest.mark.parametrize("program", [checkpoints, sys.executable, "program.py"])
def test_a_function_a_command_and_a_file_are_programs(
    journal: Path, tmp_path: Path, program: Callable[[Path], None] | str
) -> None:
    arguments: Sequence[object] = [journal]
    if isinstance(program, str):
        text = "import sys, pathlib\nfrom tests.kit.stand_in_programs import checkpoints\ncheckpoints(pathlib.Path(sys.argv[1]))\n"
        if program.endswith(".py"):
            file = tmp_path / program
            file.write_text(text)
            program = str(file)
        else:
            arguments = ["-c", text, journal]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    report = kill_and_restart(
        program, arguments, at="commit", environment=environment, timeout=PATIENCE_S
    )
    assert [run.exit_code for run in report.runs] == [-signal.SIGKILL, 0]


@pytest.mark.parametrize("at", ["decision", 2.0])
def test_all_processes_of_a_killed_program_end(journal: Path, at: str | float) -> None:
    program = with_a_child if isinstance(at, str) else forever_with_a_child
    kill_and_restart(program, [journal], at=at, timeout=PATIENCE_S)
    children = [int(line.split()[1]) for line in noted(journal) if line.startswith("child")]
    assert len(children) == 2
    assert not [pid for pid in children if is_alive(pid)]


def test_a_kill_after_seconds_comes_after_them(journal: Path) -> None:
    report = kill_and_restart(
        forever, [journal], at=0.5, until=lambda: runs_now(journal), timeout=PATIENCE_S
    )
    killed = report.kills[0]
    assert (killed.at, killed.failpoint, killed.exit_code) == (0.5, None, -signal.SIGKILL)
    assert killed.elapsed_s >= 0.5


def test_an_endless_program_is_interrupted_once_its_condition_holds(journal: Path) -> None:
    def is_restarted() -> bool:
        return noted(journal).count("begun") == 2

    report = kill_and_restart(
        forever, [journal], at="decision", until=is_restarted, timeout=PATIENCE_S
    )
    assert report.runs[-1].exit_code == -signal.SIGINT


def test_a_program_that_fails_at_its_interrupt_is_an_error(journal: Path) -> None:
    with pytest.raises(UnexpectedEndError, match=r"restarted program failed.*\n*not committed"):
        kill_and_restart(
            failing_at_its_interrupt,
            [journal],
            at="decision",
            until=lambda: runs_now(journal),
            timeout=PATIENCE_S,
        )


@pytest.mark.parametrize("after", [CHECKPOINTS, 99])
def test_a_kill_that_never_happened_is_an_error(journal: Path, after: int) -> None:
    with pytest.raises(UnexpectedEndError, match=r"ended before its kill.*exit_code=0"):
        kill_and_restart(checkpoints, [journal], at="decision", after=after, timeout=PATIENCE_S)


def test_an_end_before_the_seconds_are_over_is_an_error(journal: Path) -> None:
    with pytest.raises(UnexpectedEndError, match="ended before its kill"):
        kill_and_restart(checkpoints, [journal], at=PATIENCE_S)


def test_another_kill_than_the_named_one_is_an_error(journal: Path) -> None:
    """The exit code alone does not show it."""
    with pytest.raises(UnexpectedEndError, match="exit_code=-9"):
        kill_and_restart(dies_elsewhere, [journal], at="decision", timeout=PATIENCE_S)


def test_a_restarted_program_that_fails_is_an_error_with_its_log(journal: Path) -> None:
    with pytest.raises(UnexpectedEndError, match=r"restarted program failed.*\n*no such topic"):
        kill_and_restart(failing_the_second_time, [journal], at="decision", timeout=PATIENCE_S)


def test_a_step_that_an_endless_program_never_reaches_ends_it_after_the_timeout(
    journal: Path,
) -> None:
    started_s = time.monotonic()
    with pytest.raises(WaitedTooLongError, match="its step 'commit'"):
        kill_and_restart(forever, [journal], at="commit", timeout=3.0)
    assert time.monotonic() - started_s >= 3.0
    with pytest.raises(WaitedTooLongError, match="the condition of until"):
        kill_and_restart(forever, [journal], at=0.1, until=lambda: False, timeout=3.0)


@pytest.mark.parametrize(
    ("at", "after"),
    [("comit", 0), ([], 0), (0.0, 0), (-1, 0), ("commit", -1), (1.0, 1), (["commit", "no"], 0)],
)
def test_a_kill_that_does_not_exist_is_refused(
    journal: Path, at: str | float | list[str | float], after: int
) -> None:
    with pytest.raises(ConfigError):
        kill_and_restart(checkpoints, [journal], at=at, after=after)
    assert not journal.exists()


def test_a_function_that_no_other_process_can_import_is_refused(journal: Path) -> None:
    with pytest.raises(ConfigError, match="cannot import the function"):
        kill_and_restart(lambda: None, at="decision")
