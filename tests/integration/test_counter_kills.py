"""Counters and history after real kills, once and twice in a row at the same step."""

from pathlib import Path

import pytest

from sluice import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.topics import created_topics
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.functions.record_counts import counter_totals
from sluice.runtime.history.history_file import read_history
from sluice.testing import assert_exactly_once, kill_and_restart
from tests.kit.counting_program import count_and_copy
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]

RECORDS = 6_000
KILLS = ("pre-commit", "pre-commit", "decision", "commit")


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_counters_are_exact_and_the_history_goes_on_after_kills(
    kafka: EmbeddedKafka, tmp_path: Path, engine: str
) -> None:
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        orders, copies = create("orders", partitions=2), create("copies", partitions=2)
        orders.send(str(number) for number in range(RECORDS))
        report = kill_and_restart(
            count_and_copy,
            [orders.bootstrap, orders.name, copies.name, tmp_path, engine],
            at=KILLS,
            timeout=PATIENCE_S,
        )
        assert len(report.kills) == len(KILLS)
        assert_exactly_once(orders, copies)
    store = open_store(str(tmp_path / "checkpoint"))
    record = store.read(store.slots()[-1])
    assert record is not None
    states = [entry for region in record.regions for entry in region.operator_states]
    (totals,) = counter_totals(states).values()
    assert totals == {"seen": RECORDS, "even": RECORDS // 2}
    history = read_history(store.fs)
    runs = [run["state"] for run in history["runs"]]
    assert runs[-1] == "finished"
    assert set(runs[:-1]) <= {"lost"}
    assert len(runs) > 1, "the last one continues the history of earlier ones"
    ids = [each["checkpoint_id"] for each in history["checkpoints"]]
    assert ids == sorted(set(ids))
    (last,) = [each for each in history["checkpoints"] if each["kind"] == "final"]
    assert last["verdict"] == "decided"
