"""The pure parts of a Job's engine: dealing splits, rewinding logs, regions and their plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.contracts import StagedFrame
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    OnLost,
    OnRegionFailure,
)
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    IllegalTransitionError,
    UnsupportedFormatError,
)
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.graph.job_graph import job_plan, regions_of
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.job.job import Job, Stream
from sluice.runtime.keyed.declarations import Count, Tumbling
from sluice.runtime.model import offsets
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.on_error import DeadLetters, Skip
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.spark.frames.plan_analysis import analyse_plan
from sluice.runtime.spark.microbatch.batch_strategies import (
    require_all_rows_passed,
    require_each_range_once,
)
from sluice.runtime.spark.microbatch.job_source import assign
from sluice.runtime.spark.microbatch.query_logs import batches_beyond
from sluice.runtime.spark.microbatch.spark_state import structs_in
from sluice.runtime.spark.tasks.region_tasks import TaskResult, results_of


def split(partition: int, start: int = 0, end: int = 0, topic: str = "in") -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=topic,
        topic_id="id",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


@dataclass(frozen=True)
class StubSource:
    """A source that is only described."""

    name: str = "orders"
    uid: str | None = None
    bounded: bool = False
    yields_only_committed: bool = True

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        return {}

    def enumerator(self, source_id: str) -> Any:
        raise NotImplementedError

    def reader(self) -> Any:
        raise NotImplementedError

    def schema_ddl(self) -> str:
        return "value binary"

    def settings(self) -> Mapping[str, str]:
        return {"topics": "orders"}


@dataclass(frozen=True)
class StubSink:
    """A sink that is only described."""

    name: str = "out"
    uid: str | None = None
    is_exactly_once: bool = True

    def coordinator(self) -> Any:
        raise NotImplementedError

    def writer_factory(self) -> Any:
        raise NotImplementedError

    def settings(self) -> Mapping[str, str]:
        return {}


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 8))
def test_deal_gives_every_record_to_exactly_one_task(sizes: Sequence[int], tasks: int) -> None:
    splits = [split(i, 5, 5 + size) for i, size in enumerate(sizes)]
    io_executor = assign(splits, tasks)
    dealt = sorted((s for hand in io_executor for s in hand), key=lambda s: s.partition)
    assert dealt == [s for s in splits if not s.is_empty]
    assert len(io_executor) <= tasks
    assert all(io_executor)


@pytest.mark.parametrize(
    "tasks",
    [
        [(split(0, 3, 9), split(1, 0, 4)), (split(0, 3, 9),)],
        [(split(0, 3, 9),)],
        [(split(0, 3, 8), split(1, 0, 4))],
        [(split(3, 3, 9), split(1, 0, 4))],
        [(split(0, 3, 9, "another"), split(1, 0, 4))],
        [],
    ],
    ids=["twice", "not at all", "in part", "another partition", "another topic", "no task"],
)
def test_a_chained_batch_reads_each_range_once(tasks: list[tuple[SplitRange, ...]]) -> None:
    cut = Barrier(
        checkpoint_id=4,
        region="r",
        attempt_id=3,
        splits=(split(0, 3, 9), split(1, 0, 4), split(2, 5, 5)),
    )
    whole = [TaskResult(ranges=(split(1, 0, 4),)), TaskResult(ranges=(split(0, 3, 9),))]
    require_each_range_once(whole, cut)
    with pytest.raises(IllegalTransitionError, match="did not read each assigned range"):
        require_each_range_once([TaskResult(ranges=ranges) for ranges in tasks], cut)


@pytest.mark.parametrize("answered", [[], [2], [2, 2], [2, 3, 1]])
def test_rows_that_continue_into_files_are_those_that_the_tasks_answer_for(
    answered: list[int],
) -> None:
    """Spark logs an answer that it could not deliver, and calls the task done."""
    staged = [StagedFrame(rows=5)]
    require_all_rows_passed([TaskResult(records_out=2), TaskResult(records_out=3)], staged)
    with pytest.raises(IllegalTransitionError, match="do not match the rows"):
        require_all_rows_passed([TaskResult(records_out=rows) for rows in answered], staged)


def test_offset_of_a_later_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError):
        offsets.decode({"format": offsets.FORMAT + 1})
    with pytest.raises(DamagedCheckpointError):
        offsets.decode({"format": offsets.FORMAT, "splits": {"in-0": [0]}})


def test_rewind_keeps_the_decided_batch_and_drops_what_follows() -> None:
    """Rule `restore-by-attempt`: entries and their checksum files beyond the decision go, nothing
    else."""
    names = ["0", ".0.crc", "9", "10", ".10.crc", "metadata", "11.tmp"]
    assert batches_beyond(names, 9) == [".10.crc", "10"]
    assert batches_beyond(names, -1) == [".0.crc", ".10.crc", "0", "10", "9"]


def test_an_error_of_a_task_keeps_its_type() -> None:
    """A typed error crosses Spark as a row, not as text."""
    import pickle

    error = ConfigError("what", {"a": 1}, "remedy")
    rows = [[pickle.dumps(TaskResult())], [pickle.dumps(TaskResult(error=error))]]
    with pytest.raises(ConfigError, match="remedy"):
        results_of(rows)


def test_regions_follow_the_pipelines() -> None:
    """One source with its functions and sinks is one region with stable operator ids."""
    pipeline = Pipeline(StubSource())
    Stream(pipeline).map_batches(identity).sink(StubSink())
    graph, (region,) = regions_of([pipeline], [False])
    assert [node.kind for node in graph] == ["source", "map_batches", "sink"]
    assert region.source_id == graph[0].operator_id
    assert tuple(region.sinks) == (graph[2].operator_id,)
    plan = job_plan(
        "j",
        graph,
        [region],
        checkpoints=CheckpointSettings(retained=7),
        spark_version="x",
        cluster_ids=["b", "a", "b"],
    )
    assert plan.cluster_ids == ("a", "b")
    assert plan.regions[0].chained
    assert plan.settings["orders.topics"] == "orders"
    assert plan.settings["checkpoint.retained"] == "7"


def test_state_schemas_are_found_in_sparks_file() -> None:
    """Key first, then value, whatever frames them (layout of Spark 4.3, version 2)."""
    key = b'{"type":"struct","fields":[{"name":"k","type":"binary","nullable":true}]}'
    value = b'{"type":"struct","fields":[{"name":"n","type":"long","nullable":false}]}'
    content = b"\x00\x02v2\x00\x00\x00\x01\x00\xa2" + key + b"\x00\x00\x00\x01\x00Y" + value
    assert [s["fields"][0]["name"] for s in structs_in(content)] == ["k", "n"]
    assert structs_in(b"") == []


def described() -> Iterator[tuple[str, list[Pipeline], list[bool]]]:
    """Jobs that must be refused, with a word of the reason."""
    yield "no source", [], []
    yield "no sink", [Pipeline(StubSource())], [False]
    random = Step(kind="transform", name="f", uid=None, function=identity, deterministic=False)
    yield "nondeterministic", [Pipeline(StubSource(), [random], [StubSink()])], [True]
    yield (
        "nondeterministic",
        [Pipeline(StubSource(), [random], [StubSink("a"), StubSink("b")])],
        [False],
    )
    twice = [Pipeline(StubSource(), [], [StubSink("a")]), Pipeline(StubSource(), [], [StubSink()])]
    dirty = StubSource("dirty", yields_only_committed=False)
    mixed = [StubSink("loose", is_exactly_once=False), StubSink("exact")]
    yield r"uncommitted.*source=dirty sinks=exact\]", [Pipeline(dirty, [], mixed)], [False]
    yield "same name", twice, [False, False]


@pytest.mark.parametrize(("reason", "pipelines", "stateful"), list(described()))
def test_a_job_that_cannot_be_exact_is_refused(
    reason: str, pipelines: list[Pipeline], stateful: list[bool]
) -> None:
    """Rule `stateful-replay` and the graph's rules, before anything is started."""
    with pytest.raises(ConfigError, match=reason):
        regions_of(pipelines, stateful)


def test_a_source_of_uncommitted_records_feeds_a_sink_that_promises_less() -> None:
    pipeline = Pipeline(
        StubSource(yields_only_committed=False), [], [StubSink(is_exactly_once=False)]
    )
    assert len(regions_of([pipeline], [False])[1]) == 1


def test_kafka_reads_uncommitted_records_into_no_exactly_once_sink() -> None:
    """The source's own ``guarantee`` says nothing about the sink's."""
    source = KafkaSource(
        bootstrap_servers="b:9092",
        topics=["in"],
        options={"kafka.isolation.level": "read_uncommitted", "guarantee": "none"},
    )
    exact = KafkaSink(bootstrap_servers="b:9092", topic="out", transactional_id_prefix="p")
    loose = KafkaSink(bootstrap_servers="b:9092", topic="out", guarantee="at-least-once")
    with pytest.raises(ConfigError, match=f"source={source.name} sinks={exact.name}"):
        regions_of([Pipeline(source, [], [exact])], [False])
    regions_of([Pipeline(source, [], [loose])], [False])


def test_a_jobs_settings_are_its_coordinators() -> None:
    nowhere = cast(SparkSession, None)
    given: dict[str, Any] = {
        "interval_s": 7.0,
        "timeout_s": 70.0,
        "min_pause_s": 0.7,
        "tolerable_failures": 9,
        "retained": 8,
        "discovery_interval_s": 6.0,
        "pressure_alarm_s": 5.0,
    }
    words: dict[str, Any] = {"on_lost": "repair", "on_region_failure": "suspend"}
    made = Job("j", nowhere, checkpoint_dir="/c", **words, **given).spec.settings
    assert made == CheckpointSettings(
        on_lost=OnLost.REPAIR, on_region_failure=OnRegionFailure.SUSPEND, **given
    )
    assert Job("j", nowhere, checkpoint_dir="/c").spec.settings == CheckpointSettings()
    assert CheckpointSettings().on_lost is OnLost.FAIL
    assert CheckpointSettings().retained == 3
    strategy = FixedDelayRestart(attempts=5)
    made = Job("j", nowhere, checkpoint_dir="/c", restart_strategy=strategy).spec.settings
    assert made == CheckpointSettings(restart_strategy=strategy)
    with pytest.raises(ConfigError, match="tolerable_failures=0"):
        Job("j", nowhere, checkpoint_dir="/c", restart_strategy=strategy, tolerable_failures=0)
    with pytest.raises(ConfigError, match="on_lost"):
        Job("j", nowhere, checkpoint_dir="/c", on_lost="ignore")
    with pytest.raises(ConfigError, match="on_region_failure=ignore known=fail, suspend"):
        Job("j", nowhere, checkpoint_dir="/c", on_region_failure="ignore")


def test_a_job_without_an_interval_is_refused() -> None:
    """It would wait for ever: no trigger of Spark's is its barrier."""
    with pytest.raises(ConfigError, match="needs an interval"):
        Job("j", cast(SparkSession, None), checkpoint_dir="/c", interval_s=cast(float, None))


def test_functions_of_both_kinds_in_one_pipeline_are_refused() -> None:
    """map_batches runs in the writer's process, transform in Spark's plan."""
    stream = Stream(Pipeline(StubSource())).map_batches(identity)
    with pytest.raises(ConfigError, match="mapInArrow"):
        stream.transform(lambda frame: frame)
    with pytest.raises(ConfigError, match="cannot follow a sink"):
        stream.sink(StubSink()).map_batches(identity)


# --- dead letters ---------------------------------------------------------------------------------

DEAD = DeadLetters(topic="dead")


def kafka_source(**settings: Any) -> KafkaSource:
    return KafkaSource(bootstrap_servers="b:9092", topics=["in"], **settings)


def kafka_sink(topic: str | None = "out", **settings: Any) -> KafkaSink:
    """Exactly-once unless a test says otherwise."""
    given = {"bootstrap_servers": "b:9092", "topic": topic, "transactional_id_prefix": "p"}
    return KafkaSink(**{**given, **settings})


def test_dead_letters_without_a_kafka_sink_are_refused() -> None:
    pipeline = Pipeline(kafka_source())
    Stream(pipeline).map_batches(identity, on_error=DEAD).sink(StubSink("files"))
    with pytest.raises(ConfigError, match=r"without a Kafka sink.*topics=dead sinks=files"):
        regions_of([pipeline], [False])
    skipping = Pipeline(kafka_source())
    Stream(skipping).map_batches(identity, on_error="skip").sink(StubSink("files"))
    (region,) = regions_of([skipping], [False])[1]
    assert region.dead_letter_sink is None
    assert region.functions is not None
    assert region.functions[0].policy == Skip()


def test_a_source_without_positions_is_refused_for_dead_letters() -> None:
    """They say where they come from, and are the original bytes."""
    pipeline = Pipeline(kafka_source(columns=["value", "headers", "offset"]))
    Stream(pipeline).map_batches(identity, on_error=DEAD).sink(kafka_sink())
    with pytest.raises(ConfigError, match="missing=key,topic,partition columns=value,headers"):
        regions_of([pipeline], [False])


def test_dead_letters_go_with_the_sink_that_promises_most() -> None:
    pipeline = Pipeline(kafka_source())
    stream = Stream(pipeline)
    stream.map_batches(identity, on_error=DEAD).map_batches(identity, on_error=DEAD)
    stream.map_batches(identity, on_error=DeadLetters(topic="dead-2"))
    stream.sink(StubSink("files")).sink(kafka_sink("loose", guarantee="at-least-once"))
    stream.sink(kafka_sink("exact")).sink(kafka_sink("second"))
    graph, regions = regions_of([pipeline], [False], parts=2)
    names = {node.operator_id: node.name for node in graph}
    for region in regions:
        assert names[region.dead_letter_sink or ""] == "kafka-sink-exact"
        taking = [
            sink.settings().get("dead_letter_topics")
            for sink in region.sinks.values()
            if isinstance(sink, KafkaSink)
        ]
        assert taking == [None, "dead,dead-2", None]
        assert [f.operator_id for f in region.functions or ()] == [
            node.operator_id for node in graph if node.kind == "map_batches"
        ]


def test_late_rows_need_no_columns_of_the_source() -> None:
    """The source of a repartition topic has none: its rows come out of the messages."""
    pipeline = Pipeline(
        kafka_source(
            columns=["value", "partition", "topic", "offset", "timestamp"], time=EventTime("kafka")
        )
    )
    keyed = Stream(pipeline).key_by("value", partitioned=True)
    windows = keyed.window(Tumbling("1 m"), on="event_time", late_topic="late")
    windows.aggregate(n=Count()).sink(kafka_sink())
    (region,) = regions_of([pipeline], [False])[1]
    assert region.dead_letter_sink is not None


def letters_sink(**settings: Any) -> KafkaSink:
    return kafka_sink(topic=None, dead_letters_only=True, **settings)


def test_dead_letters_go_to_the_sink_that_has_nothing_else() -> None:
    """Also if another one promises more."""
    pipeline = Pipeline(kafka_source())
    stream = Stream(pipeline).map_batches(identity, on_error=DEAD).sink(kafka_sink())
    stream.sink(letters_sink(guarantee="at-least-once")).sink(StubSink("files"))
    graph, (region,) = regions_of([pipeline], [False])
    names = {node.operator_id: node.name for node in graph}
    assert names[region.dead_letter_sink or ""] == "kafka-sink-dead-letters"


@pytest.mark.parametrize(
    ("policy", "sinks"),
    [
        ("skip", [StubSink("files"), letters_sink()]),
        (DEAD, [letters_sink()]),
        (DEAD, [StubSink("files"), letters_sink(), letters_sink(name="second")]),
    ],
    ids=["no dead letters", "no sink for records", "two of them"],
)
def test_a_sink_of_dead_letters_that_would_do_nothing_is_refused(
    policy: Any, sinks: list[Any]
) -> None:
    pipeline = Pipeline(kafka_source())
    stream = Stream(pipeline).map_batches(identity, on_error=policy)
    for sink in sinks:
        stream.sink(sink)
    with pytest.raises(ConfigError, match=r"does not fit the pipeline.*kafka-sink-dead-letters"):
        regions_of([pipeline], [False])


@pytest.mark.parametrize("taker_first", [True, False])
def test_dead_letters_go_to_the_topic_of_no_output(taker_first: bool) -> None:
    pipeline = Pipeline(kafka_source())
    stream = Stream(pipeline).map_batches(identity, on_error=DeadLetters(topic="loose"))
    sinks = [kafka_sink("exact"), kafka_sink("loose", guarantee="at-least-once")]
    for sink in sinks if taker_first else reversed(sinks):
        stream = stream.sink(sink)
    with pytest.raises(ConfigError, match="sink=kafka-sink-loose topic=loose"):
        regions_of([pipeline], [False])


def test_a_function_declared_non_deterministic_makes_its_region_beyond_repair() -> None:
    """And finds no poison records, for which it would have to be called again."""
    job = Job("j", cast(SparkSession, None), checkpoint_dir="/c")
    stream = job.source(kafka_source()).map_batches(identity, deterministic=False)
    stream.sink(kafka_sink())
    graph, regions = regions_of(job.spec.pipelines, [False])
    plan = job_plan(
        "j", graph, regions, checkpoints=job.spec.settings, spark_version="4", cluster_ids=[]
    )
    assert [region.can_repair for region in plan.regions] == [False]
    with pytest.raises(ConfigError, match="not deterministic"):
        job.source(kafka_source()).map_batches(identity, deterministic=False, on_error="skip")


def test_a_function_declared_non_deterministic_is_reported_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nowhere = cast(SparkSession, None)
    job = Job("j", nowhere, checkpoint_dir="/c")
    job.source(kafka_source()).map_batches(identity, name="sure").map_batches(
        identity, name="dice", deterministic=False
    ).sink(kafka_sink())
    job.source(kafka_source(name="other")).map_batches(identity).sink(kafka_sink("other"))
    for pipeline in job.spec.pipelines:
        analyse_plan(nowhere, pipeline)
    (said,) = caplog.messages
    assert "functions=dice" in said


def test_a_misspelt_policy_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match="known=fail, skip"):
        Stream(Pipeline(StubSource())).map_batches(identity, on_error="ignore")


@pytest.mark.parametrize("flag", ["deterministic", "force_rescale"])
def test_a_flag_of_a_function_is_a_bool(flag: str) -> None:
    """A text such as "false" counts as True in Python, and would promise an exact repair."""
    given: dict[str, Any] = {flag: "false"}
    with pytest.raises(ConfigError, match=f"flag={flag} given='false'"):
        Step(kind="transform", name="f", uid=None, function=lambda frame: frame, **given)


def test_a_number_of_retained_checkpoints_is_whole() -> None:
    with pytest.raises(ConfigError, match=r"retained=2\.5"):
        CheckpointSettings(retained=cast(Any, 2.5))


def test_a_job_until_the_end_is_the_same_job_with_bounded_sources() -> None:
    job = Job("orders", None, checkpoint_dir="/c")
    job.source(kafka_source(uid="one")).map_batches(identity).sink(kafka_sink())
    job.source(StubSource(bounded=True)).sink(StubSink())
    ending = job.until_end().spec
    assert [each.source.bounded for each in ending.pipelines] == [True, True]
    assert [each.source.bounded for each in job.spec.pipelines] == [False, True]
    assert [each.source.uid for each in ending.pipelines] == ["one", None]
    assert replace(ending, pipelines=()) == replace(job.spec, pipelines=())
    for made, first in zip(ending.pipelines, job.spec.pipelines, strict=True):
        assert (made.steps, made.sinks) == (first.steps, first.sinks)


def test_a_source_without_an_end_is_refused() -> None:
    job = Job("orders", None, checkpoint_dir="/c")
    job.source(StubSource()).sink(StubSink())
    with pytest.raises(ConfigError, match="no end"):
        job.until_end()
