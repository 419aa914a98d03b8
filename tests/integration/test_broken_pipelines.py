"""`assert_exactly_once` names the fault of each broken pipeline, and no other, on a real broker."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.verdict import Verdict
from sluice.runtime.checker import Record
from sluice.runtime.errors import ConfigError, SourceChangedError
from sluice.testing import NotExactlyOnceError, assert_exactly_once
from tests.integration.test_verify_command import decided, entry
from tests.kit.kafka.broken_pipelines import PARTITIONS, Fault, Pipeline, fill
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record as Sent
from tests.kit.kafka.kafka_records import abandon_transaction, produce, unique
from tests.kit.waiting import PATIENCE_S, join, wait_for

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
    assert any("lost and torn not judged" in note for note in verdict.notes)
    producer.commit_transaction(PATIENCE_S)
    assert_exactly_once(source, broken.output, expected=upper, bootstrap=kafka.bootstrap)


def test_a_transaction_that_ends_in_time_is_waited_for(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    output = topic()
    producer = abandon_transaction(kafka.bootstrap, output, [b"a"])
    timer = threading.Timer(0.5, producer.commit_transaction)
    timer.start()
    assert_exactly_once(["a"], output, bootstrap=kafka.bootstrap)
    join(timer)


def test_a_topic_may_be_an_object_that_brings_its_connection(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    named = SimpleNamespace(name=topic(), connection=connection)
    produce(kafka.bootstrap, named.name, [b"a"])
    output = SimpleNamespace(name=topic(), bootstrap=kafka.bootstrap)
    produce(kafka.bootstrap, output.name, [b"a"])
    assert_exactly_once(named, output)
    assert_exactly_once(named.name, output)
    assert_exactly_once(named, output.name)


def test_output_of_open_input_is_aborted_too(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """A reader with read_committed may never see it. What `expected` refuses has no output."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    producer = abandon_transaction(kafka.bootstrap, source, [b"2", b"x"])

    def half(record: Record) -> str:
        return str(int(record.value or b"") / 2)

    produce(kafka.bootstrap, output, [b"0.5"])
    assert_exactly_once(source, output, expected=half, bootstrap=kafka.bootstrap)
    produce(kafka.bootstrap, output, [b"1.0"])
    with pytest.raises(NotExactlyOnceError) as caught:
        assert_exactly_once(source, output, expected=half, bootstrap=kafka.bootstrap)
    (fault,) = caught.value.verdict.faults
    assert fault.kind == "aborted"
    assert fault.places == (f"{output}-0@1 key=None value='1.0' of {source}-0@1",)
    producer.abort_transaction(PATIENCE_S)


def test_the_last_record_of_a_key_needs_one_partition(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    output = topic(partitions=2)
    sums = [Sent(key=b"a", value=b"%d" % number, partition=0) for number in range(3)]
    produce(kafka.bootstrap, output, sums)
    last: dict[str, Any] = {
        "expected": {"a": "2"},
        "last_per_key": True,
        "bootstrap": kafka.bootstrap,
    }
    assert assert_exactly_once(None, output, **last).found == 3
    produce(kafka.bootstrap, output, [Sent(key=b"a", value=b"2", partition=1)])
    with pytest.raises(NotExactlyOnceError) as caught:
        assert_exactly_once(None, output, **last)
    assert caught.value.verdict.kinds == {"reordered"}


def test_an_open_transaction_may_hold_the_last_record(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    output = topic()
    produce(kafka.bootstrap, output, [Sent(key=b"a", value=b"1")])
    producer = abandon_transaction(kafka.bootstrap, output, [Sent(key=b"a", value=b"2")])
    last: dict[str, Any] = {"expected": {"a": "2"}, "last_per_key": True, "timeout": 0.2}
    with pytest.raises(NotExactlyOnceError) as caught:
        assert_exactly_once(None, output, bootstrap=kafka.bootstrap, **last)
    assert caught.value.verdict.kinds == {"open"}
    producer.commit_transaction(PATIENCE_S)
    assert_exactly_once(None, output, bootstrap=kafka.bootstrap, **last)


def test_what_cannot_be_read_is_an_error_and_no_verdict(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    with pytest.raises(SourceChangedError):
        assert_exactly_once(["a"], unique("absent"), bootstrap=kafka.bootstrap)
    with pytest.raises(ConfigError, match="nothing to compare"):
        assert_exactly_once(topic(), topic(), bootstrap=kafka.bootstrap)


def test_ctrl_c_ends_it_and_leaves_no_file(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, scratch = topic(), tmp_path / "scratch"
    scratch.mkdir()
    produce(kafka.bootstrap, source, [b"a"])
    program = (
        "import time; from sluice.testing import assert_exactly_once as check; "
        f"check({source!r}, 'x', expected=lambda _: time.sleep(600), "
        f"bootstrap={kafka.bootstrap!r})"
    ).replace("'x'", repr(topic()))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(lambda: any(scratch.rglob("found")))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert not any(scratch.iterdir())
