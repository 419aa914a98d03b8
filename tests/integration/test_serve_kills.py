"""Kills at each step of a registration and of a submission, once and twice in a row."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.job_registry.registration import JobRegistry, Registration
from sluice.runtime.serve.requests import SubmitRequest
from sluice.runtime.serve.submissions import Submissions, SubmitSettings
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.registered_jobs import a_registration
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

REGISTERS = """
import sys
from sluice.runtime.job_registry.job_registrar import JobRegistrar
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.registered_jobs import a_registration

with JobRegistrar(sys.argv[1], open_file_system, renewed_every_s=0.01) as registrar:
    run = int(sys.argv[2])
    registrar.begin(a_registration(run_attempt=run, started_ms=1_000 * run))
    sys.stdin.read()
"""
SUBMITS = """
import sys
from pathlib import Path
from sluice.runtime.serve.requests import SubmitRequest
from sluice.runtime.serve.submissions import Submissions, SubmitSettings

settings = SubmitSettings(directory=Path(sys.argv[1]), kept_in=Path(sys.argv[2]), registry="file:///r")
Submissions(settings).submit(SubmitRequest(entry_point="waits.py", submission_id="killed-service"))
"""


def ran(program: str, *arguments: object, failpoints: str, **environment: str) -> int:
    """The exit code of a program; a registering one is alive until a failpoint kills it."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        env=os.environ | {"SLUICE_FAILPOINTS": failpoints} | environment,
    ) as process:
        if "kill" not in failpoints:
            assert process.stdin is not None
            process.stdin.close()
        return process.wait(PATIENCE_S)


def test_a_run_that_is_killed_while_it_registers_is_known_as_far_as_it_came(tmp_path: Path) -> None:
    registry = JobRegistry(LocalFileSystem(tmp_path))

    def killed(run: int, failpoint: str, *, hit: int = 1) -> Registration | None:
        armed = f"{failpoint}=kill@{hit}"
        assert ran(REGISTERS, tmp_path, run, failpoints=armed) == -signal.SIGKILL
        return registry.read("job-1")

    for run in (1, 2):  # twice in a row
        assert killed(run, "before-registration") is None
    for run in (3, 4):
        found = killed(run, "after-registration")
        assert found is not None
        assert (found.run_attempt, found.state) == (run, "running")
    found = killed(5, "before-registration")
    assert found is not None
    assert found.run_attempt == 4
    found = killed(6, "after-registration", hit=2)  # a renewal
    assert found is not None
    assert (found.run_attempt, found.ended_ms) == (6, None)
    assert ran(REGISTERS, tmp_path, 7, failpoints="") == 0
    found = registry.read("job-1")
    assert found is not None
    assert (found.run_attempt, found.state) == (7, "finished")
    assert found.is_older_than(a_registration(run_attempt=8, started_ms=8_000))


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A spark-submit that waits; what it started is ended after the test."""
    script = tmp_path / "spark" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho started\nexec sleep 600\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    yield tmp_path / "spark"
    for pid in submitted():
        os.kill(pid, signal.SIGKILL)


def submitted() -> list[int]:
    """Processes of the submission."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            is_its = b"SLUICE_SUBMISSION_ID=killed-service" in environment.read_bytes()
        except OSError:
            continue
        if is_its:
            found.append(int(environment.parent.name))
    return found


@pytest.mark.parametrize(
    ("failpoint", "state", "started"),
    [("before-submit", "unknown", 0), ("after-submit", "running", 1)],
)
def test_a_service_that_is_killed_while_it_submits_starts_a_program_at_most_once(
    tmp_path: Path, spark_home: Path, failpoint: str, state: str, started: int
) -> None:
    """The client repeats its request, with the same id, at a service that is killed again."""
    programs, kept_in = tmp_path / "programs", tmp_path / "kept"
    programs.mkdir()
    (programs / "waits.py").touch()
    home = str(spark_home)
    assert (
        ran(SUBMITS, programs, kept_in, failpoints=f"{failpoint}=kill", SPARK_HOME=home)
        == -signal.SIGKILL
    )
    request = SubmitRequest(entry_point="waits.py", submission_id="killed-service")
    settings = SubmitSettings(directory=programs, kept_in=kept_in, registry="file:///r")
    for _ in range(2):
        assert Submissions(settings).submit(request)["state"] == state
    assert len(submitted()) == started
    assert [each["submission_id"] for each in Submissions(settings).reports()["submissions"]] == [
        "killed-service"
    ]
    assert json.loads((kept_in / "killed-service.json").read_text())["exit_code"] is None
    for pid in submitted():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not submitted())
    assert Submissions(settings).report("killed-service")["state"] == "unknown"
