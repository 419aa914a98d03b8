"""Keyed state under kills, pauses, moves, and a store that is away: each record is numbered once.

Each record of the input comes out with its number among those of its key. A state that is older or
newer than its offsets would repeat a number, or leave one out. Functions check that the kinds of
state agree with one another, and that timers fire once and in order.
"""

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regions.mortal_sink import Doom
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.model.checkpoint_record import Verdict
from tests.chaos.beds import OF_STATE, STATE_MOVES, kills, twice
from tests.chaos.programs import STATE_COUNTS, STATE_NUMBERS
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.chaos.test_continuous import checkpoints_on
from tests.kit.files.hdfs_admin import safe_mode
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_CONTINUOUS = {"ENGINE": "continuous"}
_ERROR = 1
_SHORT_S, _LONG_S = 20.0, 300.0
_EPOCH_S = 1.0


def _setting(**more: str) -> Setting:
    regions = int(more.get("REGIONS", "1"))
    return Setting(
        environment=_CONTINUOUS | more,
        partitions=4,
        preload=1_000,
        master=f"local[{max(2, regions)}]",
    )


def _survive(kafka: EmbeddedKafka, directory: Path, given: list[Kill], **more: str) -> None:
    with Scenario(STATE_NUMBERS, kafka.bootstrap, directory, _setting(**more)) as scenario:
        for kill in given:
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_state_with_output_kills_around_the_file_of_an_epoch(
    kafka: EmbeddedKafka, tmp_path: Path, backend: str
) -> None:
    """Before the upload, in it, after it, and after the decision that names it."""
    names = ("after-state-frozen", "before-state-file", "after-state-file", "after-decision")
    _survive(kafka, tmp_path, kills(names, hit=3), BACKEND=backend)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", OF_STATE)
def test_state_with_output_two_kills_in_a_row_at_every_step_of_a_state_file(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    _survive(kafka, tmp_path, twice(failpoint))


@pytest.mark.long
@pytest.mark.parametrize("failpoint", STATE_MOVES)
def test_state_with_output_two_kills_in_a_row_where_a_split_comes_with_its_state(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    doom = Doom(tmp_path / "doom")
    more = {"REGIONS": "3", "REGIONAL": "yes", "RESTLESS": "yes", "DOOM": str(doom.directory)}
    _survive(kafka, tmp_path, twice(failpoint, hit=1), **more)


@pytest.mark.extended
def test_state_with_output_splits_that_move_all_the_time_take_their_state_along(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    more = {"REGIONS": "3", "REGIONAL": "yes", "RESTLESS": "yes"}
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, _setting(**more)) as scenario:
        scenario.kill_at(Kill(failpoint="after-state-adopted", hit=2, action="kill-session"))
        scenario.kill_at(Kill(failpoint="after-mark", hit=4))
        scenario.finish()


@pytest.mark.extended
def test_state_with_output_a_task_that_dies_in_its_upload_comes_back_alone(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Each attempt dies at its third file: what it has uploaded is named by no record."""
    more = {"REGIONS": "2", "REGIONAL": "yes"}
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, _setting(**more)) as scenario:
        program = scenario.start(failpoints="before-state-file=kill@3")
        _await_restarts(program, 3)
        program.kill()
        scenario.finish()


@pytest.mark.extended
def test_state_with_output_a_job_changes_engine_backend_and_regions_at_a_checkpoint(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    steps = [
        ({"ENGINE": "continuous", "BACKEND": "memory", "REGIONS": "1"}, "before-mark"),
        ({"ENGINE": "micro-batch", "BACKEND": "rocksdb", "REGIONS": "3"}, "after-decision"),
        ({"ENGINE": "continuous", "BACKEND": "rocksdb", "REGIONS": "2"}, "after-mark"),
        ({"ENGINE": "micro-batch", "BACKEND": "memory", "REGIONS": "2"}, "before-decision"),
    ]
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, _setting()) as scenario:
        for environment, failpoint in steps:
            scenario.setting = _setting(**environment)
            scenario.kill_at(Kill(failpoint=failpoint, hit=2))
        scenario.finish()


@pytest.mark.extended
def test_state_with_output_a_paused_upload_is_given_up_and_lands_late(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Its checkpoint expires; a newer attempt runs, and the file is named by no record."""
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, _setting(TIMEOUT_S="20")) as scenario:
        program = scenario.start(failpoints="before-state-file=pause@3")
        _await_restarts(program, 1)
        program.kill()
        scenario.setting = _setting()
        scenario.finish()


@pytest.mark.extended
def test_state_with_output_counts_survive_kills_in_batches(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    with Scenario(STATE_COUNTS, kafka.bootstrap, tmp_path, _setting()) as scenario:
        scenario.setting = _setting(ENGINE="micro-batch")
        names = ("after-state-file", "before-ack", "after-decision", "before-state-files")
        for kill in kills(names):
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.long
def test_state_with_output_records_come_through_a_repartition_topic_under_kills(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The names of keys and their partitions have nothing to do with one another."""
    names = ("after-state-file", "before-mark", "after-decision", "mid-write")
    _survive(kafka, tmp_path, kills(names, hit=3), REPARTITION="yes", REGIONS="2")


# --- files that are not what the record names -----------------------------------------------------


def _truncate(file: Path, other: Path) -> None:
    del other
    file.write_bytes(file.read_bytes()[:-1])


def _change(file: Path, other: Path) -> None:
    del other
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _take_away(file: Path, other: Path) -> None:
    del other
    file.unlink()


def _replace(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes().ljust(file.stat().st_size, b"\0")[: file.stat().st_size])


@pytest.mark.extended
@pytest.mark.parametrize("damage", [_truncate, _change, _take_away, _replace])
def test_state_with_output_a_file_that_is_not_what_the_record_names_is_refused_by_name(
    kafka: EmbeddedKafka, tmp_path: Path, damage: Any
) -> None:
    """And with the file in its place again, the job continues."""
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, _setting()) as scenario:
        scenario.kill_at(Kill(failpoint="after-mark", hit=4))
        file, other = (scenario.checkpoint / path for path in _newest_files(scenario)[:2])
        whole = file.read_bytes()
        damage(file, other)
        program = scenario.start()
        wait_for(lambda: file.name in program.log(), timeout_s=START_S, what="the file's name")
        program.kill()
        file.write_bytes(whole)
        scenario.finish()


def _newest_files(scenario: Scenario) -> list[str]:
    """Files that the newest decision names, at least two."""
    store = open_store(str(scenario.checkpoint))
    for checkpoint_id in sorted(store.slots(), reverse=True):
        record = store.read(checkpoint_id)
        if record is not None and record.verdict is Verdict.DECIDED:
            return [file.path for file in record.keyed_files]
    raise AssertionError("nothing is decided")


# --- a store that is away -------------------------------------------------------------------------


@contextlib.contextmanager
def _away(
    hdfs: EmbeddedHdfs, client: Any, scenario: Scenario, program: MortalProgram, seconds: float
) -> Iterator[None]:
    """The store takes nothing for so long, and the program must live on.

    A decision or a marker may be refused first, and not the file of an epoch. Then no epoch ends
    any more, so this outage ends, and another one begins when the job has gone on.
    """
    while not _refuses_a_file(hdfs, client, program, seconds):
        scenario.observer.await_total(scenario.observer.total + 1, timeout_s=START_S)
        at_s = time.monotonic() + random.uniform(0.0, _EPOCH_S)  # anywhere in an epoch
        wait_for(lambda at_s=at_s: time.monotonic() >= at_s, what="a moment of an epoch")
    yield


def _refuses_a_file(
    hdfs: EmbeddedHdfs, client: Any, program: MortalProgram, seconds: float
) -> bool:
    """Whether a file of an epoch was the first to be refused; then the outage lasts so long."""
    texts = ("not written yet", "store did not answer a publish", "marker is not durable yet")
    before = [program.log().count(text) for text in texts]

    def refused() -> list[bool]:
        log = program.log()
        return [log.count(text) > known for text, known in zip(texts, before, strict=True)]

    with safe_mode(client, hdfs.uri):
        wait_for(lambda: any(refused()), timeout_s=START_S, what="a first refusal")
        if not refused()[0]:
            return False
        until_s = time.monotonic() + seconds

        def is_over() -> bool:
            assert program.exit_code is None, program.log_tail()
            return time.monotonic() >= until_s

        wait_for(is_over, timeout_s=seconds + START_S, what="the end of the outage")
    return True


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(_SHORT_S, marks=pytest.mark.extended, id="seconds"),
        pytest.param(_LONG_S, marks=pytest.mark.long, id="minutes"),
    ],
)
def test_state_with_output_a_store_that_is_away_is_waited_for(
    kafka: EmbeddedKafka, hdfs: EmbeddedHdfs, hadoop_client: Any, tmp_path: Path, seconds: float
) -> None:
    """The epoch's file is uploaded when the store is back; nothing is read twice."""
    at, told = checkpoints_on(hdfs)
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, _setting(**told)) as scenario:
        program = scenario.start(arguments=at)
        scenario.observer.await_total(1, timeout_s=START_S)
        with _away(hdfs, hadoop_client, scenario, program, seconds):
            scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
        program.kill()
        scenario.finish(arguments=at)


def _await_restarts(program: MortalProgram, count: int) -> None:
    def restarted() -> bool:
        assert program.exit_code is None, program.log_tail()
        return program.log().count("region restarted") >= count

    wait_for(restarted, timeout_s=START_S, what=f"{count} restarts of regions")
