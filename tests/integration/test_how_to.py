"""What `docs/guide/functions.md` shows does what the page says, on a real broker and real Spark."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job, Stream
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique, values

pytestmark = [pytest.mark.integration, pytest.mark.extended]

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "functions.md"
Copy = Callable[[list[Record], str | None, Callable[[Stream], Stream]], str]


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M):
        if "def " in block:
            exec(compile(block, str(PAGE), "exec"), found)
    return found


@pytest.fixture
def copied(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Copy:
    """Runs a bounded job over these records; gives the topic that it writes."""

    def run(records: list[Record], output: str | None, step: Callable[[Stream], Stream]) -> str:
        source = topic()
        produce(kafka.bootstrap, source, records)
        sink = output or topic()
        job = Job("how-to", spark, checkpoint_dir=tmp_path / source, interval_s=0.2)
        stream = job.source(
            KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
        )
        step(stream).sink(
            KafkaSink(
                bootstrap_servers=kafka.bootstrap,
                topic=None if output else sink,
                transactional_id_prefix=unique("how-to"),
            )
        )
        job.run()
        return sink

    return run


def keyed(*pairs: tuple[bytes, bytes]) -> list[Record]:
    return [Record(key=key, value=value) for key, value in pairs]


def test_json_is_parsed_and_what_is_none_is_left_out(
    copied: Copy, kafka: EmbeddedKafka, shown: dict[str, Any]
) -> None:
    given = [b'{"id": 1, "customer": "a", "amount": 99}', b"no JSON", b"{}"]
    given.append(b'{"id": 2, "customer": "b", "amount": 100}')
    records = [Record(value=value, headers=(("h", b"1"),)) for value in given]
    sink = copied(records, None, lambda stream: stream.transform(shown["large_orders"]))
    (found,) = read(kafka.bootstrap, sink)
    assert (found.key, found.headers) == (b"b", (("h", b"1"),))
    assert json.loads(found.value or b"") == {"id": 2, "customer": "b", "amount": 100.0}


def test_a_stream_is_joined_with_a_static_table(
    copied: Copy, kafka: EmbeddedKafka, shown: dict[str, Any]
) -> None:
    given = keyed((b"a", b"1"), (b"c", b"2"), (b"b", b"3"))
    sink = copied(given, None, lambda stream: stream.transform(shown["with_label"]))
    assert sorted(values(kafka.bootstrap, sink)) == [b"2", b"Anna 1", b"Bert 3"]


def test_duplicates_are_dropped(copied: Copy, kafka: EmbeddedKafka, shown: dict[str, Any]) -> None:
    given = keyed((b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"4"))
    sink = copied(given, None, lambda stream: stream.transform(shown["first_of_each_key"]))
    assert sorted(values(kafka.bootstrap, sink)) == [b"1", b"3"]


def test_records_go_to_the_topics_that_they_name(
    copied: Copy, kafka: EmbeddedKafka, topic: TopicFactory, shown: dict[str, Any]
) -> None:
    large, small = topic(), topic()
    routed = shown["routed"]
    names = {"orders-large": large, "orders-small": small}

    def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
        made = routed(batch)
        return made.set_column(2, "topic", pa.array([names[t] for t in made["topic"].to_pylist()]))

    given = keyed((b"a", b"1"), (b"a", b"x" * 1001), (b"a", b"2"))
    copied(given, small, lambda stream: stream.map_batches(renamed))
    assert values(kafka.bootstrap, small) == [b"1", b"2"]
    assert values(kafka.bootstrap, large) == [b"x" * 1001]
