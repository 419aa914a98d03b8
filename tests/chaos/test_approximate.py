"""Approximate recovery under kills: what is missing is what the records say, and nothing else."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.dropped import require_the_rest_once
from tests.chaos.programs import MORTAL_COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_MASTER = ["--master", "local[2,4]"]
_SETTING = Setting(interval_s=0.5, environment={"MOST_DROPPED": "1000000", "RETAINED": "100000"})


@pytest.mark.parametrize(
    "failpoints",
    [
        ["after-decision"],
        pytest.param(["before-decision", "after-decision"], marks=pytest.mark.long),
    ],
    ids=["decided", "read again, then decided"],
)
def test_a_job_killed_around_its_drops_lacks_exactly_what_is_on_record(
    kafka: EmbeddedKafka, tmp_path: Path, failpoints: Sequence[str]
) -> None:
    """Every worker dies at its second flush, and the whole job before or after a decision: a drop
    that was not decided is read again, one that was decided stays, and nothing is doubled."""
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, _SETTING) as scenario:
        for failpoint in failpoints:
            program = scenario.start(
                failpoints=f"after-flush=kill@2,{failpoint}=kill@3", arguments=_MASTER
            )
            exit_code = program.await_exit(timeout_s=START_S)
            assert exit_code == -signal.SIGKILL, program.log_tail()
            assert program.await_end(timeout_s=PATIENCE_S)
        scenario.feeder.close()
        program = scenario.start(until_end=True, arguments=_MASTER)
        assert program.await_exit(timeout_s=START_S) == 0, program.log_tail()
        require_the_rest_once(scenario)
