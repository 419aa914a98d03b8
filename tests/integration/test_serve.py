"""The service with a real job on a real broker: submitted, seen, killed and started again,
savepointed, stopped."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import StreamError
from sluice.runtime.serve.requests import SavepointRequest, StopRequest, SubmitRequest
from sluice.runtime.serve.serve_client import ServeClient, path_of
from sluice.runtime.serve.serve_server import read_token
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, values
from tests.kit.spark_fixture import quick_python
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

ROOT = Path(__file__).parents[2]
SERVE = "import typer; from sluice.runtime.serve.serve_cli import serve; typer.run(serve)"


class ServiceProcess:
    """``sluice serve`` in a process that can be killed; each start has another port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = directory / "registry"
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        command = [
            *(sys.executable, "-c", SERVE, "--registry", self.registry, "--port", "0"),
            *("--submit-dir", ROOT / "examples", "--state-dir", self.directory / "state"),
        ]
        with (self.directory / "service.log").open("a") as log:
            self._process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": quick_python()},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " at http" in line, (self.directory / "service.log").read_text()
        self.url = line.split(" at ")[1].split(",")[0]

    def end(self, number: int) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        with self._process.stdout:
            return self._process.wait(PATIENCE_S)

    def client(self) -> ServeClient:
        return ServeClient(self.url, read_token(self.directory / "state" / "service-token"))

    def jobs(self) -> dict[str, dict[str, Any]]:
        with self.client() as client:
            return {each["name"]: each for each in client.get("/v1/jobs")["jobs"]}

    def awaited(self, name: str, is_right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            job = self.jobs().get(name)
            return job if job is not None and is_right(job) else None

        job = wait_for(found, what=f"{name} as wanted")
        assert job is not None
        return job


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(tmp_path)
    made.start()
    try:
        yield made
    finally:
        with contextlib.suppress(StreamError, AssertionError):
            for job in made.jobs().values():
                if job["ended_ms"] is None:
                    with made.client() as client:
                        client.post(path_of("jobs", job["job_uid"], "stop"), StopRequest())
        made.end(signal.SIGKILL)
        for environment in Path("/proc").glob("[0-9]*/environ"):  # what a failed test left
            with contextlib.suppress(OSError):
                if b"SLUICE_SUBMISSION_ID=of-the-test" in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)


def test_a_job_is_submitted_seen_savepointed_and_stopped_through_the_service(
    service: ServiceProcess, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """In between the service is killed, and the registry is away: the job goes on, and appears."""
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n) for n in range(100)])
    with service.client() as client:
        client.post(
            "/v1/submissions",
            SubmitRequest(
                entry_point="kafka_to_kafka.py",
                args=(
                    *("--bootstrap", kafka.bootstrap, "--input", source, "--output", sink),
                    *("--checkpoint", str(tmp_path / "checkpoint"), "--interval", "0.2"),
                ),
                options={"driver-memory": "512m"},
                submission_id="of-the-test-1",
            ),
        )
    job = service.awaited("kafka-to-kafka", lambda found: (found["last_committed"] or 0) > 0)
    assert (job["state"], job["submission_id"]) == ("running", "of-the-test-1")
    uid = job["job_uid"]

    service.end(signal.SIGKILL)
    service.registry.rename(tmp_path / "aside")
    service.registry.write_text("no directory")
    service.start()
    with service.client() as client:
        wait_for(lambda: client.get("/v1/jobs")["registry_error"])
        assert client.get("/v1/submissions/of-the-test-1")["state"] == "running"
    service.registry.unlink()
    (tmp_path / "aside").rename(service.registry)
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n) for n in range(100, 200)])
    service.awaited("kafka-to-kafka", lambda found: found["state"] == "running")
    wait_for(lambda: len(values(kafka.bootstrap, sink)) == 200)

    with service.client() as client:
        details = client.get(path_of("jobs", uid))
        assert {each["kind"] for each in details["graph"]["operators"]} >= {"source", "sink"}
        hosts = client.get("/v1/hosts")
        (host,) = [each["host"] for each in hosts["hosts"]]
        (found,) = client.get(path_of("hosts", host, "jobs"))["jobs"]
        assert (found["job_uid"], found["is_driver"]) == (uid, True)
        path = path_of("jobs", uid, "savepoints")
        client.post(path, SavepointRequest(to=f"file://{tmp_path}/savepoints"))

        def taken() -> str | None:
            (entry,) = client.get(path)["savepoints"]
            assert entry["state"] != "failed", entry
            return entry["uri"] if entry["state"] == "completed" else None

        uri = wait_for(taken)
        assert uri is not None
        assert (Path(uri.removeprefix("file://")) / "_metadata").exists()
        client.post(path_of("jobs", uid, "stop"), StopRequest(drain=True))
    ended = service.awaited("kafka-to-kafka", lambda found: found["ended_ms"] is not None)
    assert ended["state"] in ("finished", "stopped")
    with service.client() as client:
        assert client.get(path_of("jobs", uid))["graph"]["operators"]  # from its directory
        wait_for(lambda: client.get("/v1/submissions/of-the-test-1")["state"] != "running")
    written = values(kafka.bootstrap, sink)
    assert sorted(written) == sorted(b"%d!" % n for n in range(200))
    assert service.end(signal.SIGTERM) == 0
    service.start()  # for the fixture
