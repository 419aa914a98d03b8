"""Regions that fail while others go on: what each of them wrote is there once."""

import re
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.chaos.programs import REGIONAL
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

_CARRIED = re.compile(r"^checkpoint=\d+ completed=\S+ carried=[^-\s]", re.MULTILINE)


@pytest.mark.long
def test_rule_17_workers_that_die_again_and_again_are_carried(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Every worker dies at its second flush: its region comes back, checkpoints go on without it,
    and the last lines tell how often each was begun."""
    with Scenario(REGIONAL, kafka.bootstrap, tmp_path, Setting(partitions=4)) as scenario:
        program = scenario.start(failpoints="before-flush=kill@2", arguments=["--regions", "2"])

        def carried() -> bool:
            assert program.exit_code is None, program.log_tail()
            return len(_CARRIED.findall(program.log())) >= 2

        wait_for(carried, timeout_s=START_S, what="checkpoints that carry a region")
        program.interrupt()
        program.await_exit(timeout_s=START_S)
        assert re.search(r"^region=\S+-0 attempts=\d+$", program.log(), re.MULTILINE)
        assert re.search(r"^last_checkpoint=\d+$", program.log(), re.MULTILINE)
        scenario.finish(arguments=["--regions", "2"])
