"""A job whose every EndTxn and AddPartitionsToTxn comes to the broker once more, seconds later."""

from pathlib import Path

import pytest

from tests.chaos.programs import MORTAL_COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.kit.kafka.kafka_proxy import ADD_PARTITIONS_TO_TXN, END_TXN
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.late_requests import FENCED
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_ENOUGH = 60
_LONG = [
    pytest.param(engine, level, late_s, marks=pytest.mark.long)
    for engine in ("micro-batch", "continuous")
    for level in (0, 1, 2)
    for late_s in (2.0, 30.0)
    if (engine, level, late_s) != ("continuous", 2, 2.0)
]


@pytest.mark.parametrize(("engine", "level", "late_s"), [("continuous", 2, 2.0), *_LONG])
def test_outcome_from_broker_a_job_whose_every_transaction_request_comes_twice(
    tmp_path: Path, engine: str, level: int, late_s: float
) -> None:
    """Ids continue all the time, so the repeated ones meet later transactions: none is changed."""
    setting = Setting(environment={"ENGINE": engine})
    with (
        ProxiedKafka(transaction_version=level) as behind,
        Scenario(MORTAL_COPY, behind.proxied, tmp_path, setting) as scenario,
        behind.proxies[1].echo(END_TXN, ADD_PARTITIONS_TO_TXN, after_s=late_s) as echoes,
    ):
        program = scenario.start()

        def enough() -> bool:
            assert program.exit_code is None, program.log_tail()
            return sum(echoes.errors[code] for code in FENCED) >= _ENOUGH

        wait_for(enough, timeout_s=START_S, what=f"{_ENOUGH} requests that came twice in vain")
        scenario.finish_running(program)
        assert not echoes.unanswered
