"""The engine and the layout of a job's regions."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sluice import DeadLetters, KafkaSink, KafkaSource
from sluice.connectors.kafka.sink.writer.kafka_writer import KafkaWriterFactory
from sluice.runtime.errors import ConfigError, MissingRequirementError, UnreachableError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Engine, Pipeline, Step
from sluice.runtime.job.job import Job
from sluice.runtime.model.rate_limit import PidRateLimit
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.run import region_layout as layouts
from sluice.runtime.spark.run.engine_choice import choose_engine, choose_parts, hindrance_of
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.region_layout import lay_out
from tests.unit.runtime.job.test_job_pieces import StubSink, StubSource, identity

_HINDRANCE = partial(hindrance_of, interval_s=1.0, is_approximate=False)


class _Source(KafkaSource):
    checked = 0

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        self.checked += 1
        return {"cluster_id": "c", "partitions": "2"}

    def compression(self, *, timeout_s: float) -> str | None:
        return None


class _Bounded(_Source):
    """Of which the driver cuts the epochs."""

    def hindrance(self) -> str | None:
        return "an end"


class _Asked:
    """A sink's driver side that answers its check."""

    def __init__(
        self,
        attempts_s: float | None,
        *,
        error: Exception | None = None,
        close_error: Exception | None = None,
    ) -> None:
        self.attempts_s = attempts_s
        self.error = error
        self.close_error = close_error
        self.closed = 0

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        if self.error is not None:
            raise self.error
        return {} if self.attempts_s is None else {"transaction_timeout_s": f"{self.attempts_s:g}"}

    def close(self) -> None:
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


class _Sink(KafkaSink):
    def __init__(self, asked: _Asked, topic: str = "out") -> None:
        super().__init__(bootstrap_servers="b:1", topic=topic, transactional_id_prefix="p" + topic)
        self.asked = asked

    def coordinator(self) -> Any:
        return self.asked

    def writer_factory(self) -> KafkaWriterFactory:
        return KafkaSink.writer_factory(self)


class _Context:
    """As much of a session as is asked how many tasks it can run at once."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.asked = 0
        self.is_local = True
        self.grows_after = 1_000_000
        self._jsc = self
        self.settings: dict[str, str] = {}

    def getConf(self) -> dict[str, str]:
        return self.settings

    def sc(self) -> "_Context":
        return self

    def resourceProfileManager(self) -> "_Context":
        return self

    def defaultResourceProfile(self) -> None:
        return None

    def isLocal(self) -> bool:
        return self.is_local

    def maxNumConcurrentTasks(self, profile: object) -> int:
        self.asked += 1
        return self._slots if self.asked < self.grows_after else 10


@pytest.mark.parametrize(
    ("servers", "reads", "topic"),
    [
        ("b:1", {"topics": ["in", "out"]}, "out"),
        ("a:1, b:1", {"pattern": "o.*"}, "out"),
        ("b:1", {"partitions": {"out": [0]}}, "out"),
        ("other:1", {"topics": ["out"]}, None),
        ("b:1", {"topics": ["in"]}, None),
    ],
)
def test_a_pipeline_that_reads_what_it_writes_is_reported(
    servers: str, reads: Mapping[str, Any], topic: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    job = _described()
    job.source(_Source(bootstrap_servers=servers, **reads)).sink(_Sink(_Asked(900.0)))
    assert lay_out(job.spec).regions
    found = [each.getMessage() for each in caplog.records if "reads its own output" in each.msg]
    assert len(found) == (topic is not None)
    assert topic is None or found[0].endswith(f"topic={topic}")


@pytest.mark.parametrize(
    ("servers", "reads", "is_refused"),
    [
        ("b:1", {"topics": ["in", "dead"]}, True),
        ("a:1, b:1", {"pattern": "in|de.*"}, True),
        ("b:1", {"partitions": {"dead": [0]}}, True),
        ("other:1", {"topics": ["dead"]}, False),
        ("b:1", {"topics": ["in"]}, False),
    ],
)
def test_a_pipeline_must_not_read_its_dead_letters(
    servers: str, reads: Mapping[str, Any], *, is_refused: bool
) -> None:
    job = _described()
    rows = job.source(_Source(bootstrap_servers=servers, **reads))
    rows = rows.map_batches(identity, on_error=DeadLetters(topic="dead"))
    rows.sink(_Sink(_Asked(900.0)))
    if not is_refused:
        assert lay_out(job.spec).regions
        return
    with pytest.raises(ConfigError, match=r"its own dead letters.*topic=dead"):
        lay_out(job.spec)


def _described(*sinks: _Sink, **options: Any) -> Job:
    spark = cast(SparkSession, SimpleNamespace(sparkContext=_Context(4)))
    job = Job("j", spark, checkpoint_dir="d", **options)
    for number, sink in enumerate(sinks):
        job.source(_Source(bootstrap_servers="b:1", topics=[f"in{number}"])).sink(sink)
    return job


def _job(*sinks: _Sink, **options: Any) -> JobSpec:
    return _described(*sinks, **options).spec


def test_a_job_is_continuous_where_its_sinks_transactions_live_long_enough() -> None:
    asked = _Asked(900.0)
    layout = lay_out(_job(_Sink(asked)))
    assert len(layout.continuous) == len(layout.regions) == 2
    assert asked.closed == 1


@pytest.mark.parametrize(("regions", "idle"), [(2, 0), (5, 1), (None, 0)])
def test_regions_above_the_number_of_partitions_are_reported_once(
    regions: int | None, idle: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = _job(_Sink(_Asked(900.0)), regions=regions, engine="micro-batch")
    lay_out(job)
    found = [each.getMessage() for each in caplog.records if "fewer partitions" in each.msg]
    assert len(found) == idle
    assert not idle or "regions=5 partitions=2" in found[0]


def test_an_insisting_job_waits_for_executors_and_reports_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until there are enough of them, or its own limit is over."""
    monkeypatch.setattr("sluice.runtime.spark.session.spark_session._POLL_S", 0.0)
    job = _job(_Sink(_Asked(900.0)), regions=6, engine="continuous", resource_timeout_s=None)
    context = cast(Any, job.spark.sparkContext)
    context.is_local, context.grows_after = False, 5
    assert len(lay_out(job).continuous) == 6
    found = [each.getMessage() for each in caplog.records if "WAITING" in each.msg]
    assert found == ["job state WAITING_FOR_RESOURCES: needed=6 present=4 timeout_s=None"]
    late = _job(_Sink(_Asked(900.0)), regions=6, engine="continuous", resource_timeout_s=0.01)
    cast(Any, late.spark.sparkContext).is_local = False
    with pytest.raises(ConfigError, match="too few cores"):
        lay_out(late)


@pytest.mark.parametrize(
    ("timeout", "ends", "is_continuous"),
    [("600", "true", False), ("10m", "True", False), ("0", "true", True), ("600", "false", True)],
)
def test_a_session_that_ends_quiet_workers_runs_micro_batches(
    timeout: str, ends: str, is_continuous: bool
) -> None:
    """A continuous task sends Spark nothing before its end."""
    settings = {
        "spark.python.worker.idleTimeoutSeconds": timeout,
        "spark.python.worker.killOnIdleTimeout": ends,
    }
    job = _job(_Sink(_Asked(900.0)))
    cast(Any, job.spark.sparkContext).settings = settings
    assert bool(lay_out(job).continuous) is is_continuous
    insisting = _job(_Sink(_Asked(900.0)), engine="continuous")
    cast(Any, insisting.spark.sparkContext).settings = settings
    if is_continuous:
        assert lay_out(insisting).continuous
    else:
        with pytest.raises(ConfigError, match="killOnIdleTimeout"):
            lay_out(insisting)


def test_an_interval_above_fifteen_minutes_thirds_is_continuous_where_the_brokers_allow_it() -> (
    None
):
    layout = lay_out(_job(_Sink(_Asked(7200.0)), interval_s=600.0, engine="auto"))
    assert layout.continuous


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"interval_s": 30.0}, "too old at its barrier"),
        ({"min_pause_s": 30.0}, "too old at its barrier"),
        ({"coordinator_lost_timeout_s": 40.0}, "outlive its coordinator"),
    ],
)
def test_auto_takes_micro_batches_where_a_cluster_allows_no_continuous_tasks(
    options: Mapping[str, float], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its brokers' maximum is a minute; the job runs all the same, and the log says why so."""
    asked = _Asked(60.0)
    with caplog.at_level(logging.INFO, logger="sluice.runtime.spark.run.engine_choice"):
        layout = lay_out(_job(_Sink(asked), **options))
    assert layout.continuous == frozenset()
    assert len(layout.regions) == 1
    (line,) = [r.getMessage() for r in caplog.records if "engine: micro-batch: region" in r.msg]
    assert why in line
    assert "transaction_timeout_s=60" in line
    assert asked.closed == 1


def test_only_the_regions_of_that_sink_are_run_in_micro_batches() -> None:
    """The other pipeline's sink is in another cluster."""
    layout = lay_out(_job(_Sink(_Asked(60.0), "a"), _Sink(_Asked(900.0), "b"), interval_s=30.0))
    regions = {region.pipeline.sinks[0].name: region.name for region in layout.regions}
    assert layout.continuous == {regions["kafka-sink-b"]}


def test_whoever_insists_on_an_engine_has_no_sink_asked_beforehand() -> None:
    """The start itself checks them, and refuses by name."""
    for engine in ("continuous", "micro-batch"):
        asked = _Asked(60.0)
        lay_out(_job(_Sink(asked), interval_s=30.0, engine=engine))
        assert asked.closed == 0


def test_a_job_in_micro_batches_waits_for_no_executors() -> None:
    """It runs with any number of cores, while those of a cluster may take a minute to come."""
    job = _job(_Sink(_Asked(900.0)), engine="micro-batch")
    assert lay_out(job).continuous == frozenset()
    assert cast(Any, job.spark.sparkContext).asked == 0


def test_a_sink_that_no_continuous_task_would_write_to_is_not_asked() -> None:
    """The start checks it; asked here too, its cluster would be waited for twice."""
    asked, other = _Asked(900.0), _Asked(60.0, error=UnreachableError("nobody", {}, "Wait."))
    job = _described(_Sink(asked, "a"))
    job.source(_Bounded(bootstrap_servers="b:1", topics=["in"])).sink(_Sink(other, "b"))
    layout = lay_out(job.spec)
    assert [len(layout.regions), len(layout.continuous)] == [2, 1]
    assert [asked.closed, other.closed] == [1, 0]


def test_each_region_is_reported_what_its_own_pipeline_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By that its source leaves columns out: with another pipeline's look, some that are read."""

    def look(_spark: object, pipeline: Pipeline) -> PlanAnalysis:
        return PlanAnalysis(columns=frozenset({pipeline.sinks[0].name}))

    monkeypatch.setattr(layouts, "analyse_plan", look)
    layout = lay_out(_job(_Sink(_Asked(900.0), "a"), _Sink(_Asked(900.0), "b")))
    read = {region.name: frozenset({region.pipeline.sinks[0].name}) for region in layout.regions}
    assert len(read) > 1
    assert {name: look.columns for name, look in layout.analyses.items()} == read


def test_what_a_transform_lacks_is_said_before_a_broker_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = PlanAnalysis(modules=("no_such_package",))
    monkeypatch.setattr(layouts, "analyse_plan", lambda *_: lacking)
    job = _job(_Sink(_Asked(900.0)))
    with pytest.raises(MissingRequirementError, match="pip install no_such_package"):
        lay_out(job)
    assert cast(_Source, job.pipelines[0].source).checked == 0


def test_a_sink_that_refuses_its_check_is_closed() -> None:
    asked = _Asked(None, error=UnreachableError("nobody answers", {}, "Wait."))
    with pytest.raises(UnreachableError, match="nobody answers"):
        lay_out(_job(_Sink(asked)))
    assert asked.closed == 1


def _source(options: Mapping[str, str] | None = None, **more: object) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers="broker:9092",
        topics=["in"],
        options=options or {},
        **more,  # type: ignore[arg-type]
    )


def _region(name: str = "main", **changes: object) -> Region:
    sink = KafkaSink(bootstrap_servers="broker:9092", topic="out", transactional_id_prefix="p")
    step = Step(kind="map_batches", name="f", uid=None, function=identity)
    region = Region(
        name=name,
        pipeline=Pipeline(_source(), steps=[step], sinks=[sink]),
        source_id="source",
        sinks={"sink": sink},
        stateful=False,
        step_ids=("f",),
    )
    return replace(region, **changes)  # type: ignore[arg-type]


def _reading(source: object) -> Region:
    return _region(pipeline=Pipeline(source, steps=[], sinks=[]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Case:
    region: Region
    named: str


_TRANSFORM = Step(kind="transform", name="t", uid=None, function=lambda frame: frame)


@pytest.mark.parametrize(
    "case",
    [
        _Case(_region(pipeline=Pipeline(_source(), steps=[_TRANSFORM])), "transform"),
        _Case(_reading(StubSource()), "orders"),
        _Case(_reading(_source({"maxOffsetsPerTrigger": "10"})), "maxOffsetsPerTrigger"),
        _Case(_reading(_source({"minOffsetsPerTrigger": "10"})), "minOffsetsPerTrigger"),
        _Case(_reading(_source(rate_limit=PidRateLimit())), "rate_limit"),
        _Case(_region(sinks={"sink": StubSink(name="files")}), "files"),
    ],
    ids=lambda case: case.named,
)
def test_what_hinders_a_region_is_named(case: _Case) -> None:
    """And asking for the continuous engine is refused with it; auto takes the other one."""
    assert case.named in (hindrance_of(case.region, interval_s=1.0, is_approximate=False) or "")
    with pytest.raises(ConfigError, match=case.named):
        choose_engine(Engine.CONTINUOUS, [case.region], slots=4, hindrance=_HINDRANCE)
    assert choose_engine(Engine.AUTO, [case.region], slots=4, hindrance=_HINDRANCE) == frozenset()


def test_approximate_recovery_is_of_micro_batches() -> None:
    """It drops what a second attempt of a task would read, and here there is none."""
    assert hindrance_of(_region(), interval_s=1.0, is_approximate=False) is None
    assert hindrance_of(_region(), interval_s=1.0, is_approximate=True) == "recovery='approximate'"


def test_an_interval_that_outlives_a_transaction_is_refused() -> None:
    """An epoch is open from one barrier to the next, and until it is decided."""
    sink = KafkaSink(
        bootstrap_servers="broker:9092",
        topic="out",
        transactional_id_prefix="p",
        transaction_timeout_s=900.0,
    )
    own = _region(sinks={"sink": sink})
    found = hindrance_of(own, interval_s=400.0, is_approximate=False)
    assert found is not None
    assert "interval above 300 s" in found
    assert hindrance_of(own, interval_s=200.0, is_approximate=False) is None
    assert hindrance_of(_region(), interval_s=400.0, is_approximate=False) is None


def test_a_sink_whose_cluster_allows_no_continuous_tasks_hinders_its_region() -> None:
    found = hindrance_of(
        _region(), interval_s=1.0, is_approximate=False, refused={"sink": "its brokers"}
    )
    assert found == "its brokers"


def test_continuous_order_no_region_waits_for_a_core_for_ever() -> None:
    regions = [_region(name) for name in ("a", "b", "c")]
    names = frozenset({"a", "b", "c"})
    assert choose_engine(Engine.AUTO, regions, slots=3, hindrance=_HINDRANCE) == names
    assert choose_engine(Engine.AUTO, regions, slots=2, hindrance=_HINDRANCE) == frozenset()
    with pytest.raises(ConfigError, match="too few"):
        choose_engine(Engine.CONTINUOUS, regions, slots=2, hindrance=_HINDRANCE)


def test_other_regions_of_the_job_keep_a_core() -> None:
    other = _region("t", pipeline=Pipeline(_source(), steps=[_TRANSFORM]))
    regions = [_region("a"), _region("b"), other]
    suited = frozenset({"a", "b"})
    assert choose_engine(Engine.AUTO, regions, slots=3, hindrance=_HINDRANCE) == suited
    assert choose_engine(Engine.AUTO, regions, slots=2, hindrance=_HINDRANCE) == frozenset()
    assert choose_engine(Engine.MICRO_BATCH, regions, slots=9, hindrance=_HINDRANCE) == frozenset()


@pytest.mark.parametrize(
    ("partitions", "slots", "parts"),
    [
        ([4], 2, (2,)),  # a task for each core
        ([4], 16, (4,)),  # and none without a partition
        ([1], 8, (1,)),
        ([0], 8, (1,)),  # a pattern that names nothing yet
        ([4, 4], 1, (1, 1)),  # choose_engine has refused that, or taken micro-batches
        ([12, 4], 4, (3, 1)),
        ([12, 4], 8, (6, 2)),
        ([2, 30], 100, (2, 30)),
    ],
)
def test_as_many_regions_as_there_are_cores_and_partitions_for(
    partitions: list[int], slots: int, parts: tuple[int, ...]
) -> None:
    assert choose_parts(partitions, slots=slots) == parts
