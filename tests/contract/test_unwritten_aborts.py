"""A coordinator that cannot write to its log for a while: nothing that it says is final."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.wire_answers import STATE_TOPIC
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import CommitOutcome
from tests.kit.kafka.kafka_records import admin
from tests.kit.kafka.kafka_releases import OLDER_VERSION, older_kafka_jars
from tests.kit.kafka.transaction_harness import RealHarness, begun, committable
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

_SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


@pytest.fixture(
    params=[
        pytest.param(False, id="kafka", marks=pytest.mark.extended),
        pytest.param(True, id=f"kafka {OLDER_VERSION}", marks=pytest.mark.long),
    ]
)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    jars = older_kafka_jars() if request.param else None
    level = 0 if request.param else 2
    with EmbeddedKafka(transaction_version=level, properties=_SOON, jars=jars) as made:
        yield made


def _take_records_of(broker: EmbeddedKafka, most_bytes: int) -> None:
    entry = ConfigEntry(
        "max.message.bytes", str(most_bytes), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, STATE_TOPIC, incremental_configs=[entry])
    client = admin(broker.bootstrap)
    for done in client.incremental_alter_configs([resource]).values():
        done.result(60)


def test_outcome_from_broker_an_abort_that_could_not_be_written_is_waited_for(
    broker: EmbeddedKafka,
) -> None:
    """Kafka 3.9 describes an open transaction of the next epoch meanwhile, 4.3 one of its own; a
    coordinator that takes over would read of one that can still be committed."""
    harness = RealHarness(broker, 2)
    ours = begun(harness, timeout_s=3.0).identity
    _take_records_of(broker, 1)
    wait_for(
        lambda: "failed to write an epoch fence" in broker.log_path.read_text(),
        what="an abort that is not written",
    )
    committer = KafkaCommitter(harness.wire)
    (report,) = committer.commit([committable(ours)], timeout_s=2, after_crash=True)
    assert report.outcome is CommitOutcome.PENDING

    _take_records_of(broker, 1_000_000)
    (report,) = committer.commit([committable(ours)], timeout_s=300, after_crash=True)
    assert report.outcome in (CommitOutcome.ABORTED, CommitOutcome.COMMITTED)
    records = 0 if report.outcome is CommitOutcome.ABORTED else 2
    assert harness.visible() == records
    harness.close()
