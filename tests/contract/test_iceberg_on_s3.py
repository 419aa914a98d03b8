"""The Iceberg sink with its table in an S3 bucket."""

import pickle
from pathlib import Path

import pytest

from sluice.connectors.iceberg.committing.iceberg_sink_coordinator import IcebergSinkCoordinator
from sluice.runtime.contracts import CommitOutcome, SinkContext, SweepView
from sluice.runtime.errors import StreamError
from tests.kit.iceberg.iceberg_bed import JOB, OPERATOR, IcebergBed, rows_of
from tests.kit.iceberg.merged_rows import live_files
from tests.kit.objects.s3_fixture import ProxiedBucket, S3Bucket
from tests.kit.objects.s3_proxy import random_faults
from tests.kit.waiting import PATIENCE_S

_TRIES = 200


def _bed(directory: Path, bucket: S3Bucket, **options: str) -> IcebergBed:
    return IcebergBed(
        directory=directory,
        extra={"warehouse": f"{bucket.uri}/warehouse"},
        storage_options=options,
    )


def _ids(bed: IcebergBed) -> list[int]:
    return sorted(row["id"] for row in bed.rows())


def test_tasks_write_with_what_the_driver_has_found_in_its_environment(
    tmp_path: Path, s3_environment: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = _bed(tmp_path, s3_environment)
    bed.create()
    packed = pickle.dumps(bed.sink(upsert=True, equality_fields=["id"]).writer_factory())
    with monkeypatch.context() as on_the_host_of_a_task:
        for name in s3_environment.environment:
            on_the_host_of_a_task.delenv(name)
        scope = bed.scope("orders", 0, attempt_id=1, task="0.0")
        writer = pickle.loads(packed).open(scope, bed.registry)
        writer.write(rows_of(1, 2, 1))
        entries = writer.pre_commit()
    (report,) = bed.commit(entries, after_crash=True)
    assert report.outcome is CommitOutcome.COMMITTED
    assert _ids(bed) == [1, 2]
    assert bed.notes() == []


def test_options_of_the_job_name_the_store_unless_the_sink_has_its_own(
    tmp_path: Path, s3: S3Bucket
) -> None:
    bed = _bed(tmp_path, s3, **s3.storage_options)
    bed.create()
    sink = IcebergBed(directory=tmp_path, extra=bed.extra).sink()
    sink.use_storage_options(s3.storage_options)
    sink.use_storage_options({"aws_endpoint_url": "http://127.0.0.1:1"})
    assert sink.catalog_settings.load_table("lake.events").location().startswith(s3.uri)
    shown = " ".join([repr(sink.catalog_settings), *sink.settings().values()])
    assert s3.storage_options["aws_secret_access_key"] not in shown


def test_a_sweep_deletes_the_objects_of_dead_attempts(tmp_path: Path, s3: S3Bucket) -> None:
    bed = _bed(tmp_path, s3, **s3.storage_options)
    bed.create()
    decided = bed.pre_commit(rows_of(1))
    bed.pre_commit(rows_of(2), batch_id=1, upsert=True, equality_fields=["id"])
    sink = IcebergSinkCoordinator(bed.settings, "lake.events")
    sink.claim(
        SinkContext(
            job_uid=JOB,
            job_name="job",
            operator_id=OPERATOR,
            checkpoint_uri="file:/chk",
            leader_session_id="s",
            attempt_id=2,
        ),
        timeout_s=PATIENCE_S,
    )
    view = SweepView(job_uid=JOB, attempt_ids={"orders": 2}, protected=tuple(decided), orphans=())
    assert sink.sweep(view, timeout_s=PATIENCE_S).aborted == 1
    bed.commit(decided, after_crash=True)
    sink.close()
    assert _ids(bed) == [1]
    assert bed.notes() == ["lease"]


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_at_random_neither_loses_nor_doubles_rows(
    tmp_path: Path, s3_proxied: ProxiedBucket, seed: int
) -> None:
    """A failed attempt is left to the sweep, as a killed task; a decided one is repeated."""
    bed = _bed(tmp_path, s3_proxied, **s3_proxied.storage_options)
    bed.create()
    s3_proxied.proxy.choose = random_faults(seed, 0.1)
    for batch_id in range(5):
        for attempt in range(_TRIES):
            try:
                entries = bed.pre_commit(
                    rows_of(batch_id, 100),
                    batch_id=batch_id,
                    task=f"0.{attempt}",
                    upsert=True,
                    equality_fields=["id"],
                )
                break
            except (StreamError, OSError):
                continue
        committer = bed.committer()
        for _ in range(_TRIES):
            (report,) = bed.commit(
                entries, committer=committer, checkpoint_id=batch_id + 1, after_crash=True
            )
            if report.outcome is CommitOutcome.COMMITTED:
                break
            assert report.outcome is CommitOutcome.PENDING
        assert report.outcome is CommitOutcome.COMMITTED
    s3_proxied.proxy.clear()
    assert _ids(bed) == [*range(5), 100]
    assert len(bed.table().snapshots()) == 5
    assert len(live_files(bed.table())) == 10
