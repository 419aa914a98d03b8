"""From a job's operators, as its checkpoints record them, to the graph of its regions. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from sluice.runtime.graph.distribution import Distribution, choose_distribution
from sluice.runtime.graph.graph_model import Edge, JobGraph, Vertex
from sluice.runtime.model.checkpoint_record import OperatorNode

__all__ = ["graph_of_operators", "spread"]

_BY_SPARK = 0  # in an operator node, whose format in the checkpoints is frozen


def spread(
    nodes: Sequence[OperatorNode],
    parts: Mapping[str, int],
    *,
    rescaled: AbstractSet[str] = frozenset(),
) -> tuple[OperatorNode, ...]:
    """The operators with their parallelism.

    A source has ``parts[its id]`` subtasks, and so have the operators after it, up to a transform:
    Spark schedules the tasks of a transform and of everything after it. ``rescaled`` has the ids of
    transforms that run in parts nevertheless.
    """
    known: dict[str, int] = {}
    for node in nodes:
        if node.kind == "transform" and node.operator_id not in rescaled:
            known[node.operator_id] = _BY_SPARK
        else:
            fed = [known.get(each, _BY_SPARK) for each in node.upstream]
            known[node.operator_id] = max(fed, default=parts.get(node.operator_id, _BY_SPARK))
    return tuple(replace(node, parallelism=known[node.operator_id]) for node in nodes)


def graph_of_operators(nodes: Sequence[OperatorNode]) -> JobGraph:
    """The job graph of operators that have their parallelism: see `spread`.

    An edge into a transform is a shuffle, because Spark may plan one there. If the transform runs
    in parts, the edge is a rescale that the user forced. Other edges have the default distribution.

    Raises:
        ConfigError: as `JobGraph`.
    """
    vertices = tuple(
        Vertex(
            vertex_id=node.operator_id,
            name=node.name,
            kind=node.kind,
            parallelism=None if node.parallelism == _BY_SPARK else node.parallelism,
        )
        for node in nodes
    )
    known = {vertex.vertex_id: vertex for vertex in vertices}
    edges = tuple(
        Edge(
            upstream=upstream,
            downstream=vertex.vertex_id,
            # An unknown id has no subtasks; the graph refuses this edge with its name.
            distribution=_distribution(known.get(upstream, vertex), vertex),
        )
        for node, vertex in zip(nodes, vertices, strict=True)
        for upstream in node.upstream
    )
    return JobGraph(vertices=vertices, edges=edges)


def _distribution(upstream: Vertex, downstream: Vertex) -> Distribution:
    by_spark = downstream.kind == "transform"
    return choose_distribution(
        upstream.subtask_count,
        downstream.subtask_count,
        wanted=Distribution.SHUFFLE if by_spark else None,
        force_rescale=by_spark and downstream.parallelism is not None,
        where={"upstream": upstream.name, "downstream": downstream.name},
    )
