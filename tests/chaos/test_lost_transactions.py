"""A job that stays down longer than its transactions live, between decision and commit."""

from dataclasses import replace
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.chaos.beds import REPAIR, kills
from tests.chaos.programs import MORTAL_COPY
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kafka_records import await_stable

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

_TIMEOUT_S = 16  # the shortest that a start accepts is 15
_FAIL = {"ON_LOST": "fail", "TRANSACTION_TIMEOUT_S": str(_TIMEOUT_S)}


def test_a_lost_transaction_stops_the_job_or_is_written_again_exactly(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Rules 5 and 11: ``fail`` names the ranges and changes nothing; ``repair`` writes exactly the
    lost slices again, and is killed at each of its steps."""
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, Setting(environment=_FAIL)) as scenario:
        for kill in kills(("after-decision",)):
            scenario.kill_at(kill)
        scenario.feeder.stop()
        output = scenario.topics.output
        await_stable(kafka.bootstrap, output, timeout_s=_TIMEOUT_S * 5)  # the broker has aborted
        seen = scenario.observer.total

        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_gone(timeout_s=30)
        assert "TransactionLostError" in program.log(), program.log_tail()
        assert f"{scenario.topics.source}-" in program.log()
        assert scenario.observer.total == seen

        scenario.setting = replace(scenario.setting, environment={**_FAIL, "ON_LOST": "repair"})
        for failpoint in REPAIR:
            scenario.kill_at(Kill(failpoint=failpoint))
        scenario.finish()
