"""Jobs and queries on a secured HDFS: they outlive tickets and tokens, and a KDC that is away."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.outages import await_log, await_more_files, await_more_records
from tests.chaos.programs import BOTH, FILES_DROP_IN, STATE_NUMBERS, Subject
from tests.chaos.published_files import PublishedFiles
from tests.chaos.scenario import Scenario, Setting
from tests.kit.kafka.kafka_records import unique
from tests.kit.kerberos.realm import TOKEN_LIFE_S, Realm
from tests.kit.kerberos.secure_hdfs import BRIEF
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_WAITS = "\nwaiting for"


@pytest.fixture
def client(realm: Realm) -> Iterator[Any]:
    with realm.hadoop_client() as jvm:
        yield jvm


def _files(realm: Realm, client: Any) -> PublishedFiles:
    root = f"{realm.hdfs.uri}/{unique('kerberos')}"
    return PublishedFiles(fs=open_file_system(root, client), name="files")


def _outlive_the_token(program: MortalProgram) -> None:
    """Until each ticket and token of now has expired."""
    _run_for(program, TOKEN_LIFE_S + 10)


def _run_for(program: MortalProgram, seconds: float) -> None:
    """The program must not end meanwhile."""
    end = time.monotonic() + seconds

    def has_passed() -> bool:
        assert program.exit_code is None, program.log_tail()
        return time.monotonic() > end

    wait_for(has_passed, timeout_s=seconds + PATIENCE_S, what=f"{seconds} s")


@pytest.mark.long
def test_a_query_whose_tasks_write_files_outlives_its_ticket_and_token(
    kafka: EmbeddedKafka, tmp_path: Path, realm: Realm, client: Any
) -> None:
    """Its checkpoints are there, too: Spark's JVM logs in again by the keytab."""
    files = _files(realm, client)
    at = ("--checkpoint", f"{files.fs.uri}/checkpoint")
    # Small batches: a file must be closed within a quarter of its token's validity.
    environment = {**realm.environment(BRIEF), "MAX_OFFSETS": "1000"}
    setting = Setting(environment=environment)
    with Scenario(FILES_DROP_IN, kafka.bootstrap, tmp_path, setting, files=files) as scenario:
        program = scenario.start(arguments=at)
        await_more_files(scenario, program)
        _outlive_the_token(program)
        await_more_files(scenario, program)
        program.kill()
        scenario.finish(arguments=at)


@pytest.mark.long
def test_a_query_ends_without_the_kdc_and_its_next_start_resumes(
    kafka: EmbeddedKafka, tmp_path: Path, realm: Realm, client: Any
) -> None:
    files = _files(realm, client)
    at = ("--checkpoint", f"{files.fs.uri}/checkpoint")
    environment = {**realm.environment(BRIEF), "MAX_OFFSETS": "1000"}
    setting = Setting(environment=environment)
    with Scenario(FILES_DROP_IN, kafka.bootstrap, tmp_path, setting, files=files) as scenario:
        program = scenario.start(arguments=at)
        await_more_files(scenario, program)
        realm.kdc.stop()
        try:
            wait_for(lambda: program.exit_code is not None, what="the end of the query")
        finally:
            realm.kdc.start()
        assert program.exit_code == 1, program.log_tail()
        scenario.finish(arguments=at)


@pytest.mark.long
@pytest.mark.parametrize("subject", [FILES_DROP_IN, STATE_NUMBERS], ids=lambda one: one.name)
def test_an_epoch_whose_tokens_expire_while_it_is_written_is_written_again(
    kafka: EmbeddedKafka, tmp_path: Path, realm: Realm, client: Any, subject: Subject
) -> None:
    """All processes are paused for longer than each ticket and token lives. A query may end."""
    files = _files(realm, client)
    at = ("--checkpoint", f"{files.fs.uri}/checkpoint")
    setting = Setting(environment={**realm.environment(BRIEF), "ENGINE": "continuous"})
    with Scenario(subject, kafka.bootstrap, tmp_path, setting, files=files) as scenario:
        await_more = await_more_files if subject.writes_files else await_more_records
        program = scenario.start(arguments=at)
        for _ in range(2):
            await_more(scenario, program)
            program.pause()
            _outlive_the_token(program)
            program.resume()
            if subject.writes_files and _ends(scenario, program):
                program = scenario.start(arguments=at)
        await_more(scenario, program)
        program.kill()
        scenario.finish(arguments=at)


def _ends(scenario: Scenario, program: MortalProgram) -> bool:
    """Whether a query ends by an error instead of more files."""
    seen = len(scenario.files_observer.seen)
    wait_for(
        lambda: program.exit_code is not None or len(scenario.files_observer.seen) > seen + 1,
        what="more files or the end of the query",
    )
    assert program.exit_code in (None, 1), program.log_tail()
    return program.exit_code is not None


@pytest.mark.long
@pytest.mark.parametrize("least_s", [0, 600])
def test_a_job_whose_tickets_expire_waits_for_the_kdc(
    kafka: EmbeddedKafka, tmp_path: Path, realm: Realm, client: Any, least_s: float
) -> None:
    """Spark's JVM writes the files; a topic beside them agrees. The KDC is away until the job waits
    for it, and at least for so long. A connection that is used stays open without a ticket, so the
    job is paused until its tickets and connections have ended."""
    files = _files(realm, client)
    at = ("--checkpoint", f"{files.fs.uri}/checkpoint")
    setting = Setting(environment=realm.environment(BRIEF))
    with Scenario(BOTH, kafka.bootstrap, tmp_path, setting, files=files) as scenario:
        program = scenario.start(arguments=at)
        await_more_files(scenario, program)
        realm.kdc.stop()
        try:
            program.pause()
            _outlive_the_token(program)
            program.resume()
            await_log(program, _WAITS, times=1)
            _run_for(program, least_s)
        finally:
            realm.kdc.start()
        await_more_files(scenario, program)
        program.kill()
        scenario.finish(arguments=at)


def test_keyed_state_is_written_by_new_tokens_and_waits_for_the_kdc(
    kafka: EmbeddedKafka, tmp_path: Path, realm: Realm
) -> None:
    """Long tasks fetch each next token from the driver. Then tokens and tickets expire while epochs
    run: these wait or are read again, and no record is lost or numbered twice."""
    at = ("--checkpoint", f"{realm.hdfs.uri}/{unique('keyed')}")
    environment = {**realm.environment(BRIEF), "ENGINE": "continuous"}
    setting = Setting(environment=environment, partitions=4, preload=1_000)
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, setting) as scenario:
        program = scenario.start(arguments=at)
        await_more_records(scenario, program)
        _outlive_the_token(program)
        await_more_records(scenario, program)
        realm.kdc.stop()
        try:
            await_log(program, _WAITS, times=1)
        finally:
            realm.kdc.start()
        await_more_records(scenario, program)
        program.kill()
        scenario.finish(arguments=at)
