"""A task outlives an outage of all of its sink's brokers: it waits, and nothing fails."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.coordinator.sink_region import commit, region_of, rows
from tests.kit.kafka.kafka_records import create_topic, values
from tests.kit.waiting import join

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_ACKNOWLEDGED_S = 3.0
_AWAY_S = 35.0  # longer than a task was ready to wait once


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(data_dir=tmp_path / "broker") as kafka:
        yield kafka


def _away(broker: EmbeddedKafka, work: Callable[[], list[StateEntry]]) -> list[StateEntry]:
    found: list[list[StateEntry]] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as err:  # noqa: BLE001 - raised below
            failures.append(err)

    task = threading.Thread(target=run)
    task.start()
    time.sleep(_AWAY_S)
    assert task.is_alive(), failures
    broker.start()
    join(task)
    assert failures == []
    return found[0]


def test_a_new_region_waits_for_its_first_producer(broker: EmbeddedKafka) -> None:
    topic = create_topic(broker.bootstrap)
    region = region_of(broker, topic)
    broker.kill()
    entries = _away(broker, lambda: region.write(rows(value=[b"a"])))
    commit(broker, entries)
    assert values(broker.bootstrap, topic) == [b"a"]


def test_a_flush_waits_for_the_brokers(broker: EmbeddedKafka) -> None:
    topic = create_topic(broker.bootstrap)
    region = region_of(broker, topic)
    writer = region.open()
    writer.write(rows(value=[b"a"]))
    # what begins the transaction may not be lost on its way (`outcome-from-broker`)
    time.sleep(_ACKNOWLEDGED_S)

    def work() -> list[StateEntry]:
        writer.write(rows(value=[b"b"]))
        return writer.pre_commit()

    broker.kill()
    commit(broker, _away(broker, work))
    assert values(broker.bootstrap, topic) == [b"a", b"b"]
