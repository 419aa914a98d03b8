"""A record that the broker refuses: nothing of its epoch shows, and the job says which one."""

from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.programs import COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.kit.kafka.kafka_records import (
    Record,
    await_stable,
    create_topic,
    produce,
    unique,
    values,
)
from tests.kit.waiting import PATIENCE_S

# In one process with its test, the same is shown by `tests/integration/test_job.py`.
pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(2400)]

LARGEST_BYTES = 50_000
SMALL_RECORDS = 20


def test_a_record_too_large_shows_nothing_and_names_its_place(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    output = create_topic(
        kafka.bootstrap,
        unique("refusing"),
        partitions=2,
        config={"max.message.bytes": str(LARGEST_BYTES)},
    )
    with Scenario(COPY, kafka.bootstrap, tmp_path, Setting(preload=0), output=output) as scenario:
        scenario.feeder.close()
        source = scenario.topics.source
        small = [Record(value=b"small", partition=n % 2) for n in range(SMALL_RECORDS)]
        produce(kafka.bootstrap, source, [*small, Record(value=b"x" * 80_000, partition=1)])
        program = scenario.start(until_end=True)
        assert program.await_exit(timeout_s=START_S) not in (0, None)
        assert program.await_end(timeout_s=PATIENCE_S)
        log = program.log()
        assert "DeliveryError" in log, log[-5000:]
        for word in (output, "partition=1", f"offset={SMALL_RECORDS // 2}"):
            assert word in log, f"{word} not in\n{log[-5000:]}"
        await_stable(kafka.bootstrap, output)
        assert values(kafka.bootstrap, output) == []
