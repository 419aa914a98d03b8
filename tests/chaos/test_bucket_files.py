"""Files and checkpoints in one bucket, killed at any request, with a faulty network between.

The proxy before the server delays, drops, repeats, refuses and truncates one request of twenty all
along.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.beds import kills
from tests.chaos.outages import await_more_files
from tests.chaos.programs import FILES_COPY, MARKED_ROLLS, Subject
from tests.chaos.published_files import PublishedFiles
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.kit.mortal_program import MortalProgram
from tests.kit.objects.published_objects import PublishedObjects
from tests.kit.objects.s3_fixture import ProxiedBucket
from tests.kit.objects.s3_proxy import S3Request, random_faults
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended]

_REQUESTS = 80
"""A start makes about so many; an epoch makes a quarter of them."""


@contextmanager
def _scenario(
    subject: Subject, kafka: EmbeddedKafka, directory: Path, bucket: ProxiedBucket
) -> Iterator[Scenario]:
    """Both directories in the bucket; a reader of the files has a way around the proxy."""
    bucket.proxy.choose = random_faults(seed=11, probability=0.05)
    direct = open_file_system(bucket.uri, storage_options=bucket.direct.storage_options)
    scenario = Scenario(
        subject,
        kafka.bootstrap,
        directory,
        Setting(environment=bucket.environment, preload=1_000),
        files=PublishedFiles(fs=direct, name="lake"),
        checkpoint_uri=f"{bucket.uri}/check points",
    )
    with scenario:
        yield scenario


def _finish(scenario: Scenario, bucket: ProxiedBucket) -> None:
    """Judge all files. A start without faults then aborts the uploads that no process knows:
    those that a repeated request began in the last run."""
    scenario.finish()
    bucket.proxy.choose = None
    program = scenario.start(until_end=True)
    assert program.await_exit(timeout_s=START_S) == 0, program.log_tail()
    scenario.judge()
    assert PublishedObjects(bucket.direct).open_uploads() == []


def _await_requests(bucket: ProxiedBucket, program: MortalProgram, count: int) -> None:
    target = len(bucket.proxy.requests) + count

    def made() -> bool:
        assert program.exit_code is None, program.log_tail()
        return len(bucket.proxy.requests) >= target

    wait_for(made, what=f"{count} more requests", poll_s=0.005)


def _survive_kills_at_requests(
    kafka: EmbeddedKafka, directory: Path, bucket: ProxiedBucket, *, times: int
) -> None:
    """Killed after a random request: of the start, or of the work after new files.

    All processes die, or the driver alone: the next start then runs beside its last workers.
    """
    rng = random.Random(times)
    with _scenario(FILES_COPY, kafka, directory, bucket) as scenario:
        for number in range(times):
            program = scenario.start()
            if number % 3 != 1:
                await_more_files(scenario, program)
            _await_requests(bucket, program, rng.randrange(1, _REQUESTS))
            rng.choice([MortalProgram.kill, MortalProgram.kill_driver])(program)
        _finish(scenario, bucket)


@pytest.mark.timeout(2400)
def test_upload_settled_files_in_a_bucket_survive_kills_at_any_request(
    kafka: EmbeddedKafka, tmp_path: Path, s3_proxied: ProxiedBucket
) -> None:
    _survive_kills_at_requests(kafka, tmp_path, s3_proxied, times=4)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_upload_settled_files_in_a_bucket_survive_thirty_kills(
    kafka: EmbeddedKafka, tmp_path: Path, s3_proxied: ProxiedBucket
) -> None:
    _survive_kills_at_requests(kafka, tmp_path, s3_proxied, times=30)


@pytest.mark.timeout(2400)
def test_files_with_decision_rolled_files_and_marks_in_a_bucket_survive_kills(
    kafka: EmbeddedKafka, tmp_path: Path, s3_proxied: ProxiedBucket
) -> None:
    """Killed in a merge, between the parts and the decision, between completions, and after a
    mark. Files span epochs, and a partition has several; its mark comes after the last of them."""
    names = ("mid-merge", "mid-upload", "after-complete", "after-partition-mark")
    with _scenario(MARKED_ROLLS, kafka, tmp_path, s3_proxied) as scenario:
        for kill in kills(names):
            scenario.kill_at(kill)
        _finish(scenario, s3_proxied)
        files = list(scenario.topics.files.lengths())
    requests = s3_proxied.proxy.requests
    staged = {each.key for each in requests if ".sluice-staging-" in each.key}
    assert len([key for key in staged if "parquet" in key]) > len(files), "files span epochs"
    of_partition = Counter(path.rpartition("/")[0] for path in files)
    assert max(of_partition.values()) > 1, "files roll within a partition"
    assert _unmarked(requests, of_partition) == []


def _is_put(request: S3Request) -> bool:
    return request.method == "PUT"


def _unmarked(requests: list[S3Request], partitions: Collection[str]) -> list[str]:
    """Partitions whose last completion has no later write of a success file. Pure."""
    completed, marked = dict.fromkeys(partitions, -1), dict.fromkeys(partitions, -2)
    for place, request in enumerate(requests):
        directory, _, name = request.key.rpartition("/")
        if request.method == "POST" and "uploadId" in request.query:
            completed[directory] = place
        if _is_put(request) and name == "_SUCCESS":
            marked[directory] = place
    return [each for each in partitions if marked[each] < completed[each]]
