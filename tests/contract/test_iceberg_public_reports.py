"""Public reports about other Kafka-to-Iceberg sinks, as tests of this one.

A new committer or coordinator object stands for a restart here. `tests.chaos.test_iceberg_copy`
restarts real jobs after `kill -9`, and `tests.chaos.test_table_and_topic` such jobs with a topic.
`test_a_commit_that_arrives_after_its_repetition_is_refused` of `tests.integration.test_iceberg_rest`
holds a real request back until its successor has committed.
"""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.connectors.iceberg.committing.iceberg_sink_coordinator import IcebergSinkCoordinator
from sluice.runtime.contracts import CommitOutcome, SinkContext, SweepView
from sluice.runtime.errors import WrongJobError
from tests.kit.iceberg.iceberg_bed import JOB, OPERATOR, IcebergBed, rows_of
from tests.kit.waiting import PATIENCE_S


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    made = IcebergBed(directory=tmp_path)
    made.create()
    return made


def _paths(bed: IcebergBed) -> Counter[str]:
    """How many live manifest entries name each data file."""
    entries = bed.table().inspect.entries().to_pylist()
    return Counter(entry["data_file"]["file_path"] for entry in entries)


def _context(attempt_id: int) -> SinkContext:
    return SinkContext(
        job_uid=JOB,
        job_name="job",
        operator_id=OPERATOR,
        checkpoint_uri="file:/chk",
        leader_session_id=str(attempt_id),
        attempt_id=attempt_id,
        last_decision=1,
    )


def _coordinator(bed: IcebergBed, attempt_id: int) -> IcebergSinkCoordinator:
    made = IcebergSinkCoordinator(bed.settings, "lake.events", sleep=lambda _: None)
    made.claim(_context(attempt_id), timeout_s=PATIENCE_S)
    return made


def test_17340_files_announced_again_after_a_restart_are_in_one_manifest_entry(
    bed: IcebergBed,
) -> None:
    """apache/iceberg 17340: tasks restart within a commit, their announcements are read again, and
    the next commit has 19 of the 24 files of the one before. Real restarts within a commit:
    `tests.chaos.test_iceberg_copy`, at the failpoints around the append."""
    first = [
        entry for task in range(4) for entry in bed.pre_commit(rows_of(task), task=f"{task}.0")
    ]
    bed.commit(first)
    second = bed.pre_commit(rows_of(10), batch_id=1)
    bed.commit([*first, *second], checkpoint_id=2, after_crash=True)
    assert bed.ids() == Counter([0, 1, 2, 3, 10])
    assert set(_paths(bed).values()) == {1}


def test_16360_work_of_a_job_that_begins_again_is_never_taken_for_committed(
    bed: IcebergBed,
) -> None:
    """apache/iceberg 16360: after a cluster is made again, offsets are below the stored ones, and
    every data file is dropped in silence. Here: a new job counts from zero and appends; an old copy
    of the checkpoint directory, whose attempts the table already knows, is refused by name."""
    bed.commit(bed.pre_commit(rows_of(1), attempt_id=7, batch_id=100))
    fresh = IcebergBed(directory=bed.directory, job_uid="job-of-the-new-cluster")
    (report,) = fresh.commit(fresh.pre_commit(rows_of(2), attempt_id=1, batch_id=0))
    assert report.outcome is CommitOutcome.COMMITTED
    assert bed.ids() == Counter([1, 2])
    with pytest.raises(WrongJobError, match="commits that this checkpoint directory does not know"):
        _coordinator(bed, attempt_id=3)


def test_17376_a_replaced_coordinator_that_wakes_up_commits_nothing_twice(bed: IcebergBed) -> None:
    """apache/iceberg 17376: a coordinator that was replaced and lives on commits beside its
    successor, and a failed commit is not repeated. A real request that arrives late:
    `test_a_commit_that_arrives_after_its_repetition_is_refused` in
    `tests.integration.test_iceberg_rest`, by a fault `FaultKind.HELD`."""
    entries = bed.pre_commit(rows_of(1))
    replaced = bed.committer()
    replaced._current()  # noqa: SLF001 - stopped just before its request
    bed.commit(entries, after_crash=True)
    later = bed.pre_commit(rows_of(2), attempt_id=2)
    bed.commit(later, checkpoint_id=2)
    (report,) = bed.commit(entries, committer=replaced)
    assert report.outcome is CommitOutcome.COMMITTED
    assert bed.ids() == Counter([1, 2])


def test_18006_a_replacement_before_the_first_commit_appends_what_was_decided(
    bed: IcebergBed,
) -> None:
    """apache/iceberg 18006: the leader changes after a file was announced and before the first
    table commit. The replacement starts at the end of the control topic, and the file stays out of
    the table for ever. Here the decision names the file, and a sweep spares it. Real restarts after
    a decision: `tests.chaos.test_iceberg_copy`, at `after-decision` and `before-append`."""
    decided = bed.pre_commit(rows_of(1))
    bed.table().append(pa.Table.from_batches([rows_of(50)]))
    replacement = _coordinator(bed, attempt_id=2)
    view = SweepView(job_uid=JOB, attempt_ids={"orders": 2}, protected=tuple(decided), orphans=())
    assert replacement.sweep(view, timeout_s=PATIENCE_S).aborted == 0
    bed.commit(decided, after_crash=True)
    assert bed.ids() == Counter([1, 50])
    replacement.close()
