"""Files of dead attempts are deleted; never one that a decision or a snapshot names."""

from collections import Counter
from pathlib import Path

import pytest

from sluice.connectors.iceberg.committing.iceberg_sink_coordinator import IcebergSinkCoordinator
from sluice.runtime.contracts import SinkContext, SweepView
from sluice.runtime.errors import ConfigError, FencedError, IllegalTransitionError, WrongJobError
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.iceberg.iceberg_bed import JOB, OPERATOR, IcebergBed, rows_of


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    made = IcebergBed(directory=tmp_path)
    made.create()
    return made


def _context(attempt_id: int, *, uri: str = "file:/chk", session: str = "s") -> SinkContext:
    return SinkContext(
        job_uid=JOB,
        job_name="job",
        operator_id=OPERATOR,
        checkpoint_uri=uri,
        leader_session_id=session,
        attempt_id=attempt_id,
    )


def _coordinator(bed: IcebergBed, *, attempt_id: int = 2) -> IcebergSinkCoordinator:
    made = IcebergSinkCoordinator(bed.settings, "lake.events", sleep=lambda _: None)
    made.check(timeout_s=10)
    made.claim(_context(attempt_id), timeout_s=10)
    return made


def _view(
    *protected: StateEntry, current: int = 2, settled: int | None = None, bed: IcebergBed | None
) -> SweepView:
    return SweepView(
        job_uid=JOB,
        attempt_ids={"orders": current},
        protected=protected,
        orphans=() if bed is None else tuple(bed.registry.attempts),
        settled={} if settled is None else {"orders": settled},
    )


def test_files_of_an_attempt_that_is_over_are_deleted_and_protected_ones_stay(
    bed: IcebergBed,
) -> None:
    lost = bed.pre_commit(rows_of(1), batch_id=1)
    decided = bed.pre_commit(rows_of(2), batch_id=0)
    running = bed.pre_commit(rows_of(3), attempt_id=2)
    sink = _coordinator(bed)
    assert sink.sweep(_view(*decided, bed=None), timeout_s=10).aborted == 1
    assert len(bed.data_files()) == 2
    bed.commit([*decided, *running], after_crash=True)
    assert bed.ids() == Counter([2, 3])
    assert sink.sweep(_view(bed=None), timeout_s=10).aborted == 0
    assert lost
    assert bed.notes() == ["lease"]
    sink.close()


def test_files_of_a_task_that_was_killed_before_it_reported_are_deleted(bed: IcebergBed) -> None:
    factory = bed.sink().writer_factory()
    writer = factory.open(bed.scope("orders", 0, attempt_id=1, task="0.0"), bed.registry)
    writer.write(rows_of(1))
    assert writer._writer is not None  # noqa: SLF001 - a task that ends here
    writer._writer.finish()  # noqa: SLF001
    assert len(bed.data_files()) == 1
    assert _coordinator(bed).sweep(_view(bed=None), timeout_s=10).aborted == 1
    assert bed.data_files() == set()


def test_a_declared_orphan_and_a_second_try_of_a_settled_batch_are_deleted(
    bed: IcebergBed,
) -> None:
    entries = bed.pre_commit(rows_of(1), attempt_id=2, batch_id=0)
    bed.pre_commit(rows_of(1), attempt_id=2, batch_id=0, task="0.1")
    bed.commit(entries)
    sink = _coordinator(bed, attempt_id=3)
    assert sink.sweep(_view(bed=None), timeout_s=10).aborted == 0
    assert sink.sweep(_view(bed=None, settled=0), timeout_s=10).aborted == 1
    bed.registry.attempts.clear()
    bed.pre_commit(rows_of(9), attempt_id=2, batch_id=1)
    assert sink.sweep(_view(bed=bed), timeout_s=10).aborted == 1
    assert bed.ids() == Counter([1])
    assert len(bed.data_files()) == 1


def test_a_note_that_was_not_deleted_after_its_commit_costs_no_file(bed: IcebergBed) -> None:
    """The last commit's positions name its attempts: a sweep that comes too early changes nothing."""
    entries = bed.pre_commit(rows_of(1))
    notes = {path: path.read_bytes() for path in bed.directory.rglob(".sluice/**/*.json")}
    bed.commit(entries)
    for path, data in notes.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert _coordinator(bed).sweep(_view(bed=None), timeout_s=10).aborted == 0
    assert bed.ids() == Counter([1])


def test_a_table_with_later_commits_than_the_checkpoint_directory_refuses_the_start(
    bed: IcebergBed,
) -> None:
    """An older copy of the directory was restored: its new work would count as committed."""
    bed.commit(bed.pre_commit(rows_of(1), attempt_id=5))
    with pytest.raises(WrongJobError, match="does not know"):
        _coordinator(bed, attempt_id=4)
    _coordinator(bed, attempt_id=6).close()


def test_a_copy_of_a_job_that_runs_is_refused(bed: IcebergBed) -> None:
    holder = _coordinator(bed)
    copy = IcebergSinkCoordinator(bed.settings, "lake.events", sleep=lambda _: holder.renew())
    with pytest.raises(FencedError):
        copy.claim(_context(3, uri="file:/copy", session="t"), timeout_s=10)
    holder.close()


def test_what_the_sink_cannot_write_is_refused_at_the_start(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(properties={"write.format.default": "orc"})
    with pytest.raises(ConfigError, match="Parquet"):
        _coordinator(bed)
    with pytest.raises(ConfigError, match="no such Iceberg table"):
        IcebergSinkCoordinator(bed.settings, "lake.other").check(timeout_s=10)
    with pytest.raises(IllegalTransitionError, match="before it acquired"):
        IcebergSinkCoordinator(bed.settings, "lake.events").sweep(_view(bed=None), timeout_s=1)
