"""A job that stays down longer than its transactions live, between decision and commit."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.inspect.checkpoint_cli import app as checkpoint_commands
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import Verdict
from tests.chaos.beds import LOSSES, REPAIR, kills
from tests.chaos.dropped import require_all_but
from tests.chaos.programs import MORTAL_COPY
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.kafka.kafka_records import (
    Record,
    await_stable,
    create_topic,
    delete_topic,
    partition_count,
    produce,
    read,
)
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_TIMEOUT_S = 16  # the shortest that a start accepts is 15
_REGIONS = 3
_RANGE = re.compile(r"[\w-]+-(\d+):\[(\d+),(\d+)\)")
_FORGETFUL = {
    "transactional.id.expiration.ms": "10000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}
_FAIL = {"ON_LOST": "fail", "TRANSACTION_TIMEOUT_S": str(_TIMEOUT_S)}


def test_a_lost_transaction_stops_the_job_or_is_written_again_exactly(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Rules `outcome-from-broker` and `two-phase-repair`: ``fail`` names the ranges and changes
    nothing; ``repair`` writes exactly the lost slices again, and is killed before and after what
    puts that on record."""
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, Setting(environment=_FAIL)) as scenario:
        for kill in kills(("after-decision",)):
            scenario.kill_at(kill)
        scenario.feeder.close()
        output = scenario.topics.output
        await_stable(kafka.bootstrap, output)  # the broker has aborted
        seen = scenario.observer.catch_up(timeout_s=PATIENCE_S)

        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_end(timeout_s=PATIENCE_S)
        assert "TransactionLostError" in program.log(), program.log_tail()
        assert f"{scenario.topics.source}-" in program.log()
        assert scenario.observer.catch_up(timeout_s=PATIENCE_S) == seen

        scenario.setting = replace(scenario.setting, environment={**_FAIL, "ON_LOST": "repair"})
        for failpoint in ("after-rewrite", "after-repair"):
            scenario.kill_at(Kill(failpoint=failpoint))
        scenario.finish()


def test_two_phase_repair_nothing_is_written_again_from_a_topic_that_was_made_again(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """While the job was away; it holds as many records at the same offsets, and they are others."""
    setting = Setting(environment={**_FAIL, "ON_LOST": "repair"})
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in kills(("after-decision",)):
            scenario.kill_at(kill)
        scenario.feeder.close()
        source, output = scenario.topics.source, scenario.topics.output
        await_stable(kafka.bootstrap, output)  # the broker has aborted
        seen = read(kafka.bootstrap, output)
        partitions = partition_count(kafka.bootstrap, source)
        delete_topic(kafka.bootstrap, source)
        assert create_topic(kafka.bootstrap, source, partitions=partitions) == source
        others = [
            Record(value=b"other", partition=number)
            for number in range(partitions)
            for _ in range(scenario.feeder.sent)
        ]
        produce(kafka.bootstrap, source, others)

        program = scenario.start()
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_end(timeout_s=PATIENCE_S)
        assert "its input has changed" in program.log(), program.log_tail()
        await_stable(kafka.bootstrap, output)
        assert read(kafka.bootstrap, output) == seen


def test_two_phase_repair_a_job_continues_after_a_loss_that_somebody_accepted(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The start is killed around what it puts on record of the loss; only a start that got there
    leaves something to accept."""
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, Setting(environment=_FAIL)) as scenario:
        scenario.kill_at(Kill(failpoint="after-decision"))
        await_stable(kafka.bootstrap, scenario.topics.output)
        for failpoint in LOSSES:
            scenario.kill_at(Kill(failpoint=failpoint))
            is_named = failpoint == "after-unsettled"
            assert bool(unsettled(scenario.checkpoint)) == is_named
        program = scenario.start()
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_end(timeout_s=PATIENCE_S)
        log = program.log()
        told = log[log.rindex("TransactionLostError") :]
        lost = {
            (int(partition), offset)
            for partition, start, end in _RANGE.findall(told[: told.index("details=")])
            for offset in range(int(start), int(end))
        }
        assert lost, program.log_tail()
        place = re.search(r"checkpoint_id=(\d+)", told)
        assert place is not None
        given = ["accept-loss", str(scenario.checkpoint), "--id", place[1]]
        told = CliRunner().invoke(checkpoint_commands, given, catch_exceptions=False).output
        printed = {int(number) for number, _, _ in _RANGE.findall(told)}
        assert printed == {partition for partition, _ in lost}

        scenario.feeder.close()
        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) == 0, program.log_tail()
        assert program.await_end(timeout_s=PATIENCE_S)
        assert "accepted loss" in program.log()
        require_all_but(scenario, lost)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", REPAIR)
def test_two_phase_repair_two_kills_in_a_row_in_a_repair(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    """The repair is begun again, and a third time; one that is on record is not, until its own
    transactions are lost."""
    setting = Setting(environment={**_FAIL, "ON_LOST": "repair"})
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in kills(("after-decision",)):
            scenario.kill_at(kill)
        await_stable(kafka.bootstrap, scenario.topics.output)  # the broker has aborted
        scenario.kill_at(Kill(failpoint=failpoint))
        if failpoint == "after-repair":
            await_stable(kafka.bootstrap, scenario.topics.output)
        scenario.kill_at(Kill(failpoint=failpoint))
        scenario.finish()


@pytest.mark.long
def test_outcome_from_broker_a_job_continues_by_a_person_s_word_once_its_ids_have_expired(
    tmp_path: Path,
) -> None:
    """Killed between the commits and their mark, and away until the broker does not know the ids
    any more: a start names the ranges and changes nothing; reported that they are committed, the next
    one continues, and everything is there once and in order."""
    with (
        EmbeddedKafka(properties=_FORGETFUL) as kafka,
        Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path) as scenario,
    ):
        scenario.kill_at(Kill(failpoint="before-committed-mark", hit=2))
        scenario.feeder.close()
        ids = decided_ids(scenario.checkpoint)
        assert ids
        wire = TransactionWire(scenario.topics.connection)
        wait_for(
            lambda: not any(wire.describe(ids, timeout_s=PATIENCE_S).values()),
            what="the broker has forgotten every id",
        )
        wire.close()
        seen = scenario.observer.catch_up(timeout_s=PATIENCE_S)

        program = scenario.start()
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_end(timeout_s=PATIENCE_S)
        log = program.log()
        told = log[log.rindex("TransactionUnknownError") :]
        assert _RANGE.search(told), program.log_tail()
        assert scenario.observer.catch_up(timeout_s=PATIENCE_S) == seen
        place = re.search(r"checkpoint_id=(\d+)", told)
        assert place is not None
        given = ["accept-loss", str(scenario.checkpoint), "--id", place[1]]
        refused = CliRunner().invoke(checkpoint_commands, given)
        assert isinstance(refused.exception, ConfigError)
        word = [*given, "--unknown-as", "committed"]
        CliRunner().invoke(checkpoint_commands, word, catch_exceptions=False)
        scenario.finish()


@pytest.mark.long
def test_of_several_regions_exactly_the_lost_slices_are_written_again(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Rule `two-phase-repair`: killed between the commits of one decision, and away until the
    brokers have aborted the rest."""
    repair = {**_FAIL, "ON_LOST": "repair", "REGIONS": str(_REGIONS)}
    setting = Setting(partitions=_REGIONS, environment=repair)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        # The first hit in which each region has a transaction: the preload, or a later epoch.
        scenario.kill_at(Kill(failpoint="mid-commit"))
        scenario.feeder.close()
        output = scenario.topics.output
        await_stable(kafka.bootstrap, output)  # the broker has aborted
        seen = scenario.observer.catch_up(timeout_s=PATIENCE_S)
        assert seen > 0, "the first transaction was committed"

        scenario.setting = replace(setting, environment={**repair, "DETERMINISTIC": "no"})
        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_end(timeout_s=PATIENCE_S)
        log = program.log()
        assert "TransactionLostError" in log, program.log_tail()
        assert scenario.observer.catch_up(timeout_s=PATIENCE_S) == seen
        named = {int(number) for number, _, _ in _RANGE.findall(log[log.rindex("ranges=") :])}
        records = read_records(scenario.topics.connection, output)
        visible = {record.partition for record in records}
        assert named, program.log_tail()
        assert named.isdisjoint(visible), "what is committed is not named as lost"

        scenario.setting = setting
        # Each region is a repair by itself; killed after the last one.
        scenario.kill_at(Kill(failpoint="after-repair", hit=len(named)))
        assert repaired(scenario.checkpoint) == len(named)
        scenario.finish()


def decided_ids(checkpoint: Path) -> list[str]:
    """Transactional ids of decisions that are not marked."""
    store = open_store(str(checkpoint))
    records = [store.read(place) for place in store.slots() if not store.is_committed(place)]
    entries = [entry for record in records if record for entry in record.committables]
    return [decode_handle(entry).transactional_id for entry in entries]


def unsettled(checkpoint: Path) -> list[str]:
    store = open_store(str(checkpoint))
    works = [work for place in store.slots() for work in store.unsettled(place)]
    return [each for work in works for each in work.ranges]


def repaired(checkpoint: Path) -> int:
    """How many committables a repair on record replaces."""
    store = open_store(str(checkpoint))
    records = [store.read(place) for place in store.slots()]
    return sum(
        old != new
        for record in records
        if record is not None and record.verdict is Verdict.DECIDED
        for old, new in zip(record.committables, store.effective_committables(record), strict=True)
    )
