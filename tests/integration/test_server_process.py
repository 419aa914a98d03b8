"""Real processes that never become servers."""

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sluice.runtime.embedded.process import ServerProcess, ServerSpec
from sluice.runtime.embedded.program import ProgramSpec
from sluice.runtime.errors import MissingRequirementError
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration


def _started(tmp_path: Path, script: str) -> str:
    """The error of a start that ends in one; whatever ran is gone."""
    server = ServerProcess(
        ServerSpec(
            name="stand-in",
            command=("/bin/sh", "-c", f"echo pid $$; {script}"),
            log_path=tmp_path / "log",
            ready_text="ready",
            log_timeout_s=0.5,
        )
    )
    with pytest.raises(MissingRequirementError, match="stand-in did not start") as caught:
        server.start()
    said = (tmp_path / "log").read_text()
    for word in said.split():
        assert not (word.isdigit() and psutil.pid_exists(int(word)))
    return str(caught.value)


def test_silent_process_is_given_up_and_ended(tmp_path: Path) -> None:
    """It neither ends nor says that it is ready."""
    assert "its log was silent" in _started(tmp_path, "exec sleep 600")


def test_process_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    error = _started(tmp_path, "echo no such file")
    assert "ended before it was ready" in error
    assert "no such file" in error


_STARTS_A_PROGRAM = """
import sys, time
from pathlib import Path
from sluice.runtime.embedded.program import Program, ProgramSpec
forks = "sleep 600 & echo $$ $!; wait"
program = Program(ProgramSpec(command=("/bin/sh", "-c", forks), log_path=Path(sys.argv[1])))
time.sleep(600)  # until it is killed
"""


def test_a_program_ends_with_whoever_started_it_and_so_does_what_it_has_forked(
    tmp_path: Path,
) -> None:
    """A benchmark that ran out of time left its peer's processes after, asking for a broker."""
    log = tmp_path / "log"
    starter = subprocess.Popen([sys.executable, "-c", _STARTS_A_PROGRAM, str(log)])
    try:
        wait_for(lambda: log.exists() and len(log.read_text().split()) == 2)
    finally:
        starter.kill()
        starter.wait()
    family = [int(word) for word in log.read_text().split()]
    wait_for(lambda: not any(_attempts(pid) for pid in family))


_STARTS_A_SERVER = """
import sys, time
from pathlib import Path
from sluice.runtime.embedded.process import ServerProcess, ServerSpec
work = Path(sys.argv[1])
forks = f"cd {work}/inside; setsid sleep 600 & setsid sleep 600 & echo ready; wait"
command = ("/bin/sh", "-c", forks)
log = work.parent / "log"
ServerProcess(
    ServerSpec(name="s", command=command, log_path=log, ready_text="ready", work_dir=work)
).start()
print("started", flush=True)
time.sleep(600)  # until it is killed
"""


def test_what_a_server_started_in_its_work_directory_ends_with_whoever_started_the_server(
    tmp_path: Path,
) -> None:
    """A NodeManager gives each container a session of its own."""
    (tmp_path / "work" / "inside").mkdir(parents=True)
    command = [sys.executable, "-c", _STARTS_A_SERVER, str(tmp_path / "work")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"started\n"
            wait_for(lambda: len(_working_in(tmp_path / "work" / "inside")) == 2)
        finally:
            starter.kill()
    wait_for(lambda: not _working_in(tmp_path / "work" / "inside"))


def _working_in(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(directory) and process.name() == "sleep":
                found.append(process)
    return found


def test_a_program_of_which_one_process_is_paused_is_not_paused_itself(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", "sleep 600 & wait")
    with MortalProgram(ProgramSpec(command=command, log_path=tmp_path / "log")) as program:
        child = wait_for(
            lambda: next((p for p in program.members() if p.pid != program.pid), None),
            what="a child",
        )
        assert not program.is_any_paused()
        child.suspend()
        wait_for(program.is_any_paused, what="a paused child")
        assert not program.is_driver_paused()
        program.pause_driver()
        wait_for(program.is_driver_paused, what="a paused driver")


def _attempts(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
