"""Programs that a service starts: only from its directory, with known options, once for each id."""

import contextlib
import os
import signal
import stat
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.serve import submissions
from sluice.runtime.serve.requests import SubmitRequest
from sluice.runtime.serve.serve_client import path_of
from sluice.runtime.serve.submissions import Submissions, SubmitSettings
from tests.kit.served_jobs_bed import PlayedJobs, Service, service_of
from tests.kit.waiting import wait_for

PROGRAM = """
    import json, os, sys
    print(json.dumps([sys.argv[1:], os.environ.get("MODE"), os.environ["SLUICE_REGISTRY"], os.getsid(0) == os.getpid()]))
    sys.exit(7 if "fail" in sys.argv else 0)
"""


@pytest.fixture(autouse=True)
def spark_submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A spark-submit that prints its arguments and runs the program."""
    script = tmp_path / "spark" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "at = next(i for i, text in enumerate(sys.argv) if text.endswith('.py') and i and sys.argv[i - 1] not in ('--py-files',))\n"
        "print(sys.argv[1:at], flush=True)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[at:]])\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.delenv("SLUICE_REGISTRY", raising=False)
    return script


@pytest.fixture
def programs(tmp_path: Path, service: Service) -> Path:
    del service
    directory = tmp_path / "programs"
    (directory / "copy.py").write_text(textwrap.dedent(PROGRAM))
    (directory / "library.zip").write_text("")
    (directory / "waits.py").write_text(
        "import sys; print('waits', flush=True); sys.stdin.read(); import signal; signal.pause()"
    )
    return directory


def submitted(service: Service, **request: Any) -> dict[str, Any]:
    with service.client() as client:
        return client.post("/v1/submissions", SubmitRequest(**request))


def ended(service: Service, submission_id: str) -> dict[str, Any]:
    with service.client() as client:

        def found() -> dict[str, Any] | None:
            report = client.get(path_of("submissions", submission_id))
            return report if report["state"] == "ended" else None

        report = wait_for(found)
        assert report is not None
        return report


def log_of(service: Service, submission_id: str) -> str:
    with service.client() as client:
        return client.text(path_of("submissions", submission_id, "log"))


def test_a_program_runs_with_its_arguments_in_a_session_of_its_own(
    service: Service, programs: Path, played: PlayedJobs, tmp_path: Path
) -> None:
    made = submitted(
        service,
        entry_point="copy.py",
        args=("--from", "a b; $(touch x)", "fail"),
        options={"master": "local[2]", "py-files": "library.zip"},
        conf={"spark.sql.shuffle.partitions": "2"},
        env={"MODE": "fast"},
    )
    report = ended(service, made["submission_id"])
    assert (report["exit_code"], report["args"][1]) == (7, "a b; $(touch x)")
    assert report["settings"] == ["MODE", "spark.sql.shuffle.partitions"]
    options, output = log_of(service, made["submission_id"]).splitlines()
    library = str(programs.resolve() / "library.zip")
    assert options == str(
        ["--master", "local[2]", "--py-files", library, "--conf", "spark.sql.shuffle.partitions=2"]
    )
    registry = played.registry.fs.uri
    assert output == f'[["--from", "a b; $(touch x)", "fail"], "fast", "{registry}", true]'
    for each in (tmp_path / "submissions").iterdir():
        assert each.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "request_",
    [
        {"entry_point": "../outside.py"},
        {"entry_point": "/etc/hostname"},
        {"entry_point": "link.py"},
        {"entry_point": "absent.py"},
        {"entry_point": "library.zip"},
        {"entry_point": "."},
        {"entry_point": ""},
        {"entry_point": "copy.py\0"},
        {"entry_point": "copy.py", "args": ("x\0y",)},
        {"entry_point": "copy.py", "args": ("x" * 10_000,)},
        {"entry_point": "copy.py", "options": {"proxy-user": "root"}},
        {"entry_point": "copy.py", "options": {"properties-file": "/etc/x"}},
        {"entry_point": "copy.py", "options": {"packages": "org.evil:x:1"}},
        {"entry_point": "copy.py", "options": {"name": "--proxy-user"}},
        {"entry_point": "copy.py", "options": {"py-files": "library.zip,../outside.py"}},
        {"entry_point": "copy.py", "conf": {"spark.driver.extraJavaOptions": "-agentpath:x"}},
        {"entry_point": "copy.py", "conf": {"spark.executor.extraClassPath": "/tmp"}},
        {"entry_point": "copy.py", "conf": {"spark.pyspark.driver.python": "/tmp/evil"}},
        {"entry_point": "copy.py", "conf": {"spark.sql.execution.pyspark.python": "/tmp/evil"}},
        {"entry_point": "copy.py", "conf": {"spark.sql.queryExecutionListeners": "evil.Class"}},
        {"entry_point": "copy.py", "conf": {"spark.sql.sources.commitProtocolClass": "evil.Class"}},
        {"entry_point": "copy.py", "conf": {"spark.ui.filters": "evil.Class"}},
        {"entry_point": "copy.py", "conf": {"spark.sql.hive.metastore.jars": "maven"}},
        {"entry_point": "copy.py", "conf": {"spark.jars": "/tmp/evil.jar"}},
        {"entry_point": "copy.py", "conf": {"other": "x"}},
        {"entry_point": "copy.py", "env": {"PYTHONPATH": "/tmp"}},
        {"entry_point": "copy.py", "env": {"LD_PRELOAD": "/tmp/evil.so"}},
        {"entry_point": "copy.py", "submission_id": "../../up"},
        {"entry_point": "copy.py", "submission_id": ""},
    ],
)
def test_what_is_not_allowed_starts_nothing(tmp_path: Path, request_: dict[str, Any]) -> None:
    directory = tmp_path / "programs"
    directory.mkdir()
    for name in ("copy.py", "library.zip", "../outside.py"):
        (directory / name).touch()
    (directory / "link.py").symlink_to(tmp_path / "outside.py")
    settings = SubmitSettings(directory=directory, kept_in=tmp_path / "kept", registry="file:///r")
    with pytest.raises(ConfigError) as caught:
        Submissions(settings).submit(SubmitRequest(**request_))
    assert caught.value.args[2]
    assert not (tmp_path / "kept").exists()


def test_without_a_directory_no_request_starts_anything(
    played: PlayedJobs, tmp_path: Path, programs: Path
) -> None:
    del programs
    with service_of(played.registry.fs.uri, tmp_path) as closed:
        with closed.client() as client:
            assert not client.get("/v1/submissions")["can_submit"]
        with pytest.raises(ConfigError, match="starts no programs"):
            submitted(closed, entry_point="copy.py")


def test_a_repeated_request_starts_nothing(service: Service, programs: Path) -> None:
    """The client chose the id, and did not get the first answer."""
    del programs
    first = submitted(service, entry_point="copy.py", submission_id="chosen-0001")
    report = ended(service, "chosen-0001")
    assert submitted(service, entry_point="copy.py", submission_id="chosen-0001") == report
    assert first["submission_id"] == "chosen-0001"
    assert len(log_of(service, "chosen-0001").splitlines()) == 2


def test_a_submitted_program_outlives_its_service(
    service: Service, programs: Path, played: PlayedJobs, tmp_path: Path
) -> None:
    """A later service sees that it runs; it cannot see the exit code."""
    del programs
    made = submitted(service, entry_point="waits.py", submission_id="outlives-1")
    assert made["state"] == "running"
    wait_for(lambda: "waits" in log_of(service, "outlives-1"))
    with service_of(played.registry.fs.uri, tmp_path) as later, later.client() as client:
        assert client.get("/v1/submissions/outlives-1")["state"] == "running"
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if b"SLUICE_SUBMISSION_ID=outlives-1" in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        report = ended(service, "outlives-1")  # the first service still waits for it
        assert report["exit_code"] == -signal.SIGKILL


def test_a_program_that_shows_no_environment_yet_is_running(
    service: Service, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del programs
    monkeypatch.setattr(submissions, "_environments", lambda: iter([b""]))
    assert submitted(service, entry_point="copy.py")["state"] in ("running", "ended")


def test_a_program_whose_end_no_service_saw_is_unknown(tmp_path: Path) -> None:
    kept_in = tmp_path / "kept"
    kept_in.mkdir()
    (kept_in / "lost-0001.json").write_text(
        '{"submission_id": "lost-0001", "entry_point": "a.py", "args": [], "options": {}, '
        '"settings": [], "submitted_ms": 1, "ended_ms": null, "exit_code": null}'
    )
    found = Submissions(SubmitSettings(directory=None, kept_in=kept_in, registry="file:///r"))
    assert found.report("lost-0001")["state"] == "unknown"
    assert found.log_of("lost-0001") == b""


def test_a_missing_spark_is_named(
    service: Service, programs: Path, spark_submit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del programs
    spark_submit.chmod(0o600)
    with pytest.raises(MissingRequirementError, match="did not start"):
        submitted(service, entry_point="copy.py", submission_id="refused-1")
    with service.client() as client:
        assert client.get("/v1/submissions/refused-1")["state"] == "not started"
    spark_submit.unlink()
    monkeypatch.setattr("sluice.runtime.serve.submissions.find_spec", lambda _: None)
    with pytest.raises(MissingRequirementError, match="no spark-submit"):
        submitted(service, entry_point="copy.py")
