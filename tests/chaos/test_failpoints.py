"""A copy killed at each step of the protocol: nothing lost, doubled, out of order.

Real processes on a real broker; a read_committed reader runs all along and must have seen a prefix.
It is killed once after each thing that outlives it (`DAILY`), from the decision on by `make
test-more` and before it on demand; and on demand twice in a row at every place that a copy in
micro-batches has. What other jobs have is killed in the modules beside this one
(`tests.chaos.test_every_failpoint`), and between any two steps the simulation crashes every time.
Proves design steps 1 to 8 (`pre-commit-confirmed`, `handle-from-producer`, `ids-never-reused`,
`outcome-from-broker`, `fence-first`, `publish-whole`, `batch-identity`, `two-phase-repair` and
`callback-after-commit`).
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.beds import CHAINS, DAILY, IN_BATCHES, RETRIES, kills, twice
from tests.chaos.obstacles import OBSTACLES
from tests.chaos.programs import COPY_IN_BATCHES, MORTAL_FILES
from tests.chaos.scenario import Kill, Scenario, survive

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

BEFORE_THE_DECISION = ("start and cut", "write and acknowledge")
IN_A_ROW = "mid-commit"


@pytest.mark.long
def test_copy_survives_a_kill_at_each_step_before_the_decision(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Nothing of these epochs counts: each is thrown away and read again."""
    survive(COPY_IN_BATCHES, kafka, tmp_path, kills(_daily(BEFORE_THE_DECISION)))


@pytest.mark.extended
def test_copy_survives_a_kill_at_each_step_from_the_decision_on(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The recovery is killed, too, at the same place as the run it recovers: `IN_A_ROW`."""
    names = _daily([chain for chain in CHAINS if chain not in BEFORE_THE_DECISION])
    chosen = [twice(name) if name == IN_A_ROW else kills((name,)) for name in names]
    survive(COPY_IN_BATCHES, kafka, tmp_path, [kill for group in chosen for kill in group])


def _daily(chains: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for chain in chains for name in CHAINS[chain] if name in DAILY)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", IN_BATCHES)
def test_copy_survives_two_kills_in_a_row_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    survive(COPY_IN_BATCHES, kafka, tmp_path, twice(failpoint))


@pytest.mark.long
@pytest.mark.parametrize("failpoint", RETRIES)
def test_a_start_without_an_answer_survives_two_kills_in_a_row(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    obstacle = OBSTACLES[failpoint]
    with Scenario(MORTAL_FILES, kafka.bootstrap, tmp_path) as scenario:
        for kill in kills((obstacle.killed_at,)):
            scenario.kill_at(kill)
        with obstacle.in_the_way(scenario):
            for _ in range(2):
                scenario.kill_at(Kill(failpoint=failpoint))
        scenario.finish()
