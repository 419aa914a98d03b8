"""Distributions, the checks of a job graph, and regions of jobs as people write them."""

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.distribution import Distribution, choose_distribution
from sluice.runtime.graph.failover_regions import failover_regions, region_name
from sluice.runtime.graph.graph_model import Edge, JobGraph, Vertex


def vertex(name: str, parallelism: int | None, kind: str = "any") -> Vertex:
    return Vertex(vertex_id=name, name=name, kind=kind, parallelism=parallelism)


def edge(upstream: str, downstream: str, kind: Distribution = Distribution.FORWARD) -> Edge:
    return Edge(upstream=upstream, downstream=downstream, distribution=kind)


def regions(graph: JobGraph) -> dict[str, list[str]]:
    return {
        region.name: [f"{each.vertex_id}[{each.index}]" for each in region.subtasks]
        for region in failover_regions(graph)
    }


@pytest.mark.parametrize(
    ("upstream", "downstream", "default", "forced"),
    [
        (4, 4, Distribution.FORWARD, Distribution.FORWARD),
        (2, 6, Distribution.RESCALE, Distribution.RESCALE),
        (6, 2, Distribution.RESCALE, Distribution.RESCALE),
        (2, 3, Distribution.REBALANCE, Distribution.RESCALE),
        (9, 6, Distribution.REBALANCE, Distribution.RESCALE),
    ],
)
def test_rows_as_they_come_are_rescaled_where_all_subtasks_are_alike(
    upstream: int, downstream: int, default: Distribution, forced: Distribution
) -> None:
    """Uneven numbers are rebalanced, which joins them, unless the user forces a rescale."""
    where = {"edge": "a to b"}
    assert choose_distribution(upstream, downstream, where=where) is default
    assert choose_distribution(upstream, downstream, force_rescale=True, where=where) is forced


def test_a_shuffle_is_kept_unless_a_rescale_is_forced() -> None:
    """Spark's planner may need all rows: that none has to meet another is the user's word."""
    wanted = Distribution.SHUFFLE
    assert choose_distribution(4, 4, wanted=wanted, where={}) is Distribution.SHUFFLE
    forced = choose_distribution(4, 4, wanted=wanted, force_rescale=True, where={})
    assert forced is Distribution.RESCALE


def test_a_rescale_by_key_is_refused_by_name() -> None:
    """The rows of one key would be counted in several places."""
    where = {"function": "totals"}
    assert choose_distribution(4, 4, wanted=Distribution.KEY_BY, where=where).joins
    with pytest.raises(ConfigError, match="function=totals"):
        choose_distribution(
            4, 4, wanted=Distribution.KEY_BY, force_rescale=True, where={"function": "totals"}
        )


def test_what_spark_deals_out_counts_as_one_subtask() -> None:
    """A shuffle into it joins every part of the source; one after it goes with it."""
    graph = JobGraph(
        vertices=(vertex("orders", 3), vertex("totals", None), vertex("out", None)),
        edges=(edge("orders", "totals", Distribution.SHUFFLE), edge("totals", "out")),
    )
    assert [*regions(graph)] == ["orders"]


@pytest.mark.parametrize("names", [("a b", "a/b"), ("a", "a-1")])
def test_two_regions_of_one_name_are_refused(names: tuple[str, str]) -> None:
    """A region's name is part of transactional ids: a shared one would fence the other."""
    first, second = names
    graph = JobGraph(vertices=(vertex(first, 2 if second == "a-1" else 1), vertex(second, 1)))
    with pytest.raises(ConfigError, match="one name"):
        failover_regions(graph)


def test_a_source_of_many_topics_has_a_region_that_can_name_a_directory() -> None:
    """Sources that differ in their last topic alone have different ones."""
    topics = [f"shop.orders.eu-west-{number:02d}" for number in range(20)]
    names = {region_name(",".join(topics[:count])) for count in (18, 19, 20)}
    assert len(names) == 3
    assert all(len(f"{name}-99") < 255 for name in names)
    assert all(name.startswith("shop-orders-eu-west-00-") for name in names)
    assert region_name("orders, more") == "orders-more"
