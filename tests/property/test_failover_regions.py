"""Regions are the connected parts of a job graph; rescales make as many of them as can be."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.graph.distribution import Distribution, choose_distribution, rescale_channels
from sluice.runtime.graph.failover_regions import failover_regions
from sluice.runtime.graph.graph_model import Edge, JobGraph, Subtask, Vertex
from tests.kit.effort import examples

Channel = tuple[Subtask, Subtask]
JOINING = [Distribution.REBALANCE, Distribution.KEY_BY, Distribution.SHUFFLE]


@st.composite
def graphs(draw: st.DrawFn, prefix: str = "") -> JobGraph:
    """Any graph: several sources and sinks, vertices that stand alone, every distribution."""
    vertices: list[Vertex] = []
    edges: list[Edge] = []
    for number in range(draw(st.integers(1, 6))):
        name = f"{prefix}{'abcdef'[number]}"
        vertex = Vertex(vertex_id=name, name=name, kind="any", parallelism=draw(st.integers(1, 5)))
        fed_by = draw(st.lists(st.sampled_from(vertices), unique=True)) if vertices else []
        for upstream in fed_by:
            choices = [Distribution.RESCALE, Distribution.RESCALE, *JOINING]
            if upstream.parallelism == vertex.parallelism:
                choices += [Distribution.FORWARD] * 4
            edges.append(
                Edge(
                    upstream=upstream.vertex_id,
                    downstream=name,
                    distribution=draw(st.sampled_from(choices)),
                )
            )
        vertices.append(vertex)
    return JobGraph(vertices=tuple(vertices), edges=tuple(edges))


def subtasks_of(vertex: Vertex) -> list[Subtask]:
    return [Subtask(vertex.vertex_id, index) for index in range(vertex.subtask_count)]


def channels(graph: JobGraph) -> Iterator[Channel]:
    """Every channel, one by one, as a network would have them."""
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for edge in graph.edges:
        upstream = subtasks_of(vertices[edge.upstream])
        downstream = subtasks_of(vertices[edge.downstream])
        if edge.distribution is Distribution.FORWARD:
            yield from zip(upstream, downstream, strict=True)
        elif edge.distribution is Distribution.RESCALE:
            for at, targets in enumerate(rescale_channels(len(upstream), len(downstream))):
                yield from ((upstream[at], downstream[target]) for target in targets)
        else:
            yield from product(upstream, downstream)


def reached(subtask: Subtask, pairs: Iterable[Channel]) -> frozenset[Subtask]:
    """Everything that is connected to a subtask, by walking the channels both ways."""
    neighbours: dict[Subtask, set[Subtask]] = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    found, to_visit = {subtask}, [subtask]
    while to_visit:
        new = neighbours.get(to_visit.pop(), set()) - found
        found |= new
        to_visit += new
    return frozenset(found)


def parts_of(graph: JobGraph) -> set[frozenset[Subtask]]:
    return {frozenset(region.subtasks) for region in failover_regions(graph)}


def total_of(graph: JobGraph) -> list[Subtask]:
    return [subtask for vertex in graph.vertices for subtask in subtasks_of(vertex)]


@given(graphs())
def test_every_subtask_is_in_exactly_one_region(graph: JobGraph) -> None:
    """None is forgotten, none would be restarted twice, and no region is empty."""
    regions = failover_regions(graph)
    placed = [subtask for region in regions for subtask in region.subtasks]
    assert len(placed) == len(set(placed))
    assert set(placed) == set(total_of(graph))
    assert all(region.subtasks for region in regions)


@given(graphs())
def test_two_subtasks_share_a_region_if_and_only_if_they_are_connected(graph: JobGraph) -> None:
    pairs = list(channels(graph))
    assert parts_of(graph) == {reached(subtask, pairs) for subtask in total_of(graph)}


@given(graphs("x"), graphs("y"))
def test_a_shuffle_in_one_part_leaves_the_others_regional(one: JobGraph, other: JobGraph) -> None:
    both = JobGraph(vertices=one.vertices + other.vertices, edges=one.edges + other.edges)
    assert parts_of(both) == parts_of(one) | parts_of(other)
    shuffled = replace(
        one, edges=tuple(replace(edge, distribution=Distribution.SHUFFLE) for edge in one.edges)
    )
    worse = JobGraph(vertices=one.vertices + other.vertices, edges=shuffled.edges + other.edges)
    assert parts_of(worse) == parts_of(shuffled) | parts_of(other)


@given(graphs())
def test_order_and_names_of_regions_are_stable(graph: JobGraph) -> None:
    """By their first subtasks; named after a source; the same however often it is asked, and the
    same again with a sink after every vertex."""
    regions = failover_regions(graph)
    names = [region.name for region in regions]
    assert len(set(names)) == len(names)
    order = total_of(graph)
    assert [region.subtasks[0] for region in regions] == sorted(
        (region.subtasks[0] for region in regions), key=order.index
    )
    sources = {v.vertex_id for v in graph.vertices} - {edge.downstream for edge in graph.edges}
    assert {region.subtasks[0].vertex_id for region in regions} <= sources
    assert failover_regions(graph) == regions
    sinks = [replace(v, vertex_id=f"{v.vertex_id}!", name="sink") for v in graph.vertices]
    to_sinks = [
        Edge(
            upstream=vertex.vertex_id, downstream=sink.vertex_id, distribution=Distribution.FORWARD
        )
        for vertex, sink in zip(graph.vertices, sinks, strict=True)
    ]
    grown = JobGraph(vertices=graph.vertices + tuple(sinks), edges=(*graph.edges, *to_sinks))
    assert [region.name for region in failover_regions(grown)] == names


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_rescale_has_the_most_regions_and_a_skew_of_one_channel_at_most(p: int, q: int) -> None:
    sent = rescale_channels(p, q)
    received = [sum(target in targets for targets in sent) for target in range(q)]
    for side in ([len(targets) for targets in sent], received):
        assert min(side) >= 1
        assert max(side) - min(side) <= 1
    assert len(sent) == p
    assert all(0 <= target < q for targets in sent for target in targets)
    assert len(parts_of(two_vertices(p, q, Distribution.RESCALE))) == min(p, q)


@pytest.mark.parametrize(
    ("p", "q"), [(p, q) for p in range(1, 7) for q in range(1, 7) if p * q <= 12]
)
def test_no_other_distribution_has_more_regions(p: int, q: int) -> None:
    """Against all graphs of p and q subtasks; without any skew the most is the gcd, and the default
    rescales where that is as much."""
    most = {0: 0, 1: 0}
    for chosen in range(1, 2 ** (p * q)):
        bits = [(chosen >> at) & 1 for at in range(p * q)]
        rows = [bits[at * q : (at + 1) * q] for at in range(p)]
        degrees = [[sum(row) for row in rows], [sum(column) for column in zip(*rows, strict=True)]]
        if min(map(min, degrees)) < 1:
            continue
        skew = max(max(side) - min(side) for side in degrees)
        if skew <= 1:
            count = components(rows)
            most = {allowed: max(m, count) if skew <= allowed else m for allowed, m in most.items()}
    assert most == {0: math.gcd(p, q), 1: min(p, q)}
    default = choose_distribution(p, q, where={})
    assert (default is not Distribution.REBALANCE) == (most[0] == most[1])


def components(rows: list[list[int]]) -> int:
    """Connected parts of a graph in which every row and column has a channel."""
    masks = [sum(bit << at for at, bit in enumerate(row)) for row in rows]
    parts: list[int] = []
    for mask in masks:
        touched = [part for part in parts if part & mask]
        parts = [part for part in parts if not part & mask]
        parts.append(mask | sum(touched))  # they are disjoint
    return len({*parts})


def two_vertices(p: int, q: int, distribution: Distribution) -> JobGraph:
    return JobGraph(
        vertices=(
            Vertex(vertex_id="p", name="p", kind="source", parallelism=p),
            Vertex(vertex_id="q", name="q", kind="sink", parallelism=q),
        ),
        edges=(Edge(upstream="p", downstream="q", distribution=distribution),),
    )


@settings(max_examples=examples(50))
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(JOINING))
def test_a_joining_edge_makes_one_region(p: int, q: int, distribution: Distribution) -> None:
    assert len(parts_of(two_vertices(p, q, distribution))) == 1
