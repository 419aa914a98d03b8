"""Pipelines with key_by become pipelines with a repartition topic between them."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.kafka_source import KafkaSource
from sluice.connectors.kafka.repartition.repartition_sink import RepartitionSink
from sluice.connectors.kafka.repartition.repartition_source import RepartitionSource
from sluice.runtime.contracts import JobTopic, KeyBy
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import job_plan, regions_of, view_of_pipelines
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.graph.repartitioning import Splitting, on_topics
from sluice.runtime.model.state.batch_lineage import BatchLineage

SPLITTING = Splitting("shop", "0123456789ab", regions=5)


def source(topic: str = "orders") -> KafkaSource:
    return KafkaSource(bootstrap_servers="localhost:9092", topics=[topic])


def sink() -> KafkaSink:
    return KafkaSink(
        bootstrap_servers="localhost:9092", topic="counts", transactional_id_prefix="shop"
    )


def key_by(name: str = "by-account", **settings: Any) -> Step:
    return Step(kind="key_by", name=name, uid=None, keyed=KeyBy(columns=("account",), **settings))


def function(name: str, kind: str = "map_batches") -> Step:
    return Step(kind=kind, name=name, uid=None, function=lambda batch: batch)


def names(pipeline: Pipeline) -> list[str]:
    return [
        pipeline.source.name,
        *(step.name for step in pipeline.steps),
        *(each.name for each in pipeline.sinks),
    ]


def test_key_by_splits_a_pipeline_and_both_parts_share_a_topic() -> None:
    described = Pipeline(source(), [function("parse"), key_by(), function("count")], [sink()])
    upstream, downstream = SPLITTING.pipelines([described])
    assert names(upstream) == ["kafka-orders", "parse", "by-account-rows"]
    assert names(downstream) == ["by-account-topic", "by-account", "count", "kafka-sink-counts"]
    written, read = upstream.sinks[0], downstream.source
    assert isinstance(written, RepartitionSink)
    assert isinstance(read, RepartitionSource)
    assert written.topic == read.topic
    assert read.topic.startswith("sluice-shop-01234567-")
    assert len(described.steps) == 3  # the description stays as it was


def test_a_partitioned_key_needs_no_topic() -> None:
    described = Pipeline(source(), [key_by(partitioned=True), function("count")], [sink()])
    assert SPLITTING.pipelines([described]) == (described,)


def test_a_second_key_by_gets_a_topic_of_its_own() -> None:
    steps = [key_by(), function("count"), key_by("by-country"), function("sum")]
    parts = SPLITTING.pipelines([Pipeline(source(), steps, [sink()])])
    assert [names(part)[0] for part in parts] == [
        "kafka-orders",
        "by-account-topic",
        "by-country-topic",
    ]
    assert names(parts[1])[1:] == ["by-account", "count", "by-country-rows"]


def test_a_join_reads_one_topic_that_both_sides_write() -> None:
    right = Pipeline(source("payments"), [function("parse"), key_by("by-payer")], [])
    join = Step(kind="join", name="paid", uid=None, function=lambda batch: batch, other=right)
    left, other, joined = SPLITTING.pipelines(
        [Pipeline(source(), [key_by(), join, function("format")], [sink()])]
    )
    assert names(left) == ["kafka-orders", "paid-left"]
    assert names(other) == ["kafka-payments", "parse", "paid-right"]
    assert names(joined) == ["paid-topic", "paid-key", "paid", "format", "kafka-sink-counts"]
    topics = {left.sinks[0].topic, other.sinks[0].topic, joined.source.topic}  # type: ignore[attr-defined]
    assert len(topics) == 1


def test_a_joined_side_with_operators_keeps_its_key_before_the_topic() -> None:
    dedup = function("once", "deduplicate")
    right = Pipeline(source("payments"), [key_by("by-payer", partitioned=True)], [])
    join = Step(kind="join", name="paid", uid=None, function=lambda batch: batch, other=right)
    parts = SPLITTING.pipelines([Pipeline(source(), [key_by(), dedup, join], [sink()])])
    assert [names(part) for part in parts] == [
        ["kafka-orders", "by-account-rows"],
        ["by-account-topic", "by-account", "once", "paid-left"],
        ["kafka-payments", "paid-right"],
        ["paid-topic", "paid-key", "paid", "kafka-sink-counts"],
    ]


def test_the_right_side_of_a_join_is_no_pipeline_of_its_own() -> None:
    right = Pipeline(source("payments"), [key_by("by-payer")], [])
    join = Step(kind="join", name="paid", uid=None, function=lambda batch: batch, other=right)
    described = [right, Pipeline(source(), [key_by(), join], [sink()])]
    assert len(SPLITTING.pipelines(described)) == 3


def test_a_stream_cannot_join_itself() -> None:
    described = Pipeline(source(), [key_by()], [sink()])
    described.steps.append(
        Step(kind="join", name="own", uid=None, function=lambda batch: batch, other=described)
    )
    left = replace(described)
    with pytest.raises(ConfigError, match="is the left one"):
        SPLITTING.pipelines([left])


def test_a_stream_is_the_other_side_of_one_join() -> None:
    right = Pipeline(source("payments"), [key_by("by-payer")], [])
    joins = [
        Step(kind="join", name=name, uid=None, function=lambda batch: batch, other=right)
        for name in ("paid", "late")
    ]
    described = [Pipeline(source(each.name), [key_by(), each], [sink()]) for each in joins]
    with pytest.raises(ConfigError, match=r"two joins .*joins=paid,late"):
        SPLITTING.pipelines(described)


def test_the_reader_ends_after_its_writers_and_knows_the_topic_of_the_run() -> None:
    described = Pipeline(source(), [key_by(), function("count")], [sink()])
    pipelines = SPLITTING.pipelines([described])
    nodes, regions = regions_of(pipelines, [False, False], parts=2)
    plan = job_plan(
        "shop",
        nodes,
        regions,
        checkpoints=CheckpointSettings(),
        spark_version="",
        cluster_ids=(),
    )
    upstream = {region.name: region.upstream for region in plan.regions}
    assert upstream == {
        "kafka-orders-0": (),
        "kafka-orders-1": (),
        "by-account-topic-0": ("kafka-orders-0", "kafka-orders-1"),
        "by-account-topic-1": ("kafka-orders-0", "kafka-orders-1"),
    }
    assert [region.can_repair for region in plan.regions] == [False] * 4
    topic = JobTopic(partitions=32, max_parallelism=64, lineage=BatchLineage())
    run = [on_topics(region, {regions[-1].source_id: topic}) for region in regions]
    (written,) = run[0].sinks.values()
    assert written.writer_factory().topic == topic  # type: ignore[attr-defined]


def test_names_for_display_need_no_job() -> None:
    described = Pipeline(source(), [key_by(), function("count")], [sink()])
    view = view_of_pipelines(Splitting("shop").pipelines([described]))
    assert [region.name for region in view.regions] == ["kafka-orders", "by-account-topic"]


@pytest.mark.parametrize("partitions", [0, 40_000])
def test_a_topic_with_too_many_or_no_partitions_is_refused(partitions: int) -> None:
    described = Pipeline(source(), [key_by(partitions=partitions)], [sink()])
    with pytest.raises(ConfigError, match="out of range"):
        SPLITTING.pipelines([described])


def test_a_transform_before_key_by_is_refused() -> None:
    described = Pipeline(source(), [function("sql", "transform"), key_by()], [sink()])
    with pytest.raises(ConfigError, match="which Spark plans"):
        SPLITTING.pipelines([described])


def test_a_side_without_a_key_is_refused() -> None:
    join = Step(
        kind="join",
        name="paid",
        uid=None,
        function=lambda batch: batch,
        other=Pipeline(source("payments"), [function("parse")], []),
    )
    with pytest.raises(ConfigError, match="has no key"):
        SPLITTING.pipelines([Pipeline(source(), [key_by(), join], [sink()])])


def test_keys_of_a_topic_are_those_of_the_rows() -> None:
    described = Pipeline(source(), [key_by(), function("count")], [sink()])
    upstream, _ = SPLITTING.pipelines([described])
    batch = pa.RecordBatch.from_pydict({"account": ["a", None]})
    keys, schema = upstream.sinks[0].writer_factory().keys(batch)  # type: ignore[attr-defined]
    assert keys.to_pylist() == [b"\x01a", b"\x00"]
    assert schema.names == ["account"]
