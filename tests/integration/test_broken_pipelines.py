"""`assert_exactly_once` names the fault of each broken pipeline, and no other, on a real broker."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.verdict import Verdict
from sluice.runtime.checker import Record
from sluice.testing import NotExactlyOnceError, assert_exactly_once
from tests.integration.test_verify_command import decided, entry
from tests.kit.kafka.broken_pipelines import PARTITIONS, Fault, Pipeline, fill
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import unique
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


def upper(record: Record) -> Record:
    return record._replace(value=(record.value or b"").upper())


@pytest.fixture
def source(kafka: EmbeddedKafka, topic: TopicFactory) -> str:
    name = topic(partitions=PARTITIONS)
    fill(kafka.bootstrap, name)
    return name


def pipeline(
    kafka: EmbeddedKafka, topic: TopicFactory, source: str, fault: Fault | None
) -> Pipeline:
    return Pipeline(
        bootstrap=kafka.bootstrap,
        source=source,
        output=topic(partitions=PARTITIONS),
        fault=fault,
        transactional_id=unique("pipeline"),
    )


def judged(one: Pipeline, *, checkpoint: Path | None = None) -> Verdict:
    with pytest.raises(NotExactlyOnceError) as caught:
        assert_exactly_once(
            one.source,
            one.output,
            expected=upper,
            bootstrap=one.bootstrap,
            name_by="key",
            ignore_partition=False,
            checkpoint=checkpoint,
            timeout=0.2,
        )
    return caught.value.verdict


def test_a_right_pipeline_passes(kafka: EmbeddedKafka, topic: TopicFactory, source: str) -> None:
    """It has aborted attempts in its output, and its input has aborted records."""
    right = pipeline(kafka, topic, source, None)
    right.run()
    for bootstrap in (kafka.bootstrap, KafkaConnection(bootstrap_servers=kafka.bootstrap)):
        verdict = assert_exactly_once(
            source, right.output, expected=upper, bootstrap=bootstrap, ignore_partition=False
        )
        assert (verdict.expected, verdict.found) == (20, 20)


@pytest.mark.parametrize(
    ("fault", "kind", "count", "places"),
    [
        (Fault.LOSES, "lost", 1, ["{source}-0@5 key='k10' value='v10'"]),
        (Fault.DOUBLES, "duplicated", 1, ["{output}-0@7 key='k10' value='V10'"]),
        (Fault.REORDERS, "reordered", 1, ["{output}-0@5 key='k10' value='V10'"]),
        (Fault.CORRUPTS, "corrupted", 1, ["{output}-0@5 key='k8' value='V' of {source}-0@4"]),
        (Fault.INVENTS, "unexpected", 1, ["{output}-0@5 key='k-"]),
        (
            Fault.SHOWS_ABORTED,
            "aborted",
            4,
            [
                "{output}-0@12 key='k12' value='V12' of {source}-0@7",
                "{output}-0@13 key='k14' value='V14' of {source}-0@8",
                "{output}-1@12 key='k13' value='V13' of {source}-1@7",
            ],
        ),
    ],
)
def test_each_broken_pipeline_is_named_alone(
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    source: str,
    fault: Fault,
    kind: str,
    count: int,
    places: Sequence[str],
) -> None:
    broken = pipeline(kafka, topic, source, fault)
    broken.run()
    (found,) = judged(broken).faults
    assert (found.kind, found.count) == (kind, count), found
    wanted = [place.format(source=source, output=broken.output) for place in places]
    assert [a.startswith(b) for a, b in zip(found.places, wanted, strict=True)], found


def test_a_torn_transaction_is_named_with_its_lost_records(
    kafka: EmbeddedKafka, topic: TopicFactory, source: str, tmp_path: Path
) -> None:
    broken = pipeline(kafka, topic, source, Fault.TEARS)
    broken.run()
    offsets = [
        [one.offset or 0 for one in batch if one.partition == 0] for batch in broken.batches()
    ]
    ranges = [range(each[0], each[-1] + 1) for each in offsets]
    decided(
        tmp_path,
        *(entry(broken.output, source, each, epoch=n) for n, each in enumerate(ranges, 1)),
    )
    lost, torn = judged(broken, checkpoint=tmp_path).faults
    assert (lost.kind, lost.count, torn.kind, torn.count) == ("lost", 4, "torn", 1)
    (place,) = torn.places
    assert place.startswith(f"{source}-0@4 p/job-uid/")
    assert place.endswith("of checkpoint 1: 4 of 8 records")


def test_an_open_transaction_is_named_alone(
    kafka: EmbeddedKafka, topic: TopicFactory, source: str
) -> None:
    """Its records are neither lost nor found yet."""
    broken = pipeline(kafka, topic, source, Fault.LEAVES_OPEN)
    producer = broken.run()
    assert producer is not None
    verdict = judged(broken)
    (fault,) = verdict.faults
    assert (fault.kind, fault.count) == ("open", 1)
    (place,) = fault.places
    assert f"transactional_id={broken.transactional_id} producer_id=" in place
    assert f"partitions={broken.output}-0,{broken.output}-1 since=20" in place
    assert any("lost and torn were not judged" in note for note in verdict.notes)
    producer.commit_transaction(PATIENCE_S)
    assert_exactly_once(source, broken.output, expected=upper, bootstrap=kafka.bootstrap)
