"""Recovery at every feature level of the cluster: EndTxn is another request at each
(`endtxn-version`)."""

from pathlib import Path

import pytest

from tests.chaos.beds import kills
from tests.chaos.programs import COPY
from tests.chaos.scenario import Scenario
from tests.kit.kafka.kafka_fixture import BrokerByLevel

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
    "level",
    [0, pytest.param(1, marks=pytest.mark.long)],  # else `tests/contract/test_committer.py`
    ids=lambda level: f"transaction.version={level}",
)
def test_recovery_is_exact_at_lower_levels(
    kafka_by_level: BrokerByLevel, tmp_path: Path, level: int
) -> None:
    """A decided transaction is committed for the dead, an undecided one aborted. Level 2 is
    where all other tests run."""
    broker = kafka_by_level(level)
    with Scenario(COPY, broker.bootstrap, tmp_path) as scenario:
        for kill in kills(("after-flush", "mid-commit")):
            scenario.kill_at(kill)
        scenario.finish()
