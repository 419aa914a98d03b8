"""How the command reports a stop if the job has gone before it could say how it ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.errors import CheckpointFailedError, UnreachableError
from sluice.runtime.job.running_job import JobEnd, await_end, running_job
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    RegionRecord,
    RegionStatus,
    Verdict,
)
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from tests.kit.coordinator.checkpoint_records import committable, record

SESSION = "this-run"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """The last run was stopped in order, and a new one has begun."""
    store = open_store(str(tmp_path))
    fencing = record(2, regions=(), verdict=Verdict.ABORTED, requested_by=FENCING)
    for made in (
        record(0, regions=()),
        record(1, regions=(), kind=CheckpointKind.FINAL, leader_session_id="last-run"),
        replace(fencing, leader_session_id=SESSION),
    ):
        store.publish(made, timeout_s=60)
    return store


def reported(store: CheckpointStore, parent: str | None = None) -> JobEnd:
    """The command polls a job that does not run any more."""
    address = CoordinatorAddress(
        address="http://127.0.0.1:9", token="t", leader_session_id=SESSION, job_uid="j"
    )
    with CoordinatorClient(address, deadline_s=0.0) as client:
        return await_end(store.uri, client, {"request_id": "0a1b2c", "parent": parent})


def test_a_final_checkpoint_of_an_earlier_run_is_no_end_of_this_one(
    store: CheckpointStore,
) -> None:
    with pytest.raises(CheckpointFailedError, match="without its last checkpoint"):
        reported(store)


def test_a_final_checkpoint_counts_once_it_is_committed(store: CheckpointStore) -> None:
    """Until then its transactions are open."""
    region = RegionRecord(region="r0", attempt_id=2, batch_id=0, committables=(committable(),))
    last = record(3, regions=(region,), kind=CheckpointKind.FINAL, leader_session_id=SESSION)
    store.publish(last, timeout_s=60)
    with pytest.raises(CheckpointFailedError):
        reported(store)
    store.mark_committed(3)
    assert reported(store) == JobEnd(savepoint=None)


def test_a_region_that_is_suspended_in_the_last_checkpoint_is_named(
    store: CheckpointStore,
) -> None:
    """It may have been suspended after the request."""
    whole = RegionRecord(region="r0", attempt_id=2, batch_id=0)
    skipped = RegionRecord(region="r1", attempt_id=2, batch_id=0, status=RegionStatus.SKIPPED)
    kind = CheckpointKind.FINAL
    last = record(3, regions=(whole, skipped), kind=kind, leader_session_id=SESSION)
    store.publish(last, timeout_s=60)
    assert reported(store) == JobEnd(savepoint=None, suspended=("r1",))


@pytest.mark.parametrize("has_savepoint", [False, True])
def test_a_job_that_another_run_has_continued_is_not_reported_as_stopped(
    store: CheckpointStore, has_savepoint: bool
) -> None:
    """Its driver died after the last checkpoint, and before the job had ended in order."""
    store.publish(
        record(3, regions=(), kind=CheckpointKind.FINAL, leader_session_id=SESSION), timeout_s=60
    )
    parent = f"{store.uri}/savepoints" if has_savepoint else None
    savepoint = f"{parent}/savepoint-j-3-0a1b2c" if has_savepoint else None
    if has_savepoint:
        store.fs.replace("savepoints/savepoint-j-3-0a1b2c/_metadata", b"whole")
    assert reported(store, parent) == JobEnd(savepoint=savepoint)
    fencing = record(4, regions=(), verdict=Verdict.ABORTED, requested_by=FENCING)
    store.publish(replace(fencing, leader_session_id="standby"), timeout_s=60)
    with pytest.raises(CheckpointFailedError, match="newer_run=standby") as raised:
        reported(store, parent)
    assert raised.value.args[1].get("savepoint") == savepoint


def test_a_job_whose_address_another_program_has_does_not_answer(store: CheckpointStore) -> None:
    """Its run has died, and its port is used again."""
    service = CoordinatorService()
    service.start()
    run = RunRecord(
        leader_session_id="last-run",
        address=service.address,
        attempt_id=0,
        job_uid="j",
        token="of-the-last-run",
    )
    runs = RunRecordStore(store.fs)
    try:
        with (
            runs.accept_commands(run, is_newest=lambda: True),
            pytest.raises(UnreachableError, match="another program has its address"),
            running_job(store.uri, answer_s=0.1) as client,
        ):
            client.status()
    finally:
        service.stop()
