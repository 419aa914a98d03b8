"""The graph of a job as a value: vertices with their subtasks, and edges. Pure."""

from dataclasses import dataclass

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.distribution import Distribution

__all__ = ["Edge", "JobGraph", "Subtask", "Vertex"]


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
    """

    vertex_id: str
    name: str
    kind: str
    parallelism: int | None = 1

    def __post_init__(self) -> None:
        if self.parallelism is not None and self.parallelism < 1:
            raise ConfigError(
                "parallelism of an operator is below 1",
                {"operator": self.name, "parallelism": self.parallelism},
                "Use 1 or more.",
            )

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
    """Vertices, upstream ones first, and the edges between them.

    Raises:
        ConfigError: two vertices have one id; an edge does not lead from an earlier to a later
            vertex; or the ends of a forward edge have different numbers of subtasks.
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        positions = {vertex.vertex_id: at for at, vertex in enumerate(self.vertices)}
        if len(positions) != len(self.vertices):
            raise ConfigError(
                "a job graph has two operators of one id",
                {"operators": ", ".join(f"{v.name!r} ({v.vertex_id})" for v in self.vertices)},
                "Use a different id for each.",
            )
        for edge in self.edges:
            self._check(edge, positions)

    def _check(self, edge: Edge, positions: dict[str, int]) -> None:
        where = {"upstream": edge.upstream, "downstream": edge.downstream}
        if not -1 < positions.get(edge.upstream, -1) < positions.get(edge.downstream, -1):
            raise ConfigError(
                "an edge must lead from an earlier operator to a later one",
                where,
                "Use ids of the graph, and put upstream operators first.",
            )
        ends = [self.vertices[positions[each]] for each in where.values()]
        numbers = [vertex.subtask_count for vertex in ends]
        if edge.distribution is Distribution.FORWARD and len(set(numbers)) > 1:
            raise ConfigError(
                "a forward edge has different numbers of subtasks at its ends",
                {vertex.name: number for vertex, number in zip(ends, numbers, strict=True)},
                "Use a rescale.",
            )
