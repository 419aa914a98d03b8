"""What every `RegionHandle` promises: in this process, over HTTP, and of a region on Spark."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import AttemptState, AttemptStatus, RegionAttempt
from sluice.runtime.errors import (
    FencedError,
    IllegalTransitionError,
    RegionUnansweredError,
    StorageUnreachableError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.service.remote_region import RemoteRegion
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress
from tests.contract.region_beds import Bed, HttpBed, ThreadBed
from tests.contract.spark_region import SparkBed
from tests.kit.coordinator.coordinated_job import Job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.waiting import wait_for

ROOT = Path(__file__).parents[2]
SOON_S = 300.0


@pytest.fixture(params=["threads", "http"])
def quick(request: pytest.FixtureRequest, job: Job) -> Iterator[ThreadBed]:
    made = ThreadBed(job) if request.param == "threads" else HttpBed(job)
    yield made
    made.stop()


@pytest.fixture
def http(job: Job) -> Iterator[HttpBed]:
    """A region after a service that may lose answers."""
    made = HttpBed(job)
    yield made
    made.stop()


@pytest.fixture(params=["threads", "http", pytest.param("spark", marks=pytest.mark.integration)])
def bed(request: pytest.FixtureRequest) -> Bed:
    name = {"threads": "thread_bed", "http": "http", "spark": "spark_bed"}[request.param]
    made: Bed = request.getfixturevalue(name)
    return made


@pytest.fixture
def spark_bed(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> Iterator[SparkBed]:
    made = SparkBed(spark, kafka.bootstrap, topic(), topic(), tmp_path / "checkpoint")
    yield made
    made.stop()


@pytest.fixture
def thread_bed(job: Job) -> Iterator[ThreadBed]:
    made = ThreadBed(job)
    yield made
    made.stop()


def _status(bed: Bed) -> AttemptStatus:
    return bed.handle.status(timeout_s=SOON_S)


def _ended(bed: Bed) -> AttemptStatus:
    """Its status, once its attempt has ended by itself."""

    def ended() -> AttemptStatus | None:
        found = _status(bed)
        return found if found.state is AttemptState.ENDED else None

    found = wait_for(ended, what="the life ends")
    assert found is not None
    return found


# --- every kind of region -------------------------------------------------------------------------


def test_an_attempt_begins_once_and_ends_once(bed: Bed) -> None:
    assert _status(bed).state is AttemptState.NONE
    attempt = bed.attempt()
    bed.handle.start(attempt, timeout_s=SOON_S)
    bed.handle.start(attempt, timeout_s=SOON_S)
    assert bed.begun() == [attempt.attempt_id]
    running = _status(bed)
    assert (running.state, running.attempt_id) == (AttemptState.RUNNING, attempt.attempt_id)
    committed = bed.wait_for_commit()
    told = bed.handle.register(attempt.attempt_id, timeout_s=SOON_S)
    assert (told.region, told.attempt_id, told.acknowledged) == (
        attempt.region,
        attempt.attempt_id,
        committed,
    )
    bed.handle.stop(attempt.attempt_id, timeout_s=0.0)
    for _ in range(2):
        assert wait_for(lambda: bed.handle.stop(attempt.attempt_id, timeout_s=SOON_S))
    assert _status(bed).state is AttemptState.STOPPED
    bed.handle.start(attempt, timeout_s=SOON_S)
    assert bed.begun() == [attempt.attempt_id], "an attempt that is over does not begin again"


def test_callback_after_commit_an_attempt_that_failed_says_why_and_has_one_successor(
    bed: Bed,
) -> None:
    """It is known after its end, until the next one begins, which is refused before it is stopped;
    then its own attempt is refused."""
    attempt = bed.attempt()
    bed.handle.start(attempt, timeout_s=SOON_S)
    bed.fail()
    ended = _ended(bed)
    assert ended.attempt_id == attempt.attempt_id
    assert ended.error is not None
    successor = bed.attempt(attempt.attempt_id + 100)
    with pytest.raises(
        IllegalTransitionError, match="the previous attempt of the region is not stopped"
    ):
        bed.handle.start(successor, timeout_s=SOON_S)
    assert bed.handle.stop(attempt.attempt_id, timeout_s=SOON_S)
    assert (
        bed.handle.register(attempt.attempt_id, timeout_s=SOON_S).attempt_id == attempt.attempt_id
    )
    bed.handle.start(successor, timeout_s=SOON_S)
    with pytest.raises(FencedError, match="not the newest attempt"):
        bed.handle.register(attempt.attempt_id, timeout_s=SOON_S)
    with pytest.raises(FencedError, match="stopped before it started"):
        bed.handle.start(attempt, timeout_s=SOON_S)
    assert bed.handle.stop(attempt.attempt_id, timeout_s=SOON_S), "the old one, again"
    assert _status(bed).attempt_id == successor.attempt_id, "its successor is left alone"
    assert bed.begun() == [attempt.attempt_id, successor.attempt_id]


def test_a_stop_of_an_attempt_that_never_began_keeps_it_from_beginning(bed: Bed) -> None:
    """The request to begin it may still be on its way."""
    attempt = bed.attempt()
    assert bed.handle.stop(attempt.attempt_id, timeout_s=SOON_S)
    with pytest.raises(FencedError, match="stopped before it started"):
        bed.handle.start(attempt, timeout_s=SOON_S)
    assert (_status(bed).state, bed.begun()) == (AttemptState.NONE, [])
    with pytest.raises(FencedError):
        bed.handle.register(attempt.attempt_id, timeout_s=SOON_S)
    bed.handle.start(bed.attempt(attempt.attempt_id + 1), timeout_s=SOON_S)
    assert bed.begun() == [attempt.attempt_id + 1]


# --- without Spark --------------------------------------------------------------------------------


def test_callback_after_commit_a_stop_is_bounded_and_continues(quick: ThreadBed) -> None:
    attempt = quick.attempt()
    quick.handle.start(attempt, timeout_s=SOON_S)
    release = quick.slow_down()
    assert not quick.handle.stop(attempt.attempt_id, timeout_s=0.05)
    assert _status(quick).state is AttemptState.STOPPING
    release()
    assert quick.handle.stop(attempt.attempt_id, timeout_s=SOON_S)
    assert _status(quick).state is AttemptState.STOPPED


def test_an_attempt_that_cannot_begin_leaves_nothing_and_says_why_again(quick: ThreadBed) -> None:
    """The first answer may be lost: the repeated call gets the same one. Only the next attempt
    begins."""
    attempt = quick.attempt()
    quick.regions.error = StorageUnreachableError("away", {"uri": "hdfs://n/"}, "Start it.")
    for _ in range(2):
        with pytest.raises(StorageUnreachableError, match="away"):
            quick.handle.start(attempt, timeout_s=SOON_S)
        assert _status(quick).state is AttemptState.NONE
    successor = quick.attempt(attempt.attempt_id + 1)
    quick.handle.start(successor, timeout_s=SOON_S)
    assert quick.begun() == [successor.attempt_id]


def test_an_attempt_that_is_over_says_what_keeps_the_next_from_writing(quick: ThreadBed) -> None:
    attempt = quick.attempt()
    quick.handle.start(attempt, timeout_s=SOON_S)
    assert quick.handle.stop(attempt.attempt_id, timeout_s=SOON_S)
    quick.regions.queries["main"][0].hindrance = StorageUnreachableError("away", {}, "Wait.")
    assert _status(quick).hindrance is None
    looked = quick.handle.status(check_storage=True, timeout_s=SOON_S)
    assert isinstance(looked.hindrance, StorageUnreachableError)


def test_abort_before_skip_an_attempt_that_failed_after_its_flush_says_what_it_left_open(
    quick: ThreadBed,
) -> None:
    """Pre-committed and never acknowledged: the coordinator is reported, and aborts it."""
    attempt = quick.attempt()
    quick.handle.start(attempt, timeout_s=SOON_S)
    quick.fail()
    _ended(quick)
    told = quick.handle.register(attempt.attempt_id, timeout_s=SOON_S)
    (work,) = told.open
    assert (work.batch.region, work.batch.attempt_id) == ("main", attempt.attempt_id)
    assert len(work.committables) == 1
    quick.coordinator.register_region(told)
    with pytest.raises(FencedError):
        quick.coordinator.register_region(replace(told, attempt_id=attempt.attempt_id - 1))


# --- answers that are lost ------------------------------------------------------------------------


def test_answers_that_are_lost_are_settled_by_asking(http: HttpBed) -> None:
    attempt = http.attempt()
    for call in (
        lambda: http.handle.start(attempt, timeout_s=SOON_S),
        lambda: http.handle.register(attempt.attempt_id, timeout_s=SOON_S),
        lambda: http.handle.stop(attempt.attempt_id, timeout_s=SOON_S),
    ):
        http.door.loses = 1
        with pytest.raises(RegionUnansweredError, match="did not answer"):
            call()
        assert _status(http).attempt_id == attempt.attempt_id
        call()
    assert _status(http).state is AttemptState.STOPPED
    assert http.begun() == [attempt.attempt_id]
    assert http.door.calls.count("start") == 2


def test_an_error_that_is_none_of_ours_arrives_as_text(http: HttpBed) -> None:
    """Spark's own, for example; it is no lost answer."""
    http.regions.error = ValueError("no such class")  # type: ignore[assignment]
    with pytest.raises(StreamError, match="ValueError: no such class") as raised:
        http.handle.start(http.attempt(), timeout_s=SOON_S)
    assert not isinstance(raised.value, UnreachableError)


# --- a region of another process ------------------------------------------------------------------


@contextlib.contextmanager
def _hosting() -> Iterator[tuple[subprocess.Popen[str], RemoteRegion]]:
    """A process that hosts the region, and the handle of it here."""
    host = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.region_process"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    assert host.stdin is not None
    address = CoordinatorAddress(**json.loads(host.stdout.readline()))
    remote = RemoteRegion("main", address, transfer_s=1.0)
    try:
        yield host, remote
    finally:
        remote.close()
        host.stdin.close()
        host.stdout.close()
        host.wait(SOON_S)


def test_a_process_that_died_is_unanswered_and_its_successor_knows_of_no_attempt() -> None:
    first = RegionAttempt(
        attempt_id=3, restored=RegionRecord(region="main", attempt_id=1, splits=()), after=2
    )
    with _hosting() as (host, region):
        region.start(first, timeout_s=SOON_S)
        assert region.status(timeout_s=SOON_S).state is AttemptState.RUNNING
        host.kill()
        host.wait(SOON_S)
        for call in (
            lambda: region.status(timeout_s=0.1),
            lambda: region.stop(3, timeout_s=0.1),
            lambda: region.start(first, timeout_s=0.1),
        ):
            with pytest.raises(RegionUnansweredError):
                call()
    with _hosting() as (_, region):
        found = region.status(timeout_s=SOON_S)
        assert (found.state, found.attempt_id) == (AttemptState.NONE, None)
        with pytest.raises(FencedError):
            region.register(3, timeout_s=SOON_S)
        assert region.stop(3, timeout_s=SOON_S)
        region.start(replace(first, attempt_id=4), timeout_s=SOON_S)
        assert region.register(4, timeout_s=SOON_S).attempt_id == 4
        assert region.stop(4, timeout_s=SOON_S)


def test_another_service_at_the_address_of_a_host_counts_as_no_answer() -> None:
    """The host has ended, and its port is used again: its regions start elsewhere."""
    service = CoordinatorService()
    service.start()
    region = RemoteRegion("main", replace(service.coordinator_address, token="of-another-run"))
    try:
        for call in (
            lambda: region.status(timeout_s=0.1),
            lambda: region.stop(3, timeout_s=0.1),
        ):
            with pytest.raises(RegionUnansweredError):
                call()
    finally:
        region.close()
        service.stop()
