"""``sluice files`` from a checkpoint directory alone: what it shows, and what it never deletes."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.connectors.hdfs.committing.file_lease import FileLeaseStore
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.pending_files import (
    PendingFile,
    PendingFiles,
    encode_pending_files,
)
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, staging_root
from sluice.connectors.hdfs.tools.files_cli import app
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store, slot_name
from sluice.runtime.errors import DamagedCheckpointError, FencedError
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.ownership.lease import LeaseRecord
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import JOB_UID, record

SINK = OperatorNode(operator_id="op", name="files-orders", kind="sink", upstream=())


@dataclass(slots=True)
class Ended:
    """A job that ended: checkpoints of two runs, the second one beginning at place 3."""

    directory: Path

    @property
    def store(self) -> CheckpointStore:
        return open_store(str(self.directory / "checkpoint"))

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def stage(self, attempt_id: int, name: str = "part-0") -> tuple[StagingAttempt, StateEntry]:
        batch = BatchKey(region="r0", attempt_id=attempt_id, batch_id=7)
        attempt = StagingAttempt.draw(batch)
        staging = f"{staging_root('orders', job_uid=JOB_UID, operator_id='op')}/{attempt.path}"
        file = self.data / staging / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"rows")
        found = FileSet(
            target=f"file://{self.data}/orders",
            staging=staging,
            rows=2,
            files=(StagedFile(staged=name, final=f"x-{name}", length_bytes=4, rows=2),),
        )
        return attempt, encode_file_set(found, operator_id="op")

    def hold(self, attempt: StagingAttempt, name: str = "part-0") -> StateEntry:
        root = staging_root("orders", job_uid=JOB_UID, operator_id="op")
        file = PendingFile(
            directory="",
            staging=f"{root}/{attempt.path}",
            staged=name,
            length_bytes=4,
            rows=2,
            first_ms=0,
            last_ms=0,
        )
        held = PendingFiles(target=f"file://{self.data}/orders", layout="x", files=(file,))
        return encode_pending_files(held, operator_id="op")

    def decide(
        self, checkpoint_id: int, *entries: StateEntry, states: tuple[StateEntry, ...] = ()
    ) -> None:
        region = RegionRecord(
            region="r0", attempt_id=0, batch_id=7, committables=entries, operator_states=states
        )
        self.store.publish(
            record(
                checkpoint_id,
                regions=(region,),
                graph=(SINK,),
                settings={"files-orders.path": f"file://{self.data}/orders"},
                leader_session_id="second" if checkpoint_id >= 3 else "first",
            ),
            timeout_s=5,
        )

    def own(self, uri: str, *, session: str, is_ended: bool = False) -> None:
        """A run that has the staging directory, or had it when it was killed, or ended in order."""
        owner = LeaseRecord(
            job_uid=JOB_UID,
            checkpoint_uri=uri,
            session=session,
            host="host",
            renewed_at_ms=0,
            renewals=1,
            is_ended=is_ended,
        )
        root = staging_root("orders", job_uid=JOB_UID, operator_id="op")
        FileLeaseStore(LocalFileSystem(self.data), root).write(owner)

    def run(self, *words: str) -> Any:
        answer = CliRunner().invoke(app, [*words, str(self.directory / "checkpoint"), "--json"])
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)


@pytest.fixture
def job(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


def test_each_file_that_a_checkpoint_names_is_reported_where_it_is(job: Ended) -> None:
    staged, published, missing = (job.stage(1, f"part-{n}")[1] for n in range(3))
    for number, entry in enumerate((staged, published, missing)):
        job.decide(number, entry)
    target = job.data / "orders"
    target.mkdir()
    for path in job.data.rglob("part-*"):
        if path.name == "part-1":
            path.rename(target / "x-part-1")
        elif path.name == "part-2":
            path.unlink()
    lines = job.run("list")["files"]
    assert [(line["checkpoint_id"], line["standing"], line["rows"]) for line in lines] == [
        (0, "staged", 2),
        (1, "published", 2),
        (2, "missing", 2),
    ]
    assert {line["sink"] for line in lines} == {"files-orders"}


def test_clean_deletes_unnamed_attempts_of_earlier_runs_alone(job: Ended) -> None:
    """Dry run unless reported; what any checkpoint names stays, and what the newest run stages."""
    named, entry = job.stage(1)
    gone, _ = job.stage(1)
    current, _ = job.stage(3)
    job.decide(0)
    job.decide(1, entry)
    job.decide(3)
    root = job.data / staging_root("orders", job_uid=JOB_UID, operator_id="op")
    for words in (["orphans"], ["clean"]):
        (found,) = job.run(*words)["orphans"]
        assert found["uri"].endswith(gone.path)
        assert (found["files"], found["length_bytes"]) == (1, 4)
    assert (root / gone.path).exists()
    assert job.run("clean", "--delete")["deleted"]
    assert not (root / gone.path).exists()
    assert (root / named.path).exists()
    assert (root / current.path).exists()
    assert job.run("orphans")["orphans"] == []


def test_what_a_checkpoint_holds_is_shown_and_never_an_orphan(job: Ended) -> None:
    """Rule `files-with-decision`: it is published by a later epoch, and safe from clean until
    then."""
    held, _ = job.stage(1)
    gone, _ = job.stage(1, "part-1")
    job.decide(0, states=(job.hold(held),))
    job.decide(1, states=(job.hold(gone, "part-9"),))
    job.decide(3)
    lines = job.run("list")["files"]
    assert [(line["standing"], line["rows"]) for line in lines] == [("pending", 2), ("missing", 2)]
    assert held.path in lines[0]["uri"]
    assert job.run("clean", "--delete")["orphans"] == []
    job.decide(4)
    (job.directory / "checkpoint" / slot_name(0) / "_metadata").unlink()
    (found,) = job.run("orphans")["orphans"]
    assert found["uri"].endswith(held.path)


def test_retire_after_commit_what_newer_checkpoints_hold_is_safe_while_older_ones_are_retired_meanwhile(
    job: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs, and continues faster than the command reads: the last checkpoint that was listed
    is gone when its turn comes, and others hold the same."""
    held, _ = job.stage(1)
    job.decide(0)
    job.decide(3)
    job.decide(4, states=(job.hold(held),))
    read = CheckpointStore.read

    def late(store: CheckpointStore, checkpoint_id: int) -> CheckpointRecord | None:
        place = job.directory / "checkpoint" / slot_name(checkpoint_id)
        if checkpoint_id == 4 and place.exists():
            shutil.rmtree(place)
            job.decide(5, states=(job.hold(held),))
        return read(store, checkpoint_id)

    monkeypatch.setattr(CheckpointStore, "read", late)
    assert job.run("clean", "--delete")["orphans"] == []


def test_nothing_is_called_an_orphan_beside_a_checkpoint_that_cannot_be_read(job: Ended) -> None:
    job.stage(1)
    job.decide(0)
    job.decide(3)
    file = job.directory / "checkpoint" / slot_name(0) / "_metadata"
    file.write_bytes(file.read_bytes()[:-20])
    answer = CliRunner().invoke(app, ["clean", str(job.directory / "checkpoint"), "--delete"])
    assert isinstance(answer.exception, DamagedCheckpointError)
    assert list(job.data.rglob("part-0"))


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("words", [("orphans",), ("clean", "--delete")])
def test_lease_guards_outputs_what_a_run_of_another_directory_has_staged_is_no_orphan(
    job: Ended, words: tuple[str, ...], is_ended: bool
) -> None:
    """A copy was started by mistake, and refused after its seal: its checkpoints do not name what
    the job has staged, or holds, since it was copied; and held when it ended in order."""
    job.stage(1)
    job.decide(0)
    job.decide(3)
    job.own("file:///original", session="first", is_ended=is_ended)
    answer = CliRunner().invoke(app, [*words, str(job.directory / "checkpoint")])
    assert isinstance(answer.exception, FencedError)
    assert "file:///original" in str(answer.exception)
    assert "delete the lease '.sluice-lease' there" in str(answer.exception)
    assert list(job.data.rglob("part-0"))


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_directory_that_was_moved_is_the_one_that_its_last_run_had(
    job: Ended, is_ended: bool
) -> None:
    job.decide(0)
    job.decide(3)
    here = (job.directory / "checkpoint").as_uri()
    for uri, session in (("file:///before", "second"), (here, "first")):
        job.stage(1)
        job.own(uri, session=session, is_ended=is_ended)
        assert len(job.run("clean", "--delete")["orphans"]) == 1
        assert not list(job.data.rglob("part-0"))


def test_without_json_a_person_reads_a_table(job: Ended) -> None:
    job.stage(1)
    job.decide(0)
    job.decide(3)
    answer = CliRunner().invoke(app, ["clean", str(job.directory / "checkpoint")])
    assert "would be deleted" in answer.stdout
    assert "--delete" in answer.stderr
