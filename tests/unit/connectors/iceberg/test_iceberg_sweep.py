"""Files of dead attempts are deleted; never one that a decision or a snapshot names."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.connectors.iceberg.committing.iceberg_sink_coordinator import IcebergSinkCoordinator
from sluice.connectors.iceberg.written_files import decode_written_files, encode_written_files
from sluice.runtime.contracts import SinkContext, SweepView
from sluice.runtime.errors import ConfigError, FencedError, IllegalTransitionError, WrongJobError
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.iceberg.iceberg_bed import JOB, OPERATOR, IcebergBed, rows_of


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    made = IcebergBed(directory=tmp_path)
    made.create()
    return made


def _context(
    attempt_id: int,
    *,
    uri: str = "file:/chk",
    session: str = "s",
    last_decision: int = 1,
    committed: Sequence[StateEntry] = (),
) -> SinkContext:
    return SinkContext(
        job_uid=JOB,
        job_name="job",
        operator_id=OPERATOR,
        checkpoint_uri=uri,
        leader_session_id=session,
        attempt_id=attempt_id,
        last_decision=last_decision,
        committed=tuple(committed),
    )


def _coordinator(
    bed: IcebergBed,
    *,
    attempt_id: int = 2,
    last_decision: int = 1,
    committed: Sequence[StateEntry] = (),
) -> IcebergSinkCoordinator:
    made = IcebergSinkCoordinator(bed.settings, "lake.events", sleep=lambda _: None)
    made.check(timeout_s=10)
    context = _context(attempt_id, last_decision=last_decision, committed=committed)
    made.claim(context, timeout_s=10)
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


@pytest.mark.parametrize("is_over", [True, False])
def test_a_note_that_arrives_after_a_later_commit_costs_no_file(
    bed: IcebergBed, is_over: bool
) -> None:
    """A request that was held on its way to the store, after its repetition and its deletion."""
    entries = bed.pre_commit(rows_of(1), batch_id=0)
    notes = {path: path.read_bytes() for path in bed.directory.rglob(".sluice/**/*.json")}
    bed.commit(entries)
    bed.commit(bed.pre_commit(rows_of(2), batch_id=1))
    for path, data in notes.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    view = _view(bed=None, current=2 if is_over else 1, settled=1)
    assert _coordinator(bed).sweep(view, timeout_s=10).aborted == 0
    assert bed.ids() == Counter([1, 2])
    assert bed.notes() == ["lease"]


def test_a_table_with_later_commits_than_the_checkpoint_directory_refuses_the_start(
    bed: IcebergBed,
) -> None:
    """An older copy of the directory was restored: its new work would count as committed, or would
    be appended a second time. Each refused start of the copy has a higher attempt id."""
    bed.commit(bed.pre_commit(rows_of(1), attempt_id=5), checkpoint_id=40)
    for attempt_id, last_decision in ((4, 40), (6, 39), (41, 39)):
        with pytest.raises(WrongJobError, match="does not know"):
            _coordinator(bed, attempt_id=attempt_id, last_decision=last_decision)
    _coordinator(bed, attempt_id=6, last_decision=40).close()


def test_a_table_without_the_commits_on_record_refuses_the_start(
    bed: IcebergBed, tmp_path: Path
) -> None:
    """The catalog is put back to a backup; then the table is dropped and created again."""
    first, second = (bed.pre_commit(rows_of(n), batch_id=n) for n in range(2))
    bed.commit(first, checkpoint_id=1)
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    bed.commit(second, checkpoint_id=2)
    _coordinator(bed, last_decision=2, committed=second).close()
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    with pytest.raises(WrongJobError, match="put back to an earlier state"):
        _coordinator(bed, last_decision=2, committed=second)
    _coordinator(bed, last_decision=2, committed=first).close()  # with restore_from
    bed.catalog().drop_table("lake.events")
    bed.create()
    with pytest.raises(WrongJobError, match="created again"):
        _coordinator(bed, last_decision=2, committed=first)
    _coordinator(bed, last_decision=2).close()


def test_commits_to_another_table_or_of_another_job_are_not_looked_for(bed: IcebergBed) -> None:
    """The sink has a new table, or the job began with a savepoint."""
    (entry,) = bed.pre_commit(rows_of(1))
    work = decode_written_files(entry)
    others = replace(work, table="lake.before"), replace(work, job_uid="job-0")
    committed = [encode_written_files(one, operator_id=OPERATOR) for one in others]
    _coordinator(bed, committed=committed).close()


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
