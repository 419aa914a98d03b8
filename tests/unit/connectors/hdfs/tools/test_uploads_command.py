"""``sluice files`` on an object store: which uploads it shows, and which it never aborts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.staging.upload_names import UploadName, sink_tag
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    encode_upload_set,
)
from sluice.connectors.hdfs.tools.files_cli import app
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import OperatorNode, RegionRecord, StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.objects.multipart_uploads import MultipartUploads
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at
from tests.kit.coordinator.checkpoint_records import JOB_UID, record
from tests.kit.objects.s3_fixture import S3Bucket

_SINK = OperatorNode(operator_id="op", name="files-orders", kind="sink", upstream=())


@dataclass(slots=True)
class Ended:
    """A job that ended: checkpoints of two runs, the second one beginning at place 3."""

    directory: Path
    parent: str
    uploads: MultipartUploads

    def upload(self, attempt_id: int, *, operator_id: str = "op") -> tuple[str, StateEntry]:
        batch = BatchKey(region="r0", attempt_id=attempt_id, batch_id=7)
        name = UploadName(
            sink=sink_tag(job_uid=JOB_UID, operator_id=operator_id),
            attempt=StagingAttempt.draw(batch),
            subtask=0,
            number=0,
            checkpoint_id=1,
            extension=".json",
        )
        mark = name.attempt.attempt
        upload_id = self.uploads.create(f"orders/{name}", mark=mark)
        tag = self.uploads.put_part(f"orders/{name}", upload_id, 1, b"rows")
        file = UploadedFile(
            final=str(name), upload_id=upload_id, tags=(tag,), length_bytes=4, rows=2
        )
        found = UploadSet(target=f"{self.parent}/orders", endpoint=None, mark=mark, files=(file,))
        return f"orders/{name}", encode_upload_set(found, operator_id="op")

    def decide(self, checkpoint_id: int, *entries: StateEntry) -> None:
        region = RegionRecord(region="r0", attempt_id=0, batch_id=7, committables=entries)
        open_store(str(self.directory / "checkpoint")).publish(
            record(
                checkpoint_id,
                regions=(region,),
                graph=(_SINK,),
                settings={"files-orders.path": f"{self.parent}/orders"},
                leader_session_id="second" if checkpoint_id >= 3 else "first",
            ),
            timeout_s=5,
        )

    def open_keys(self) -> set[str]:
        return {each.key for each in self.uploads.open_uploads("orders/")}

    def run(self, *words: str) -> Any:
        answer = CliRunner().invoke(app, [*words, str(self.directory / "checkpoint"), "--json"])
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)


@pytest.fixture
def job(tmp_path: Path, s3_environment: S3Bucket) -> Ended:
    parent = f"{s3_environment.uri}/lake"
    return Ended(tmp_path, parent, uploads_at(object_location(parent)))


def test_each_upload_that_a_checkpoint_names_is_reported_where_it_is(job: Ended) -> None:
    """Open, completed, or gone."""
    (_, staged), (done_key, done), (gone_key, gone) = (job.upload(1) for _ in range(3))
    for number, entry in enumerate((staged, done, gone)):
        job.decide(number, entry)
    by_key = {each.key: each.upload_id for each in job.uploads.open_uploads("orders/")}
    content = json.loads(done.payload)
    _, upload_id, tags, _, _ = content["files"][0]
    job.uploads.complete(done_key, upload_id, tags, mark=content["mark"])
    job.uploads.abort(gone_key, by_key[gone_key])

    lines = job.run("list")["files"]
    assert [(line["checkpoint_id"], line["standing"], line["rows"]) for line in lines] == [
        (0, "staged", 2),
        (1, "published", 2),
        (2, "missing", 2),
    ]
    assert lines[1]["uri"] == f"{job.parent}/{done_key}"


def test_upload_settled_clean_aborts_unnamed_uploads_of_earlier_runs_alone(job: Ended) -> None:
    """Dry run unless told; never what a checkpoint names, another sink's, or the newest run's."""
    named_key, entry = job.upload(1)
    gone_key, _ = job.upload(1)
    current_key, _ = job.upload(3)
    foreign_key, _ = job.upload(1, operator_id="other")
    leaked = job.uploads.create(named_key, mark="m")  # another upload of a named name
    job.decide(0)
    job.decide(1, entry)
    job.decide(3)
    for words in (["orphans"], ["clean"]):
        found = job.run(*words)["orphans"]
        assert {one["uri"] for one in found} == {
            f"{job.parent}/{key}" for key in (gone_key, named_key)
        }
        assert leaked in {one["upload_id"] for one in found}
    assert job.open_keys() == {named_key, gone_key, current_key, foreign_key}

    assert job.run("clean", "--delete")["deleted"]
    assert job.open_keys() == {named_key, current_key, foreign_key}
    assert job.run("orphans")["orphans"] == []
    (line,) = job.run("list")["files"]
    assert line["standing"] == "staged"


def test_clean_leaves_uploads_of_an_attempt_that_a_later_leader_has_resumed(job: Ended) -> None:
    """Its next decision names them. If that is unknown, it deletes nothing."""
    resumed_key, _ = job.upload(1)
    job.upload(0)
    for checkpoint_id in (0, 1, 3):
        job.decide(checkpoint_id)
    attempts = ResumableAttempts(open_store(str(job.directory / "checkpoint")).fs)
    attempts.write(ListedAttempts(run_attempt_id=3, resumed_from=1, attempts={"r0": 1}))
    assert job.run("clean", "--delete")["deleted"]
    assert job.open_keys() == {resumed_key}

    (job.directory / "checkpoint" / "_attempts-3").write_bytes(b"{")
    place = str(job.directory / "checkpoint")
    answer = CliRunner().invoke(app, ["clean", place, "--delete"])
    assert isinstance(answer.exception, DamagedCheckpointError)
    assert job.open_keys() == {resumed_key}
