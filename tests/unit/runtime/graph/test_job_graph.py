"""The job's graph as users see it, operator ids, and output modes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.distribution import Distribution
from sluice.runtime.graph.graph_view import view_of_record
from sluice.runtime.graph.job_graph import Region, regions_of
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph, operator_id
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.job.job import Job, Stream
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    RegionStatus,
)
from sluice.runtime.spark.frames.region_frames import output_mode
from tests.kit.coordinator.checkpoint_records import record
from tests.unit.runtime.job.test_job_pieces import StubSink, StubSource, identity


def same(frame: DataFrame) -> DataFrame:
    return frame


def two_pipelines() -> list[Pipeline]:
    """A chained copy with two sinks, and a transform."""
    copy, totals = Pipeline(StubSource("orders in")), Pipeline(StubSource("payments"))
    Stream(copy).map_batches(identity, name="clean").sink(StubSink("out")).sink(StubSink("audit"))
    Stream(totals).transform(same, name="totals").sink(StubSink("sums"))
    return [copy, totals]


def job_of(pipelines: Sequence[Pipeline], *, regions: int = 1) -> Job:
    job = Job("j", cast(SparkSession, None), checkpoint_dir="/c", regions=regions)
    for pipeline in pipelines:
        stream = job.source(pipeline.source)
        for step in pipeline.steps:
            if step.kind == "transform":
                stream.transform(same, name=step.name)
            else:
                stream.map_batches(identity, name=step.name)
        for sink in pipeline.sinks:
            stream.sink(sink)
    return job


def recorded(
    graph: tuple[OperatorNode, ...], regions: Sequence[Region], **changed: RegionRecord
) -> CheckpointRecord:
    """A record of a run of these regions; ``changed`` ones by name."""
    records = (
        changed.get(each.name, RegionRecord(region=each.name, attempt_id=1)) for each in regions
    )
    return replace(record(5), graph=graph, regions=tuple(records))


TEXT = """\
Operators
  name       kind         subtasks
  orders in  source       2
  clean      map_batches  2
  out        sink         2
  audit      sink         2
  payments   source       2
  totals     transform    by Spark
  sums       sink         by Spark

Edges
  from       to      distribution
  orders in  clean   forward
  clean      out     forward
  clean      audit   forward
  payments   totals  shuffle
  totals     sums    forward

Regions
  name         subtasks
  orders-in-0  orders in[0] clean[0] out[0] audit[0]
  orders-in-1  orders in[1] clean[1] out[1] audit[1]
  payments     payments[0-1] totals sums"""

MERMAID = """\
flowchart LR
    subgraph r0 ["orders-0 · carried from 4"]
        r0v0(["orders[0]"])
        r0v1[("out[0]")]
        r0v0 -->|forward| r0v1
    end
    subgraph r1 ["orders-1 · completed"]
        r1v0(["orders[1]"])
        r1v1[("out[1]")]
        r1v0 -->|forward| r1v1
    end"""


def test_a_job_shows_its_graph_before_it_runs() -> None:
    """Operators, edges and regions, and nothing of Spark is touched."""
    assert job_of(two_pipelines(), regions=2).graph().text() == TEXT


def test_a_uid_is_recorded_and_shown() -> None:
    """A restore matches operators by it first, and a reader of the graph sees it."""
    pipeline = Pipeline(StubSource(uid="in-1"))
    Stream(pipeline).sink(StubSink())
    graph, regions = regions_of([pipeline], [False])
    assert [node.uid for node in graph] == ["in-1", ""]
    assert "  orders  source  1         in-1" in view_of_record(recorded(graph, regions)).text()


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_what_is_shown_is_what_runs(parts: int) -> None:
    """The regions of the engine, of the description, and of a checkpoint of that run."""
    pipelines = two_pipelines()
    graph, regions = regions_of(pipelines, [False, True], parts=parts)
    assert len(regions) == parts + 1, "a shuffle in one pipeline leaves the other regional"
    shown = job_of(pipelines, regions=parts).graph()
    assert [each.name for each in shown.regions] == [each.name for each in regions]
    told = view_of_record(recorded(graph, regions))
    assert (told.graph, told.regions) == (shown.graph, shown.regions)
    assert {*told.standings.values()} == {"completed"}


def rescaled() -> Pipeline:
    """A transform that the user wants in parts."""
    pipeline = Pipeline(StubSource())
    Stream(pipeline).transform(same, name="filter", force_rescale=True).sink(StubSink())
    return pipeline


def test_a_transform_is_run_in_parts_where_a_rescale_is_forced() -> None:
    """One region by default; with the user's word as many as the job has, also as recorded."""
    graph, regions = regions_of([rescaled()], [False], parts=3)
    assert [each.name for each in regions] == ["orders-0", "orders-1", "orders-2"]
    shown = view_of_record(recorded(graph, regions))
    assert [each.distribution for each in shown.graph.edges] == [
        Distribution.RESCALE,
        Distribution.FORWARD,
    ]
    assert [len(each.subtasks) for each in shown.regions] == [3, 3, 3]


def test_one_transform_that_may_shuffle_joins_the_parts_of_a_rescaled_one() -> None:
    for forced_first in (True, False):
        pipeline = Pipeline(StubSource())
        stream = Stream(pipeline)
        for force in (forced_first, not forced_first):
            stream.transform(same, force_rescale=force)
        stream.sink(StubSink())
        assert len(regions_of([pipeline], [False], parts=3)[1]) == 1


def test_a_rescale_forced_on_state_is_refused() -> None:
    """Counts of one key would be kept in several regions, each of them wrong."""
    with pytest.raises(ConfigError, match=r"by key \[source=orders function=filter"):
        regions_of([rescaled()], [True], parts=3)


def test_operators_are_recorded_with_the_parts_that_they_run_in() -> None:
    """0 is Spark's; it is no part of an operator's id."""
    alone, _ = regions_of(two_pipelines(), [False] * 2)
    spread, _ = regions_of(two_pipelines(), [False] * 2, parts=4)
    assert [node.parallelism for node in alone] == [1, 1, 1, 1, 1, 0, 0]
    assert [node.parallelism for node in spread] == [4, 4, 4, 4, 4, 0, 0]
    assert [node.operator_id for node in alone] == [node.operator_id for node in spread]


def test_a_diagram_frames_each_region_and_reports_how_it_stands() -> None:
    """No edge leaves a frame; a skipped region names the checkpoint that it stands for."""
    pipeline = Pipeline(StubSource(), [], [StubSink()])
    graph, regions = regions_of([pipeline], [False], parts=2)
    late = RegionRecord(region="orders-0", attempt_id=1, status=RegionStatus.SKIPPED, snapshot_id=4)
    assert view_of_record(recorded(graph, regions, **{"orders-0": late})).mermaid() == MERMAID


def test_a_diagram_is_whole_whatever_the_names() -> None:
    pipeline = Pipeline(StubSource('a "b" <i>\n#1'), [], [StubSink("x|y]")])
    shown = job_of([pipeline]).graph().mermaid()
    assert '(["a #34;b#34; #60;i#62; #35;1[0]"])' in shown
    assert '[("x|y][0]")]' in shown


def test_a_record_of_before_the_parallelism_is_shown_by_its_regions() -> None:
    """Older checkpoints have 0 everywhere; their regions' names report the parts."""
    graph, regions = regions_of(two_pipelines(), [False] * 2, parts=3)
    older = tuple(replace(node, parallelism=0) for node in graph)
    found = view_of_record(recorded(older, regions))
    assert [each.name for each in found.regions] == [each.name for each in regions]
    assert [v.parallelism for v in found.graph.vertices] == [3, 3, 3, 3, None, None, None]


def test_a_drop_in_query_is_one_region_of_its_own_name() -> None:
    """Its graph is its sink: Spark has the rest."""
    sink = OperatorNode(operator_id="s", name="out", kind="sink", upstream=())
    region = RegionRecord(region="query", attempt_id=1)
    shown = view_of_record(replace(record(5), graph=(sink,), regions=(region,)))
    assert [(each.name, len(each.subtasks)) for each in shown.regions] == [("query", 1)]


def test_a_job_without_a_source_has_no_graph() -> None:
    with pytest.raises(ConfigError, match="no source"):
        job_of([]).graph()


def test_two_sources_whose_regions_would_share_a_name_are_refused() -> None:
    """Before anything is started, also where only the description is asked for."""
    pipelines = [
        Pipeline(StubSource("a b"), [], [StubSink("x")]),
        Pipeline(StubSource("a/b"), [], [StubSink("y")]),
    ]
    for ask in (lambda: regions_of(pipelines, [False] * 2), job_of(pipelines).graph):
        with pytest.raises(ConfigError, match="one name"):
            ask()


SOURCE = OperatorSpec(kind="source", name="orders")
ENRICH = OperatorSpec(kind="map_batches", name="enrich", upstream=(0,))
SINK = OperatorSpec(kind="sink", name="out", upstream=(1,))

# Golden vectors: a change of any of these orphans the state of every job. Never edit them.
_A = "86ffbfce56ed0318068fe6cb32037cc9"
_B = "97f541801272f79b806a18f034dc32a5"
GOLDEN = {
    ("source", "orders", (), None): _A,
    ("map_batches", "enrich", (_A,), None): _B,
    ("sink", "out", (_B,), None): "9d2cd5c6ad7bb8808099c3c0a955550d",
    ("transform", "join", (_A, _B), None): "3a511d46f3bed9ecb97c720f2e99efd7",
    ("transform", "join", (_B, _A), None): "d590cd3a399ba4598f7ff6cc9dc5d467",
    ("sink", "out", (_B,), "my-sink"): "1b1972d43a70f2722d122f8aa6ab1c69",
    ("source", "Bestellungen ü", (), None): "9015d34809c08346540be82693c1e40b",
}


@pytest.mark.parametrize(("given", "expected"), GOLDEN.items())
def test_operator_ids_are_frozen(
    given: tuple[str, str, tuple[str, ...], str | None], expected: str
) -> None:
    """The rule of version 1 gives these ids in every later Sluice."""
    kind, name, upstream, uid = given
    assert operator_id(kind=kind, name=name, upstream=upstream, uid=uid) == expected


def test_id_is_the_same_whatever_follows() -> None:
    before = build_graph([SOURCE, ENRICH, SINK])
    second_sink = OperatorSpec(kind="sink", name="audit", upstream=(0,))
    after = build_graph([SOURCE, ENRICH, SINK, second_sink])
    assert [node.operator_id for node in after[:3]] == [node.operator_id for node in before]
    assert after[3].upstream == (before[0].operator_id,)


def test_uid_keeps_the_id_through_renaming_and_moving() -> None:
    given = build_graph([SOURCE, replace(ENRICH, uid="e1")])
    moved = build_graph([OperatorSpec(kind="transform", name="new", uid="e1")])
    assert moved[0].operator_id == given[1].operator_id


def test_uid_and_path_never_collide() -> None:
    """A uid that looks like a name is another operator."""
    assert operator_id(kind="sink", name="x", upstream=(), uid="x") != operator_id(
        kind="sink", name="x", upstream=()
    )


def test_equal_uids_are_refused_and_both_named() -> None:
    with pytest.raises(ConfigError, match="same uid 'u'") as refused:
        build_graph([replace(SOURCE, uid="u"), replace(ENRICH, uid="u")])
    assert "map_batches 'enrich' (operator 2)" in str(refused.value)


def test_renaming_a_source_renames_what_it_feeds() -> None:
    """Without a uid the id depends on everything upstream: that is why uids exist."""
    renamed = build_graph([replace(SOURCE, name="orders-2"), ENRICH])
    assert renamed[1].operator_id != build_graph([SOURCE, ENRICH])[1].operator_id


def mode_of(*stated: str | None) -> str:
    pipeline = Pipeline(StubSource())
    stream = Stream(pipeline)
    for mode in stated:
        stream.transform(same, output_mode=mode)
    return output_mode(pipeline)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([], "update"),
        ([None], "update"),
        (["complete"], "complete"),
        (["complete", None], "complete"),
        ([None, "append"], "append"),
        (["append", None, "Append"], "append"),
    ],
)
def test_the_mode_that_any_transform_states_is_the_querys(
    stated: list[str | None], expected: str
) -> None:
    assert mode_of(*stated) == expected


def test_transforms_that_state_different_modes_are_refused_where_they_are_written() -> None:
    """Running in either one's mode would give the other's rows wrong, without a word."""
    stream = Stream(Pipeline(StubSource()))
    stream.transform(same, name="counts", output_mode="complete").transform(same)
    with pytest.raises(ConfigError, match="counts: complete, tops: update") as refused:
        stream.transform(same, name="tops", output_mode="update")
    assert "another pipeline" in str(refused.value)


@pytest.mark.parametrize("given", ["upsert", "", 5])
def test_a_mode_that_does_not_exist_is_refused(given: Any) -> None:
    """Spark would say so when the query starts."""
    match = f"output_mode={given} known=append, update, complete"
    with pytest.raises(ConfigError, match=match):
        mode_of(given)
