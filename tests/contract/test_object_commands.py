"""Every command that takes a directory, on an S3 server by the usual environment variables."""

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.cli import ENTRY_POINT_GROUP, build_app
from sluice.runtime.errors import CheckpointFailedError, ConfigError, StreamError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.savepoint.savepoint_writer import write_savepoint
from sluice.runtime.serve.requests import SavepointRequest
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.published_records import publish
from tests.kit.files.saved_jobs import decide
from tests.kit.files.spark_state import SparkState
from tests.kit.objects.s3_fixture import S3Bucket, new_bucket
from tests.kit.served_jobs_bed import PlayedJob, PlayedJobs, service_of
from tests.kit.waiting import wait_for

_APP = build_app(entry_points(group=ENTRY_POINT_GROUP))


class SavedJob:
    """A job's directory in a bucket, with checkpoint 5 as savepoint, full checkpoint and slot."""

    def __init__(self, bucket: S3Bucket) -> None:
        self.uri = f"{bucket.uri}/a job"
        self.fs: FileSystem = open_file_system(self.uri)
        spark = SparkState(self.fs)
        spark.run_batch()
        spark.run_batch()
        self.record: CheckpointRecord = decide(self.fs, 5, spark)
        self.parent = f"{self.uri}/savepoints"
        name = "savepoint-6f9619ff-5-0a1b2c"
        parent = open_file_system(self.parent)
        self.savepoint = write_savepoint(self.fs, self.record, parent, name=name).uri
        self.full = write_full_checkpoint(self.fs, self.record).uri
        self.slot = f"{self.uri}/{slot_name(5)}"
        self.plain = f"{bucket.uri}/plain"
        publish(CheckpointStore(open_file_system(self.plain)), record(0, regions=()))


@pytest.fixture(scope="module")
def saved(s3_endpoint: str) -> Iterator[SavedJob]:
    """One for all commands: only the last one of those below changes it."""
    bucket = new_bucket(s3_endpoint)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        yield SavedJob(bucket)


@pytest.fixture
def played(s3_environment: S3Bucket) -> Iterator[PlayedJobs]:
    """Running jobs, each with a command file in the bucket."""
    with PlayedJobs(f"{s3_environment.uri}/jobs") as jobs:
        yield jobs


@pytest.fixture
def running(played: PlayedJobs) -> tuple[str, PlayedJob]:
    """The checkpoint directory of a job that runs, and the job."""
    job = played.start_job("6f9619ff")
    job.regions, job.suspended = {"main": "host"}, "main"
    uri = f"{played.uri}/6f9619ff"
    publish(CheckpointStore(open_file_system(uri)), record(0))
    return uri, job


def run(*arguments: str) -> str:
    result = CliRunner().invoke(_APP, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


ON_A_DIRECTORY = {
    "checkpoint list": ("{uri}",),
    "checkpoint inspect": ("{slot}",),
    "checkpoint clean": ("{uri}", "--savepoint", "{parent}"),
    "files list": ("{uri}",),
    "files orphans": ("{uri}",),
    "files clean": ("{uri}",),
    "job history": ("{uri}",),
    "kafka topics": ("{uri}",),
    "savepoint list": ("{uri}",),
    "savepoint inspect": ("{savepoint}",),
    "savepoint verify": ("{full}",),
    "savepoint dispose": ("{savepoint}",),
}
"""Read a directory without its job."""

OF_A_RUNNING_JOB = {
    "checkpoint full": ("{uri}",),
    "job status": ("{uri}",),
    "job restart": ("{uri}",),
    "savepoint create": ("{uri}", "--to", "{uri}/saved"),
}
"""Find the job's address in its directory."""

REFUSED = {
    "checkpoint accept-loss": (("{uri}", "--id", "5"), "no loss"),
    "state recompute": (
        ("{full}", "--max-parallelism", "8", "--to", "{parent}"),
        "belongs to",
    ),
    **{
        f"txn {name}": (("{plain}", *more), "names a transactional Kafka sink")
        for name, more in {
            "list": (),
            "describe": ("an-id",),
            "commit": ("an-id",),
            "abort": ("an-id",),
        }.items()
    },
}
"""Read the directory, and find nothing that they could do for this job."""

ELSEWHERE = {
    "job graph": "test_job_graph_draws_a_checkpoint_of_a_bucket",
    "job stop": "test_job_stop_names_a_savepoint_in_a_bucket",
    "state repartition": "tests.integration.test_state_repartition",
    "verify": "test_verify_reads_published_files",
    "service stop": "tests.integration.test_service",
    "service savepoint": "tests.integration.test_service",
    "serve": "test_the_service_has_its_registry_in_a_bucket",
}


def _commands() -> Iterator[tuple[str, set[str]]]:
    """Each command, with the names of its parameters."""
    root = typer.main.get_command(_APP)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", {"": command})
        for last, each in below.items():
            yield f"{name} {last}".strip(), {parameter.name for parameter in each.params}


def test_no_command_that_takes_a_directory_is_left_out() -> None:
    names = {"path", "uri", "savepoint", "registry", "output", "to"}
    taken = {name for name, parameters in _commands() if names & parameters}
    assert taken == {*ON_A_DIRECTORY, *OF_A_RUNNING_JOB, *REFUSED, *ELSEWHERE}


@pytest.mark.parametrize("command", ON_A_DIRECTORY)
def test_a_command_reads_a_bucket(saved: SavedJob, command: str) -> None:
    arguments = [each.format(**vars(saved)) for each in ON_A_DIRECTORY[command]]
    assert json.loads(run(*command.split(), *arguments, "--json"))


def test_job_graph_draws_a_checkpoint_of_a_bucket(saved: SavedJob) -> None:
    assert run("job", "graph", saved.uri)


@pytest.mark.parametrize("command", OF_A_RUNNING_JOB)
def test_a_command_reaches_a_job_by_its_bucket(
    running: tuple[str, PlayedJob], command: str
) -> None:
    uri, job = running
    arguments = [each.format(uri=uri) for each in OF_A_RUNNING_JOB[command]]
    assert run(*command.split(), *arguments, *(["--json"] if command == "job status" else []))
    assert job.told or command == "job status"


def test_job_stop_names_a_savepoint_in_a_bucket(running: tuple[str, PlayedJob]) -> None:
    """The job answers, also that it could not."""
    uri, job = running
    job.savepoints.append(
        {
            "request_id": "stop",
            "kind": "savepoint",
            "state": "failed",
            "error": "no room",
            "checkpoint_id": 3,
        }
    )
    with pytest.raises(CheckpointFailedError, match="no room"):
        run("job", "stop", uri, "--savepoint", f"{uri}/saved")
    ((path, body),) = job.told
    assert (path, body["to"]) == ("/v1/stop", f"{uri}/saved")


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_names_what_the_bucket_lacks(saved: SavedJob, command: str) -> None:
    arguments, what = REFUSED[command]
    with pytest.raises(StreamError, match=what):
        run(*command.split(), *(each.format(**vars(saved)) for each in arguments))


def test_verify_reads_published_files(s3_environment: S3Bucket, tmp_path: Path) -> None:
    """A copy of them, which is deleted."""
    files = open_file_system(f"{s3_environment.uri}/out")
    rows = b"".join(b'{"value": "%d"}\n' % each for each in range(9))
    files.write_temporary("day=1/part-0.json", rows)
    files.write_temporary("_SUCCESS", b"")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "part-0.json").write_bytes(rows)
    arguments = ("verify", "--input", f"{tmp_path}/in", "--output", f"{s3_environment.uri}/out")
    assert json.loads(run(*arguments, "--json"))["found"] == 9
    with pytest.raises(ConfigError, match="no such file or directory"):
        run("verify", "--input", f"{tmp_path}/in", "--output", f"{s3_environment.uri}/absent")


def test_the_service_has_its_registry_in_a_bucket(
    running: tuple[str, PlayedJob], played: PlayedJobs, tmp_path: Path
) -> None:
    """It finds the job, and reaches it by the command file in its checkpoint directory."""
    _, job = running
    with service_of(f"{played.uri}/registry", tmp_path) as service, service.client() as client:
        wait_for(lambda: client.get("/v1/jobs")["jobs"] != [])
        client.post(f"/v1/jobs/{job.uid}/savepoints", SavepointRequest())
    assert [path for path, _ in job.told] == ["/v1/savepoints"]
