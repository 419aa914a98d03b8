"""A Job that writes files to an object store: whole, once, without a rename, under kills."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice import HdfsSink, Job, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.storage.objects.object_location import object_location
from sluice.runtime.storage.objects.object_uploads import uploads_at
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.objects.published_objects import PublishedObjects
from tests.kit.objects.s3_fixture import ProxiedBucket, S3Bucket
from tests.kit.objects.s3_proxy import Fault, FaultKind, S3Request
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_to_hdfs.py"
_RECORDS = 3_000

_UPLOAD = ["before-upload", "before-part", "after-part", "mid-upload", "after-upload"]
_COMPLETE = ["before-complete", "after-complete"]
_LOOK = ["before-look", "after-look"]
OF_UPLOADS = (*_UPLOAD, *_COMPLETE, *_LOOK)
"""Reached by files in object stores alone."""


def _values(count: int = _RECORDS, first: int = 0) -> list[Record]:
    return [Record(value=b"%d" % n, partition=n % 2) for n in range(first, first + count)]


def _expected(count: int = _RECORDS) -> Counter[bytes]:
    return Counter(b"%d!" % n for n in range(count))


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append ``!`` to each value."""
    shouted = pa.array([value + b"!" for value in batch.column("value").to_pylist()], pa.binary())
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def test_files_with_decision_a_chained_job_uploads_files_and_continues(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    s3: S3Bucket,
    tmp_path: Path,
) -> None:
    """The continuous engine, no Hadoop jar: each record once, in whole files, no upload is left."""
    source = topic(partitions=2)
    seen = PublishedObjects(s3)
    for first in (0, 50):
        produce(kafka.bootstrap, source, _values(50, first))
        job = Job(
            "files",
            spark,
            checkpoint_dir=str(tmp_path / "chk"),
            interval_s=0.2,
            engine="continuous",
        )
        job.source(
            KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
        ).map_batches(exclaim).sink(
            HdfsSink(
                f"{s3.uri}/lake/orders",
                partition_by=["partition"],
                columns=["value", "partition"],
                storage_options=s3.storage_options,
            )
        )
        job.run()
    assert seen.counted("lake/orders/") == _expected(100)
    keys = seen.keys("lake/orders/")
    assert all("/partition=" in key and key.endswith(".snappy.parquet") for key in keys)
    assert seen.open_uploads() == []


def _start(
    kafka: EmbeddedKafka,
    source: str,
    s3: S3Bucket,
    checkpoint: str,
    failpoints: str = "",
    log: IO[bytes] | None = None,
) -> int:
    """Run the example to its end in a session of its own, with environment variables alone.

    ``log``: gets its errors.
    """
    flags = {
        "--bootstrap": kafka.bootstrap,
        "--input": source,
        "--path": f"{s3.uri}/lake/orders",
        "--checkpoint": checkpoint,
        "--interval": "0.2",
    }
    words = [word for pair in flags.items() for word in pair]
    program = subprocess.Popen(
        [sys.executable, _EXAMPLE, *words, "--until-end"],
        env={
            **os.environ,
            **s3.environment,
            VARIABLE: failpoints,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        stderr=log,
        start_new_session=True,
    )
    try:
        return program.wait(PATIENCE_S)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)


@pytest.mark.extended
def test_the_example_needs_environment_variables_only(
    kafka: EmbeddedKafka, topic: TopicFactory, s3: S3Bucket
) -> None:
    """Files and checkpoint in one bucket."""
    source = topic(partitions=2)
    produce(kafka.bootstrap, source, _values())
    assert _start(kafka, source, s3, f"{s3.uri}/checkpoints/orders") == 0
    seen = PublishedObjects(s3)
    assert seen.counted("lake/orders/") == _expected()
    assert seen.open_uploads() == []
    assert any(key.endswith("_metadata") for key in seen.keys("checkpoints/orders/"))


@pytest.mark.extended
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("failpoint", [*_UPLOAD, *_COMPLETE])
def test_upload_settled_each_record_is_seen_once_after_kills(
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    s3: S3Bucket,
    tmp_path: Path,
    failpoint: str,
    times: int,
) -> None:
    """Driver, JVM and workers die at once, once and twice in a row."""
    source = topic(partitions=2)
    checkpoint = str(tmp_path / "chk")
    for number in range(times):  # a start that has new records completes an upload
        produce(kafka.bootstrap, source, _values(first=number * _RECORDS))
        ended = _start(kafka, source, s3, checkpoint, f"{failpoint}=kill-session")
        assert ended == -signal.SIGKILL
    assert _start(kafka, source, s3, checkpoint) == 0
    seen = PublishedObjects(s3)
    assert seen.counted("lake/orders/") == _expected(times * _RECORDS)
    assert seen.open_uploads() == []


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", _LOOK)
def test_upload_settled_a_kill_in_the_look_of_a_restart_changes_nothing(
    kafka: EmbeddedKafka, topic: TopicFactory, s3: S3Bucket, tmp_path: Path, failpoint: str
) -> None:
    """The first run dies after its completion; the second one while it looks; the third one ends."""
    source = topic(partitions=2)
    produce(kafka.bootstrap, source, _values())
    checkpoint = str(tmp_path / "chk")
    for failpoints in ("after-complete=kill-session", *[f"{failpoint}=kill-session"] * 2):
        assert _start(kafka, source, s3, checkpoint, failpoints) == -signal.SIGKILL
    assert _start(kafka, source, s3, checkpoint) == 0
    seen = PublishedObjects(s3)
    assert seen.counted("lake/orders/") == _expected()
    assert seen.open_uploads() == []


@pytest.mark.extended
def test_upload_settled_every_completion_without_an_answer_is_found_out(
    kafka: EmbeddedKafka, topic: TopicFactory, s3_proxied: ProxiedBucket, tmp_path: Path
) -> None:
    """The store acts, the answer is lost, and the repeated request finds no such upload."""
    source = topic(partitions=2)
    produce(kafka.bootstrap, source, _values())
    completions: Counter[str] = Counter()

    def lose_the_first(request: S3Request) -> Fault | None:
        if request.method != "POST" or "uploadId" not in request.query:
            return None
        completions[request.key] += 1
        is_first = completions[request.key] == 1
        return Fault(kind=FaultKind.DROPPED_AFTER) if is_first else None

    s3_proxied.proxy.choose = lose_the_first
    assert _start(kafka, source, s3_proxied, str(tmp_path / "chk")) == 0
    seen = PublishedObjects(s3_proxied.direct)
    assert seen.counted("lake/orders/") == _expected()
    assert sorted(completions) == seen.keys("lake/orders/")
    assert min(completions.values()) > 1, "each completion was repeated"
    assert seen.open_uploads() == []


@pytest.mark.extended
def test_upload_settled_a_decided_upload_that_the_store_aborted_stops_the_job(
    kafka: EmbeddedKafka, topic: TopicFactory, s3_proxied: ProxiedBucket, tmp_path: Path
) -> None:
    """As by a lifecycle rule while the job is down: each start names the file and the upload."""
    source = topic(partitions=2)
    produce(kafka.bootstrap, source, _values())
    checkpoint, direct = str(tmp_path / "chk"), s3_proxied.direct
    ended = _start(kafka, source, s3_proxied, checkpoint, "before-complete=kill-session")
    assert ended == -signal.SIGKILL
    uploads = uploads_at(object_location(direct.uri, direct.storage_options, environment={}))
    aborted = list(uploads.open_uploads("lake/"))
    for upload in aborted:
        uploads.abort(upload.key, upload.upload_id)
    assert aborted
    for attempt in (1, 2):
        errors = tmp_path / f"errors-{attempt}"
        with errors.open("wb") as log:
            assert _start(kafka, source, s3_proxied, checkpoint, log=log) == 1
        said = errors.read_text().splitlines()[-1]
        named = [each for each in aborted if each.key in said and each.upload_id in said]
        assert named, said
        assert "has no object" in said
    assert PublishedObjects(direct).counted("lake/orders/") == Counter()
