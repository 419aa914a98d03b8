"""The graph of a job as a value, and how it follows from the operators on record. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from sluice.runtime.graph.distribution import Distribution, choose_distribution
from sluice.runtime.model.checkpoint_record import OperatorNode

__all__ = ["Edge", "JobGraph", "Subtask", "Vertex", "graph_of_operators", "spread"]

_BY_SPARK = 0  # in an operator node, whose format in the checkpoints is frozen


@dataclass(frozen=True, slots=True)
class Subtask:
    """One parallel part of a vertex; ``index`` >= 0."""

    vertex_id: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A source, a function or a sink.

    Attributes:
        vertex_id: unique in the graph; an operator id.
        name: for display; a region is named after its first source.
        kind: ``source``, ``map_batches``, ``transform``, ``sink``.
        parallelism: subtasks, >= 1; None: Spark schedules its tasks in every batch, so it counts
            as a single one.
        uid: the user's stable id, "" without one.
    """

    vertex_id: str
    name: str
    kind: str
    parallelism: int | None = 1
    uid: str = ""

    @property
    def subtask_count(self) -> int:
        """How many parts of it can fail separately; >= 1."""
        return self.parallelism or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Rows go from one vertex to another.

    Attributes:
        upstream, downstream: vertex ids.
        distribution: which subtasks it connects.
    """

    upstream: str
    downstream: str
    distribution: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraph:
    """Vertices, upstream ones first, and the edges between them."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...] = ()


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
    """
    vertices = tuple(
        Vertex(
            vertex_id=node.operator_id,
            name=node.name,
            kind=node.kind,
            parallelism=None if node.parallelism == _BY_SPARK else node.parallelism,
            uid=node.uid,
        )
        for node in nodes
    )
    known = {vertex.vertex_id: vertex for vertex in vertices}
    edges = tuple(
        Edge(
            upstream=upstream,
            downstream=vertex.vertex_id,
            distribution=_distribution(known[upstream], vertex),
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
