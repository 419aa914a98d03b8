"""A job whose checkpoints lie on an S3 server: killed, paused, and with a faulty network between.

The proxy before the server drops, repeats, refuses and truncates one request of twenty all along.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.model.checkpoint_record import Verdict
from tests.chaos.beds import kills, twice
from tests.chaos.programs import COPY, COPY_IN_BATCHES, STATE_NUMBERS, WINDOWED, Subject
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.chaos.test_fencing import await_fenced
from tests.kit.objects.s3_fixture import ProxiedBucket
from tests.kit.objects.s3_proxy import random_faults
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_AROUND_THE_PUT = ("before-publish", "after-put", "after-publish")
OF_OBJECTS = ("after-put", "after-record-deleted")
"""Reached on object stores alone: the answer to a put, and half of a deletion."""

OF_SPARK_FILES = ("before-spark-place", "after-spark-place", "after-spark-owner")
"""Reached at the first start of a job whose Spark files lie in a directory of their own."""


@pytest.fixture
def bucket(s3_proxied: ProxiedBucket) -> Iterator[ProxiedBucket]:
    """A bucket with a faulty network before it."""
    s3_proxied.proxy.choose = random_faults(seed=7, probability=0.05)
    yield s3_proxied
    s3_proxied.proxy.clear()


def _scenario(
    subject: Subject, kafka: EmbeddedKafka, directory: Path, bucket: ProxiedBucket, **more: str
) -> Scenario:
    setting = Setting(environment={**bucket.environment, **more}, preload=1_000)
    uri = f"{bucket.uri}/check points"
    return Scenario(subject, kafka.bootstrap, directory, setting, checkpoint_uri=uri)


def test_publish_whole_kills_around_a_conditional_put(
    kafka: EmbeddedKafka, tmp_path: Path, bucket: ProxiedBucket
) -> None:
    """The decision is not there, or is there and its run does not know: nothing lost or doubled."""
    with _scenario(COPY, kafka, tmp_path, bucket) as scenario:
        for kill in kills((*_AROUND_THE_PUT, "after-record-deleted"), hit=3):
            scenario.kill_at(kill)
        scenario.finish()
    store = open_store(scenario.checkpoint_uri, storage_options=bucket.direct.storage_options)
    records = [store.read(each) for each in store.slots()]
    last = [r for r in records if r is not None and r.verdict is Verdict.DECIDED][-1]
    assert store.is_committed(last.checkpoint_id)


@pytest.mark.parametrize("failpoint", OF_OBJECTS)
def test_a_copy_survives_two_kills_in_a_row_on_an_object_store(
    kafka: EmbeddedKafka, tmp_path: Path, bucket: ProxiedBucket, failpoint: str
) -> None:
    with _scenario(COPY, kafka, tmp_path, bucket) as scenario:
        for kill in twice(failpoint, hit=3):
            scenario.kill_at(kill)
        scenario.finish()


def test_fence_first_of_two_coordinators_on_one_bucket_the_paused_one_decides_nothing(
    kafka: EmbeddedKafka, tmp_path: Path, bucket: ProxiedBucket
) -> None:
    with _scenario(COPY, kafka, tmp_path, bucket) as scenario:
        first = scenario.start(failpoints="before-publish=pause@4")
        wait_for(first.is_driver_paused, what="the first coordinator paused")
        second = scenario.start()
        scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
        first.resume_driver()
        await_fenced(first)
        scenario.finish_running(second)


def test_state_with_output_keyed_state_lies_on_the_object_store(
    kafka: EmbeddedKafka, tmp_path: Path, bucket: ProxiedBucket
) -> None:
    """Killed around the file of an epoch and after the decision that names it."""
    names = ("before-state-file", "after-state-file", "after-decision", "after-merged-file")
    with _scenario(STATE_NUMBERS, kafka, tmp_path, bucket, ENGINE="continuous") as scenario:
        for kill in kills(names, hit=3):
            scenario.kill_at(kill)
        scenario.finish()
    store = open_store(scenario.checkpoint_uri, storage_options=bucket.direct.storage_options)
    assert store.state_files()


def _twice_at(failpoint: str) -> list[Kill]:
    """A job binds its directories once: the second kill is after that, at the next write."""
    if failpoint in OF_SPARK_FILES:
        return [*kills((failpoint,), hit=1), *kills(("before-fencing",), hit=1)]
    return twice(failpoint, hit=3)


@pytest.mark.parametrize(
    "failpoint", [*OF_SPARK_FILES, "before-decision", "after-decision", "after-state-files"]
)
def test_restore_by_attempt_spark_s_state_lies_beside_the_object_store(
    kafka: EmbeddedKafka, tmp_path: Path, bucket: ProxiedBucket, failpoint: str
) -> None:
    """Spark logs on a disk, the decision is an object: each window is counted once."""
    logs = tmp_path / "spark logs"
    with _scenario(WINDOWED, kafka, tmp_path, bucket, SPARK_CHECKPOINT_DIR=str(logs)) as scenario:
        for kill in _twice_at(failpoint):
            scenario.kill_at(kill)
        scenario.finish()
    assert (logs / "_owner").is_file()
    store = open_store(scenario.checkpoint_uri, storage_options=bucket.direct.storage_options)
    assert not store.fs.exists("spark")


def test_restore_by_attempt_files_go_to_an_object_store_without_a_client_of_hadoop(
    kafka: EmbeddedKafka, tmp_path: Path, bucket: ProxiedBucket
) -> None:
    """Micro-batches without Spark's state need no log of an earlier run."""
    with _scenario(COPY_IN_BATCHES, kafka, tmp_path, bucket) as scenario:
        for kill in kills(("before-decision", "after-decision", "after-return"), hit=3):
            scenario.kill_at(kill)
        scenario.finish()
