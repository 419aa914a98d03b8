"""The progress of drop-in sources, as Spark's own Kafka source reports it."""

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.streaming.listener import SourceProgress

from sluice.connectors.kafka import kafka_drop_in_batch as _spark_source
from sluice.connectors.kafka.kafka_drop_in_source import KafkaStreamReader
from sluice.connectors.kafka.kafka_progress import kafka_progress
from sluice.connectors.kafka.source.source_options import SourceOptions
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster

OTHER = {"startOffset": '{"orders":{"0":1}}', "endOffset": '{"orders":{"0":3}}', "latestOffset": ""}


def shown(start: object, end: object, latest: object) -> Any:
    names = ("startOffset", "endOffset", "latestOffset")
    java = {name: json.dumps(each) for name, each in zip(names, (start, end, latest), strict=True)}
    numbers = dict.fromkeys(("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond"), 0)
    return {
        "sources": [
            {**OTHER, "latestOffset": "{}"},
            SourceProgress.fromJson({"description": "", **java, **numbers}),
        ]
    }


def test_offsets_and_metrics_have_the_form_of_sparks_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two partitions, 2 and 4 offsets after: Spark's own corner case."""
    cluster = FakeSourceCluster()
    cluster.create("a", FakeLog(latest=3), FakeLog(latest=6))
    monkeypatch.setattr(_spark_source, "KafkaCluster", lambda *_, **__: cluster)
    given = {
        "kafka.bootstrap.servers": "fake:9092",
        "subscribe": "a",
        "startingOffsets": "earliest",
    }
    reader = KafkaStreamReader(SourceOptions.of(given, bounded=False, stream=True), ("value",))
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    assert reader.reportLatestOffset() is None, "nothing was cut yet"
    (before,) = kafka_progress(shown(None, start, None))
    assert (before.start_offset, before.end_offset) == (None, {"a": {"0": 0, "1": 0}})
    assert before.metrics == {}
    end = reader.latestOffset(start, ReadMaxRows(3))
    (found,) = kafka_progress(shown(start, end, reader.reportLatestOffset()))
    assert found.start_offset == {"a": {"0": 0, "1": 0}}
    assert found.end_offset == {"a": {"0": 1, "1": 2}}
    assert found.latest_offset == {"a": {"0": 3, "1": 6}}
    assert found.metrics == {
        "minOffsetsBehindLatest": "2",
        "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": "3.0",
    }


def test_other_sources_and_missing_offsets_are_left_out() -> None:
    assert (
        kafka_progress({"sources": [OTHER, {**OTHER, "startOffset": "None", "endOffset": None}]})
        == []
    )
