"""Which regions run continuously."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pytest

from sluice import KafkaSink, KafkaSource
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Engine, Pipeline, Step
from sluice.runtime.job.job import Job
from sluice.runtime.model.rate_limit import PidRateLimit
from sluice.runtime.spark.run.engine_choice import choose_engine, choose_parts, hindrance_of
from tests.unit.runtime.job.test_job_pieces import StubSink, StubSource, identity

_HINDRANCE = partial(hindrance_of, interval_s=1.0, is_approximate=False)


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
    """An epoch is open from one barrier to the next, and until it is decided. Where the sink has no
    timeout of its own, its brokers are asked for theirs."""
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
    """As its check has told."""
    found = hindrance_of(
        _region(), interval_s=1.0, is_approximate=False, refused={"sink": "its brokers"}
    )
    assert found == "its brokers"


def test_continuous_order_no_region_waits_for_a_core_for_ever() -> None:
    """With fewer cores than regions no checkpoint would ever be complete."""
    regions = [_region(name) for name in ("a", "b", "c")]
    names = frozenset({"a", "b", "c"})
    assert choose_engine(Engine.AUTO, regions, slots=3, hindrance=_HINDRANCE) == names
    assert choose_engine(Engine.AUTO, regions, slots=2, hindrance=_HINDRANCE) == frozenset()
    with pytest.raises(ConfigError, match="too few"):
        choose_engine(Engine.CONTINUOUS, regions, slots=2, hindrance=_HINDRANCE)


def test_other_regions_of_the_job_keep_a_core() -> None:
    """A transform's batches need one, too."""
    other = _region("t", pipeline=Pipeline(_source(), steps=[_TRANSFORM]))
    regions = [_region("a"), _region("b"), other]
    suited = frozenset({"a", "b"})
    assert choose_engine(Engine.AUTO, regions, slots=3, hindrance=_HINDRANCE) == suited
    assert choose_engine(Engine.AUTO, regions, slots=2, hindrance=_HINDRANCE) == frozenset()
    assert choose_engine(Engine.MICRO_BATCH, regions, slots=9, hindrance=_HINDRANCE) == frozenset()


def test_an_engine_that_does_not_exist_is_refused_by_name() -> None:
    """With those that do."""
    with pytest.raises(ConfigError, match="auto, micro-batch, continuous"):
        Job("j", None, checkpoint_dir="d", engine="flink")  # type: ignore[arg-type]


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
    """Where nobody has said how many, no region is without a partition or a core."""
    assert choose_parts(partitions, slots=slots) == parts
